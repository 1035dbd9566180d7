#include "driver/assemble.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <unordered_map>

#include "driver/memory.h"
#include "kernel/footprint.h"
#include "runtime/memory_plan.h"
#include "support/hash.h"

namespace heddle::driver {
namespace {

using prim::NodeId;
using runtime::Slot;

/// Constants of a program, each content once.
class ConstantPool {
 public:
  explicit ConstantPool(std::vector<Tensor>& constants) : constants_(constants) {}
  Slot add(const Tensor& tensor) {
    const auto [entry, fresh] =
        index_.try_emplace(hash_bytes(tensor.view()), static_cast<std::int64_t>(constants_.size()));
    if (fresh) constants_.push_back(tensor);
    return {Slot::Kind::constant, entry->second};
  }

 private:
  std::vector<Tensor>& constants_;
  std::unordered_map<Hash, std::int64_t> index_;
};

/// Parts of a phase's tasks that are told apart: at least so many, and several for each thread.
constexpr std::int64_t kShares = 32, kSharesOfThread = 4;
constexpr std::int64_t kBlockShares = 264;  ///< the same for blocks of a GPU
/// Values up to this size never share memory in a monolith, as long as all of them fit here.
constexpr std::int64_t kSmall = 16 << 10, kSmallTogether = 1 << 20;
/// What an arena may grow by, in bytes and as a share, so that kernels which could run side by side
/// do not wait for each other's memory.
constexpr std::int64_t kApart = 1 << 20;
constexpr double kApartShare = 0.25;

/// Says of each phase what it touches. Kernels whose phases are one launch (resident blocks) stay
/// without: everything.
void add_touches(const CompiledKernel& kernel, int threads, runtime::Launch& launch) {
  const std::int64_t of_threads = std::max(kShares, kSharesOfThread * threads);
  const kernel::Kernel& k = kernel.lowered.kernel;
  std::vector<const kernel::For*> loops;
  for (const kernel::Stmt& s : k.body)
    if (const auto* loop = std::get_if<kernel::For>(&s.op)) loops.push_back(loop);
  if (loops.size() != launch.phases.size()) return;
  std::vector<int> arg_of;  // by buffer
  int local = k.arguments();
  for (const kernel::Buffer& b : k.buffers) {
    const bool is_local = b.scope == kernel::Scope::grid && b.argument < 0;
    arg_of.push_back(is_local ? local++ : b.argument);
  }
  for (std::size_t p = 0; p < loops.size(); ++p)
    for (const kernel::Touch& t : kernel::touches_of(
             k, *loops[p], launch.phases[p].grid.function >= 0 ? kBlockShares : of_threads)) {
      const int arg = arg_of[static_cast<std::size_t>(t.buffer.value)];
      const Slot::Kind kind = launch.args[static_cast<std::size_t>(arg)].kind;
      // Of constants it is what a GPU's blocks ask for in time.
      if (kind != Slot::Kind::arena && kind != Slot::Kind::output &&
          (kind != Slot::Kind::constant || launch.phases[p].grid.function < 0))
        continue;
      const std::int64_t width = size_of(k.buffers[t.buffer].dtype);
      runtime::Touch& touch = launch.phases[p].touches.emplace_back();
      touch.arg = arg, touch.write = t.write;
      for (const ir::Interval& share : t.shares)
        touch.shares.emplace_back(share.low * width, (share.high + 1) * width);
    }
}

/// Where every value lives: graph inputs and outputs in the caller's memory, the rest in the arena.
class Assembler {
 public:
  Assembler(const prim::Graph& graph, const std::vector<CompiledKernel>& kernels)
      : graph_(graph), kernels_(kernels), constants_(program_.constants) {}

  runtime::Program run(std::vector<std::string> objects, int threads, Layout layout) {
    const bool monolith = layout != Layout::kernels;
    add_ports();
    blocks_ = blocks_of(graph_, kernels_);
    if (layout == Layout::monolith) keep_small_values();
    const runtime::MemoryPlan memory =
        layout == Layout::monolith ? plan_side_by_side() : runtime::plan_memory(blocks_.lifetimes);
    program_.arena_bytes = memory.bytes;
    for (std::size_t k = 0; k < kernels_.size(); ++k) add_launch(k, memory);
    for (std::size_t k = 0; monolith && k < kernels_.size(); ++k)
      add_touches(kernels_[k], threads, program_.launches[k]);
    check_outputs();
    if (!kernels_.empty()) program_.persistent = kernels_.front().code.persistent;
    program_.objects = std::move(objects);
    program_.threads = threads;
    return std::move(program_);
  }

 private:
  void add_ports() {
    for (const prim::GraphInput& input : graph_.inputs)
      program_.inputs.push_back({input.name, input.type});
    for (const prim::GraphOutput& output : graph_.outputs) {
      output_of_.try_emplace(output.node, static_cast<std::int64_t>(program_.outputs.size()));
      program_.outputs.push_back({output.name, graph_[output.node].type});
    }
  }

  /// By kernel: those that data has run before it.
  std::vector<std::vector<bool>> order_of_data() const {
    std::vector<std::vector<bool>> before(kernels_.size(), std::vector<bool>(kernels_.size()));
    std::unordered_map<NodeId, std::vector<std::size_t>> writers;
    for (std::size_t k = 0; k < kernels_.size(); ++k) {
      const auto memory_of = [&](NodeId node) {
        const auto placed = kernels_[k].placed.find(node);
        return placed != kernels_[k].placed.end() ? placed->second.root : node;
      };
      const auto& made = kernels_[k].planned.cluster.outputs;
      for (const lower::Argument& argument : kernels_[k].lowered.arguments) {
        const auto found = writers.find(memory_of(argument.node));
        if (argument.kind != lower::Argument::Kind::value || found == writers.end() ||
            std::ranges::find(made, argument.node) != made.end())
          continue;
        for (const std::size_t earlier : found->second) {
          if (before[k][earlier]) continue;
          before[k][earlier] = true;
          for (std::size_t b = 0; b < earlier; ++b)
            if (before[earlier][b]) before[k][b] = true;
        }
      }
      for (const NodeId node : made) writers[memory_of(node)].push_back(k);
    }
    return before;
  }

  /// Memory is used again where data has the kernels run one after another anyway, if that does not
  /// take much more of it.
  runtime::MemoryPlan plan_side_by_side() const {
    const auto before = order_of_data();
    std::vector<std::vector<std::size_t>> users(blocks_.lifetimes.size());
    for (std::size_t k = 0; k < kernels_.size(); ++k) {
      for (const auto& [node, block] : blocks_.of[k]) users[block].push_back(k);
      for (std::size_t l = 0; l < kernels_[k].code.local_bytes.size(); ++l)
        users[blocks_.first_local[k] + l].push_back(k);
    }
    const auto behind_all = [&](std::size_t k, const std::vector<std::size_t>& earlier) {
      return std::ranges::all_of(earlier, [&](std::size_t e) { return before[k][e]; });
    };
    runtime::MemoryPlan apart =
        runtime::plan_memory(blocks_.lifetimes, [&](std::size_t earlier, std::size_t later) {
          return std::ranges::all_of(users[later],
                                     [&](std::size_t k) { return behind_all(k, users[earlier]); });
        });
    runtime::MemoryPlan dense = runtime::plan_memory(blocks_.lifetimes);
    const auto most = static_cast<double>(dense.bytes) * (1 + kApartShare);
    return static_cast<double>(apart.bytes) <= most + kApart ? std::move(apart) : std::move(dense);
  }

  void keep_small_values() {
    std::vector<runtime::Lifetime>& lifetimes = blocks_.lifetimes;
    std::vector<std::size_t> order(lifetimes.size());
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, {}, [&](std::size_t i) { return lifetimes[i].bytes; });
    std::int64_t together = 0;
    for (const std::size_t i : order) {
      together += lifetimes[i].bytes;
      if (lifetimes[i].bytes > kSmall || together > kSmallTogether) return;
      lifetimes[i].first = 0;
      lifetimes[i].last = static_cast<int>(kernels_.size());
    }
  }

  Slot slot_of(std::size_t k, const lower::Argument& argument, const runtime::MemoryPlan& memory) {
    if (argument.kind == lower::Argument::Kind::packed) return constants_.add(argument.packed);
    if (const Tensor* constant = graph_.constant_of(argument.node))
      return constants_.add(*constant);
    if (const auto output = output_of_.find(argument.node); output != output_of_.end())
      if (!std::holds_alternative<prim::Input>(graph_[argument.node].op))
        return {Slot::Kind::output, output->second};
    if (const auto* input = std::get_if<prim::Input>(&graph_[argument.node].op))
      return {Slot::Kind::input, input->slot};
    const auto block = blocks_.of[k].find(argument.node);
    HEDDLE_CHECK(block != blocks_.of[k].end(), "kernel reads %{} before it is computed",
                 argument.node.value);
    std::int64_t offset = memory.offsets[block->second];
    const auto& placed = kernels_[k].placed;
    if (const auto place = placed.find(argument.node); place != placed.end())
      offset += place->second.first * size_of(graph_[argument.node].type.dtype);
    return {Slot::Kind::arena, offset};
  }

  void add_launch(std::size_t k, const runtime::MemoryPlan& memory) {
    const CompiledKernel& kernel = kernels_[k];
    runtime::Launch launch{kernel.lowered.kernel.name, {}, {}};
    for (const lower::Argument& argument : kernel.lowered.arguments)
      launch.args.push_back(slot_of(k, argument, memory));
    for (std::size_t i = 0; i < kernel.code.local_bytes.size(); ++i)
      launch.args.push_back({Slot::Kind::arena, memory.offsets[blocks_.first_local[k] + i]});
    launch.phases = kernel.code.phases;
    launch.seconds = 1e-6 * kernel.planned.cost.us;
    launch.product = kernel.lowered.library;
    launch.unit = kernel.code.unit;
    program_.scratch_bytes = std::max(program_.scratch_bytes, kernel.code.scratch_bytes);
    program_.launches.push_back(std::move(launch));
  }

  /// Nothing is given back that no kernel wrote.
  void check_outputs() const {
    std::set<std::int64_t> written;
    for (const CompiledKernel& kernel : kernels_)
      for (NodeId node : kernel.planned.cluster.outputs)
        if (const auto output = output_of_.find(node); output != output_of_.end())
          written.insert(output->second);
    for (std::size_t i = 0; i < program_.outputs.size(); ++i)
      HEDDLE_CHECK(written.contains(static_cast<std::int64_t>(i)), "no kernel writes output '{}'",
                   program_.outputs[i].name);
  }

  const prim::Graph& graph_;
  const std::vector<CompiledKernel>& kernels_;
  runtime::Program program_;
  ConstantPool constants_;
  std::unordered_map<NodeId, std::int64_t> output_of_;
  Blocks blocks_;
};

}  // namespace

runtime::Program assemble(const prim::Graph& graph, const std::vector<CompiledKernel>& kernels,
                          std::vector<std::string> objects, int threads, const std::string& device,
                          Layout layout) {
  runtime::Program program = Assembler(graph, kernels).run(std::move(objects), threads, layout);
  program.device = device;
  return program;
}

SingleKernel single_kernel(const prim::Graph& graph, const CompiledKernel& kernel,
                           std::vector<std::string> objects, const std::string& device) {
  SingleKernel single;
  runtime::Program& p = single.program;
  ConstantPool constants(p.constants);
  runtime::Launch launch{kernel.lowered.kernel.name, {}, {}};
  const auto& outputs = kernel.planned.cluster.outputs;
  const auto port = [&](const lower::Layout& layout, const lower::Argument& a) {
    return runtime::Port{fmt::format("v{}", a.node.value),
                         {graph[a.node].type.dtype, {layout.size}}};
  };
  for (std::size_t i = 0; i < kernel.lowered.arguments.size(); ++i) {
    const lower::Argument& argument = kernel.lowered.arguments[i];
    if (argument.kind == lower::Argument::Kind::packed) {
      launch.args.push_back(constants.add(argument.packed));
      continue;
    }
    const auto output = std::find(outputs.begin(), outputs.end(), argument.node);
    if (output != outputs.end()) {
      const auto& layout =
          kernel.lowered.output_layouts[static_cast<std::size_t>(output - outputs.begin())];
      launch.args.push_back({Slot::Kind::output, static_cast<std::int64_t>(p.outputs.size())});
      p.outputs.push_back(port(layout, argument));
      single.outputs.push_back(argument);
      single.output_layouts.push_back(layout);
    } else {
      launch.args.push_back({Slot::Kind::input, static_cast<std::int64_t>(p.inputs.size())});
      p.inputs.push_back(port(kernel.input_layouts[i], argument));
      single.inputs.push_back(argument);
      single.input_layouts.push_back(kernel.input_layouts[i]);
    }
  }
  for (std::int64_t bytes : kernel.code.local_bytes) {
    launch.args.push_back({Slot::Kind::arena, p.arena_bytes});
    p.arena_bytes += (bytes + 63) / 64 * 64;
  }
  launch.phases = kernel.code.phases;
  launch.product = kernel.lowered.library;
  launch.unit = kernel.code.unit;
  p.persistent = kernel.code.persistent;
  p.scratch_bytes = kernel.code.scratch_bytes;
  p.launches.push_back(std::move(launch));
  p.objects = std::move(objects);
  p.device = device;
  return single;
}

Tensor to_storage(const Tensor& value, const lower::Layout& layout) {
  Tensor storage({value.dtype(), {layout.size}});
  const std::int64_t width = size_of(value.dtype());
  const Shape& shape = value.shape();
  Shape index(shape.size(), 0);
  for (std::int64_t i = 0; i < value.count(); ++i) {
    std::int64_t offset = 0;
    for (std::size_t d = 0; d < shape.size(); ++d) offset += index[d] * layout.strides[d];
    std::memcpy(storage.mutable_data() + offset * width, value.data() + i * width,
                static_cast<std::size_t>(width));
    for (std::size_t d = shape.size(); d-- > 0 && ++index[d] == shape[d];) index[d] = 0;
  }
  return storage;
}

Tensor from_storage(const Tensor& storage, const TensorType& type, const lower::Layout& layout) {
  Tensor value(type);
  const std::int64_t width = size_of(type.dtype);
  Shape index(type.shape.size(), 0);
  for (std::int64_t i = 0; i < value.count(); ++i) {
    std::int64_t offset = 0;
    for (std::size_t d = 0; d < type.shape.size(); ++d) offset += index[d] * layout.strides[d];
    std::memcpy(value.mutable_data() + i * width, storage.data() + offset * width,
                static_cast<std::size_t>(width));
    for (std::size_t d = type.shape.size(); d-- > 0 && ++index[d] == type.shape[d];) index[d] = 0;
  }
  return value;
}

}  // namespace heddle::driver

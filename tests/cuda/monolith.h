#pragma once
// Compiled monoliths under the emulation: every order of blocks, every table as the test likes it.
#include <gtest/gtest.h>

#include "cuda_emulation/mutants.h"
#include "cuda_emulation/run.h"
#include "driver/driver.h"
#include "lower/stitch/test_util.h"
#include "prim/interpret.h"
#include "runtime/cuda/monolith_tables.h"

namespace heddle::driver {

using prim::NodeId;

struct Network {
  prim::Graph g;
  prim::Builder b{g};
  std::mt19937 random{5};
  NodeId in(Shape shape, DType type = DType::f32) {
    return g.add_input(fmt::format("x{}", g.inputs.size()), {type, std::move(shape)});
  }
  /// A constant of random numbers that keep what they multiply in bounds.
  NodeId weight(const Shape& shape) {
    Tensor t({DType::f32, shape});
    const double scale = 1 / std::sqrt(static_cast<double>(shape.front()));
    for (std::int64_t i = 0; i < t.count(); ++i)
      t.set(i, scale * (static_cast<double>(random() % 2048) / 1024 - 1));
    return b.constant(t);
  }
  NodeId linear(NodeId x, std::int64_t from, std::int64_t to) {
    const NodeId y = b.matmul(x, weight({from, to}));
    return b.add(y, b.broadcast(weight({to}), g[y].type.shape));
  }
  NodeId norm(NodeId x) {
    return b.normalize(x, {static_cast<int>(g[x].type.shape.size()) - 1}, 1e-5);
  }
  NodeId heads(NodeId x, std::int64_t rows, std::int64_t heads, std::int64_t each) {
    return b.transpose(b.reshape(x, {rows, heads, each}), {1, 0, 2});
  }
  void out(NodeId y) { g.outputs.push_back({fmt::format("y{}", g.outputs.size()), y}); }
};

inline void mlp(Network& n) {
  NodeId x = n.in({70, 40});
  for (int i = 0; i < 3; ++i) x = n.b.relu(n.linear(x, 40, 40));
  n.out(n.b.softmax(n.linear(x, 40, 130), {1}));
}
/// One encoder layer: attention, residuals, norms, a feed-forward part.
inline void transformer(Network& n) {
  constexpr std::int64_t kRows = 19, kWidth = 24, kHeads = 3, kEach = kWidth / kHeads;
  const NodeId x = n.in({kRows, kWidth});
  const auto part = [&] { return n.heads(n.linear(x, kWidth, kWidth), kRows, kHeads, kEach); };
  const NodeId q = part(), k = part(), v = part();
  const NodeId scores = n.b.mul(n.b.matmul(q, n.b.transpose(k, {0, 2, 1})), 0.35);
  const NodeId mixed = n.b.matmul(n.b.softmax(scores, {2}), v);
  const NodeId joined = n.b.reshape(n.b.transpose(mixed, {1, 0, 2}), {kRows, kWidth});
  const NodeId h = n.norm(n.b.add(x, n.linear(joined, kWidth, kWidth)));
  const NodeId wide = n.linear(h, kWidth, 4 * kWidth);
  n.out(n.norm(n.b.add(h, n.linear(n.b.mul(wide, n.b.sigmoid(wide)), 4 * kWidth, kWidth))));
}
inline void convnet(Network& n) {
  prim::Builder::Conv conv;
  conv.strides = {2, 2}, conv.dilations = {1, 1};
  conv.pads_begin = conv.pads_end = {1, 1};
  NodeId x = n.b.relu(n.b.conv(n.in({1, 3, 13, 17}), n.weight({8, 3, 3, 3}), conv));
  conv.strides = {1, 1};
  const NodeId y = n.b.relu(n.b.conv(x, n.weight({8, 8, 3, 3}), conv));
  x = n.b.add(x, n.b.conv(y, n.weight({8, 8, 3, 3}), conv));
  n.out(n.b.softmax(n.linear(n.b.reshape(n.b.mean(x, {2, 3}), {1, 8}), 8, 5), {1}));
}
/// One token against what came before; the longer cache is given back.
inline void decode(Network& n) {
  constexpr std::int64_t kPast = 21, kWidth = 32, kHeads = 4, kEach = kWidth / kHeads;
  const NodeId x = n.in({1, kWidth}), past_k = n.in({kHeads, kPast, kEach}),
               past_v = n.in({kHeads, kPast, kEach});
  const NodeId h = n.norm(x);
  const auto part = [&] { return n.heads(n.linear(h, kWidth, kWidth), 1, kHeads, kEach); };
  const NodeId q = part();
  const NodeId k = n.b.concat({past_k, part()}, 1), v = n.b.concat({past_v, part()}, 1);
  const NodeId scores = n.b.mul(n.b.matmul(q, n.b.transpose(k, {0, 2, 1})), 0.35);
  const NodeId mixed = n.b.matmul(n.b.softmax(scores, {2}), v);
  const NodeId joined = n.b.reshape(n.b.transpose(mixed, {1, 0, 2}), {1, kWidth});
  const NodeId y = n.b.add(x, n.linear(joined, kWidth, kWidth));
  n.out(
      n.b.add(y, n.linear(n.b.relu(n.linear(n.norm(y), kWidth, 2 * kWidth)), 2 * kWidth, kWidth)));
  n.out(k);
  n.out(v);
}

struct NamedNetwork {
  const char* name;
  void (*build)(Network&);
};
constexpr NamedNetwork kNetworks[] = {
    {"mlp", mlp}, {"transformer", transformer}, {"convnet", convnet}, {"decode", decode}};

inline CompileOptions stand_in(const std::string& mode) {
  CompileOptions options;
  options.device = "cuda";
  options.mode = mode;
  options.options.cuda_driver = options.options.nvrtc = FAKE_CUDA;
  return options;
}
inline std::vector<Tensor> inputs_of(const prim::Graph& g, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<Tensor> inputs;
  for (const prim::GraphInput& in : g.inputs)
    inputs.push_back(lower::random_values(in.type, random));
  return inputs;
}
/// "" or the first element that is wrong.
inline std::string difference(const std::vector<Tensor>& found, const std::vector<Tensor>& wanted) {
  for (std::size_t o = 0; o < wanted.size(); ++o)
    for (std::int64_t i = 0; i < wanted[o].count(); ++i)
      if (!(std::abs(found[o].at(i) - wanted[o].at(i)) <= 1e-4))
        return fmt::format("output {}, element {}: found {}, wanted {}", o, i, found[o].at(i),
                           wanted[o].at(i));
  return "";
}

/// The CUDA text in a cubin of the stand-in.
inline std::string text_of(const std::string& object) {
  std::size_t at = 0;
  for (int line = 0; line < 3; ++line) at = object.find('\n', at) + 1;
  return object.substr(at);
}

/// A program's persistent kernel with memory of its own, run as often as wanted.
class EmulatedMonolith {
 public:
  EmulatedMonolith(const runtime::Program& p, runtime::cuda::MonolithTables tables, int blocks)
      : p_(p), tables_(std::move(tables)), blocks_(blocks), arena_(p.arena_bytes + 1) {
    // The ring's copies are of whole units.
    for (const Tensor& c : p.constants) {
      std::vector<std::byte> bytes(c.data(), c.data() + c.bytes());
      bytes.resize((bytes.size() + 15) / 16 * 16);
      constants_.emplace_back(bytes);
    }
    const auto room = [](const runtime::Port& port) {
      return DeviceBytes(element_count(port.type.shape) * size_of(port.type.dtype));
    };
    for (const auto& port : p.inputs) inputs_.push_back(room(port));
    for (const auto& port : p.outputs) outputs_.push_back(room(port));
  }

  /// After a failure `failure` tells what the kernel left.
  Result<std::vector<Tensor>> run(const emulation::Module& module, emulation::Order order,
                                  unsigned seed, const std::vector<Tensor>& inputs) {
    using namespace runtime::cuda;
    const emulation::Kernel* kernel = module.find(p_.persistent->symbol);
    if (!kernel) return fail("no kernel '{}'", p_.persistent->symbol);
    for (std::size_t i = 0; i < inputs.size(); ++i)
      std::memcpy(inputs_[i].data(), inputs[i].data(), static_cast<std::size_t>(inputs[i].bytes()));
    std::vector<DevicePtr> args;
    std::vector<std::pair<std::size_t, runtime::Grid>> phases;
    for (const runtime::Launch& launch : p_.launches) {
      for (const runtime::Phase& phase : launch.phases)
        phases.emplace_back(args.size(), phase.grid);
      for (const runtime::Slot& slot : launch.args) args.push_back(address(slot));
    }
    const DeviceBytes arg_table = table(args);
    std::vector<MonolithStage> stages;
    for (const auto& [first, grid] : phases)
      stages.push_back({at(arg_table) + first * sizeof(DevicePtr), grid.function, grid.threads});
    const auto addresses = [&](const std::vector<ConstantRange>& of) {
      std::vector<MonolithRange> out;
      for (const ConstantRange& r : of)
        out.push_back(
            {at(constants_[static_cast<std::size_t>(r.constant)]) + static_cast<DevicePtr>(r.begin),
             r.bytes});
      return table(out);
    };
    const DeviceBytes stage_table = table(stages), items = table(tables_.items),
                      first_item = table(tables_.first_item), waits = table(tables_.waits),
                      first_wait = table(tables_.first_wait), ranges = addresses(tables_.ranges),
                      steps = table(tables_.steps), loads = addresses(tables_.loads),
                      first_load = table(tables_.first_load);
    MonolithParameters parameters{at(stage_table), at(items),     at(first_item), at(waits),
                                  at(first_wait),  at(ranges),    at(steps),      at(loads),
                                  at(first_load),  at(counters_), at(failure_),   0,
                                  patience};
    void* list[] = {&parameters};
    emulation::Launch how;
    how.grid.x = static_cast<unsigned>(blocks_);
    how.block.x = static_cast<unsigned>(p_.persistent->block_threads());
    how.shared_bytes = static_cast<std::size_t>(p_.persistent->shared_bytes);
    how.cooperative = true;
    how.order = order;
    how.seed = seed;
    HEDDLE_TRY(emulation::launch(module, *kernel, how, list));
    std::vector<Tensor> out;
    for (std::size_t o = 0; o < outputs_.size(); ++o) {
      Tensor& t = out.emplace_back(p_.outputs[o].type);
      std::memcpy(t.mutable_data(), outputs_[o].data(), static_cast<std::size_t>(t.bytes()));
    }
    return out;
  }
  runtime::cuda::MonolithFailure failure() const {
    return *failure_.as<runtime::cuda::MonolithFailure>();
  }
  /// As if so many runs had been before.
  void set_runs(unsigned runs) {
    for (int b = 0; b < blocks_; ++b) {
      const auto i = static_cast<std::size_t>(b);
      const auto items = static_cast<unsigned>(tables_.first_item[i + 1] - tables_.first_item[i]);
      unsigned* own = reinterpret_cast<unsigned*>(counters_.data() + 128 * b);
      own[0] = runs * items, own[1] = runs;
    }
  }
  unsigned patience = 1u << 20;

 private:
  template <class T>
  static DeviceBytes table(const std::vector<T>& rows) {
    return DeviceBytes(std::as_bytes(std::span(rows)));
  }
  static runtime::cuda::DevicePtr at(const DeviceBytes& memory) {
    return reinterpret_cast<runtime::cuda::DevicePtr>(memory.data());
  }
  runtime::cuda::DevicePtr address(const runtime::Slot& slot) const {
    const auto index = static_cast<std::size_t>(slot.index);
    switch (slot.kind) {
      case runtime::Slot::Kind::arena:
        return at(arena_) + index;
      case runtime::Slot::Kind::input:
        return at(inputs_[index]);
      case runtime::Slot::Kind::output:
        return at(outputs_[index]);
      case runtime::Slot::Kind::constant:
        break;
    }
    return at(constants_[index]);
  }

  const runtime::Program& p_;
  const runtime::cuda::MonolithTables tables_;
  const int blocks_;
  DeviceBytes arena_;
  DeviceBytes counters_{std::vector<std::byte>(static_cast<std::size_t>(blocks_) * 128)};
  DeviceBytes failure_{std::vector<std::byte>(sizeof(runtime::cuda::MonolithFailure))};
  std::vector<DeviceBytes> constants_, inputs_, outputs_;
};

/// Other inputs in every order of blocks, what run(order, seed, inputs) finds against the
/// reference.
template <class Run>
void expect_agreement(const prim::Graph& g, Run&& run) {
  using emulation::Order;
  unsigned seed = 0;
  for (const Order order :
       {Order::forward, Order::reverse, Order::random, Order::random, Order::random}) {
    const auto inputs = inputs_of(g, ++seed);
    const auto wanted = prim::interpret(g, inputs);
    ASSERT_TRUE(wanted.ok());
    const auto found = run(order, seed, inputs);
    ASSERT_TRUE(found.ok()) << found.error().message;
    EXPECT_EQ(difference(*found, *wanted), "");
  }
}

/// Runs a text with these tables in all orders; "" or what the first error says.
inline std::string notice(const prim::Graph& g, const runtime::Program& program,
                          const runtime::cuda::MonolithTables& tables, const std::string& text,
                          int blocks) {
  const auto module = emulation::compile(text, {.races = true});
  EXPECT_TRUE(module.ok()) << module.error().message;
  if (!module) return "";
  const auto inputs = inputs_of(g, 1);
  const auto wanted = prim::interpret(g, inputs);
  return first_notice([&](emulation::Order order) -> std::string {
    EmulatedMonolith monolith(program, tables, blocks);
    const auto found = monolith.run(*module, order, 7, inputs);
    return found ? difference(*found, *wanted) : found.error().message;
  });
}

}  // namespace heddle::driver

#include "driver/verify.h"

#include <algorithm>
#include <cstring>
#include <future>
#include <set>

#include "driver/reference.h"
#include "driver/rounding.h"
#include "prim/interpret.h"
#include "support/process.h"

namespace heddle::driver {
namespace {

void add(Verification& result, KernelCheck check) {
  if (!check.equal && result.wrong++ == 0) result.first_wrong = check.name;
  result.worst = std::max(result.worst, check.error);
  result.kernels.push_back(std::move(check));
}

std::string sources_of(const prim::Graph& graph, const CompiledKernel& kernel) {
  std::string text;
  for (prim::OriginId id : kernel.planned.origins)
    if (id)
      text += fmt::format("{}{} '{}'", text.empty() ? "" : ", ", graph.origin(id).op,
                          graph.origin(id).name);
  return text;
}

/// Runs a program's kernels one by one; `values` holds what is in memory.
class CheckedChain {
 public:
  CheckedChain(const Compiled& compiled, Executor& executor, std::span<const Tensor> inputs)
      : compiled_(compiled), executor_(executor) {
    for (std::int32_t i = 0; i < graph().size(); ++i)
      if (const auto* input = std::get_if<prim::Input>(&graph()[prim::NodeId{i}].op))
        values_[prim::NodeId{i}] = inputs[static_cast<std::size_t>(input->slot)];
    for (const plan::Substitute& s : compiled.plan.substitutes) instead_[s.wanted] = s.instead;
  }

  Status run(const CompiledKernel& kernel, double tolerance, Verification& result) {
    SingleKernel single = single_kernel(graph(), kernel, {}, compiled_.program->device);
    auto session = HEDDLE_TRY(
        executor_.session(std::make_shared<runtime::Program>(std::move(single.program))));
    NodeValues read;
    std::vector<Tensor> storage;
    for (std::size_t i = 0; i < single.inputs.size(); ++i) {
      const prim::NodeId node = single.inputs[i].node;
      read[node] = value_of(node);
      storage.push_back(to_storage(read[node], single.input_layouts[i]));
    }
    // What the primitives read and the code, simplified, does not.
    for (const prim::NodeId node : lower::inputs_of(graph(), kernel.planned.cluster))
      if (!read.contains(node)) read[node] = value_of(node);
    const std::vector<Tensor> found = HEDDLE_TRY(session->run(storage));
    std::vector<Allowed> wanted = reference_of(graph(), kernel.planned.cluster, read);
    std::vector<Tensor> noise;  // asked for only where something looks wrong
    KernelCheck check{kernel.lowered.kernel.name, sources_of(graph(), kernel), 0, true};
    const auto& outputs = kernel.planned.cluster.outputs;
    for (std::size_t o = 0; o < found.size(); ++o) {
      const prim::NodeId node = single.outputs[o].node;
      const Tensor value = from_storage(found[o], graph()[node].type, single.output_layouts[o]);
      const auto at = std::ranges::find(outputs, node) - outputs.begin();
      Allowed& allowed = wanted[static_cast<std::size_t>(at)];
      if (is_float(value.dtype()) && allowed.error_of(value) > tolerance) {
        if (noise.empty()) noise = rounding_of(graph(), kernel.planned.cluster, read);
        allowed.noise = noise[static_cast<std::size_t>(at)];
      }
      if (allowed.overflowed.empty() && allowed.error_of(value) > tolerance &&
          allow_overflow(graph(), kernel.planned.cluster, read, wanted))
        result.overflow = true;
      check.error = std::max(check.error, allowed.error_of(value));
      result.uncertain += allowed.uncertain();
      values_[node] = value;
    }
    for (const prim::NodeId node : outputs)  // nothing is stored to those without elements
      if (element_count(graph()[node].type.shape) == 0)
        values_.try_emplace(node, Tensor(graph()[node].type));
    check.equal = check.error <= tolerance;
    add(result, std::move(check));
    return Ok{};
  }

  const Tensor& value_of(prim::NodeId wanted) {
    if (const Tensor* constant = graph().constant_of(wanted)) return *constant;
    const auto other = instead_.find(wanted);
    const prim::NodeId node = other == instead_.end() ? wanted : other->second;
    auto found = values_.find(node);
    if (found == values_.end() &&
        std::ranges::find(compiled_.joins, node, &lower::Join::whole) != compiled_.joins.end())
      found = values_.emplace(node, joined(node)).first;
    HEDDLE_CHECK(found != values_.end(), "node {} is read, and no kernel has made it", node.value);
    return found->second;
  }

 private:
  /// A concatenation that is in memory once its parts are (lower/joins.h).
  Tensor joined(prim::NodeId whole) {
    prim::Graph alone;
    prim::Node view = graph()[whole];
    std::vector<Tensor> parts;
    for (prim::NodeId& part : view.args) {
      parts.push_back(value_of(part));
      part = alone.add_input("part", parts.back().type());
    }
    alone.outputs = {{"whole", alone.add(view.op, view.args, view.type)}};
    const auto made = prim::interpret(alone, parts);
    HEDDLE_CHECK(made.ok(), "{}", made.error().message);
    return (*made)[0];
  }
  const prim::Graph& graph() const { return compiled_.graph; }

  const Compiled& compiled_;
  Executor& executor_;
  NodeValues values_;
  std::map<prim::NodeId, prim::NodeId> instead_;
};

bool same_bytes(const Tensor& a, const Tensor& b) {
  return a.type() == b.type() &&
         std::memcmp(a.data(), b.data(), static_cast<std::size_t>(a.bytes())) == 0;
}

/// An output as one kernel would make it, and what that reads.
struct WholeOutput {
  lower::Cluster cluster;
  NodeValues read;
};
WholeOutput whole_output(const prim::Graph& graph, std::span<const Tensor> inputs,
                         prim::NodeId output) {
  WholeOutput all{{{}, {output}}, {}};
  for (const prim::NodeId id : prim::live_nodes(graph)) {
    if (const auto* input = std::get_if<prim::Input>(&graph[id].op))
      all.read[id] = inputs[static_cast<std::size_t>(input->slot)];
    else if (graph.constant_of(id) == nullptr && id <= output)
      all.cluster.nodes.push_back(id);
  }
  return all;
}

/// Tells what rounding and overflow anywhere in the program may do to an output; true if the latter
/// does anything.
bool allow_for_whole(const prim::Graph& graph, std::span<const Tensor> inputs, prim::NodeId output,
                     double tolerance, const Tensor& found, Allowed& allowed) {
  if (allowed.error_of(found) <= tolerance) return false;
  const WholeOutput all = whole_output(graph, inputs, output);
  if (is_float(found.dtype())) allowed.noise = rounding_of(graph, all.cluster, all.read)[0];
  return allowed.error_of(found) > tolerance &&
         allow_overflow(graph, all.cluster, all.read, {&allowed, 1});
}

/// A value of the float64 reference that this machine's memory cannot hold with another one like it
/// (the gradient of a pooling whose windows overlap has all windows for each position).
Status fits_in_memory(const prim::Graph& graph) {
  const auto memory = static_cast<double>(machine_memory());
  for (const prim::NodeId id : prim::live_nodes(graph)) {
    const double bytes = 8 * static_cast<double>(element_count(graph[id].type.shape));
    if (2 * bytes <= memory) continue;
    const prim::Origin* origin = graph.origin_id(id) ? &graph.origin(graph.origin_id(id)) : nullptr;
    return fail(
        ErrorCode::out_of_memory,
        "verify: the float64 reference has {:.1f} GB for one value of {} ({} {}), this machine "
        "has {:.1f} GB of memory",
        1e-9 * bytes, origin ? fmt::format("{} '{}'", origin->op, origin->name) : "the graph",
        prim::kind_name(graph[id].op), to_string(graph[id].type), 1e-9 * memory);
  }
  return Ok{};
}

/// Names of outputs on which rounding anywhere in the program may decide.
std::set<std::string> hanging_on_steps(const prim::Graph& graph) {
  const std::vector<prim::NodeId> live = prim::live_nodes(graph);
  const std::vector<bool> depends = depend_on_steps(graph, live);
  std::set<std::string> names;
  for (const prim::GraphOutput& o : graph.outputs)
    if (depends[static_cast<std::size_t>(std::ranges::find(live, o.node) - live.begin())])
      names.insert(o.name);
  return names;
}

}  // namespace

Result<Verification> verify(const Compiled& compiled, std::span<const Tensor> inputs,
                            double tolerance, double whole_tolerance,
                            const CompileOptions& options) {
  const prim::Graph& graph = compiled.graph;
  HEDDLE_TRY(fits_in_memory(graph));
  const auto executor = HEDDLE_TRY(executor_for(*compiled.program, options));
  auto whole = HEDDLE_TRY(executor->session(compiled.program));
  const std::vector<Tensor> outputs = HEDDLE_TRY(whole->run(inputs));  // checks the inputs
  auto reference = std::async(std::launch::async, [&] {
    return prim::interpret(graph, std::vector<Tensor>(inputs.begin(), inputs.end()));
  });
  Verification result;
  CheckedChain chain(compiled, *executor, inputs);
  for (const CompiledKernel& kernel : compiled.kernels)
    HEDDLE_TRY(chain.run(kernel, tolerance, result));
  // All of them together: what a run gives back.
  const std::vector<Tensor> wanted = HEDDLE_TRY(reference.get());
  const std::set<std::string> hanging = hanging_on_steps(graph);
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const std::string& name = graph.outputs[i].name;
    const prim::NodeId node = graph.outputs[i].node;
    Allowed allowed{prim::to_reference(wanted[i]), {}, {}, {}, {}};
    const bool hangs = hanging.contains(name);
    const bool overflow =
        !hangs && allow_for_whole(graph, inputs, node, whole_tolerance, outputs[i], allowed);
    const double error = hangs ? 0 : allowed.error_of(outputs[i]);
    result.outputs_error = std::max(result.outputs_error, error);
    result.overflow = result.overflow || overflow;
    if (hangs || overflow) result.unjudged.push_back(name);
    const bool right = same_bytes(outputs[i], chain.value_of(node)) && error <= whole_tolerance;
    if (!right && result.wrong++ == 0)
      result.first_wrong = fmt::format("(all together: output '{}')", name);
  }
  return result;
}

}  // namespace heddle::driver

#include "driver/verify.h"

#include <algorithm>
#include <cmath>

#include "prim/interpret.h"

namespace heddle::driver {
namespace {

/// Error relative to the value's scale; integers and booleans must be exact.
double relative_error(const Tensor& found, const Tensor& wanted) {
  double scale = 0, worst = 0;
  for (std::int64_t i = 0; i < wanted.count(); ++i) {
    const double f = found.at(i), w = wanted.at(i);
    if (std::isfinite(w)) scale = std::max(scale, std::abs(w));
    if (f == w || (std::isnan(f) && std::isnan(w))) continue;
    worst = std::max(worst, std::isfinite(f) && std::isfinite(w) ? std::abs(f - w) : INFINITY);
  }
  return worst == 0 ? 0 : worst / std::max(scale, 1e-30);
}

void add(Verification& result, KernelCheck check) {
  if (!check.equal && result.wrong++ == 0) result.first_wrong = check.name;
  result.worst = std::max(result.worst, check.error);
  result.kernels.push_back(std::move(check));
}

/// The reference interpreter's value of every node. What a kernel stores in 16 bits is rounded so,
/// because other kernels read it so: each is held to what it does itself.
std::vector<Tensor> reference_values(const Compiled& compiled, std::span<const Tensor> inputs) {
  const prim::Graph& graph = compiled.graph;
  const auto size = static_cast<std::size_t>(graph.size());
  std::vector<bool> wanted(size), stored(size);
  for (const prim::GraphOutput& o : graph.outputs)
    wanted[static_cast<std::size_t>(o.node.value)] = true;
  // Some of what kernels write are alternatives, which no output reaches.
  for (const CompiledKernel& kernel : compiled.kernels)
    for (const prim::NodeId node : kernel.planned.cluster.outputs) {
      const DType type = graph[node].type.dtype;
      wanted[static_cast<std::size_t>(node.value)] = true;
      stored[static_cast<std::size_t>(node.value)] = is_float(type) && size_of(type) == 2;
    }
  for (std::size_t i = size; i-- > 0;)
    if (wanted[i])
      for (const prim::NodeId a : graph[prim::NodeId(static_cast<std::int32_t>(i))].args)
        wanted[static_cast<std::size_t>(a.value)] = true;
  std::vector<Tensor> values(size);
  for (std::size_t i = 0; i < size; ++i) {
    if (!wanted[i]) continue;
    const prim::NodeId id(static_cast<std::int32_t>(i));
    std::vector<Tensor> args;
    for (const prim::NodeId a : graph[id].args)
      args.push_back(values[static_cast<std::size_t>(a.value)]);
    const auto* input = std::get_if<prim::Input>(&graph[id].op);
    Tensor& value = values[i];
    value = input != nullptr ? prim::to_reference(inputs[static_cast<std::size_t>(input->slot)])
                             : prim::evaluate_node(graph, id, args);
    if (stored[i]) value = prim::to_reference(prim::from_reference(value, graph[id].type.dtype));
  }
  return values;
}

}  // namespace

Result<Verification> verify(const Compiled& compiled, std::span<const Tensor> inputs,
                            double tolerance, double whole_tolerance,
                            const CompileOptions& options) {
  const prim::Graph& graph = compiled.graph;
  const auto executor = HEDDLE_TRY(executor_for(*compiled.program, options));
  auto whole = HEDDLE_TRY(executor->session(compiled.program));
  const std::vector<Tensor> outputs = HEDDLE_TRY(whole->run(inputs));  // checks the inputs
  const std::vector<Tensor> values = reference_values(compiled, inputs);
  const auto stored = [&](prim::NodeId node) {
    if (const Tensor* constant = graph.constant_of(node)) return *constant;
    return prim::from_reference(values[static_cast<std::size_t>(node.value)],
                                graph[node].type.dtype);
  };
  Verification result;
  for (const CompiledKernel& kernel : compiled.kernels) {
    SingleKernel single = single_kernel(graph, kernel, {}, compiled.program->device);
    auto session = HEDDLE_TRY(
        executor->session(std::make_shared<runtime::Program>(std::move(single.program))));
    std::vector<Tensor> storage;
    for (std::size_t i = 0; i < single.inputs.size(); ++i)
      storage.push_back(to_storage(stored(single.inputs[i].node), single.input_layouts[i]));
    const std::vector<Tensor> found = HEDDLE_TRY(session->run(storage));
    KernelCheck check{kernel.lowered.kernel.name, {}, 0, true};
    for (prim::OriginId id : kernel.planned.origins)
      if (id)
        check.sources += fmt::format("{}{} '{}'", check.sources.empty() ? "" : ", ",
                                     graph.origin(id).op, graph.origin(id).name);
    for (std::size_t o = 0; o < found.size(); ++o) {
      const prim::NodeId node = single.outputs[o].node;
      const Tensor value = from_storage(found[o], graph[node].type, single.output_layouts[o]);
      const Tensor& wanted = values[static_cast<std::size_t>(node.value)];  // not rounded
      check.error = std::max(check.error, relative_error(value, wanted));
    }
    check.equal = check.error <= tolerance;
    add(result, std::move(check));
  }
  // All of them together: what a run gives back.
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const Tensor& wanted = values[static_cast<std::size_t>(graph.outputs[i].node.value)];
    const double error = relative_error(outputs[i], wanted);
    result.outputs_error = std::max(result.outputs_error, error);
    if (error > whole_tolerance && result.wrong++ == 0)
      result.first_wrong = fmt::format("(all together: output '{}')", graph.outputs[i].name);
  }
  return result;
}

}  // namespace heddle::driver

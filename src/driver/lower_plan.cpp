#include "driver/lower_plan.h"

#include <algorithm>
#include <unordered_set>

#include "driver/constant_bytes.h"
#include "driver/cuda_code.h"
#include "driver/source_map.h"
#include "plan/tuning_db.h"

namespace heddle::driver {

using prim::NodeId;

namespace {

Result<CompiledKernel> lower_kernel(const lower::Request& request, const plan::Kernel& planned,
                                    const Platform& platform) {
  CompiledKernel kernel{planned, HEDDLE_TRY(lower::lower(request)), {}, {}};
  if (platform.cuda) name_origins(kernel.lowered, planned.cluster, *request.graph);
  if (platform.cuda) kernel.code = HEDDLE_TRY(cuda_text(kernel.lowered.kernel, platform));
  return kernel;
}

}  // namespace

Hash key_of(const prim::Graph& graph, const lower::Cluster& cluster) {
  return hash_bytes(plan::structure_of(graph, cluster, 0));
}

Result<LoweredPlan> lower_plan(const prim::Graph& graph, const plan::Plan& plan,
                               const Platform& platform, const Tunings& tunings) {
  LoweredPlan lowered;
  auto& [kernels, layouts, refusals] = lowered;
  const lower::Target target = platform.target();
  // A value that is not computed is read from its equivalent.
  std::unordered_map<NodeId, NodeId> instead;
  for (const plan::Substitute& s : plan.substitutes) instead[s.wanted] = s.instead;
  const auto actual = [&](NodeId node) {
    const auto found = instead.find(node);
    return found != instead.end() ? found->second : node;
  };
  std::unordered_set<NodeId> is_output;
  for (const prim::GraphOutput& output : graph.outputs) is_output.insert(actual(output.node));
  const auto layout_of = [&](NodeId node) {
    const auto found = layouts.find(actual(node));
    return found != layouts.end() ? found->second : lower::row_major(graph[node].type.shape);
  };
  const auto required = [&](NodeId node) -> std::optional<lower::Layout> {
    if (!is_output.contains(node)) return std::nullopt;
    return lower::row_major(graph[node].type.shape);
  };
  const auto make = [&](std::size_t k, const lower::Tuning& tuning) -> Result<CompiledKernel> {
    const plan::Kernel& planned = plan.kernels[k];
    const lower::Request request{&graph, planned.cluster, target, layout_of, required, tuning};
    CompiledKernel kernel = HEDDLE_TRY(lower_kernel(request, planned, platform));
    for (lower::Argument& argument : kernel.lowered.arguments) {
      const bool value = argument.kind == lower::Argument::Kind::value;
      kernel.input_layouts.push_back(value ? layout_of(argument.node) : lower::Layout{});
      const auto& outputs = planned.cluster.outputs;
      if (value && std::find(outputs.begin(), outputs.end(), argument.node) == outputs.end())
        argument.node = actual(argument.node);
    }
    return kernel;
  };
  for (std::size_t k = 0; k < plan.kernels.size(); ++k) {
    const plan::Kernel& planned = plan.kernels[k];
    const auto other =
        tunings.empty() ? tunings.end() : tunings.find(key_of(graph, planned.cluster));
    auto made = make(k, other != tunings.end() ? other->second : planned.tuning);
    if (!made) {
      if (made.error().code != ErrorCode::unsupported) return made.error();
      refusals.push_back({k, made.error()});
      continue;
    }
    for (std::size_t o = 0; o < planned.cluster.outputs.size(); ++o)
      layouts[planned.cluster.outputs[o]] = made->lowered.output_layouts[o];
    kernels.push_back(*std::move(made));
  }
  if (platform.cuda || !refusals.empty()) return lowered;
  for (const SmallerForm& form : smaller_forms(graph, kernels)) {
    auto made = make(form.kernel, form.tuning);
    if (made && made->lowered.output_layouts == kernels[form.kernel].lowered.output_layouts)
      kernels[form.kernel] = *std::move(made);
  }
  return lowered;
}

std::function<lower::Layout(NodeId)> likely_layouts(
    const prim::Graph& graph, std::unordered_map<NodeId, lower::Layout> known) {
  // Ids are topological: an operand's order is settled before its users ask.
  for (std::int32_t i = 0; i < graph.size(); ++i) {
    const NodeId id{i};
    if (known.contains(id)) continue;
    const Shape& shape = graph[id].type.shape;
    for (NodeId operand : graph[id].args) {
      const auto layout = known.find(operand);
      const Shape& from = graph[operand].type.shape;
      if (layout == known.end() || from.size() != shape.size()) continue;
      known[id] = lower::ordered(shape, lower::storage_order(layout->second, from));
      break;
    }
  }
  return [&graph, known = std::move(known)](NodeId id) {
    const auto found = known.find(id);
    return found != known.end() ? found->second : lower::row_major(graph[id].type.shape);
  };
}

}  // namespace heddle::driver

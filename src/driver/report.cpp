#include "driver/report.h"

#include "driver/code_cache.h"
#include "prim/text.h"

namespace heddle::driver {
namespace {

using nlohmann::json;

json cost_json(const plan::Cost& cost) {
  return {{"us", cost.us},
          {"bound", cost.bound()},
          {"bytes", cost.bytes},
          {"flops", cost.flops},
          {"provenance", plan::name_of(cost.provenance)}};
}

json value_json(const prim::Graph& graph, prim::NodeId node) {
  return {{"id", node.value}, {"type", to_string(graph[node].type)}};
}

json sources_json(const prim::Graph& graph, const std::vector<prim::OriginId>& origins) {
  json sources = json::array();
  for (prim::OriginId id : origins)
    if (id) sources.push_back({{"op", graph.origin(id).op}, {"name", graph.origin(id).name}});
  return sources;
}

/// What a kernel has to read and write at least once: constants, and values of this run.
std::pair<std::int64_t, std::int64_t> compulsory_bytes(const prim::Graph& graph,
                                                       const CompiledKernel& kernel) {
  std::int64_t constants = 0, values = 0;
  for (const lower::Argument& a : kernel.lowered.arguments) {
    if (a.kind == lower::Argument::Kind::packed)
      constants += a.packed.bytes();
    else
      (graph.constant_of(a.node) ? constants : values) +=
          element_count(graph[a.node].type.shape) * size_of(graph[a.node].type.dtype);
  }
  return {constants, values};
}

json kernel_json(const prim::Graph& graph, const CompiledKernel& kernel) {
  json j = {{"name", kernel.lowered.kernel.name},
            {"schedule", kernel.lowered.schedule},
            {"cost", cost_json(kernel.planned.cost)},
            {"sources", sources_json(graph, kernel.planned.origins)},
            {"inputs", json::array()},
            {"outputs", json::array()},
            {"primitives", json::array()},
            {"rejected", json::array()}};
  for (const lower::Argument& argument : kernel.lowered.arguments)
    if (argument.kind == lower::Argument::Kind::packed)
      j["inputs"].push_back({{"packed", to_string(argument.packed.type())}});
  for (prim::NodeId node : kernel.planned.inputs) j["inputs"].push_back(value_json(graph, node));
  for (prim::NodeId node : kernel.planned.cluster.outputs)
    j["outputs"].push_back(value_json(graph, node));
  for (prim::NodeId node : kernel.planned.cluster.nodes)
    j["primitives"].push_back(prim::describe(graph, node));
  for (const plan::Rejected& r : kernel.planned.rejected)
    j["rejected"].push_back({{"primitives", r.cluster.nodes.size()},
                             {"cost", cost_json(r.cost)},
                             {"plan_delta_us", r.plan_delta_us},
                             {"reason", r.reason}});
  const auto [constants, values] = compulsory_bytes(graph, kernel);
  j["constant_bytes"] = constants;
  j["value_bytes"] = values;
  json phases = json::array();
  for (const auto& phase : kernel.info.phases) phases.push_back(phase.tasks);
  j["tasks"] = phases;
  return j;
}

}  // namespace

json report_of(const Compiled& compiled, const codegen::cpu::Machine& machine) {
  const plan::Plan& plan = compiled.plan;
  json report = {{"build", build_id()},
                 {"machine", {{"cpu", machine.cpu}, {"vector_bytes", machine.vector_bytes}}},
                 {"plan",
                  {{"strategy", plan::name_of(plan.strategy)},
                   {"kernels", plan.kernels.size()},
                   {"cost_us", plan.cost_us},
                   {"lower_bound_us", plan.lower_bound_us},
                   {"gap", plan.gap()},
                   {"primitives", plan.stats.nodes},
                   {"candidates", plan.stats.candidates},
                   {"regions", plan.stats.regions},
                   {"unique_regions", plan.stats.unique_regions}}},
                 {"kernels", json::array()},
                 {"times", json::array()}};
  for (const CompiledKernel& kernel : compiled.kernels)
    report["kernels"].push_back(kernel_json(compiled.graph, kernel));
  for (const PhaseTime& time : compiled.times)
    report["times"].push_back({{"phase", time.name}, {"seconds", time.seconds}});
  return report;
}

}  // namespace heddle::driver

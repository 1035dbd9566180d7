#include "driver/report.h"

#include "driver/fusion.h"

#include "driver/code_cache.h"
#include "driver/ring.h"
#include "driver/source_map.h"
#include "prim/text.h"

namespace heddle::driver {
namespace {

using nlohmann::json;

json cost_json(const plan::Cost& cost) {
  return {{"us", cost.us},       {"bound", cost.bound()},
          {"bytes", cost.bytes}, {"flops", cost.flops},
          {"tiles", cost.tiles}, {"provenance", plan::name_of(cost.provenance)}};
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

std::string_view name_of(ScheduleFrom from) {
  switch (from) {
    case ScheduleFrom::lowering:
      return "lowering";
    case ScheduleFrom::measurement:
      return "measurement";
    case ScheduleFrom::shipped:
      return "tuned schedules";
  }
  return "";
}

/// Types that a kernel's products multiply: "f32", or "u8 i8" where they differ; "" without any.
std::string multiplied(const prim::Graph& graph, const CompiledKernel& kernel) {
  for (const prim::NodeId id : kernel.planned.cluster.nodes) {
    const prim::Node& n = graph[id];
    if (!std::holds_alternative<prim::Contract>(n.op)) continue;
    const DType a = graph[n.args[0]].type.dtype, b = graph[n.args[1]].type.dtype;
    return a == b ? std::string(name_of(a)) : fmt::format("{} {}", name_of(a), name_of(b));
  }
  return "";
}

/// Multiply-adds of the kernel's products as they are written, counted as two, and vector
/// operations of its functions of each element (ir::ScalarFnInfo::flops: an estimate), each element
/// once.
std::pair<double, double> arithmetic(const prim::Graph& graph, const CompiledKernel& kernel) {
  double products = 0, functions = 0;
  for (const prim::NodeId id : kernel.planned.cluster.nodes) {
    const prim::Node& n = graph[id];
    const auto elements = static_cast<double>(element_count(n.type.shape));
    if (const auto* k = std::get_if<prim::Contract>(&n.op))
      products += 2 * elements * static_cast<double>(element_count(k->reduced));
    if (const auto* map = std::get_if<prim::Map>(&n.op))
      functions += elements * ir::info(map->fn).flops;
  }
  return {products, functions};
}

json kernel_json(const prim::Graph& graph, const CompiledKernel& kernel) {
  json j = {{"name", kernel.lowered.kernel.name},
            {"schedule", kernel.lowered.schedule},
            {"schedule_from", name_of(kernel.schedule_from)},
            {"structure", to_string(kernel.structure)},
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
  const auto [products, functions] = arithmetic(graph, kernel);
  j["written_flops"] = products;
  j["function_ops"] = functions;
  json phases = json::array();
  for (const auto& phase : kernel.code.phases) phases.push_back(phase.tasks);
  j["tasks"] = phases;
  j["multiplies"] = multiplied(graph, kernel);
  return j;
}

/// What a phase takes of a multiprocessor, as the assembler and the launch say.
json phase_json(const KernelCode& code, const runtime::Phase& phase, const Platform& platform) {
  json j = {{"symbol", phase.symbol},          {"blocks", phase.tasks},
            {"threads", phase.grid.threads},   {"shared_bytes", phase.grid.shared_bytes},
            {"resident", phase.grid.resident}, {"cooperative", phase.grid.cooperative}};
  for (const codegen::cuda::FunctionInfo& f : code.functions) {
    if (f.symbol != phase.symbol) continue;
    const std::int64_t shared = phase.grid.shared_bytes + f.shared_bytes;
    const auto o = runtime::cuda::occupancy(platform.gpu, phase.grid.threads, f.registers, shared);
    j["shared_bytes"] = shared;
    j["registers"] = f.registers;
    j["stack_bytes"] = f.stack_bytes;
    j["spill_bytes"] = f.spill_bytes;
    j["blocks_per_multiprocessor"] = o.blocks;
    j["occupancy"] = o.share;
    j["occupancy_limit"] = o.limit;
  }
  return j;
}

/// The kernel's tensors once at memory bandwidth, its arithmetic at the peak: no kernel is faster.
json roofline_json(const prim::Graph& graph, const CompiledKernel& kernel,
                   const Platform& platform) {
  const plan::MachineModel m = platform.model();
  const plan::Cost& cost = kernel.planned.cost;
  bool half = true, contract = false;
  for (prim::NodeId id : kernel.planned.cluster.nodes) {
    if (!std::holds_alternative<prim::Contract>(graph[id].op)) continue;
    contract = true;
    for (prim::NodeId a : graph[id].args) half = half && size_of(graph[a].type.dtype) <= 2;
  }
  const double peak = !contract ? m.peak_gflops : half ? m.half_matrix_gflops : m.matrix_gflops;
  const auto [constants, values] = compulsory_bytes(graph, kernel);
  const double bytes = std::min(cost.bytes, static_cast<double>(constants + values));
  const double memory_us = bytes / (m.dram_gbs * 1e3);
  const double compute_us = cost.flops / (peak * m.threads * 1e3);
  const double floor = std::max(memory_us, compute_us);
  return {{"floor_us", floor},
          {"bound", compute_us > memory_us ? "compute" : "memory"},
          {"share", cost.us > 0 ? floor / cost.us : 0}};
}

void add_cuda(json& j, const prim::Graph& graph, const CompiledKernel& kernel,
              const Platform& platform) {
  j["phases"] = json::array();
  for (const runtime::Phase& phase : kernel.code.phases)
    j["phases"].push_back(phase_json(kernel.code, phase, platform));
  j["roofline"] = roofline_json(graph, kernel, platform);
  if (!kernel.code.ring_notes.empty()) j["ring"] = kernel.code.ring_notes;
  j["source"] = kernel.code.source;
  j["source_map"] = source_map(graph, kernel.code.lines);
}

/// How many values kernels write, by type.
json stored_json(const Compiled& compiled) {
  std::map<std::string, int> count;
  for (const CompiledKernel& kernel : compiled.kernels)
    for (prim::NodeId node : kernel.planned.cluster.outputs)
      ++count[std::string(name_of(compiled.graph[node].type.dtype))];
  return count;
}

/// Concatenations that are not copied together.
json joins_json(const Compiled& compiled) {
  json joins = json::array();
  for (const lower::Join& join : compiled.joins) {
    json j = value_json(compiled.graph, join.whole);
    j["sources"] = sources_json(compiled.graph, compiled.graph.origins_of(join.whole));
    j["parts"] = json::array();
    for (const lower::Join::Part& part : join.parts) j["parts"].push_back(part.node.value);
    joins.push_back(std::move(j));
  }
  return joins;
}

/// What the times are, all together: "measured", "modelled", or how many are measured.
std::string provenance_of(const Compiled& compiled) {
  const auto modelled = static_cast<std::size_t>(
      std::ranges::count(compiled.kernels, plan::Provenance::modelled,
                         [](const CompiledKernel& k) { return k.planned.cost.provenance; }));
  const std::size_t all = compiled.kernels.size();
  if (modelled == all) return std::string(plan::name_of(plan::Provenance::modelled));
  if (modelled == 0) return std::string(plan::name_of(plan::Provenance::measured));
  return fmt::format("({} of {} kernels measured)", all - modelled, all);
}

json mode_json(const ModeReport& mode) {
  json measured = json::array();
  for (const auto& [name, us] : mode.measured) measured.push_back({{"mode", name}, {"us", us}});
  return {{"chosen", mode.chosen},
          {"reason", mode.reason},
          {"measured", measured},
          {"tuning", mode.tuning}};
}

json memory_json(const MemoryReport& m) {
  return {{"bytes", m.bytes}, {"constants", m.constants},    {"ports", m.ports},
          {"arena", m.arena}, {"scratch", m.scratch},        {"limit", m.limit},
          {"again", m.again}, {"us_per_byte", m.us_per_byte}};
}

json schedules_json(const Compiled& compiled, const Platform& platform) {
  return {{"source", platform.schedules_note},
          {"kernels", std::ranges::count(compiled.kernels, ScheduleFrom::shipped,
                                         &CompiledKernel::schedule_from)}};
}

json machine_json(const Platform& p) {
  if (!p.cuda) return {{"cpu", p.cpu.cpu}, {"vector_bytes", p.cpu.vector_bytes}};
  const plan::MachineModel m = p.model();
  return {{"gpu", p.gpu.name},
          {"arch", p.gpu.arch()},
          {"multiprocessors", p.gpu.multiprocessors},
          {"here", p.found},
          {"dram_gbs", m.dram_gbs},
          {"f32_gflops", m.peak_gflops * m.threads},
          {"half_matrix_gflops", m.half_matrix_gflops * m.threads}};
}

}  // namespace

json report_of(const Compiled& compiled, const Platform& platform) {
  const plan::Plan& plan = compiled.plan;
  json report = {{"build", build_id()},
                 {"device", platform.name()},
                 {"machine", machine_json(platform)},
                 {"precision", platform.tf32 ? "tf32" : name_of(compiled.precision)},
                 {"stored", stored_json(compiled)},
                 {"plan",
                  {{"strategy", plan::name_of(plan.strategy)},
                   {"kernels", compiled.kernels.size()},
                   {"cost_us", plan.cost_us},
                   {"provenance", provenance_of(compiled)},
                   {"lower_bound_us", plan.lower_bound_us},
                   {"gap", plan.gap()},
                   {"primitives", plan.stats.nodes},
                   {"candidates", plan.stats.candidates},
                   {"regions", plan.stats.regions},
                   {"unique_regions", plan.stats.unique_regions},
                   {"cuts_per_node", plan.stats.cuts_per_node}}},
                 {"mode", mode_json(compiled.mode)},
                 {"ring", ring_summary(compiled)},
                 {"memory", memory_json(compiled.memory)},
                 {"schedules", schedules_json(compiled, platform)},
                 {"kernels", json::array()},
                 {"joins", joins_json(compiled)},
                 {"times", json::array()}};
  for (const CompiledKernel& kernel : compiled.kernels) {
    report["kernels"].push_back(kernel_json(compiled.graph, kernel));
    if (platform.cuda) add_cuda(report["kernels"].back(), compiled.graph, kernel, platform);
  }
  report["fusion"] = fusion_of(compiled);
  for (const PhaseTime& time : compiled.times)
    report["times"].push_back({{"phase", time.name}, {"seconds", time.seconds}});
  return report;
}

}  // namespace heddle::driver

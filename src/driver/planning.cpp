#include "driver/planning.h"

#include <algorithm>
#include <set>

#include "prim/alternatives.h"
#include "prim/bytes.h"
#include "prim/moments.h"
#include "prim/passes.h"
#include "prim/rewrite.h"
#include "support/options.h"

namespace heddle::driver {

Result<prim::Graph> run_graph_passes(prim::Graph graph, const CompileOptions& options,
                                     const Platform& platform, Dumper& dumper) {
  HEDDLE_TRY(prim::check_disabled(options.options.disable));
  prim::PassOptions passes;
  passes.verify_each = options.options.verify;
  passes.bisect = options.options.bisect;
  passes.disable = options.options.disable;
  const auto leave_out = [&](std::string_view row) {
    passes.disable += fmt::format("{}{}", passes.disable.empty() ? "" : ",", row);
  };
  if (platform.target().quads) leave_out(prim::kBytesInHalves);
  if (!platform.target().quads || platform.cuda) {
    leave_out(prim::kDepthwiseOfBytes);
    leave_out(prim::kContractOfRaggedIntegers);
  }
  if (!platform.target().bf16_pairs) leave_out(prim::kBf16InPairs);
  if (!platform.target().byte_tables) leave_out(prim::kByteTable);
  if (platform.strict) leave_out(prim::kContractOfResampled);
  if (dumper.wants("prim")) {
    dumper.write("import", graph);
    passes.changed = [&](int, std::string_view name, const prim::Graph& result) {
      dumper.write("after-" + std::string(name), result);
    };
  }
  graph = HEDDLE_TRY(prim::run_passes(prim::default_passes(), std::move(graph), passes));
  return platform.cuda ? std::move(graph) : prim::with_bytes(graph);
}

namespace {

/// True if the sum can be made in the kernel of a contraction from which maps and views make x.
bool may_ride(const prim::Graph& g, const prim::Deviation& d, const plan::Legality& legality) {
  constexpr std::size_t kFar = 64;
  std::set<prim::NodeId> before{d.x};  // x, and what it is made of up to contractions
  std::vector<prim::NodeId> work{d.x}, contractions;
  for (std::size_t next = 0; next < std::min(work.size(), kFar); ++next) {
    const prim::NodeId id = work[next];
    if (std::holds_alternative<prim::Contract>(g[id].op)) contractions.push_back(id);
    if (!std::holds_alternative<prim::Map>(g[id].op) &&
        !std::holds_alternative<prim::View>(g[id].op))
      continue;
    for (const prim::NodeId arg : g[id].args)
      if (before.insert(arg).second) work.push_back(arg);
  }
  return std::ranges::any_of(contractions, [&](prim::NodeId from) {
    std::set<prim::NodeId> way{from};
    for (const prim::NodeId id : before)
      if (std::ranges::any_of(g[id].args, [&](prim::NodeId arg) { return way.contains(arg); }))
        way.insert(id);
    way.insert(d.sum);
    return legality.supports(g, {{way.begin(), way.end()}, {d.x, d.sum}});
  });
}

}  // namespace

Result<prim::Graph> with_riding_moments(prim::Graph graph, const CompileOptions& options,
                                        const Platform& platform, ThreadPool& pool,
                                        std::optional<double>* delta_us) {
  // GPUs of data centres compute f64 at half the rate of f32, others at a 64th.
  const bool slow = platform.cuda && (platform.gpu.minor != 0 || platform.gpu.major > 10);
  if (options.strategy != "full" || slow || lists(options.options.disable, prim::kMomentsInOnePass))
    return graph;
  plan::Options planning;
  planning.legality = plan::lowering_legality(platform.target());
  planning.machine = platform.model();
  planning.pool = &pool;
  bool any = false;
  prim::Graph other = prim::moments_in_one_pass(graph, [&](const prim::Deviation& d) {
    const bool rides = may_ride(graph, d, planning.legality);
    any |= rides;
    return rides;
  });
  if (!any) return graph;
  const plan::Plan as_written = HEDDLE_TRY(plan::orchestrate(graph, planning));
  const plan::Plan riding = HEDDLE_TRY(plan::orchestrate(other, planning));
  *delta_us = riding.cost_us - as_written.cost_us;
  return **delta_us < 0 ? std::move(other) : std::move(graph);
}

Result<plan::Options> plan_options(prim::Graph& graph, const CompileOptions& options,
                                   const Platform& platform) {
  plan::Options planning;
  const auto strategy = plan::strategy_named(options.strategy);
  if (!strategy)
    return fail(
        ErrorCode::usage,
        "--strategy: found '{}', want single, operators, greedy, partition, recompute or full",
        options.strategy);
  planning.strategy = *strategy;
  planning.legality = plan::lowering_legality(platform.target());
  planning.machine = platform.model();
  if (*strategy == plan::Strategy::full) {
    std::string without = options.options.disable;
    if (platform.strict) without += fmt::format(",{}", prim::kPositionsAsColumns);
    std::vector<prim::Alternative> others = prim::find_alternatives(graph, without);
    std::erase_if(others, [&](const prim::Alternative& a) {  // outputs have places of their own
      return std::ranges::find(graph.outputs, a.equal, &prim::GraphOutput::node) !=
             graph.outputs.end();
    });
    planning.class_of = prim::classes_of(graph, others);
  }
  return planning;
}

}  // namespace heddle::driver

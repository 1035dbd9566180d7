#include "driver/planning.h"

#include <algorithm>

#include "prim/alternatives.h"
#include "prim/bytes.h"
#include "prim/passes.h"
#include "prim/rewrite.h"

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
  if (!platform.target().bf16_pairs) leave_out(prim::kBf16InPairs);
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
    std::vector<prim::Alternative> others = prim::find_alternatives(graph, options.options.disable);
    std::erase_if(others, [&](const prim::Alternative& a) {  // outputs have places of their own
      return std::ranges::find(graph.outputs, a.equal, &prim::GraphOutput::node) !=
             graph.outputs.end();
    });
    planning.class_of = prim::classes_of(graph, others);
  }
  return planning;
}

}  // namespace heddle::driver

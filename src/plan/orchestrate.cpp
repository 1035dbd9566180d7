#include "plan/clusters.h"

namespace heddle::plan {

Result<Plan> orchestrate(const prim::Graph& g, const Options& options) {
  const Facts facts = facts_of(g, options.legality, options.class_of);
  for (const prim::GraphOutput& o : g.outputs) {
    if (facts.is_leaf(o.node)) {
      return fail("output '{}' is an input or a constant, want a copy of it", o.name);
    }
  }
  CostModel cost(facts, options.machine);
  std::vector<Cluster> clusters = options.strategy == Strategy::single
                                      ? single_clusters(facts)
                                      : greedy_clusters(facts, options);
  auto plan = assemble(facts, std::move(clusters), options, cost);
  HEDDLE_CHECK(plan.has_value(), "kernels of the {} plan wait for each other",
               name_of(options.strategy));
  return *std::move(plan);
}

}  // namespace heddle::plan

#include "plan/plan.h"

namespace heddle::plan {

Legality lowering_legality(const lower::Target& target) {
  Legality legality;
  legality.main_loop = [gpu = target.is_gpu()](const prim::Graph& g, NodeId id) {
    return lower::contract::worth_main_loop(g, id, gpu);
  };
  legality.supports = [target](const prim::Graph& g, const Cluster& c) {
    return lower::supports(g, c, target);
  };
  legality.algorithms = [target](const prim::Graph& g, NodeId contract) {
    return lower::contract::algorithms(g, contract, target);
  };
  legality.chains = [target](const prim::Graph& g, const std::vector<NodeId>& live) {
    std::vector<Cluster> all = lower::bands::clusters(g, target);
    for (const NodeId id : live)
      if (std::holds_alternative<prim::Contract>(g[id].op))
        if (auto attention = lower::attention::cluster_at(g, id, target))
          all.push_back(*std::move(attention));
    return all;
  };
  legality.joins = [target](const prim::Graph& g) { return lower::joins_of(g, target); };
  return legality;
}

}  // namespace heddle::plan

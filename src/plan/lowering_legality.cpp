#include "plan/plan.h"

namespace heddle::plan {

Legality lowering_legality(const lower::Target& target) {
  Legality legality;
  legality.main_loop = lower::contract::worth_main_loop;
  legality.supports = [target](const prim::Graph& g, const Cluster& c) {
    return lower::supports(g, c, target);
  };
  legality.algorithms = [target](const prim::Graph& g, NodeId contract) {
    return lower::contract::algorithms(g, contract, target);
  };
  legality.chain = [target](const prim::Graph& g, NodeId contract) {
    return lower::attention::cluster_at(g, contract, target);
  };
  return legality;
}

}  // namespace heddle::plan

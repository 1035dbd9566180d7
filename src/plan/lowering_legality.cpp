#include <algorithm>

#include "plan/plan.h"

namespace heddle::plan {

Legality lowering_legality() {
  Legality legality;
  legality.main_loop = lower::contract::worth_main_loop;
  legality.supports = [](const prim::Graph& g, const Cluster& c) {
    const bool loop = std::any_of(c.nodes.begin(), c.nodes.end(), [&](NodeId id) {
      return std::holds_alternative<prim::Contract>(g[id].op) &&
             lower::contract::worth_main_loop(g, id);
    });
    return loop ? lower::contract::supports(g, c) : lower::stitch::supports(g, c);
  };
  return legality;
}

}  // namespace heddle::plan

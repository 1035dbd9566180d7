#include "lower/lower.h"

#include <algorithm>

#include "lower/evaluate.h"

namespace heddle::lower {

std::vector<NodeId> inputs_of(const prim::Graph& g, const Cluster& c) {
  std::vector<NodeId> out;
  for (NodeId id : c.nodes) {
    for (NodeId arg : g[id].args) {
      if (std::binary_search(c.nodes.begin(), c.nodes.end(), arg) || inlined_constant(g, arg))
        continue;
      if (std::find(out.begin(), out.end(), arg) == out.end()) out.push_back(arg);
    }
  }
  return out;
}

Result<Lowered> lower(const Request& request) {
  const prim::Graph& g = *request.graph;
  const bool main_loop =
      std::any_of(request.cluster.nodes.begin(), request.cluster.nodes.end(), [&](NodeId id) {
        return std::holds_alternative<prim::Contract>(g[id].op) && contract::worth_main_loop(g, id);
      });
  // On a GPU contractions are reductions by teams of threads so far.
  const bool tiled = main_loop && !request.target.is_gpu();
  if (tiled && contract::supports(g, request.cluster)) return contract::lower(request);
  return stitch::lower(request);
}

}  // namespace heddle::lower

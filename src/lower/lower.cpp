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
  if (main_loop && contract::supports(g, request.cluster)) {
    auto tiled = contract::lower(request);
    // Tiles for GPU threads that cannot be proven sound leave a reduction by teams of threads.
    if (tiled || !request.target.is_gpu()) return tiled;
  }
  return stitch::lower(request);
}

}  // namespace heddle::lower

#include "plan/compared.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

namespace heddle::plan {
namespace {

/// The extreme that a value repeats, through any views.
std::optional<NodeId> extreme_behind(const prim::Graph& g, NodeId id) {
  id = prim::behind_views(g, id);
  const auto* reduce = std::get_if<prim::Reduce>(&g[id].op);
  const bool extreme = reduce && (reduce->fn == ir::Monoid::max || reduce->fn == ir::Monoid::min);
  return extreme ? std::optional(id) : std::nullopt;
}

/// Gives the same bits of the same bits in whatever kernel: nothing is rounded.
bool is_exact(const prim::Op& op) {
  using ir::ScalarFn;
  if (std::holds_alternative<prim::View>(op) || std::holds_alternative<prim::Gather>(op))
    return true;
  const auto* map = std::get_if<prim::Map>(&op);
  constexpr ScalarFn kExact[] = {ScalarFn::max, ScalarFn::min,    ScalarFn::neg,
                                 ScalarFn::abs, ScalarFn::select, ScalarFn::cast};
  return map && std::ranges::find(kExact, map->fn) != std::end(kExact);
}

/// What is computed nearest to a value, itself among it, on all ways to the inputs.
std::vector<NodeId> computed_behind(const prim::Graph& g, NodeId value) {
  std::vector<NodeId> found, stack{value};
  std::unordered_set<NodeId> seen{value};
  while (!stack.empty()) {
    const NodeId id = stack.back();
    stack.pop_back();
    if (!g[id].args.empty() && !is_exact(g[id].op)) {
      found.push_back(id);
      continue;
    }
    for (const NodeId arg : g[id].args)
      if (seen.insert(arg).second) stack.push_back(arg);
  }
  return found;
}

}  // namespace

Legality with_comparisons(const prim::Graph& g, Legality legality) {
  std::unordered_map<NodeId, std::vector<NodeId>> outside;  // of a cluster with the node
  for (const NodeId id : prim::live_nodes(g)) {
    const auto* map = std::get_if<prim::Map>(&g[id].op);
    if (!map || map->fn != ir::ScalarFn::equal) continue;
    for (int side = 0; side < 2; ++side) {
      const auto extreme = extreme_behind(g, g[id].args[static_cast<std::size_t>(side)]);
      if (!extreme || g[*extreme].args[0] != g[id].args[static_cast<std::size_t>(1 - side)])
        continue;
      const std::vector<NodeId> computed = computed_behind(g, g[*extreme].args[0]);
      if (!computed.empty()) outside[id] = outside[*extreme] = computed;
    }
  }
  if (outside.empty()) return legality;
  legality.supports = [outside = std::move(outside), supports = std::move(legality.supports)](
                          const prim::Graph& graph, const Cluster& c) {
    for (const NodeId id : c.nodes)
      if (const auto at = outside.find(id); at != outside.end())
        for (const NodeId computed : at->second)
          if (std::ranges::find(c.nodes, computed) != c.nodes.end()) return false;
    return supports(graph, c);
  };
  return legality;
}

}  // namespace heddle::plan

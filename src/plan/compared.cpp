#include "plan/compared.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

namespace heddle::plan {
namespace {

/// The extreme that a value repeats, through any views.
std::optional<NodeId> extreme_behind(const prim::Graph& g, NodeId id) {
  while (std::holds_alternative<prim::View>(g[id].op) && g[id].args.size() == 1) id = g[id].args[0];
  const auto* reduce = std::get_if<prim::Reduce>(&g[id].op);
  const bool extreme = reduce && (reduce->fn == ir::Monoid::max || reduce->fn == ir::Monoid::min);
  return extreme ? std::optional(id) : std::nullopt;
}

bool adds_up(const prim::Op& op) {
  if (const auto* reduce = std::get_if<prim::Reduce>(&op))
    return reduce->fn == ir::Monoid::sum || reduce->fn == ir::Monoid::prod;
  return std::holds_alternative<prim::Contract>(op) || std::holds_alternative<prim::Scan>(op) ||
         std::holds_alternative<prim::Scatter>(op);
}

/// The sums nearest to a value, itself among them, on all ways to the inputs.
std::vector<NodeId> sums_behind(const prim::Graph& g, NodeId value) {
  std::vector<NodeId> found, stack{value};
  std::unordered_set<NodeId> seen{value};
  while (!stack.empty()) {
    const NodeId id = stack.back();
    stack.pop_back();
    if (adds_up(g[id].op)) {
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
      const std::vector<NodeId> sums = sums_behind(g, g[*extreme].args[0]);
      if (sums.empty()) continue;
      outside[id] = outside[*extreme] = sums;
    }
  }
  if (outside.empty()) return legality;
  legality.supports = [outside = std::move(outside), supports = std::move(legality.supports)](
                          const prim::Graph& graph, const Cluster& c) {
    for (const NodeId id : c.nodes)
      if (const auto at = outside.find(id); at != outside.end())
        for (const NodeId sum : at->second)
          if (std::ranges::find(c.nodes, sum) != c.nodes.end()) return false;
    return supports(graph, c);
  };
  return legality;
}

}  // namespace heddle::plan

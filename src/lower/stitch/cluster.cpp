#include "lower/stitch/cluster.h"

#include <algorithm>
#include <map>
#include <set>

#include "lower/reduction.h"

namespace heddle::lower::stitch {
namespace {

constexpr double kWorthSaving = 6;  // vector operations: a store and a load cost about as much

}  // namespace

bool inside(const Cluster& c, NodeId id) {
  return std::binary_search(c.nodes.begin(), c.nodes.end(), id);
}

std::vector<NodeId> values_to_save(const prim::Graph& g, const Cluster& c, const Target& target) {
  // Where each value goes without passing through another reduction: reductions and outputs.
  std::map<NodeId, std::set<NodeId>> sinks;
  std::map<NodeId, std::set<std::set<NodeId>>> by_user;
  for (NodeId o : c.outputs) sinks[o].insert(o);
  for (std::size_t i = c.nodes.size(); i-- > 0;) {
    const NodeId id = c.nodes[i];
    const std::set<NodeId> seen = is_reduction(g, id) ? std::set<NodeId>{id} : sinks[id];
    for (NodeId arg : g[id].args) {
      if (!inside(c, arg)) continue;
      sinks[arg].insert(seen.begin(), seen.end());
      by_user[arg].insert(is_reduction(g, id) ? std::set<NodeId>{id} : seen);
    }
  }
  // The cost of a value from what is saved or in memory.
  std::vector<NodeId> saved;
  std::map<NodeId, double> cost;
  for (NodeId id : c.nodes) {
    double total = 0;
    for (NodeId arg : g[id].args) {
      const bool reread = inside(c, arg) && !is_reduction(g, arg) &&
                          !std::binary_search(saved.begin(), saved.end(), arg);
      // What is repeated is computed once per row. (On a GPU what is saved stays in registers, and
      // a row saved after so little work need not be read again.)
      const bool repeated =
          !target.is_gpu() && element_count(g[arg].type.shape) < element_count(g[id].type.shape);
      if (reread)
        total += repeated ? 0 : cost[arg];
      else if (!inlined_constant(g, arg) && g[arg].type.shape == g[id].type.shape)
        total += 1.5;
    }
    if (const auto* map = std::get_if<prim::Map>(&g[id].op)) total += ir::info(map->fn).flops;
    if (std::holds_alternative<prim::Gather>(g[id].op)) total += 8;
    cost[id] = total;
    const auto& goes = sinks[id];
    const bool only_through_one = by_user[id].size() == 1 && *by_user[id].begin() == goes;
    if (goes.size() >= 2 && !only_through_one && total >= kWorthSaving && !is_reduction(g, id))
      saved.push_back(id);
  }
  return saved;
}

namespace {

/// Elements of one access of a GPU thread to the values that most bytes are in.
int gpu_lanes(const prim::Graph& g, const Cluster& c, const Target& target) {
  constexpr std::int64_t kMost = 8;  // a register each
  std::int64_t most = -1, lanes = 1;
  const auto consider = [&](NodeId id) {
    const std::int64_t size = size_of(g[id].type.dtype);
    const std::int64_t bytes = element_count(g[id].type.shape) * size;
    if (bytes <= most) return;
    most = bytes;
    lanes = std::clamp<std::int64_t>(target.vector_bytes / size, 1, kMost);
  };
  for (NodeId id : c.outputs) consider(id);
  for (NodeId id : inputs_of(g, c)) consider(id);
  return static_cast<int>(lanes);
}

}  // namespace

int lanes_for(const prim::Graph& g, const Cluster& c, const Target& target) {
  if (target.is_gpu()) return gpu_lanes(g, c, target);
  std::int64_t widest = 1;
  const auto consider = [&](NodeId id) {
    widest = std::max(widest, size_of(compute_type(g[id].type.dtype)));
  };
  for (NodeId id : c.nodes) {
    consider(id);
    for (NodeId arg : g[id].args) consider(arg);
  }
  return static_cast<int>(target.vector_bytes / std::min<std::int64_t>(widest, 4));
}

std::optional<NodeId> special_node(const prim::Graph& g, const Cluster& c) {
  for (NodeId id : c.nodes) {
    const prim::Op& op = g[id].op;
    if (std::holds_alternative<prim::Scan>(op) || std::holds_alternative<prim::Sort>(op) ||
        std::holds_alternative<prim::Scatter>(op))
      return id;
  }
  return std::nullopt;
}

bool depends_on(const prim::Graph& g, const Cluster& c, NodeId node, NodeId on) {
  std::set<NodeId> seen;
  std::vector<NodeId> next{node};
  while (!next.empty()) {
    const NodeId id = next.back();
    next.pop_back();
    if (id == on) return true;
    if (!inside(c, id) || !seen.insert(id).second) continue;
    for (NodeId arg : g[id].args)
      if (arg >= on) next.push_back(arg);
  }
  return false;
}

}  // namespace heddle::lower::stitch

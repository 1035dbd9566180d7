#include "driver/joined.h"

#include <algorithm>
#include <set>

#include "lower/joins.h"

namespace heddle::driver {
namespace {

using prim::NodeId;

/// What makes values: kernels of the plan.
struct Made {
  std::unordered_map<NodeId, std::vector<std::size_t>> by;
  std::unordered_map<NodeId, std::size_t> alone;  ///< the kernel of which it is the only output
  std::set<NodeId> outputs;                       ///< the program's

  /// By a kernel that runs before kernel `k`, and by no other.
  bool before(std::size_t k, NodeId id) const {
    const auto makers = by.find(id);
    return makers != by.end() && makers->second.size() == 1 && makers->second[0] < k;
  }
};

/// What a concatenation's kernel is without it: its parts that no other kernel has made.
plan::Kernel parts_of(const plan::Kernel& kernel, std::size_t k, const lower::Join& join,
                      const Made& made) {
  plan::Kernel rest = kernel;
  lower::Cluster& c = rest.cluster;
  std::erase(c.nodes, join.whole);
  c.outputs.clear();
  for (const lower::Join::Part& part : join.parts)
    if (!made.before(k, part.node)) c.outputs.push_back(part.node);
  std::ranges::sort(c.outputs);
  return rest;
}

/// Nodes that outputs do not need are what only parts made elsewhere did.
void drop_unused(const prim::Graph& graph, lower::Cluster& c) {
  std::set<NodeId> needed(c.outputs.begin(), c.outputs.end());
  for (std::size_t i = c.nodes.size(); i-- > 0;)
    if (needed.contains(c.nodes[i]))
      needed.insert(graph[c.nodes[i]].args.begin(), graph[c.nodes[i]].args.end());
  std::erase_if(c.nodes, [&](NodeId id) { return !needed.contains(id); });
}

Made made_by(const prim::Graph& graph, const plan::Plan& plan,
             const std::function<NodeId(NodeId)>& actual) {
  Made made;
  for (std::size_t k = 0; k < plan.kernels.size(); ++k) {
    const auto& outputs = plan.kernels[k].cluster.outputs;
    for (const NodeId id : outputs) made.by[id].push_back(k);
    if (outputs.size() == 1) made.alone.emplace(outputs[0], k);
  }
  for (const prim::GraphOutput& o : graph.outputs) made.outputs.insert(actual(o.node));
  return made;
}

/// The join that kernel `k` of the plan is, by what is computed; nullopt where some part is not
/// made by it or once before, is the program's, or a part twice.
std::optional<lower::Join> computed(lower::Join join, std::size_t k, const lower::Cluster& kernel,
                                    const Made& made, const std::function<NodeId(NodeId)>& actual) {
  if (made.by.at(join.whole).size() != 1 || made.outputs.contains(join.whole)) return std::nullopt;
  std::set<NodeId> parts{join.whole};
  for (lower::Join::Part& part : join.parts) {
    const NodeId id = actual(part.node);
    if (made.before(k, id))
      part.node = id;
    else if (made.by.contains(id) || !std::ranges::binary_search(kernel.nodes, part.node))
      return std::nullopt;
    if (made.outputs.contains(part.node) || !parts.insert(part.node).second) return std::nullopt;
  }
  return join;
}

}  // namespace

JoinedPlan join_in_place(const prim::Graph& graph, const plan::Plan& plan,
                         const lower::Target& target, const std::function<NodeId(NodeId)>& actual,
                         const std::vector<NodeId>& refused) {
  const Made made = made_by(graph, plan, actual);
  JoinedPlan out;
  std::unordered_map<std::size_t, lower::Join> joined;  // by kernel of the plan
  const auto agrees = [&](NodeId id, const lower::Member& member) {
    const auto known = out.members.find(id);
    return known == out.members.end() || known->second == member;
  };
  for (const lower::Join& given : lower::joins_of(graph, target)) {
    const auto kernel = made.alone.find(given.whole);
    // The root's memory is its own, or nobody's.
    const bool free = given.root == given.whole || out.members.contains(given.root) ||
                      !made.by.contains(given.root);
    if (kernel == made.alone.end() || !free ||
        std::ranges::find(refused, given.root) != refused.end())
      continue;
    const std::size_t k = kernel->second;
    const auto join = computed(given, k, plan.kernels[k].cluster, made, actual);
    if (!join) continue;
    std::vector<std::pair<NodeId, lower::Member>> members{
        {join->whole, {join->root, join->axis, join->first}}};
    for (const lower::Join::Part& part : join->parts)
      members.push_back({part.node, {join->root, join->axis, part.first}});
    if (!std::ranges::all_of(members, [&](const auto& m) { return agrees(m.first, m.second); }))
      continue;
    out.members.insert(members.begin(), members.end());
    out.joins.push_back(*join);
    joined.emplace(k, *join);
  }
  for (std::size_t k = 0; k < plan.kernels.size(); ++k) {
    plan::Kernel kernel = plan.kernels[k];
    if (const auto join = joined.find(k); join != joined.end()) {
      kernel = parts_of(kernel, k, join->second, made);
      drop_unused(graph, kernel.cluster);
      if (kernel.cluster.outputs.empty()) continue;
      kernel.inputs = plan::reads_of(graph, kernel.cluster);
    }
    out.kernels.push_back(std::move(kernel));
    out.planned.push_back(k);
  }
  return out;
}

}  // namespace heddle::driver

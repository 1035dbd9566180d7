#include "driver/joined.h"

#include <algorithm>
#include <set>

#include "lower/joins.h"

namespace heddle::driver {
namespace {

using prim::NodeId;

/// What a concatenation's kernel is without it: its parts that no other kernel makes.
plan::Kernel parts_of(const plan::Kernel& kernel, const lower::Join& join,
                      const std::set<NodeId>& made) {
  plan::Kernel rest = kernel;
  lower::Cluster& c = rest.cluster;
  std::erase(c.nodes, join.whole);
  c.outputs.clear();
  for (const lower::Join::Part& part : join.parts)
    if (std::ranges::binary_search(c.nodes, part.node) && !made.contains(part.node))
      c.outputs.push_back(part.node);
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

/// What makes values, and which of them are a kernel's only one.
struct Made {
  std::set<NodeId> all, outputs;
  std::unordered_map<NodeId, std::size_t> alone;  ///< its kernel
};
Made made_by(const prim::Graph& graph, const plan::Plan& plan,
             const std::function<NodeId(NodeId)>& actual) {
  Made made;
  for (std::size_t k = 0; k < plan.kernels.size(); ++k) {
    const auto& outputs = plan.kernels[k].cluster.outputs;
    made.all.insert(outputs.begin(), outputs.end());
    if (outputs.size() == 1) made.alone.emplace(outputs[0], k);
  }
  for (const prim::GraphOutput& o : graph.outputs) made.outputs.insert(actual(o.node));
  return made;
}

/// The join by what is computed; nullopt where some part is not, or is a part twice.
std::optional<lower::Join> computed(lower::Join join, const lower::Cluster& kernel,
                                    const Made& made, const std::function<NodeId(NodeId)>& actual) {
  std::set<NodeId> parts{join.whole};
  for (lower::Join::Part& part : join.parts) {
    const bool elsewhere = made.all.contains(actual(part.node));
    if (!elsewhere && !std::ranges::binary_search(kernel.nodes, part.node)) return std::nullopt;
    if (elsewhere) part.node = actual(part.node);
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
  const auto agrees = [&](NodeId id, const JoinedPlan::Member& member) {
    const auto known = out.members.find(id);
    return known == out.members.end() || known->second == member;
  };
  for (const lower::Join& given : lower::joins_of(graph, target)) {
    const auto kernel = made.alone.find(given.whole);
    if (kernel == made.alone.end() || std::ranges::find(refused, given.root) != refused.end())
      continue;
    const auto join = computed(given, plan.kernels[kernel->second].cluster, made, actual);
    if (!join) continue;
    std::vector<std::pair<NodeId, JoinedPlan::Member>> members{
        {join->whole, {join->root, join->axis, join->first}}};
    for (const lower::Join::Part& part : join->parts)
      members.push_back({part.node, {join->root, join->axis, part.first}});
    if (!std::ranges::all_of(members, [&](const auto& m) { return agrees(m.first, m.second); }))
      continue;
    out.members.insert(members.begin(), members.end());
    out.joins.push_back(*join);
    joined.emplace(kernel->second, *join);
  }
  for (std::size_t k = 0; k < plan.kernels.size(); ++k) {
    plan::Kernel kernel = plan.kernels[k];
    if (const auto join = joined.find(k); join != joined.end()) {
      kernel = parts_of(kernel, join->second, made.all);
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

#include "plan/clusters.h"

#include <algorithm>
#include <map>
#include <set>

#include "plan/regions.h"

namespace heddle::plan {
namespace {

/// A primitive with the repeating views that it absorbs in any case.
Cluster base_cluster(const Facts& f, NodeId root) {
  std::set<NodeId> nodes = {root};
  std::vector<NodeId> work = {root};
  while (!work.empty()) {
    const NodeId id = work.back();
    work.pop_back();
    for (NodeId arg : f[id].args) {
      if (must_absorb(f, arg, id) && nodes.insert(arg).second) work.push_back(arg);
    }
  }
  return {{nodes.begin(), nodes.end()}, {root}};
}

/// A kernel under construction, rooted at the node it was started from.
struct Group {
  std::vector<NodeId> nodes;  // sorted
  bool has_loop = false, has_reduce = false, has_contract = false;
};

bool elementwise(const Facts& f, NodeId id) {
  return f.as<prim::Map>(id) || f.as<prim::View>(id) || f.as<prim::Iota>(id);
}

/// The rule says yes and the lowering can.
bool joins(const Facts& f, const Options& options, NodeId id, const Group& group, NodeId root) {
  const bool loop = f.is_main_loop(id);
  const bool reduces = f.as<prim::Reduce>(id) || (f.as<prim::Contract>(id) && !loop);
  if (reduces || (!loop && !elementwise(f, id))) return false;
  if (static_cast<int>(group.nodes.size()) >= options.max_cluster) return false;
  if (group.has_loop) {
    // Followers of the loop are in the group already: what joins now feeds it or them.
    if (loop) return false;
    for (NodeId reader : f.consumers_of(id)) {
      if (f.is_main_loop(reader)) return false;
    }
  }
  if (loop && (group.has_reduce || group.has_contract)) return false;
  std::vector<NodeId> nodes = group.nodes;
  nodes.insert(std::lower_bound(nodes.begin(), nodes.end(), id), id);
  return options.legality.supports(*f.graph, {nodes, {root}});
}

/// Cheap to have in several kernels: no kernel of its own is worth it.
bool duplicable(const Facts& f, NodeId id) {
  if (f.as<prim::Iota>(id)) return true;
  if (!f.as<prim::View>(id)) return false;
  return f.is_leaf(f[id].args[0]) || f.elements_of(f[id].args[0]) < f.elements_of(id);
}

}  // namespace

std::vector<prim::OriginId> origins_of(const prim::Graph& g, const Cluster& c) {
  std::vector<prim::OriginId> out;
  for (NodeId id : c.nodes)
    for (prim::OriginId origin : g.origins_of(id))
      if (std::find(out.begin(), out.end(), origin) == out.end()) out.push_back(origin);
  return out;
}

std::vector<Cluster> single_clusters(const Facts& facts) {
  std::vector<Cluster> out;
  for (NodeId id : facts.live) {
    if (facts.is_leaf(id)) continue;
    bool stored = facts.is_output(id);
    for (NodeId reader : facts.consumers_of(id)) stored = stored || !must_absorb(facts, id, reader);
    if (stored) out.push_back(base_cluster(facts, id));
  }
  return out;
}

std::vector<Cluster> greedy_clusters(const Facts& facts, const Options& options) {
  std::map<NodeId, Group> groups;                 // by root
  std::map<NodeId, std::vector<NodeId>> home_of;  // roots of the groups that compute a node
  for (auto it = facts.live.rbegin(); it != facts.live.rend(); ++it) {
    const NodeId id = *it;
    if (facts.is_leaf(id)) continue;
    std::set<NodeId> targets;
    for (NodeId reader : facts.consumers_of(id)) {
      targets.insert(home_of[reader].begin(), home_of[reader].end());
    }
    bool joined =
        !facts.is_output(id) && !targets.empty() && (targets.size() == 1 || duplicable(facts, id));
    for (NodeId root : targets) {
      joined = joined && joins(facts, options, id, groups[root], root);
    }
    if (!joined) targets = {id};
    for (NodeId root : targets) {
      Group& group = groups[root];
      group.nodes.insert(std::lower_bound(group.nodes.begin(), group.nodes.end(), id), id);
      group.has_loop = group.has_loop || facts.is_main_loop(id);
      group.has_reduce = group.has_reduce || facts.as<prim::Reduce>(id);
      group.has_contract = group.has_contract || facts.as<prim::Contract>(id);
      home_of[id].push_back(root);
    }
  }
  std::vector<Cluster> out;
  for (auto& [root, group] : groups) out.push_back({std::move(group.nodes), {root}});
  return out;
}

namespace {

/// For each cluster, the positions of those whose outputs it reads; nullopt if nobody makes one.
std::optional<std::vector<std::vector<int>>> dependencies(const Facts& f,
                                                          const std::vector<Cluster>& clusters) {
  std::map<NodeId, int> maker;  // by class
  for (std::size_t i = 0; i < clusters.size(); ++i) {
    for (NodeId o : clusters[i].outputs) maker.emplace(f.class_of_node(o), static_cast<int>(i));
  }
  std::vector<std::vector<int>> out(clusters.size());
  for (std::size_t i = 0; i < clusters.size(); ++i) {
    for (NodeId in : reads_of(*f.graph, clusters[i])) {
      if (f.is_leaf(in)) continue;
      auto it = maker.find(f.class_of_node(in));
      if (it == maker.end()) return std::nullopt;
      out[i].push_back(it->second);
    }
  }
  return out;
}

/// Values that are read from the buffer of an equivalent one.
std::vector<Substitute> substitutes_of(const Facts& f, const std::vector<Kernel>& kernels) {
  std::map<NodeId, NodeId> made;  // class → node in memory
  std::set<NodeId> there;
  for (const Kernel& k : kernels) {
    for (NodeId o : k.cluster.outputs) {
      made.emplace(f.class_of_node(o), o);
      there.insert(o);
    }
  }
  std::set<Substitute> out;
  auto want = [&](NodeId id) {
    if (f.is_leaf(id) || there.count(id)) return;
    out.insert({id, made.at(f.class_of_node(id))});
  };
  for (const Kernel& k : kernels) {
    for (NodeId in : k.inputs) want(in);
  }
  for (const prim::GraphOutput& o : f.graph->outputs) want(o.node);
  return {out.begin(), out.end()};
}

}  // namespace

std::optional<Plan> assemble(const Facts& facts, std::vector<Cluster> clusters,
                             const Options& options, CostModel& cost) {
  // First output decides among kernels that are ready, so the order follows the source; but what
  // only makes outputs of the program (the updates of a training step) or numbers that these wait
  // for needs no memory and may free some: it runs as soon as it can.
  const auto keeps_memory = [&](const Cluster& c) {
    return !std::all_of(c.outputs.begin(), c.outputs.end(),
                        [&](NodeId o) { return facts.is_output(o) || facts.elements_of(o) <= 1; });
  };
  std::sort(clusters.begin(), clusters.end(), [&](const Cluster& a, const Cluster& b) {
    return std::tuple(keeps_memory(a), a.outputs[0], a) <
           std::tuple(keeps_memory(b), b.outputs[0], b);
  });
  auto needs = dependencies(facts, clusters);
  if (!needs) return std::nullopt;
  std::vector<std::vector<int>> readers(clusters.size());
  std::vector<int> waiting(clusters.size());
  std::set<int> ready;
  for (std::size_t i = 0; i < clusters.size(); ++i) {
    for (int d : (*needs)[i]) readers[static_cast<std::size_t>(d)].push_back(static_cast<int>(i));
    waiting[i] = static_cast<int>((*needs)[i].size());
    if (waiting[i] == 0) ready.insert(static_cast<int>(i));
  }
  Plan plan;
  plan.strategy = options.strategy;
  while (!ready.empty()) {
    const auto i = static_cast<std::size_t>(*ready.begin());
    ready.erase(ready.begin());
    for (int r : readers[i]) {
      if (--waiting[static_cast<std::size_t>(r)] == 0) ready.insert(r);
    }
    Kernel k;
    k.cluster = std::move(clusters[i]);
    k.cost = cost(k.cluster);
    if (options.measured && !facts.is_join(k.cluster)) {
      if (auto us = options.measured(*facts.graph, k.cluster)) {
        k.cost.us = *us;
        k.cost.provenance = Provenance::measured;
      }
    }
    k.inputs = reads_of(*facts.graph, k.cluster);
    k.origins = origins_of(*facts.graph, k.cluster);
    plan.cost_us += k.cost.us;
    plan.kernels.push_back(std::move(k));
  }
  if (plan.kernels.size() != clusters.size()) return std::nullopt;
  plan.substitutes = substitutes_of(facts, plan.kernels);
  plan.stats.nodes = static_cast<int>(facts.live.size());
  return plan;
}

}  // namespace heddle::plan

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "plan/clusters.h"
#include "plan/regions.h"

namespace heddle::plan {
namespace {

/// The primitives of one source operator.
struct Unit {
  std::vector<NodeId> nodes;    // sorted
  std::vector<NodeId> outputs;  // read by other operators, or of the graph
  bool has_loop = false, has_reduce = false;
};

std::vector<Unit> units_of(const Facts& f) {
  std::map<prim::OriginId, std::size_t> position;
  std::vector<Unit> units;
  std::map<NodeId, std::size_t> unit_of;
  for (NodeId id : f.live) {
    if (f.is_leaf(id)) continue;
    const prim::OriginId origin = f.graph->origin_id(id);
    std::size_t u = units.size();
    if (origin) u = position.try_emplace(origin, u).first->second;
    if (u == units.size()) units.emplace_back();
    units[u].nodes.push_back(id);
    unit_of[id] = u;
    const bool loop = f.is_main_loop(id);
    units[u].has_loop |= loop;
    units[u].has_reduce |= f.as<prim::Reduce>(id) || (f.as<prim::Contract>(id) && !loop);
  }
  for (Unit& unit : units) {
    for (NodeId id : unit.nodes) {
      const auto& readers = f.consumers_of(id);
      const bool read = std::any_of(readers.begin(), readers.end(),
                                    [&](NodeId r) { return unit_of.at(r) != unit_of.at(id); });
      if (read || f.is_output(id)) unit.outputs.push_back(id);
    }
  }
  return units;
}

Cluster merged(const Cluster& group, const Unit& unit) {
  Cluster out{{}, group.outputs};
  std::set_union(group.nodes.begin(), group.nodes.end(), unit.nodes.begin(), unit.nodes.end(),
                 std::back_inserter(out.nodes));
  return out;
}

/// One kernel under construction.
struct OperatorGroup {
  Cluster cluster;
  bool has_loop = false, has_reduce = false;
};

/// The rule of greedy_clusters, for whole operators.
bool joins(const Facts& f, const Options& options, const Unit& unit, const OperatorGroup& group) {
  if (unit.has_reduce || (unit.has_loop && (group.has_loop || group.has_reduce))) return false;
  if (group.cluster.nodes.size() + unit.nodes.size() >
      static_cast<std::size_t>(options.max_cluster))
    return false;
  for (NodeId reader : f.consumers_of(unit.outputs[0]))
    if (f.is_main_loop(reader)) return false;
  return options.legality.supports(*f.graph, merged(group.cluster, unit));
}

/// What is read but computed by nobody: broadcasts that every reader would absorb join their
/// reader, other primitives become kernels.
void complete(const Facts& f, const std::vector<Cluster>& singles, std::vector<Cluster>& clusters) {
  std::set<NodeId> made;
  for (const Cluster& c : clusters) made.insert(c.outputs.begin(), c.outputs.end());
  for (std::size_t i = 0; i < clusters.size(); ++i) {
    std::vector<NodeId> work = reads_of(*f.graph, clusters[i]);
    while (!work.empty()) {
      const NodeId in = work.back();
      work.pop_back();
      if (f.is_leaf(in) || made.count(in)) continue;
      const auto single = std::find_if(singles.begin(), singles.end(),
                                       [&](const Cluster& c) { return c.outputs[0] == in; });
      if (single != singles.end()) {
        made.insert(in);
        clusters.push_back(*single);
        continue;
      }
      auto& nodes = clusters[i].nodes;
      nodes.insert(std::lower_bound(nodes.begin(), nodes.end(), in), in);
      work = reads_of(*f.graph, clusters[i]);
    }
  }
}

}  // namespace

std::vector<Cluster> operator_clusters(const Facts& facts, const Options& options) {
  const std::vector<Unit> units = units_of(facts);
  std::vector<Cluster> out;
  const std::vector<Cluster> singles = single_clusters(facts);
  std::vector<OperatorGroup> groups;
  std::map<NodeId, std::size_t> home_of;
  // Operators are in topological order, so readers come first from the end.
  for (auto unit = units.rbegin(); unit != units.rend(); ++unit) {
    std::set<std::optional<std::size_t>> targets;
    for (NodeId id : unit->outputs) {
      if (facts.is_output(id)) targets.insert(std::nullopt);
      for (NodeId reader : facts.consumers_of(id)) {
        if (std::binary_search(unit->nodes.begin(), unit->nodes.end(), reader)) continue;
        const auto home = home_of.find(reader);
        targets.insert(home == home_of.end() ? std::nullopt : std::optional(home->second));
      }
    }
    const bool one =
        unit->outputs.size() == 1 && targets.size() == 1 && targets.begin()->has_value();
    std::size_t home = groups.size();
    if (one && joins(facts, options, *unit, groups[**targets.begin()])) {
      home = **targets.begin();
      groups[home].cluster = merged(groups[home].cluster, *unit);
    } else if (unit->outputs.size() == 1 &&
               options.legality.supports(*facts.graph, {unit->nodes, unit->outputs})) {
      groups.push_back({{unit->nodes, unit->outputs}});
    } else {
      // No single kernel computes the operator: one for each of its primitives.
      for (const Cluster& c : singles)
        if (std::binary_search(unit->nodes.begin(), unit->nodes.end(), c.outputs[0]))
          out.push_back(c);
      continue;
    }
    for (NodeId id : unit->nodes) home_of[id] = home;
    groups[home].has_loop |= unit->has_loop;
    groups[home].has_reduce |= unit->has_reduce;
  }
  for (OperatorGroup& g : groups) out.push_back(std::move(g.cluster));
  complete(facts, singles, out);
  return out;
}

}  // namespace heddle::plan

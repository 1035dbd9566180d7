#include "plan/candidates.h"

#include <algorithm>
#include <map>
#include <set>

#include "plan/clusters.h"

namespace heddle::plan {
namespace {

struct Cone {
  std::vector<NodeId> nodes;   // sorted
  std::vector<NodeId> inputs;  // not leaves
  int loops = 0;
  Cost cost;
  double flow = 0;  // cost of the kernel and its share of what makes its inputs
};

/// A cone being put together, argument by argument.
struct Partial {
  std::vector<NodeId> nodes;
  int loops = 0;
  double flow = 0;
  std::size_t work = 0;
};

std::vector<NodeId> unite(const std::vector<NodeId>& a, const std::vector<NodeId>& b) {
  std::vector<NodeId> out;
  out.reserve(a.size() + b.size());
  std::set_union(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(out));
  return out;
}

struct Enumerator {
  const Facts& f;
  const Region& region;
  const Options& options;
  CostModel& cost;
  std::vector<bool> inside;
  std::map<NodeId, std::vector<Cone>> cones;  // by root
  std::map<NodeId, double> flow_of;           // by class

  Enumerator(const Facts& facts, const Region& r, const Options& o, CostModel& c)
      : f(facts), region(r), options(o), cost(c) {
    inside.resize(static_cast<std::size_t>(f.graph->size()));
    for (NodeId id : region.nodes) inside[static_cast<std::size_t>(id.value)] = true;
  }
  bool in_region(NodeId id) const { return inside[static_cast<std::size_t>(id.value)]; }

  /// Estimated cost of having a value in memory, shared among its readers.
  double flow_share(NodeId id) const {
    if (!in_region(id)) return 0;
    auto it = flow_of.find(f.class_of_node(id));
    const double flow = it == flow_of.end() ? 0 : it->second;
    return flow / static_cast<double>(std::max<std::size_t>(1, f.readers_of(id).size()));
  }

  std::vector<Partial> merge(NodeId id) {
    std::vector<Partial> partials = {{{id}, f.is_main_loop(id) ? 1 : 0, 0, 0}};
    std::set<NodeId> done;
    for (NodeId arg : f[id].args) {
      if (f.is_leaf(arg) || !in_region(arg) || !done.insert(arg).second) continue;
      partials = extend(partials, id, arg);
    }
    return partials;
  }

  std::vector<Partial> extend(const std::vector<Partial>& partials, NodeId reader, NodeId arg) {
    std::vector<Partial> out;
    std::set<std::vector<NodeId>> seen;
    const double share = flow_share(arg);
    for (const Partial& p : partials) {
      if (!must_absorb(f, arg, reader) && seen.insert(p.nodes).second) {
        out.push_back({p.nodes, p.loops, p.flow + share, p.work});
      }
      for (const Cone& c : cones[arg]) {
        if (p.nodes.size() + c.nodes.size() > static_cast<std::size_t>(options.max_cluster))
          continue;
        std::vector<NodeId> nodes = unite(p.nodes, c.nodes);
        // The same main loop may come in by two ways.
        int loops = 0;
        if (p.loops + c.loops > 0) {
          for (NodeId n : nodes) loops += f.is_main_loop(n);
        }
        if (loops > 1 || !seen.insert(nodes).second) continue;
        out.push_back({std::move(nodes), loops, p.flow + c.flow - c.cost.launch_us, 0});
      }
    }
    limit(out);
    return out;
  }

  /// Keeps the beam narrow for nodes of many arguments: cheapest, and the largest.
  void limit(std::vector<Partial>& partials) const {
    const auto beam = static_cast<std::size_t>(6 * options.cuts_per_node);
    if (partials.size() <= beam) return;
    auto largest = std::max_element(
        partials.begin(), partials.end(),
        [](const Partial& a, const Partial& b) { return a.nodes.size() < b.nodes.size(); });
    auto smallest = std::min_element(
        partials.begin(), partials.end(),
        [](const Partial& a, const Partial& b) { return a.nodes.size() < b.nodes.size(); });
    std::vector<Partial> keep = {*largest, *smallest};
    std::stable_sort(partials.begin(), partials.end(),
                     [](const Partial& a, const Partial& b) { return a.flow < b.flow; });
    partials.resize(beam - keep.size());
    for (Partial& k : keep) {
      const bool there = std::any_of(partials.begin(), partials.end(),
                                     [&](const Partial& p) { return p.nodes == k.nodes; });
      if (!there) partials.push_back(std::move(k));
    }
  }

  Cone finish(NodeId root, Partial p) {
    Cone c;
    c.nodes = std::move(p.nodes);
    c.loops = p.loops;
    for (NodeId in : reads_of(*f.graph, {c.nodes, {root}})) {
      if (!f.is_leaf(in)) c.inputs.push_back(in);
    }
    std::sort(c.inputs.begin(), c.inputs.end());
    c.cost = cost({c.nodes, {root}});
    c.flow = c.cost.us;
    for (NodeId in : c.inputs) c.flow += flow_share(in);
    return c;
  }

  static bool dominates(const Cone& a, const Cone& b) {
    return a.loops <= b.loops && a.cost.us <= b.cost.us &&
           std::includes(b.inputs.begin(), b.inputs.end(), a.inputs.begin(), a.inputs.end());
  }

  void visit(NodeId root) {
    std::vector<Cone> all;
    std::size_t least = ~std::size_t{0};
    for (Partial& p : merge(root)) {
      all.push_back(finish(root, std::move(p)));
      least = std::min(least, all.back().nodes.size());
    }
    std::stable_sort(all.begin(), all.end(),
                     [](const Cone& a, const Cone& b) { return a.flow < b.flow; });
    std::vector<Cone> kept;
    const auto room = static_cast<std::size_t>(options.cuts_per_node);
    auto legal = [&](const Cone& c) {
      return c.nodes.size() == least || options.legality.supports(*f.graph, {c.nodes, {root}});
    };
    const Cone* largest = nullptr;
    for (const Cone& c : all) {
      const bool base = c.nodes.size() == least;
      // A partition may need the smaller of two cones that read the same.
      const bool dominated =
          options.strategy != Strategy::partition &&
          std::any_of(kept.begin(), kept.end(), [&](const Cone& k) { return dominates(k, c); });
      if (!base && (dominated || kept.size() >= room)) {
        if (!largest || c.nodes.size() > largest->nodes.size()) largest = &c;
        continue;
      }
      if (legal(c)) kept.push_back(c);
    }
    // Growth must not stop here because a prefix of a good cone looks bad on its own.
    const bool any_larger = largest && std::all_of(kept.begin(), kept.end(), [&](const Cone& k) {
                              return k.nodes.size() < largest->nodes.size();
                            });
    if (any_larger && legal(*largest)) kept.push_back(*largest);
    double best = kept.front().flow;
    for (const Cone& c : kept) best = std::min(best, c.flow);
    const NodeId cls = f.class_of_node(root);
    auto [it, fresh] = flow_of.emplace(cls, best);
    if (!fresh) it->second = std::min(it->second, best);
    cones[root] = std::move(kept);
  }
};

/// Greedy kernels of the region, so that no strategy does worse than the rule.
std::vector<Cluster> greedy_in_region(const Facts& f, const Region& region,
                                      const Options& options) {
  Facts part = f;
  part.live = region.nodes;
  std::sort(part.live.begin(), part.live.end());
  for (NodeId id : part.live) {
    auto& readers = part.consumers[static_cast<std::size_t>(id.value)];
    std::erase_if(readers, [&](NodeId r) {
      return !std::binary_search(part.live.begin(), part.live.end(), r);
    });
    part.output[static_cast<std::size_t>(id.value)] =
        std::binary_search(region.outputs.begin(), region.outputs.end(), id);
  }
  return greedy_clusters(part, options);
}

}  // namespace

std::string_view name_of(Candidate::Kind k) {
  switch (k) {
    case Candidate::Kind::cone:
      return "cone";
    case Candidate::Kind::greedy:
      return "greedy";
    case Candidate::Kind::aux_store:
      return "aux_store";
    case Candidate::Kind::sibling:
      return "sibling";
    case Candidate::Kind::packed:
      return "packed";
    case Candidate::Kind::chain:
      return "chain";
  }
  return "";
}

Candidate make_candidate(const Facts& f, Candidate::Kind kind, Cluster cluster,
                         const Options& options, CostModel& cost) {
  Candidate c;
  c.kind = kind;
  c.cost = cost(cluster);
  if (options.measured && !f.is_join(cluster)) {
    if (auto us = options.measured(*f.graph, cluster)) {
      c.cost.us = *us;
      c.cost.provenance = Provenance::measured;
    }
  }
  for (NodeId o : cluster.outputs) c.cost.us += options.us_per_byte * f.bytes_of(o);
  for (NodeId in : reads_of(*f.graph, cluster)) {
    if (!f.is_leaf(in)) c.inputs.push_back(in);
  }
  std::sort(c.inputs.begin(), c.inputs.end());
  c.cluster = std::move(cluster);
  return c;
}

std::vector<Candidate> enumerate(const Facts& facts, const Region& region, const Options& options,
                                 CostModel& cost) {
  Enumerator e(facts, region, options, cost);
  for (NodeId id : region.nodes) e.visit(id);
  std::vector<Candidate> out;
  std::set<Cluster> seen;
  auto add = [&](Candidate::Kind kind, Cluster c) {
    if (!seen.insert(c).second) return;
    out.push_back(make_candidate(facts, kind, std::move(c), options, cost));
  };
  for (NodeId id : region.nodes) {
    const bool useful = !clonable(facts, id) ||
                        std::binary_search(region.outputs.begin(), region.outputs.end(), id) ||
                        std::any_of(facts.consumers_of(id).begin(), facts.consumers_of(id).end(),
                                    [&](NodeId r) { return !must_absorb(facts, id, r); });
    if (!useful) continue;
    for (Cone& c : e.cones[id]) add(Candidate::Kind::cone, {std::move(c.nodes), {id}});
  }
  for (Cluster& c : greedy_in_region(facts, region, options)) {
    add(Candidate::Kind::greedy, std::move(c));
  }
  if (options.strategy == Strategy::full) {
    for (Candidate& c : multi_output(facts, region, out, options, cost)) {
      if (seen.insert(c.cluster).second) out.push_back(std::move(c));
    }
  }
  for (const Cluster& chain : facts.chains) {
    const bool here = std::all_of(chain.nodes.begin(), chain.nodes.end(),
                                  [&](NodeId id) { return e.in_region(id); });
    if (here && options.legality.supports(*facts.graph, chain)) add(Candidate::Kind::chain, chain);
  }
  return prune(facts, region, std::move(out), options.strategy != Strategy::partition);
}

namespace {

/// What no plan can want: dearer by far than the cheapest candidates of all values together, which
/// are a plan or nearly one. Such numbers are also too large for the solver.
std::vector<bool> hopeless(const std::vector<Candidate>& candidates) {
  constexpr double kFar = 1000;
  std::map<NodeId, double> cheapest;
  for (const Candidate& c : candidates)
    for (NodeId o : c.cluster.outputs) {
      const auto [at, fresh] = cheapest.emplace(o, c.cost.us);
      if (!fresh) at->second = std::min(at->second, c.cost.us);
    }
  double all = 0;
  for (const auto& [output, us] : cheapest) all += us;
  std::vector<bool> gone;
  for (const Candidate& c : candidates) gone.push_back(c.cost.us > kFar * all);
  return gone;
}

/// Candidates whose outputs are all unused by the others and by what follows.
std::vector<bool> useless(const Facts& f, const Region& region,
                          const std::vector<Candidate>& candidates) {
  std::vector<bool> gone(candidates.size());
  for (bool again = true; again;) {
    again = false;
    std::set<NodeId> wanted;
    for (NodeId o : region.outputs) wanted.insert(f.class_of_node(o));
    for (std::size_t i = 0; i < candidates.size(); ++i) {
      if (gone[i]) continue;
      for (NodeId in : candidates[i].inputs) wanted.insert(f.class_of_node(in));
    }
    for (std::size_t i = 0; i < candidates.size(); ++i) {
      if (gone[i]) continue;
      const auto& outputs = candidates[i].cluster.outputs;
      const bool used = std::all_of(outputs.begin(), outputs.end(),
                                    [&](NodeId o) { return wanted.count(f.class_of_node(o)) > 0; });
      if (!used) gone[i] = again = true;
    }
  }
  return gone;
}

}  // namespace

std::vector<Candidate> prune(const Facts& facts, const Region& region,
                             std::vector<Candidate> candidates, bool dominance) {
  std::map<std::vector<NodeId>, std::vector<std::size_t>> by_outputs;
  std::vector<bool> gone = hopeless(candidates);
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    by_outputs[candidates[i].cluster.outputs].push_back(i);
  }
  for (const auto& [outputs, members] : by_outputs) {
    for (std::size_t i : members) {
      for (std::size_t j : members) {
        if (i == j || gone[i] || gone[j]) continue;
        const Candidate &a = candidates[i], &b = candidates[j];
        const bool beats =
            dominance && a.cost.us <= b.cost.us &&
            std::includes(b.inputs.begin(), b.inputs.end(), a.inputs.begin(), a.inputs.end());
        if (beats) gone[j] = true;
      }
    }
  }
  std::vector<Candidate> kept;
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    if (!gone[i]) kept.push_back(std::move(candidates[i]));
  }
  gone = useless(facts, region, kept);
  std::vector<Candidate> out;
  for (std::size_t i = 0; i < kept.size(); ++i) {
    if (!gone[i]) out.push_back(std::move(kept[i]));
  }
  return out;
}

}  // namespace heddle::plan

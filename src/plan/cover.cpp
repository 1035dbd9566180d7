#include <algorithm>
#include <map>
#include <set>

#include "plan/cover.h"

namespace heddle::plan {
namespace {

bool heavy(const Facts& f, NodeId id) { return f.as<prim::Contract>(id) || f.as<prim::Reduce>(id); }

}  // namespace

CoverProblem::CoverProblem(const Facts& facts, const Region& region,
                           const std::vector<Candidate>& candidates)
    : f(facts), all(candidates) {
  for (NodeId id : region.nodes) inside.insert(f.class_of_node(id));
  for (NodeId o : region.outputs) goals.push_back(f.class_of_node(o));
  std::map<NodeId, int> positions;
  for (NodeId id : inside) positions.emplace(id, static_cast<int>(positions.size()));
  classes.assign(inside.begin(), inside.end());
  const auto position_of = [&](NodeId cls) { return positions.at(cls); };
  for (NodeId g : goals) goal_positions.push_back(position_of(g));
  for (std::size_t i = 0; i < all.size(); ++i) {
    for (NodeId o : all[i].cluster.outputs)
      makers[f.class_of_node(o)].push_back(static_cast<int>(i));
    std::vector<NodeId> needs;
    for (NodeId in : all[i].inputs) {
      const NodeId cls = f.class_of_node(in);
      if (inside.count(cls) && std::find(needs.begin(), needs.end(), cls) == needs.end()) {
        needs.push_back(cls);
      }
    }
    std::vector<int> need_at, made_at;
    for (NodeId n : needs) need_at.push_back(position_of(n));
    for (NodeId o : all[i].cluster.outputs) made_at.push_back(position_of(f.class_of_node(o)));
    need_positions.push_back(std::move(need_at));
    made_positions.push_back(std::move(made_at));
    needs_of.push_back(std::move(needs));
  }
}

/// Cheapest cost of each value when the cost of inputs is divided by `readers`; repeated until it
/// settles, since alternatives of a value need not be in order.
CoverProblem::Flows CoverProblem::flows(const std::map<NodeId, double>& readers, int given) const {
  std::vector<double> share(classes.size(), 1), least(classes.size());
  std::vector<int> maker(classes.size(), -1);
  for (std::size_t i = 0; i < classes.size(); ++i)
    if (auto r = readers.find(classes[i]); r != readers.end()) share[i] = std::max(1.0, r->second);
  if (given >= 0)
    for (const int made : made_positions[static_cast<std::size_t>(given)])
      maker[static_cast<std::size_t>(made)] = given;
  constexpr int kMaxSweeps = 64;
  for (int sweep = 0; sweep < kMaxSweeps; ++sweep) {
    bool changed = false;
    for (std::size_t k = 0; k < all.size(); ++k) {
      double flow = all[k].cost.us;
      bool known = true;
      for (const int need : need_positions[k]) {
        const auto at = static_cast<std::size_t>(need);
        known = known && maker[at] >= 0;
        flow += least[at] / share[at];
      }
      if (!known) continue;
      for (const int made : made_positions[k]) {
        const auto at = static_cast<std::size_t>(made);
        const bool fresh = maker[at] < 0;
        if (!fresh && flow >= least[at] - 1e-12) continue;
        least[at] = flow;
        maker[at] = static_cast<int>(k);
        changed = true;
      }
    }
    if (!changed) break;
  }
  Flows out;
  for (std::size_t i = 0; i < classes.size(); ++i)
    if (maker[i] >= 0) out.emplace(classes[i], std::make_pair(least[i], maker[i]));
  return out;
}

std::optional<std::vector<int>> CoverProblem::complete(std::vector<int> chosen,
                                                       const Flows& best) const {
  std::vector<char> made(classes.size());
  std::vector<int> work = goal_positions;
  const auto add = [&](int c) {
    for (const int o : made_positions[static_cast<std::size_t>(c)])
      made[static_cast<std::size_t>(o)] = 1;
    const auto& needs = need_positions[static_cast<std::size_t>(c)];
    work.insert(work.end(), needs.begin(), needs.end());
  };
  for (const int c : chosen) add(c);
  while (!work.empty()) {
    const auto want = static_cast<std::size_t>(work.back());
    work.pop_back();
    if (made[want]) continue;
    auto it = best.find(classes[want]);
    if (it == best.end()) return std::nullopt;
    chosen.push_back(it->second.second);
    add(it->second.second);
  }
  return drop_unneeded(std::move(chosen));
}

/// Removes kernels whose outputs others make as well or nobody reads, dearest first.
std::vector<int> CoverProblem::drop_unneeded(std::vector<int> chosen) const {
  std::sort(chosen.begin(), chosen.end());
  chosen.erase(std::unique(chosen.begin(), chosen.end()), chosen.end());
  std::vector<int> made(classes.size()), read(classes.size());
  const auto count = [](std::vector<int>& of, const std::vector<int>& positions, int by) {
    for (const int p : positions) of[static_cast<std::size_t>(p)] += by;
  };
  count(read, goal_positions, 1);
  for (int c : chosen) {
    count(made, made_positions[static_cast<std::size_t>(c)], 1);
    count(read, need_positions[static_cast<std::size_t>(c)], 1);
  }
  std::stable_sort(chosen.begin(), chosen.end(), [&](int a, int b) {
    return all[static_cast<std::size_t>(a)].cost.us > all[static_cast<std::size_t>(b)].cost.us;
  });
  for (bool again = true; again;) {
    again = false;
    for (std::size_t i = 0; i < chosen.size(); ++i) {
      const auto k = static_cast<std::size_t>(chosen[i]);
      const bool needed =
          std::any_of(made_positions[k].begin(), made_positions[k].end(), [&](int p) {
            const auto at = static_cast<std::size_t>(p);
            return read[at] > 0 && made[at] < 2;
          });
      if (needed) continue;
      // A second maker may be what keeps two others from waiting for each other.
      std::vector<int> rest = chosen;
      rest.erase(rest.begin() + static_cast<std::ptrdiff_t>(i));
      if (!waiting_of(rest).open.empty() && waiting_of(chosen).open.empty()) continue;
      count(made, made_positions[k], -1);
      count(read, need_positions[k], -1);
      chosen = std::move(rest);
      again = true;
      break;
    }
  }
  std::sort(chosen.begin(), chosen.end());
  return chosen;
}

double CoverProblem::cost(const std::vector<int>& chosen) const {
  double sum = 0;
  for (int c : chosen) sum += all[static_cast<std::size_t>(c)].cost.us;
  return sum;
}

bool CoverProblem::unavoidable(const std::vector<NodeId>& nodes) const {
  std::vector<int> without;
  for (std::size_t k = 0; k < all.size(); ++k) {
    const bool computes = std::any_of(nodes.begin(), nodes.end(), [&](NodeId id) {
      const auto& members = all[k].cluster.nodes;
      return std::binary_search(members.begin(), members.end(), id);
    });
    if (!computes) without.push_back(static_cast<int>(k));
  }
  // Whatever can run without them, runs: are the outputs made?
  return !makes_goals(waiting_of(without).made);
}

std::vector<std::vector<NodeId>> CoverProblem::necessary(const Region& region) const {
  std::vector<std::vector<NodeId>> out;
  std::vector<NodeId> avoidable;
  for (NodeId id : region.nodes) {
    if (unavoidable({id})) {
      out.push_back({id});
    } else {
      avoidable.push_back(id);
    }
  }
  if (f.class_members.empty()) return out;
  // One of two: expensive nodes that only one alternative of something needs.
  for (std::size_t i = 0; i < avoidable.size(); ++i) {
    for (std::size_t j = i + 1; j < avoidable.size(); ++j) {
      const NodeId a = avoidable[i], b = avoidable[j];
      const bool alternatives = f.class_of_node(a) == f.class_of_node(b);
      if (!alternatives && !(heavy(f, a) && heavy(f, b))) continue;
      if (unavoidable({a, b})) out.push_back({a, b});
    }
  }
  return out;
}

CoverProblem::Waiting CoverProblem::waiting_of(const std::vector<int>& chosen) const {
  Waiting out{chosen, std::vector<char>(classes.size())};
  std::vector<int> waiting;
  for (bool again = true; again;) {
    waiting.clear();
    for (int k : out.open) {
      if (missing(k, out.made) >= 0) {
        waiting.push_back(k);
        continue;
      }
      for (int o : made_positions[static_cast<std::size_t>(k)])
        out.made[static_cast<std::size_t>(o)] = 1;
    }
    again = waiting.size() < out.open.size() && !waiting.empty();
    std::swap(out.open, waiting);
  }
  return out;
}

int CoverProblem::missing(int k, const std::vector<char>& made) const {
  const auto& needs = need_positions[static_cast<std::size_t>(k)];
  for (std::size_t i = 0; i < needs.size(); ++i)
    if (!made[static_cast<std::size_t>(needs[i])]) return static_cast<int>(i);
  return -1;
}

bool CoverProblem::makes_goals(const std::vector<char>& made) const {
  return std::all_of(goal_positions.begin(), goal_positions.end(),
                     [&](int g) { return made[static_cast<std::size_t>(g)]; });
}

std::map<int, NodeId> CoverProblem::stuck(const std::vector<int>& chosen) const {
  const Waiting waiting = waiting_of(chosen);
  std::map<int, NodeId> out;
  for (int k : waiting.open)
    out.emplace(
        k,
        needs_of[static_cast<std::size_t>(k)][static_cast<std::size_t>(missing(k, waiting.made))]);
  return out;
}

bool CoverProblem::acyclic(const std::vector<int>& chosen) const {
  const Waiting waiting = waiting_of(chosen);
  return waiting.open.empty() && makes_goals(waiting.made);
}

bool feasible(const Facts& facts, const Region& region, const std::vector<Candidate>& candidates,
              const std::vector<int>& chosen) {
  return CoverProblem(facts, region, candidates).acyclic(chosen);
}

namespace {

/// How many chosen kernels read each value.
std::map<NodeId, double> readers_in(const CoverProblem& p, const std::vector<int>& chosen) {
  std::map<NodeId, double> out;
  for (NodeId g : p.goals) out[g] += 1;
  for (int c : chosen) {
    for (NodeId n : p.needs_of[static_cast<std::size_t>(c)]) out[n] += 1;
  }
  return out;
}

bool keep_if_cheaper(const CoverProblem& p, std::optional<std::vector<int>> other,
                     std::vector<int>& chosen, double& current) {
  if (!other) return false;
  const double cost = p.cost(*other);
  if (cost >= current - 1e-9 || !p.acyclic(*other)) return false;
  chosen = *std::move(other);
  current = cost;
  return true;
}

/// Adds one candidate at a time, drops what it makes superfluous, and keeps it where that is
/// cheaper.
void improve(const CoverProblem& p, const CoverProblem::Flows& best, std::vector<int>& chosen) {
  double current = p.cost(chosen);
  constexpr int kMaxPasses = 4;
  for (int pass = 0; pass < kMaxPasses; ++pass) {
    bool better = false;
    for (std::size_t k = 0; k < p.all.size(); ++k) {
      const int candidate = static_cast<int>(k);
      if (std::binary_search(chosen.begin(), chosen.end(), candidate)) continue;
      better |= keep_if_cheaper(p, p.with(chosen, candidate, best), chosen, current);
    }
    if (!better) break;
  }
}

/// Kernels of several outputs pay by what others then need not make themselves: with each of them
/// in turn, what reads these outputs is chosen again.
void improve_around(const CoverProblem& p, const std::map<NodeId, double>& readers,
                    std::vector<int>& chosen) {
  double current = p.cost(chosen);
  for (std::size_t k = 0; k < p.all.size(); ++k) {
    const int candidate = static_cast<int>(k);
    if (p.made_positions[k].size() < 2 ||
        std::binary_search(chosen.begin(), chosen.end(), candidate))
      continue;
    keep_if_cheaper(p, p.around(chosen, candidate, readers), chosen, current);
  }
}

/// Start of Strategy::partition: greedy kernels where they exist, else single nodes, are disjoint.
std::optional<std::vector<int>> disjoint_cover(const CoverProblem& p) {
  std::vector<int> chosen;
  for (std::size_t i = 0; i < p.all.size(); ++i) {
    if (p.all[i].kind == Candidate::Kind::greedy) chosen.push_back(static_cast<int>(i));
  }
  return chosen;
}

}  // namespace

std::optional<std::vector<int>> CoverProblem::with(const std::vector<int>& chosen, int candidate,
                                                   const Flows& best) const {
  // Who made the same outputs is replaced where nothing else needs it.
  std::vector<int> base = {candidate};
  const auto& outputs = all[static_cast<std::size_t>(candidate)].cluster.outputs;
  for (int c : chosen) {
    const auto& theirs = all[static_cast<std::size_t>(c)].cluster.outputs;
    const bool covered = std::all_of(theirs.begin(), theirs.end(), [&](NodeId o) {
      return std::any_of(outputs.begin(), outputs.end(),
                         [&](NodeId mine) { return f.class_of_node(mine) == f.class_of_node(o); });
    });
    if (!covered) base.push_back(c);
  }
  return complete(std::move(base), best);
}

std::optional<std::vector<int>> CoverProblem::around(
    const std::vector<int>& chosen, int candidate, const std::map<NodeId, double>& readers) const {
  const auto at = static_cast<std::size_t>(candidate);
  const Cluster& mine = all[at].cluster;
  std::vector<int> base = {candidate};
  for (const int c : chosen) {
    const auto k = static_cast<std::size_t>(c);
    const auto makes = [&](int p) {
      return std::ranges::find(made_positions[at], p) != made_positions[at].end();
    };
    const bool reads = std::ranges::any_of(need_positions[k], makes);
    const bool repeats = std::ranges::any_of(all[k].cluster.nodes, [&](NodeId id) {
      return heavy(f, id) && std::ranges::binary_search(mine.nodes, id);
    });
    if (!reads && !repeats) base.push_back(c);
  }
  return complete(std::move(base), flows(readers, candidate));
}

std::map<NodeId, double> CoverProblem::readers_of(const Region& region) const {
  std::map<NodeId, double> readers;
  for (NodeId id : region.nodes)
    readers[f.class_of_node(id)] = static_cast<double>(f.readers_of(id).size());
  return readers;
}

std::optional<std::vector<int>> CoverProblem::improved_from(const Region& region,
                                                            std::vector<int> chosen) const {
  const Flows best = flows(readers_of(region));
  auto whole = complete(std::move(chosen), best);
  if (!whole || !acyclic(*whole)) return std::nullopt;
  improve(*this, best, *whole);
  return whole;
}

Selection cover(const Facts& facts, const Region& region, const std::vector<Candidate>& candidates,
                const Options& options) {
  CoverProblem p(facts, region, candidates);
  Selection out;
  if (options.strategy == Strategy::partition) {
    if (auto chosen = disjoint_cover(p); chosen && p.acyclic(*chosen)) {
      out.chosen = *chosen;
      out.cost_us = p.cost(out.chosen);
    }
    return out;
  }
  std::map<NodeId, double> readers = p.readers_of(region);
  constexpr int kRounds = 4;
  CoverProblem::Flows best;
  for (int round = 0; round < kRounds; ++round) {
    auto flows = p.flows(readers);
    auto chosen = p.complete({}, flows);
    if (!chosen || !p.acyclic(*chosen)) break;
    const double cost = p.cost(*chosen);
    readers = readers_in(p, *chosen);
    if (out.chosen.empty() || cost < out.cost_us) {
      out.chosen = *chosen;
      out.cost_us = cost;
      best = std::move(flows);
    }
  }
  if (out.chosen.empty()) return out;
  improve(p, best, out.chosen);
  improve_around(p, p.readers_of(region), out.chosen);
  improve(p, best, out.chosen);
  out.cost_us = p.cost(out.chosen);
  return out;
}

}  // namespace heddle::plan

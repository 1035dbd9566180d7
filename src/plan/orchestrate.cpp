#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>

#include "plan/clusters.h"
#include "plan/compared.h"
#include "plan/select.h"
#include "prim/collectives.h"
#include "support/thread_pool.h"

namespace heddle::plan {
namespace {

/// What the solver may do for all regions: nodes times entries of the rows (ilp::SolveOptions). A
/// count, so plans do not depend on the clock.
constexpr double kWork = 2e6;
/// Regions solved at the same time, each with an equal share of the work that is left. A constant,
/// so plans do not depend on the number of threads.
constexpr std::size_t kWave = 8;
/// Primitives in distinct regions up to which every node keeps Options::cuts_per_node cones.
/// Beyond, they keep fewer, so that the time of planning stays linear and the solver's work is
/// enough for more of the regions (plans get cheaper, not dearer); but not fewer than kFewestCuts.
constexpr std::size_t kManyNodes = 2000;
constexpr int kFewestCuts = 6;

/// A planned region by position in Region::nodes, so that it serves every region like it.
struct Solved {
  Region region;
  std::vector<Candidate> chosen;
  std::vector<std::vector<Rejected>> rejected;
  Selection selection;
  int candidates = 0;
};

Cluster moved(const Cluster& c, const std::map<NodeId, NodeId>& to) {
  Cluster out;
  for (NodeId id : c.nodes) out.nodes.push_back(to.at(id));
  for (NodeId id : c.outputs) out.outputs.push_back(to.at(id));
  std::sort(out.nodes.begin(), out.nodes.end());
  return out;
}

Result<Solved> solve_region(const Facts& facts, const Region& region, const Options& options,
                            double work) {
  CostModel cost(facts, options.machine);
  Solved out;
  out.region = region;
  std::vector<Candidate> candidates = enumerate(facts, region, options, cost);
  out.candidates = static_cast<int>(candidates.size());
  out.selection = HEDDLE_TRY(solve(facts, region, candidates, options, work));
  out.rejected = rejected(facts, region, candidates, out.selection);
  for (int c : out.selection.chosen) out.chosen.push_back(candidates[static_cast<std::size_t>(c)]);
  return out;
}

/// What plannings of one graph share.
struct Known {
  std::vector<Solved> solved = {};
  std::size_t plain = 0;  ///< so many are of the graph without alternatives
  std::unordered_multimap<std::size_t, std::size_t> by_structure = {};
  double work_left = kWork;
};

struct Orchestrator {
  const Facts& facts;
  Options options;
  CostModel& cost;
  std::vector<Region> regions;
  Known& known;
  std::vector<Cluster> clusters = {};
  std::map<Cluster, std::vector<Rejected>> why_not = {};
  PlanStats stats = {};
  double lower_bound = 0;

  /// Its kernels are legal in a region that is only like the one it was found for.
  bool serves(const Solved& s, const Region& region) const {
    const std::map<NodeId, NodeId> to = mapping(s, region);
    return std::all_of(s.chosen.begin(), s.chosen.end(), [&](const Candidate& c) {
      return options.legality.supports(*facts.graph, moved(c.cluster, to));
    });
  }
  static std::map<NodeId, NodeId> mapping(const Solved& s, const Region& region) {
    std::map<NodeId, NodeId> to;
    for (std::size_t i = 0; i < region.nodes.size(); ++i) to[s.region.nodes[i]] = region.nodes[i];
    return to;
  }

  bool has_alternatives(const Region& region) const {
    return std::any_of(region.nodes.begin(), region.nodes.end(),
                       [&](NodeId id) { return facts.members_of(id).size() > 1; });
  }

  /// The solution of an equal region.
  std::optional<std::size_t> known_solution(const Region& region, std::size_t hash) const {
    auto [begin, end] = known.by_structure.equal_range(hash);
    const bool any_alternatives = has_alternatives(region);
    for (auto it = begin; it != end; ++it) {
      if (any_alternatives && it->second < known.plain) continue;
      const Solved& other = known.solved[it->second];
      const Likeness likeness = plan::likeness(facts, other.region, region);
      if (likeness == Likeness::same) return it->second;
      if (likeness == Likeness::like && serves(other, region)) return it->second;
    }
    return std::nullopt;
  }

  /// Regions to be solved at the same time, no two of one structure.
  struct Wave {
    std::vector<std::size_t> regions, hashes;
    bool holds(std::size_t hash) const {
      return std::find(hashes.begin(), hashes.end(), hash) != hashes.end();
    }
  };
  Status solve_wave(Wave& wave, std::vector<std::size_t>& solutions) {
    const double work = known.work_left / kWave;
    std::vector<std::optional<Result<Solved>>> found(wave.regions.size());
    const auto solve_one = [&](std::int64_t i) {
      const auto at = static_cast<std::size_t>(i);
      found[at] = solve_region(facts, regions[wave.regions[at]], options, work);
    };
    const auto count = static_cast<std::int64_t>(found.size());
    if (options.pool) {
      options.pool->for_each(count, solve_one);
    } else {
      for (std::int64_t i = 0; i < count; ++i) solve_one(i);
    }
    for (std::size_t i = 0; i < found.size(); ++i) {
      Solved fresh = HEDDLE_TRY(*std::move(found[i]));
      known.work_left = std::max(1.0, known.work_left - fresh.selection.work);
      stats.candidates += fresh.candidates;
      stats.solver_nodes += fresh.selection.solver_nodes;
      stats.cut_rows += fresh.selection.cut_rows;
      ++stats.unique_regions;
      solutions[wave.regions[i]] = known.solved.size();
      known.by_structure.emplace(wave.hashes[i], known.solved.size());
      known.solved.push_back(std::move(fresh));
    }
    wave = {};
    return Ok{};
  }

  int cuts_for(const std::vector<std::size_t>& hashes) const {
    std::set<std::size_t> distinct;
    std::size_t nodes = 0;
    for (std::size_t r = 0; r < regions.size(); ++r)
      if (distinct.insert(hashes[r]).second) nodes += regions[r].nodes.size();
    const int all = options.cuts_per_node;
    if (nodes <= kManyNodes) return all;
    return std::max(std::min(all, kFewestCuts),
                    static_cast<int>(static_cast<std::size_t>(all) * kManyNodes / nodes));
  }

  /// By region, its place among the solved ones.
  Result<std::vector<std::size_t>> solve_all() {
    std::vector<std::size_t> solutions(regions.size()), hashes;
    for (const Region& region : regions) hashes.push_back(structural_hash(facts, region));
    options.cuts_per_node = stats.cuts_per_node = cuts_for(hashes);
    Wave wave;
    for (std::size_t r = 0; r < regions.size(); ++r) {
      const std::size_t hash = hashes[r];
      if (wave.holds(hash)) HEDDLE_TRY(solve_wave(wave, solutions));
      if (const auto at = known_solution(regions[r], hash)) {
        solutions[r] = *at;
        continue;
      }
      wave.regions.push_back(r);
      wave.hashes.push_back(hash);
      if (wave.regions.size() == kWave) HEDDLE_TRY(solve_wave(wave, solutions));
    }
    HEDDLE_TRY(solve_wave(wave, solutions));
    return solutions;
  }

  void instantiate(const Solved& s, const Region& region) {
    const std::map<NodeId, NodeId> to = mapping(s, region);
    for (std::size_t k = 0; k < s.chosen.size(); ++k) {
      Cluster c = moved(s.chosen[k].cluster, to);
      std::vector<Rejected> others = s.rejected[k];
      for (Rejected& r : others) r.cluster = moved(r.cluster, to);
      why_not.emplace(c, std::move(others));
      clusters.push_back(std::move(c));
    }
    lower_bound += s.selection.lower_bound_us;
  }

  /// The plan of these regions; nullopt if their kernels wait for each other.
  Result<std::optional<Plan>> run() {
    stats.regions = static_cast<int>(regions.size());
    const std::vector<std::size_t> solutions = HEDDLE_TRY(solve_all());
    for (std::size_t r = 0; r < regions.size(); ++r)
      instantiate(known.solved[solutions[r]], regions[r]);
    std::optional<Plan> plan = assemble(facts, clusters, options, cost);
    if (!plan) return plan;
    for (Kernel& k : plan->kernels) {
      if (auto it = why_not.find(k.cluster); it != why_not.end()) k.rejected = it->second;
    }
    stats.nodes = plan->stats.nodes;
    plan->stats = stats;
    plan->lower_bound_us = std::min(plan->cost_us, lower_bound);
    return plan;
  }
};

/// Strategies up to greedy: rules, no search.
Result<Plan> ruled(const Facts& facts, const Options& options, CostModel& cost) {
  std::vector<Cluster> clusters = options.strategy == Strategy::single ? single_clusters(facts)
                                  : options.strategy == Strategy::operators
                                      ? operator_clusters(facts, options)
                                      : greedy_clusters(facts, options);
  auto plan = assemble(facts, std::move(clusters), options, cost);
  HEDDLE_CHECK(plan.has_value(), "kernels of the {} plan wait for each other",
               name_of(options.strategy));
  return *std::move(plan);
}

/// Facts in which alternatives that no region can hold are no alternatives, nor those that span
/// more than a share of one.
Facts plannable_facts(const prim::Graph& g, const Options& options, double share) {
  Facts facts = facts_of(g, options.legality, options.class_of);
  for (;;) {
    const std::vector<NodeId> apart = sprawling_alternatives(facts, share);
    if (apart.empty()) return facts;
    std::vector<NodeId> class_of = facts.class_of;
    for (const NodeId id : apart) class_of[static_cast<std::size_t>(id.value)] = id;
    facts = facts_of(g, options.legality, class_of);
  }
}

/// nullopt: two regions take alternatives that read each other's values.
Result<std::optional<Plan>> by_regions(Facts& facts, const Options& options, Known& known) {
  CostModel cost(facts, options.machine);
  known.plain = known.solved.size();
  std::optional<Plan> plan =
      HEDDLE_TRY((Orchestrator{facts, options, cost, regions_of(facts), known}.run()));
  if (plan || facts.chains.empty()) return plan;
  // Chains join regions, whose alternatives then may wait for each other.
  facts.chains.clear();
  known = {.work_left = known.work_left};
  return Orchestrator{facts, options, cost, regions_of(facts), known}.run();
}

}  // namespace

Result<Plan> orchestrate(const prim::Graph& g, const Options& given) {
  HEDDLE_TRY(prim::want_no_collective(g, prim::collectives(g)));
  for (const prim::GraphOutput& o : g.outputs) {
    if (std::holds_alternative<prim::Input>(g[o.node].op) || g.constant_of(o.node)) {
      return fail("output '{}' is an input or a constant, want a copy of it", o.name);
    }
  }
  Options options = given;
  options.legality = with_comparisons(g, given.legality);
  // The graph as it is written first: rules know no alternatives, and alternatives move the cuts
  // between regions, which may cost more than they gain.
  Facts written = facts_of(g, options.legality);
  if (options.strategy <= Strategy::greedy) {
    CostModel cost(written, options.machine);
    return ruled(written, options, cost);
  }
  Known known;
  std::optional<Plan> plan = HEDDLE_TRY(by_regions(written, options, known));
  if (!plan) {
    // Nodes that several regions compute may make them wait for each other: the rule's kernels.
    CostModel cost(written, options.machine);
    plan = HEDDLE_TRY(ruled(written, options, cost));
  }
  // Then with alternatives, and with those alone that move few cuts, which the others may spoil.
  std::vector<NodeId> classes;
  for (const double share : {2.0 / 3, 1.0 / 8}) {
    Facts facts = plannable_facts(g, options, share);
    if (facts.class_members.empty() || facts.class_of == classes) break;
    classes = facts.class_of;
    std::optional<Plan> other = HEDDLE_TRY(by_regions(facts, options, known));
    if (other && other->cost_us < plan->cost_us) plan = std::move(other);
  }
  return *std::move(plan);
}

}  // namespace heddle::plan

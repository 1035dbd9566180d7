#include "plan/measure.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <set>

#include "plan/cost.h"
#include "plan/reuse.h"

namespace heddle::plan {
namespace {

constexpr int kMaxRounds = 16;
/// Rounds without a plan that is faster by this share end the search.
constexpr int kPatience = 3;
constexpr double kFaster = 0.005;

/// "Contract, 4 Map, View": for people who list the database.
std::string label_of(const prim::Graph& g, const Cluster& c) {
  std::map<std::string_view, int> kinds;
  for (NodeId id : c.nodes) ++kinds[prim::kind_name(g[id].op)];
  std::string out;
  for (const auto& [kind, count] : kinds) {
    out += fmt::format("{}{} {}", out.empty() ? "" : ", ", count, kind);
  }
  return out + " -> " + heddle::to_string(g[c.outputs.back()].type);
}

struct Measurer {
  const prim::Graph& g;
  const Options& base;
  const MeasureOptions& how;
  MeasureReport& report;
  Facts facts;
  MachineModel machine;
  std::map<Hash, Timing> known;
  std::set<Hash> failed;
  double begin = 0;

  double now() const {
    if (how.clock) return how.clock();
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }
  bool spent() const { return now() - begin >= how.budget_s; }
  bool near(const Cluster& c) const {
    return finds_constants_near(g, c, facts.between, machine.l2_bytes);
  }
  Hash hash_of(const Cluster& c) const {
    return measured_structure(hash_bytes(structure_of(g, c, machine.threads, how.layout_of)),
                              near(c));
  }

  Options options() {
    Options o = base;
    o.machine = machine;
    o.measured = [this](const prim::Graph&, const Cluster& c) -> std::optional<double> {
      auto it = known.find(hash_of(c));
      return it == known.end() ? std::nullopt : std::optional(it->second.us);
    };
    o.legality.supports = [this](const prim::Graph& graph, const Cluster& c) {
      return base.legality.supports(graph, c) && (failed.empty() || !failed.count(hash_of(c)));
    };
    return o;
  }

  /// Chosen kernels first, dearest first; then what lost, by how little.
  std::vector<Cluster> wanted(const Plan& plan) const {
    std::vector<std::pair<double, const Cluster*>> first, chosen, lost;
    for (const Cluster& c : how.first) first.push_back({0, &c});
    for (const Kernel& k : plan.kernels) {
      chosen.push_back({-k.cost.us, &k.cluster});
      for (const Rejected& r : k.rejected) lost.push_back({r.plan_delta_us, &r.cluster});
    }
    auto by_key = [](const auto& a, const auto& b) { return a.first < b.first; };
    std::stable_sort(chosen.begin(), chosen.end(), by_key);
    std::stable_sort(lost.begin(), lost.end(), by_key);
    std::vector<Cluster> out;
    std::set<Hash> seen;
    for (const auto& list : {first, chosen, lost}) {
      for (const auto& [key, c] : list) {
        const Hash h = hash_of(*c);
        if (!known.count(h) && !failed.count(h) && seen.insert(h).second) out.push_back(*c);
      }
    }
    return out;
  }

  /// True if the database has it.
  Result<bool> look_up(const Cluster& c) {
    if (!how.db) return false;
    const Hash structure = hash_of(c);
    std::string reason;
    for (const std::string& machine : {how.other_machine, how.machine}) {
      if (machine.empty()) continue;
      auto found = HEDDLE_TRY(how.db->lookup({structure, machine, how.build}));
      if (const auto* entry = std::get_if<TuningEntry>(&found)) {
        known[structure] = {entry->us, entry->tuning, entry->runs};
        ++report.from_db;
        return true;
      }
      reason = std::get<TuningMiss>(found).reason;
    }
    ++report.misses[reason];
    return false;
  }

  Status take(const Cluster& c) {
    const TuningKey key{hash_of(c), how.machine, how.build};
    if (spent()) {
      report.budget_spent = true;
      return Ok{};
    }
    Result<Timing> timing = how.time(g, c, near(c));
    if (!timing) {
      failed.insert(key.structure);
      ++report.failed;
      report.failures.push_back(timing.error().message);
      return Ok{};
    }
    ++report.timed;
    known[key.structure] = *timing;
    if (!how.db) return Ok{};
    return how.db->store({key, label_of(g, c), timing->tuning, timing->us, timing->runs});
  }

  /// Geometric mean of measured over modelled time per kind of kernel.
  void rescale(const std::vector<Cluster>& seen) {
    MachineModel plain = machine;
    plain.loop_scale = plain.reduce_scale = plain.map_scale = 1;
    CostModel model(facts, plain);
    std::map<KernelKind, std::pair<double, int>> logs;
    for (const Cluster& c : seen) {
      auto it = known.find(hash_of(c));
      if (it == known.end()) continue;
      const Cost cost = model(c);
      const double body = std::max(0.1, it->second.us - cost.launch_us);
      auto& [sum, count] = logs[kind_of_kernel(facts, c)];
      sum += std::log(body / std::max(0.1, cost.us - cost.launch_us));
      ++count;
    }
    auto scale = [&](KernelKind kind, double& value) {
      auto it = logs.find(kind);
      if (it != logs.end()) {
        value = std::clamp(std::exp(it->second.first / it->second.second), 0.1, 10.0);
      }
    };
    scale(KernelKind::loop, machine.loop_scale);
    scale(KernelKind::reduce, machine.reduce_scale);
    scale(KernelKind::map, machine.map_scale);
  }

  /// Times what the database lacks of the clusters `next`.
  Status learn(const std::vector<Cluster>& next, double plan_us) {
    std::vector<Cluster> unknown;
    for (const Cluster& c : next)
      if (!HEDDLE_TRY(look_up(c))) unknown.push_back(c);
    int done = static_cast<int>(next.size() - unknown.size());
    const std::size_t at_once = how.prepared_at_once ? how.prepared_at_once : unknown.size();
    for (std::size_t i = 0; i < unknown.size(); ++i) {
      if (how.prepare && i % at_once == 0 && !spent()) {
        const auto from = unknown.begin() + static_cast<std::ptrdiff_t>(i);
        const auto count = std::min(at_once, unknown.size() - i);
        how.prepare(g, {from, from + static_cast<std::ptrdiff_t>(count)});
      }
      HEDDLE_TRY(take(unknown[i]));
      ++done;
      if (how.progress) how.progress(done, static_cast<int>(next.size()) - done, plan_us);
    }
    return Ok{};
  }

  Result<Plan> run() {
    begin = now();
    std::vector<Cluster> seen;
    std::optional<Plan> best;  // of the plans whose kernels are all measured
    int without_gain = 0;
    Plan plan = HEDDLE_TRY(orchestrate(g, options()));
    for (report.rounds = 1; report.rounds <= kMaxRounds; ++report.rounds) {
      const std::vector<Cluster> next = wanted(plan);
      HEDDLE_TRY(learn(next, plan.cost_us));
      seen.insert(seen.end(), next.begin(), next.end());
      rescale(seen);
      plan = HEDDLE_TRY(orchestrate(g, options()));
      const bool measured = std::all_of(plan.kernels.begin(), plan.kernels.end(), [](auto& k) {
        return k.cost.provenance == Provenance::measured;
      });
      const bool gained = best && plan.cost_us < (1 - kFaster) * best->cost_us;
      without_gain = !best || gained ? 0 : without_gain + 1;
      if (measured && (!best || plan.cost_us < best->cost_us)) best = plan;
      report.settled = !next.empty() && without_gain == kPatience;
      if (next.empty() || report.budget_spent || report.settled) break;
    }
    report.seconds = now() - begin;
    if (best) plan = *std::move(best);
    for (Kernel& k : plan.kernels)
      if (auto it = known.find(hash_of(k.cluster)); it != known.end()) k.tuning = it->second.tuning;
    return plan;
  }
};

}  // namespace

Result<Plan> orchestrate_measured(const prim::Graph& g, const Options& options,
                                  const MeasureOptions& measure, MeasureReport* report) {
  MeasureReport own;
  Measurer m{g,
             options,
             measure,
             report ? *report : own,
             facts_of(g, options.legality, options.class_of),
             options.machine,
             {},
             {},
             0};
  return m.run();
}

}  // namespace heddle::plan

#include "plan/select.h"

#include <algorithm>
#include <set>

#include "ilp/solve.h"
#include "plan/cover.h"

namespace heddle::plan {
namespace {

ilp::VarId var(int candidate) { return ilp::VarId{candidate}; }

/// Rows Σ_{k makes t} u_k ≥ (1 or Σ u_j): of readers that make the same, a plan holds one.
void add_maker_row(ilp::Model& model, const CoverProblem& p, std::string name, NodeId cls,
                   const std::vector<int>& readers) {
  ilp::Row row{std::move(name), {}, ilp::Sense::at_least, readers.empty() ? 1.0 : 0.0};
  const auto reads = [&](int k) { return std::binary_search(readers.begin(), readers.end(), k); };
  if (auto it = p.makers.find(cls); it != p.makers.end()) {
    for (int k : it->second) {
      if (!reads(k)) row.terms.push_back({var(k), 1});
    }
  }
  for (int k : readers) row.terms.push_back({var(k), -1});
  model.add_row(std::move(row));
}

/// Kernels that make the same values stand for each other, so those of them that read a value share
/// a row: fewer rows, and a tighter relaxation, than a row for each.
void add_need_rows(ilp::Model& model, const CoverProblem& p) {
  std::map<std::pair<std::vector<NodeId>, NodeId>, std::vector<int>> readers;
  for (std::size_t k = 0; k < p.all.size(); ++k) {
    for (NodeId need : p.needs_of[k]) {
      readers[{p.all[k].cluster.outputs, need}].push_back(static_cast<int>(k));
    }
  }
  for (const auto& [key, group] : readers)
    add_maker_row(model, p, fmt::format("k{}_needs_{}", group.front(), key.second.value),
                  key.second, group);
}

/// Rows Σ_{k computes one of the nodes} u_k ≥ 1 for nodes that every plan computes: implied for
/// whole kernels, not for fractions of them, so they make the relaxation tight. Of rows of which
/// one implies the other, that one.
void add_necessary_rows(ilp::Model& model, const Region& region, const CoverProblem& p) {
  std::map<std::vector<int>, NodeId> rows;  // the kernels that compute it
  for (const std::vector<NodeId>& nodes : p.necessary(region)) {
    std::vector<int> kernels;
    for (std::size_t k = 0; k < p.all.size(); ++k) {
      const auto& members = p.all[k].cluster.nodes;
      const bool computes = std::any_of(nodes.begin(), nodes.end(), [&](NodeId id) {
        return std::binary_search(members.begin(), members.end(), id);
      });
      if (computes) kernels.push_back(static_cast<int>(k));
    }
    rows.emplace(std::move(kernels), nodes[0]);
  }
  const auto implied = [&](const std::vector<int>& row) {
    return std::any_of(rows.begin(), rows.end(), [&](const auto& other) {
      return other.first.size() < row.size() &&
             std::includes(row.begin(), row.end(), other.first.begin(), other.first.end());
    });
  };
  for (const auto& [kernels, node] : rows) {
    if (implied(kernels)) continue;
    ilp::Row row{fmt::format("computes_{}", node.value), {}, ilp::Sense::at_least, 1};
    for (const int k : kernels) row.terms.push_back({var(k), 1});
    model.add_row(std::move(row));
  }
}

/// What Strategy::partition computes once only.
bool counted(const Facts& f, NodeId id) { return !f.as<prim::View>(id) && !f.as<prim::Iota>(id); }

ilp::Model build(const Facts& f, const Region& region, const CoverProblem& p,
                 const Options& options) {
  ilp::Model model;
  for (std::size_t k = 0; k < p.all.size(); ++k) {
    const Candidate& c = p.all[k];
    model.add_variable(
        fmt::format("{}_{}_makes_{}", name_of(c.kind), k, c.cluster.outputs[0].value), c.cost.us);
  }
  for (NodeId g : p.goals) add_maker_row(model, p, fmt::format("output_{}", g.value), g, {});
  add_need_rows(model, p);
  add_necessary_rows(model, region, p);
  if (options.strategy != Strategy::partition) return model;
  std::map<NodeId, ilp::Row> once;
  for (std::size_t k = 0; k < p.all.size(); ++k) {
    for (NodeId id : p.all[k].cluster.nodes) {
      if (!counted(f, id)) continue;
      auto& row = once[id];
      row.name = fmt::format("once_{}", id.value);
      row.sense = ilp::Sense::at_most;
      row.bound = 1;
      row.terms.push_back({var(static_cast<int>(k)), 1});
    }
  }
  for (NodeId id : region.nodes) {
    if (auto it = once.find(id); it != once.end()) model.add_row(std::move(it->second));
  }
  return model;
}

std::vector<int> ones(const std::vector<bool>& values) {
  std::vector<int> out;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (values[i]) out.push_back(static_cast<int>(i));
  }
  return out;
}

/// A set of chosen kernels each of which waits for a value that only the set makes, with the other
/// candidates that could make those values.
struct Deadlock {
  std::set<int> kernels, rescuers;
};

/// Follows one missing value per kernel, and all its chosen makers.
Deadlock closure(const CoverProblem& p, const std::map<int, NodeId>& missing, int start) {
  Deadlock out;
  std::vector<int> work = {start};
  std::set<NodeId> values;
  while (!work.empty()) {
    const int k = work.back();
    work.pop_back();
    if (!out.kernels.insert(k).second) continue;
    const NodeId value = missing.at(k);
    if (!values.insert(value).second) continue;
    for (int maker : p.makers.at(value)) {
      if (missing.count(maker)) work.push_back(maker);
    }
  }
  for (NodeId v : values) {
    for (int maker : p.makers.at(v)) {
      if (!out.kernels.count(maker)) out.rescuers.insert(maker);
    }
  }
  return out;
}

/// Kernels that wait for each other: all of them only with a further maker of what they wait for.
std::vector<ilp::Row> cycle_rows(const CoverProblem& p, const std::vector<bool>& values) {
  const std::map<int, NodeId> missing = p.stuck(ones(values));
  std::vector<ilp::Row> out;
  std::set<int> covered;
  std::vector<Deadlock> all;
  for (const auto& [k, value] : missing) all.push_back(closure(p, missing, k));
  std::stable_sort(all.begin(), all.end(), [](const Deadlock& a, const Deadlock& b) {
    return a.kernels.size() < b.kernels.size();
  });
  for (const Deadlock& d : all) {
    // Larger sets that hold a smaller one say less.
    const bool holds_smaller = std::any_of(d.kernels.begin(), d.kernels.end(),
                                           [&](int k) { return covered.count(k) > 0; });
    if (holds_smaller) continue;
    covered.insert(d.kernels.begin(), d.kernels.end());
    ilp::Row row{fmt::format("cycle_{}_of_{}", *d.kernels.begin(), d.kernels.size()),
                 {},
                 ilp::Sense::at_most,
                 static_cast<double>(d.kernels.size()) - 1};
    for (int k : d.kernels) row.terms.push_back({var(k), 1});
    for (int k : d.rescuers) row.terms.push_back({var(k), -1});
    out.push_back(std::move(row));
  }
  return out;
}

/// Relative: costs are known far less well.
constexpr double kGap = 1e-4;

/// By position; empty for no choice.
std::vector<bool> assignment(const std::vector<int>& chosen, std::size_t candidates) {
  if (chosen.empty()) return {};
  std::vector<bool> out(candidates);
  for (int c : chosen) out[static_cast<std::size_t>(c)] = true;
  return out;
}

/// The kernels that a fractional plan mostly holds, completed and improved.
std::optional<std::vector<bool>> repaired(const Region& region, const CoverProblem& p,
                                          const std::vector<double>& values) {
  std::vector<int> chosen;
  for (std::size_t k = 0; k < values.size(); ++k) {
    if (values[k] > 0.5) chosen.push_back(static_cast<int>(k));
  }
  const auto better = p.improved_from(region, std::move(chosen));
  if (!better) return std::nullopt;
  return assignment(*better, p.all.size());
}

}  // namespace

Result<Selection> solve(const Facts& facts, const Region& region,
                        const std::vector<Candidate>& candidates, const Options& options,
                        double work) {
  Selection start = cover(facts, region, candidates, options);
  if (options.node_budget <= 0 && !start.chosen.empty()) return start;
  CoverProblem p(facts, region, candidates);
  const ilp::Model model = build(facts, region, p, options);
  ilp::SolveOptions how;
  how.node_budget = std::max(options.node_budget, 1);
  if (!start.chosen.empty()) how.work_budget = work;
  how.gap = kGap;
  how.start = assignment(start.chosen, candidates.size());
  // Two kernels that make the same, to keep others from waiting for each other.
  if (!how.start.empty() && ilp::violated_row(model, how.start)) return start;
  how.repair = [&](const std::vector<double>& values) { return repaired(region, p, values); };
  how.cuts = [&](const std::vector<bool>& values) { return cycle_rows(p, values); };
  ilp::Solution s = HEDDLE_TRY(ilp::solve(model, how));
  if (s.values.empty()) {
    return fail("no plan for a region of {} primitives: {} candidates, {}", region.nodes.size(),
                candidates.size(),
                s.status == ilp::Solution::Status::infeasible ? "infeasible" : "budget spent");
  }
  Selection out;
  // Zero-cost slack may leave kernels that nobody reads.
  out.chosen =
      options.strategy == Strategy::partition ? ones(s.values) : p.drop_unneeded(ones(s.values));
  out.cost_us = p.cost(out.chosen);
  out.lower_bound_us = std::min(out.cost_us, std::max(0.0, s.bound));
  out.solver_nodes = s.nodes;
  out.cut_rows = static_cast<int>(s.cuts.size());
  out.work = s.work;
  return out;
}

namespace {

/// A plan's time, in parts that add up to it: a kernel's body is what binds it.
struct Parts {
  int kernels = 0;
  double launch_us = 0, memory_us = 0, compute_us = 0, bytes = 0;
};
Parts parts_of(const std::vector<Candidate>& all, const std::vector<int>& chosen) {
  Parts sum;
  for (const int c : chosen) {
    const Cost& cost = all[static_cast<std::size_t>(c)].cost;
    ++sum.kernels;
    sum.bytes += cost.bytes;
    sum.launch_us += cost.launch_us;
    (cost.memory_us >= cost.compute_us ? sum.memory_us : sum.compute_us) +=
        cost.us - cost.launch_us;
  }
  return sum;
}

/// "launching 1 kernel more +2.0 us, moving 1.20 MB less -30.1 us, computing +7.0 us".
std::string reason_for(const Parts& chosen, const Parts& other) {
  std::string out;
  const auto add = [&](const std::string& what, double us) {
    if (std::abs(us) >= 0.05)
      out += fmt::format("{}{} {:+.1f} us", out.empty() ? "" : ", ", what, us);
  };
  const auto by = [](bool more) { return more ? "more" : "less"; };
  const int kernels = other.kernels - chosen.kernels;
  const double mb = (other.bytes - chosen.bytes) / 1e6;
  add(kernels == 0 ? "launching"
                   : fmt::format("launching {} kernel{} {}", std::abs(kernels),
                                 std::abs(kernels) == 1 ? "" : "s", by(kernels > 0)),
      other.launch_us - chosen.launch_us);
  add(std::abs(mb) < 0.005 ? "moving"
                           : fmt::format("moving {:.2f} MB {}", std::abs(mb), by(mb > 0)),
      other.memory_us - chosen.memory_us);
  add("computing", other.compute_us - chosen.compute_us);
  return out.empty() ? "same work, other order" : out;
}

}  // namespace

std::vector<std::vector<Rejected>> rejected(const Facts& facts, const Region& region,
                                            const std::vector<Candidate>& candidates,
                                            const Selection& selection) {
  constexpr std::size_t kKeep = 3;
  constexpr double kCompetitive = 4;  // times the chosen kernel's own cost
  CoverProblem p(facts, region, candidates);
  const auto best = p.flows(p.readers_of(region));
  std::vector<std::vector<Rejected>> out;
  for (int c : selection.chosen) {
    const Candidate& mine = candidates[static_cast<std::size_t>(c)];
    std::vector<Rejected> list;
    for (int k : p.makers[facts.class_of_node(mine.cluster.outputs.back())]) {
      const Candidate& other = candidates[static_cast<std::size_t>(k)];
      if (std::binary_search(selection.chosen.begin(), selection.chosen.end(), k)) continue;
      if (other.cost.us > kCompetitive * mine.cost.us) continue;
      auto plan = p.with(selection.chosen, k, best);
      if (!plan || !p.acyclic(*plan) || !std::binary_search(plan->begin(), plan->end(), k))
        continue;
      list.push_back(
          {other.cluster, other.cost, p.cost(*plan) - selection.cost_us,
           reason_for(parts_of(candidates, selection.chosen), parts_of(candidates, *plan))});
    }
    std::stable_sort(list.begin(), list.end(), [](const Rejected& a, const Rejected& b) {
      return a.plan_delta_us < b.plan_delta_us;
    });
    if (list.size() > kKeep) list.resize(kKeep);
    out.push_back(std::move(list));
  }
  return out;
}

}  // namespace heddle::plan

#include "ilp/solve.h"

#include <coin/Cbc_C_Interface.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <mutex>

#include "ilp/columns.h"
#include "ilp/relax.h"

namespace heddle::ilp {
namespace {

using Cbc = std::unique_ptr<Cbc_Model, decltype(&Cbc_deleteModel)>;

Cbc build(const Model& model, const std::vector<Row>& extra) {
  Cbc cbc(Cbc_newModel(), Cbc_deleteModel);
  Cbc_setLogLevel(cbc.get(), 0);
  const Columns columns(model, extra);
  const int n = model.variables().size();
  Cbc_loadProblem(cbc.get(), n, static_cast<int>(columns.lower.size()), columns.start.data(),
                  columns.rows.data(), columns.coefficients.data(), columns.zeros.data(),
                  columns.ones.data(), columns.costs.data(), columns.lower.data(),
                  columns.upper.data());
  for (int i = 0; i < n; ++i) Cbc_setInteger(cbc.get(), i);
  Cbc_setObjSense(cbc.get(), 1);
  return cbc;
}

void set_parameters(Cbc_Model* cbc, const SolveOptions& options, int nodes_left) {
  Cbc_setParameter(cbc, "log", "0");
  Cbc_setParameter(cbc, "slog", "0");
  Cbc_setParameter(cbc, "threads", "0");
  // Covering models come with tight rows: branching closes them in tens of nodes, while CBC's own
  // cuts and preprocessing take ten times as long and close nothing more.
  Cbc_setParameter(cbc, "cuts", "off");
  Cbc_setParameter(cbc, "preprocess", "off");
  // Trying five variables at each node before branching took a third more time for equal plans.
  Cbc_setParameter(cbc, "strong", "1");
  if (!options.start.empty()) Cbc_setParameter(cbc, "heur", "off");
  Cbc_setParameter(cbc, "maxNodes", std::to_string(nodes_left).c_str());
  Cbc_setParameter(cbc, "ratioGap", fmt::format("{}", options.gap).c_str());
}

/// A start as column numbers; CBC completes nothing, so all the ones are given.
void set_start(Cbc_Model* cbc, const std::vector<bool>& start) {
  std::vector<int> columns;
  std::vector<double> values;
  for (std::size_t i = 0; i < start.size(); ++i) {
    columns.push_back(static_cast<int>(i));
    values.push_back(start[i] ? 1 : 0);
  }
  Cbc_setMIPStartI(cbc, static_cast<int>(columns.size()), columns.data(), values.data());
}

/// Solves one round. nullopt: proven infeasible. Values are empty when nothing was found.
struct Round {
  bool infeasible = false, proven = false;
  std::vector<bool> values;
  double bound = 0;
  int nodes = 0;
};

Result<Round> solve_round(const Model& model, const std::vector<Row>& cuts,
                          const SolveOptions& options, int nodes_left) {
  // CBC keeps state in statics.
  static std::mutex mutex;
  std::lock_guard lock(mutex);
  Cbc cbc = build(model, cuts);
  set_parameters(cbc.get(), options, nodes_left);
  if (!options.start.empty()) set_start(cbc.get(), options.start);
  Cbc_solve(cbc.get());
  Round round;
  round.nodes = std::max(0, Cbc_getNodeCount(cbc.get()));
  round.infeasible = Cbc_isProvenInfeasible(cbc.get()) != 0;
  if (round.infeasible) return round;
  round.proven = Cbc_isProvenOptimal(cbc.get()) != 0;
  if (Cbc_isAbandoned(cbc.get())) return fail("the ILP solver gave up: numerical difficulties");
  const auto n = static_cast<std::size_t>(model.variables().size());
  const double* solution = Cbc_bestSolution(cbc.get());
  if (solution) {
    // 0.99999 is a one: rounded, then checked against the rows.
    for (std::size_t i = 0; i < n; ++i) round.values.push_back(solution[i] > 0.5);
    if (RowId bad = violated_row(model, round.values)) {
      return fail("the ILP solver's answer breaks row '{}'", model.rows()[bad].name);
    }
  }
  round.bound = Cbc_getBestPossibleObjValue(cbc.get());
  return round;
}

Status check_start(const Model& model, const std::vector<bool>& start) {
  if (start.empty()) return Ok{};
  if (start.size() != static_cast<std::size_t>(model.variables().size())) {
    return fail("ILP start has {} values, the model {} variables", start.size(),
                model.variables().size());
  }
  if (RowId bad = violated_row(model, start)) {
    return fail("ILP start breaks row '{}'", model.rows()[bad].name);
  }
  return Ok{};
}

/// A model without variables: feasible if its rows hold for the empty assignment.
Solution solve_empty(const Model& model) {
  Solution s;
  s.status = violated_row(model, {}) ? Solution::Status::infeasible : Solution::Status::optimal;
  return s;
}

/// Rows without terms and bounds that nothing meets are settled here; CBC is not asked.
bool has_impossible_row(const Model& model) {
  for (const Row& row : model.rows()) {
    if (row.terms.empty() && !holds(row, {})) return true;
  }
  return false;
}

double entries_of(const Model& model) {
  double sum = 0;
  for (const Row& row : model.rows()) sum += static_cast<double>(row.terms.size());
  return sum;
}

Result<Solution> branch_and_bound(const Model& model, const SolveOptions& options) {
  Solution out;
  if (has_impossible_row(model)) {
    out.status = Solution::Status::infeasible;
    return out;
  }
  const double entries = std::max(1.0, entries_of(model));
  int budget = options.node_budget;
  if (options.work_budget > 0)
    budget = std::min(budget, std::max(1, static_cast<int>(options.work_budget / entries)));
  // The budget spent, the start is the answer; its bound is that of the last round.
  auto give_up = [&] {
    out.values = options.start;
    out.status = out.values.empty() ? Solution::Status::unknown : Solution::Status::feasible;
    if (!out.values.empty()) out.objective = objective(model, out.values);
    return out;
  };
  for (out.rounds = 1; out.rounds <= options.max_rounds; ++out.rounds) {
    const int left = budget - out.nodes;
    if (left <= 0 && out.rounds > 1) break;
    Round round = HEDDLE_TRY(solve_round(model, out.cuts, options, std::max(left, 0)));
    out.nodes += round.nodes;
    out.work += round.nodes * entries;
    if (round.infeasible) {
      out.status = Solution::Status::infeasible;
      return out;
    }
    out.bound = round.bound;
    if (round.values.empty()) return give_up();
    std::vector<Row> violated = options.cuts ? options.cuts(round.values) : std::vector<Row>();
    if (violated.empty()) {
      out.objective = objective(model, round.values);
      // CBC's bound may pass the objective by rounding.
      out.bound = std::min(out.bound, out.objective);
      if (round.proven) out.bound = std::max(out.bound, out.objective * (1 - options.gap));
      out.values = std::move(round.values);
      out.status = round.proven || out.gap() <= options.gap ? Solution::Status::optimal
                                                            : Solution::Status::feasible;
      return out;
    }
    for (Row& row : violated) {
      HEDDLE_CHECK(!holds(row, round.values), "cut '{}' does not cut the answer off", row.name);
      HEDDLE_CHECK(options.start.empty() || holds(row, options.start),
                   "cut '{}' cuts the start off", row.name);
      out.cuts.push_back(std::move(row));
    }
  }
  return give_up();
}

/// The start or what `repair` makes of the relaxation, whichever is cheaper.
std::vector<bool> best_start(const Model& model, const SolveOptions& options,
                             const Relaxation& relaxation) {
  if (!options.repair) return options.start;
  std::optional<std::vector<bool>> other = options.repair(relaxation.values);
  if (!other || objective(model, *other) >= objective(model, options.start) ||
      violated_row(model, *other) || (options.cuts && !options.cuts(*other).empty()))
    return options.start;
  return *std::move(other);
}

/// An assignment of a reduced model, with zeros for what has left.
std::vector<bool> expanded(const std::vector<bool>& values, const Reduced& reduced,
                           std::size_t size) {
  std::vector<bool> out(size);
  for (std::size_t i = 0; i < values.size(); ++i)
    out[static_cast<std::size_t>(reduced.kept[i].value)] = values[i];
  return out;
}

/// The same question about a reduced model, whose variables are some of the whole one's.
SolveOptions reduced_options(const SolveOptions& options, const std::vector<bool>& start,
                             const Reduced& reduced) {
  SolveOptions less = options;
  less.start.clear();
  for (const VarId id : reduced.kept)
    less.start.push_back(start[static_cast<std::size_t>(id.value)]);
  if (!options.cuts) return less;
  less.cuts = [&options, &reduced, size = start.size()](const std::vector<bool>& values) {
    std::vector<Row> rows = options.cuts(expanded(values, reduced, size));
    for (Row& row : rows) {
      std::vector<Term> terms;
      for (const Term& t : row.terms) {
        const auto at = std::lower_bound(reduced.kept.begin(), reduced.kept.end(), t.var);
        if (at == reduced.kept.end() || *at != t.var) continue;  // 0
        terms.push_back(
            {VarId{static_cast<std::int32_t>(at - reduced.kept.begin())}, t.coefficient});
      }
      row.terms = std::move(terms);
    }
    return rows;
  };
  return less;
}

/// From a start: relaxation, repair, reduction, and branching over what is left.
Result<Solution> improve_start(const Model& model, const SolveOptions& options) {
  Solution out;
  out.rounds = 1;
  out.status = Solution::Status::feasible;
  out.values = options.start;
  out.objective = objective(model, out.values);
  const double entries = std::max(1.0, entries_of(model));
  const double most = options.work_budget / entries * kStepsOfANode;
  const int steps = options.work_budget > 0 && most < 1e9 ? static_cast<int>(most) + 1
                                                          : std::numeric_limits<int>::max();
  // Hopeless: not even a step for every tenth row.
  if (steps < model.rows().size() / 10) return out;
  const std::optional<Relaxation> relaxation = relax(model, steps);
  out.work = (relaxation ? relaxation->iterations : steps) * entries / kStepsOfANode;
  if (!relaxation) return out;
  out.values = best_start(model, options, *relaxation);
  out.objective = objective(model, out.values);
  out.bound = std::min(relaxation->bound, out.objective);
  if (out.gap() <= options.gap) {
    out.status = Solution::Status::optimal;
    return out;
  }
  std::vector<bool> gone = fixed_to_zero(*relaxation, out.objective);
  for (std::size_t i = 0; i < gone.size(); ++i) gone[i] = gone[i] && !out.values[i];
  const Reduced reduced = without(model, gone);
  SolveOptions rest = reduced_options(options, out.values, reduced);
  if (rest.work_budget > 0) rest.work_budget = std::max(1.0, rest.work_budget - out.work);
  Solution found = HEDDLE_TRY(branch_and_bound(reduced.model, rest));
  found.work += out.work;
  // An answer that holds what is gone costs at least the start.
  found.bound = std::max(out.bound, std::min(found.bound, out.objective));
  if (found.values.empty()) return out;
  found.values = expanded(found.values, reduced, out.values.size());
  return found;
}

}  // namespace

Result<Solution> solve(const Model& model, const SolveOptions& options) {
  HEDDLE_TRY(check_start(model, options.start));
  if (model.variables().size() == 0) return solve_empty(model);
  return options.start.empty() ? branch_and_bound(model, options) : improve_start(model, options);
}

}  // namespace heddle::ilp

#include "ilp/solve.h"

#include <coin/Cbc_C_Interface.h>

#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <mutex>

namespace heddle::ilp {
namespace {

using Cbc = std::unique_ptr<Cbc_Model, decltype(&Cbc_deleteModel)>;

/// Rows as CBC takes them in one call: by column, with bounds. Row by row it copies its arrays each
/// time.
struct Columns {
  std::vector<CoinBigIndex> start;
  std::vector<int> rows;
  std::vector<double> coefficients, lower, upper;

  Columns(const Model& model, const std::vector<Row>& extra)
      : columns_(static_cast<std::size_t>(model.variables().size())) {
    for (const Row& row : model.rows()) add(row);
    for (const Row& row : extra) add(row);
    for (const auto& column : columns_) {
      start.push_back(static_cast<CoinBigIndex>(rows.size()));
      for (const auto& [row, coefficient] : column) {
        rows.push_back(row);
        coefficients.push_back(coefficient);
      }
    }
    start.push_back(static_cast<CoinBigIndex>(rows.size()));
  }

 private:
  void add(const Row& row) {
    const int index = static_cast<int>(lower.size());
    // CBC writes outside its arrays when a column occurs twice in a row: terms are summed here.
    std::map<int, double> sums;
    for (const Term& t : row.terms) sums[t.var.value] += t.coefficient;
    for (const auto& [column, coefficient] : sums)
      columns_[static_cast<std::size_t>(column)].emplace_back(index, coefficient);
    const double infinite = std::numeric_limits<double>::infinity();
    lower.push_back(row.sense == Sense::at_most ? -infinite : row.bound);
    upper.push_back(row.sense == Sense::at_least ? infinite : row.bound);
  }
  std::vector<std::vector<std::pair<int, double>>> columns_;
};

Cbc build(const Model& model, const std::vector<Row>& extra) {
  Cbc cbc(Cbc_newModel(), Cbc_deleteModel);
  Cbc_setLogLevel(cbc.get(), 0);
  const Columns columns(model, extra);
  const int n = model.variables().size();
  const std::vector<double> zeros(static_cast<std::size_t>(n), 0), ones(zeros.size(), 1);
  std::vector<double> costs;
  for (const Variable& v : model.variables()) costs.push_back(v.cost);
  Cbc_loadProblem(cbc.get(), n, static_cast<int>(columns.lower.size()), columns.start.data(),
                  columns.rows.data(), columns.coefficients.data(), zeros.data(), ones.data(),
                  costs.data(), columns.lower.data(), columns.upper.data());
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

}  // namespace

Result<Solution> solve(const Model& model, const SolveOptions& options) {
  HEDDLE_TRY(check_start(model, options.start));
  if (model.variables().size() == 0) return solve_empty(model);
  Solution out;
  if (has_impossible_row(model)) {
    out.status = Solution::Status::infeasible;
    return out;
  }
  // CBC keeps state in statics.
  static std::mutex mutex;
  std::lock_guard lock(mutex);
  // The budget spent, the start is the answer; its bound is that of the last round.
  auto give_up = [&] {
    out.values = options.start;
    out.status = out.values.empty() ? Solution::Status::unknown : Solution::Status::feasible;
    if (!out.values.empty()) out.objective = objective(model, out.values);
    return out;
  };
  for (out.rounds = 1; out.rounds <= options.max_rounds; ++out.rounds) {
    const int left = options.node_budget - out.nodes;
    if (left <= 0 && out.rounds > 1) break;
    Round round = HEDDLE_TRY(solve_round(model, out.cuts, options, std::max(left, 0)));
    out.nodes += round.nodes;
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

}  // namespace heddle::ilp

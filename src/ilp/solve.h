#pragma once
#include <functional>
#include <optional>
#include <vector>

#include "ilp/model.h"
#include "support/result.h"

namespace heddle::ilp {

constexpr double kStepsOfANode = 300;

struct SolveOptions {
  /// Branch-and-bound nodes, summed over the rounds; a count, so results do not depend on the
  /// clock.
  int node_budget = 5000;
  /// And nodes times entries of the rows, at most, from the second node on: what a node takes grows
  /// with them. Of the first relaxation, kStepsOfANode simplex steps count as a node; where the
  /// budget does not do for it, `start` is the answer. 0: no limit.
  double work_budget = 0;
  /// Stop when (objective - bound) / objective is at most this.
  double gap = 1e-6;
  /// A feasible assignment to start from (by VarId::value), or empty; one that breaks a row is an
  /// error.
  std::vector<bool> start = {};
  /// An assignment near a fractional one, or nullopt; used where it is feasible and cheaper than
  /// `start`.
  std::function<std::optional<std::vector<bool>>(const std::vector<double>&)> repair = {};
  /// Rows that the assignment breaks although it solves the model; none accepts it. They are added
  /// and the model is solved again. `start` must satisfy all of them.
  std::function<std::vector<Row>(const std::vector<bool>&)> cuts = {};
  int max_rounds = 100;
};

struct Solution {
  enum class Status {
    optimal,     ///< within the gap
    feasible,    ///< budget spent: `bound` tells how far it may be from the best
    infeasible,  ///< no assignment satisfies the rows
    unknown,     ///< budget spent and nothing found
  } status = Status::unknown;
  std::vector<bool> values;  ///< empty unless optimal or feasible
  double objective = 0, bound = 0;
  int nodes = 0, rounds = 0;
  double work = 0;        ///< of the budget
  std::vector<Row> cuts;  ///< the lazy rows that were added

  /// Relative distance to the bound, 0 when proven.
  double gap() const {
    return objective <= bound || objective == 0 ? 0 : (objective - bound) / std::abs(objective);
  }
};

/// Solves with CBC on one thread, silently. With a start, the relaxation is solved first: it bounds
/// the answer, may be repaired to a better start, and variables that no cheaper answer holds leave
/// the model. Errors: a start that is not feasible, a solver failure.
Result<Solution> solve(const Model& model, const SolveOptions& options = {});

}  // namespace heddle::ilp

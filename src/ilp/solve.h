#pragma once
#include <functional>
#include <vector>

#include "ilp/model.h"
#include "support/result.h"

namespace heddle::ilp {

struct SolveOptions {
  /// Branch-and-bound nodes, summed over the rounds; a count, so results do not depend on the
  /// clock.
  int node_budget = 5000;
  /// Stop when (objective - bound) / objective is at most this.
  double gap = 1e-6;
  /// A feasible assignment to start from (by VarId::value), or empty; one that breaks a row is an
  /// error.
  std::vector<bool> start = {};
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
  std::vector<Row> cuts;  ///< the lazy rows that were added

  /// Relative distance to the bound, 0 when proven.
  double gap() const {
    return objective <= bound || objective == 0 ? 0 : (objective - bound) / std::abs(objective);
  }
};

/// Solves with CBC on one thread, silently. Errors: a start that is not feasible, a solver failure.
Result<Solution> solve(const Model& model, const SolveOptions& options = {});

}  // namespace heddle::ilp

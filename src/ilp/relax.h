#pragma once
#include <optional>

#include "ilp/model.h"

namespace heddle::ilp {

/// The optimum with variables between 0 and 1.
struct Relaxation {
  double bound = 0;                           ///< no assignment costs less
  std::vector<double> values, reduced_costs;  ///< by VarId::value
  int iterations = 0;
};

/// nullopt: infeasible, or more than `max_iterations` simplex steps (a count, as the clock must not
/// decide).
std::optional<Relaxation> relax(const Model& model, int max_iterations);

/// Reduced-cost fixing (Nemhauser and Wolsey 1988, section II.5): which variables are 0 in every
/// assignment that costs less than `cost`.
std::vector<bool> fixed_to_zero(const Relaxation& relaxation, double cost);

/// The model without some variables; `kept` names the others.
struct Reduced {
  Model model;
  std::vector<VarId> kept;
};
Reduced without(const Model& model, const std::vector<bool>& gone);

}  // namespace heddle::ilp

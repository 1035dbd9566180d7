#pragma once
#include <optional>

#include "prim/access.h"

namespace heddle::grad {

/// The points (v0, v1, …) of an access at which it reads element (j0, j1, …) of its source. They
/// are numbered by coordinates of their own: where several points read one element (a broadcast,
/// overlapping windows, a contraction's other dimensions), `free` dimensions run over them.
struct Solution {
  std::vector<ir::Expr> variables;        ///< v as functions of j0..jr-1, then the free dimensions
  Shape free;                             ///< extents of the free dimensions
  std::vector<ir::Condition> conditions;  ///< where such a point exists
};

/// Solves a.index(v) = j for variables with these extents and a source of shape `source`; a.inside
/// is among the conditions of the result. nullopt where an index is no sum of multiples of digits
/// of the variables (mixed-radix digits, as in reshapes and windows).
std::optional<Solution> solve(const prim::Access& a, const Shape& extents, const Shape& source);

}  // namespace heddle::grad

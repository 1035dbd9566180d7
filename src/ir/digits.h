#pragma once
#include <optional>
#include <vector>

#include "ir/expr.h"
#include "support/dtype.h"

namespace heddle::ir {

/// A part of a variable: extent and weight of a place in a mixed-radix number.
struct Digit {
  std::size_t variable;  ///< which variable it belongs to
  std::int64_t weight;   ///< in that variable
  std::int64_t extent;
};
struct Digits {
  std::vector<Digit> digits;
  std::vector<Expr> index;  ///< what was given, of variables that are digits, by position
};
/// Cuts variables of these extents into digits where div and mod of `index` cut them: (d / a) % b
/// cuts d at a and at a·b. nullopt: a variable is cut at places that do not divide each other.
std::optional<Digits> in_digits(const std::vector<Expr>& index, const Shape& extents);

}  // namespace heddle::ir

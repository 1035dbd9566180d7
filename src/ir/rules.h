#pragma once
#include <optional>
#include <span>
#include <string_view>

#include "ir/expr.h"

namespace heddle::ir {

/// One way to simplify an index expression. `statement` reads as the row is meant (a, b, c, m are
/// constants, x, y, s expressions); `apply` matches at the root of an expression whose children are
/// simplified, checks the guard against the ranges, and gives an equal, simpler expression.
struct IndexRule {
  std::string_view name;
  std::string_view statement;
  IndexNode::Kind root;
  std::optional<Expr> (*apply)(const Expr& e, const Ranges& ranges);
  std::string_view example;  ///< fires here, with the ranges of example_ranges()
};

std::span<const IndexRule> index_rules();
/// d0 in [0,16), d1 in [0,8), d2 in [0,4), d3 in [-3,5), d4 in [0,1), d5 in [0,1000).
Ranges example_ranges();

}  // namespace heddle::ir

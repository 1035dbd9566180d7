#pragma once
#include <optional>
#include <vector>

#include "ir/expr.h"
#include "support/dtype.h"

namespace heddle::lower::contract {

/// The inverse of a bijective index map. `map[k]` is coordinate k (extent to[k]) as a function of
/// variables 0..from.size()-1 (extents `from`); the result gives each of those variables as a
/// function of `coordinates`. Permutations, splits and merges of dimensions: whatever is a
/// rearrangement of mixed-radix digits. nullopt for anything else.
std::optional<std::vector<ir::Expr>> invert(const std::vector<ir::Expr>& map, const Shape& from,
                                            const Shape& to,
                                            const std::vector<ir::Expr>& coordinates);

}  // namespace heddle::lower::contract

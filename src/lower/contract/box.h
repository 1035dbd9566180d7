#pragma once
#include <optional>

#include "lower/contract/product.h"

namespace heddle::lower::contract {

/// The box of the rows' operand over the `inner` axes (row, tile, reductions), without its order;
/// nullopt if some coordinate or condition is no function of one affine form of them.
std::optional<Box> box_of(const Problem& p, const std::vector<Axis>& inner, kernel::Kernel& k);

}  // namespace heddle::lower::contract

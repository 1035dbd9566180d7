#pragma once
#include <optional>

#include "lower/contract/product.h"

namespace heddle::lower::contract {

/// The box of the rows' operand over the `inner` axes (row, tile, reductions), without its order;
/// nullopt if some coordinate or condition is no function of one affine form of them.
std::optional<Box> box_of(const Problem& p, const std::vector<Axis>& inner, kernel::Kernel& k);

/// Of the steps of all rows of results, the share that the padding does not leave out
/// (Emitter::not_padding).
double share_inside(const Product& p);

}  // namespace heddle::lower::contract

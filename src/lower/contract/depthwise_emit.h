#pragma once
#include "lower/contract/product.h"

namespace heddle::lower::contract {

/// Taps; more of them are loops.
constexpr std::int64_t kWrittenOut = 128;

/// The kernel of a convolution of each channel alone: `channel` is the batch axis along which the
/// operand and all outputs are neighbours, at least a vector of them. Of groups of channels: how
/// many of its group the reduction, whose first loop they are, adds up for each.
Lowered emit_depthwise(Product& p, const Axis& channel, std::optional<std::int64_t> group = {});

}  // namespace heddle::lower::contract

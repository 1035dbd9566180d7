#pragma once
#include "lower/lower.h"

namespace heddle::lower::contract {

/// More taps are a reduction like others.
constexpr std::int64_t kMostTaps = 4096;

/// A view whose dimensions are its argument's, in that order (padding): it lies as that does.
bool keeps_order(const prim::Graph& g, NodeId id);

/// A convolution of each channel alone (depthwise) with a constant filter, its operand stored
/// channels-last: tiles of neighbouring columns by one vector of channels in registers, so that
/// each element and each weight is read once for all of a tile's columns in a row of taps. A tuning
/// of "rows" makes tasks of so many rows, of all columns and channels. An error if the cluster is
/// anything else.
Result<Lowered> lower_depthwise(const Request& request);

}  // namespace heddle::lower::contract

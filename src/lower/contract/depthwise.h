#pragma once
#include "lower/contract/problem.h"

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

/// A convolution of groups of at most as many channels as a vector has lanes, the same way: lanes
/// are the result's channels, of one group or several, and each channel of a group is a lane of its
/// part of the vector for all of that part. As an algorithm of the contraction, if it is one; an
/// error if the cluster is anything else, or its operand does not lie channels-last.
std::optional<Algorithm> groups_algorithm(const prim::Graph& g, const Problem& p,
                                          const Target& target);
Result<Lowered> lower_groups(const Request& request);

}  // namespace heddle::lower::contract

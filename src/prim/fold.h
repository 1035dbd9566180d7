#pragma once
#include <optional>

#include "prim/graph.h"

namespace heddle::prim {

/// Bounds on what is computed while compiling.
struct FoldLimits {
  std::int64_t max_bytes = std::int64_t{64} << 20;  ///< of any single value, stored
  double max_work = 2e9;                            ///< scalar operations in all
};

/// The value of a node that depends on constants and positions only; nullopt if it depends on an
/// input or a random number, or exceeds the limits (a constant in another shape never does).
std::optional<Tensor> evaluate_constant(const Graph& g, NodeId id, const FoldLimits& limits = {});

/// Replaces constant subgraphs by constants where that does not take more memory than what they
/// are computed from: a broadcast stays a view of the small constant.
Graph fold_constants(const Graph& g);
Graph fold_constants(const Graph& g, const FoldLimits& limits);

}  // namespace heddle::prim

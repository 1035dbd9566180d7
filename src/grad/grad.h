#pragma once
#include <span>
#include <vector>

#include "prim/graph.h"
#include "support/result.h"

namespace heddle::grad {

using prim::NodeId;

/// A value and what its elements are multiplied by: the adjoint has the value's shape and type.
struct Seed {
  NodeId value, adjoint;
};

/// Reverse mode over primitives: adds to `g` the nodes that compute, for each value of
/// `with_respect_to`, d(Σ_s Σ_i adjoint_s[i] · value_s[i]) / d value, in its shape and type; zeros
/// where nothing depends on it. There is one rule for each kind of primitive, so every operator has
/// a gradient by its fission (EVT takes the joint graph from a framework; here it is made).
///
/// Where a derivative does not exist: step functions (floor, round, sign, comparisons, casts to
/// integers) have derivative 0; max and min of two values share equally at a tie, but a comparison
/// with a constant (relu, clip) gives 0 there; reductions by max or min share equally among all
/// that are extreme. Derivatives of gathers add up where positions repeat.
///
/// Errors, naming the source operator and the primitive: a value or seed that is no floating value
/// or does not fit, running products and extremes (Scan), products scattered into a tensor.
Result<std::vector<NodeId>> gradients(prim::Graph& g, std::span<const Seed> seeds,
                                      std::span<const NodeId> with_respect_to);

}  // namespace heddle::grad

#pragma once
#include "plan/plan.h"

namespace heddle::plan {

/// Legality under which an extreme and what is compared with it for equality (in the gradient of a
/// maximum, or the position of one) are computed from the same bits: kernels that add up in other
/// orders would find no element that equals it. Sums that both are made of are read from memory.
Legality with_comparisons(const prim::Graph& g, Legality legality);

}  // namespace heddle::plan

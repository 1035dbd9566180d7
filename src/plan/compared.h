#pragma once
#include "plan/plan.h"

namespace heddle::plan {

/// Legality under which an extreme and what is compared with it for equality (in the gradient of a
/// maximum, or the position of one) are of the same bits: kernels that add up in other orders, or
/// round a product that others add exactly, would find no element that equals it. Both read from
/// memory what they are computed from.
Legality with_comparisons(const prim::Graph& g, Legality legality);

}  // namespace heddle::plan

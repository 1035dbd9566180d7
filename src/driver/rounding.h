#pragma once
#include "driver/reference.h"

namespace heddle::driver {

/// How far rounding inside a kernel may take each element of a cluster's outputs, as f64: what each
/// node adds (a share of its size; of the sizes of all terms, for sums) and what its arguments
/// bring, each alone or all together. Where a small difference of large numbers is computed this is
/// more than the result tells; steps bring nothing (reference_of has their sides).
std::vector<Tensor> rounding_of(const prim::Graph& graph, const lower::Cluster& cluster,
                                const NodeValues& read);

}  // namespace heddle::driver

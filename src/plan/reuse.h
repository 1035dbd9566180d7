#pragma once
#include <cstdint>
#include <vector>

#include "lower/lower.h"
#include "prim/graph.h"

namespace heddle::plan {

/// Where a run finds constants, by id: bytes of constants that it reads from one read of this one
/// to the next (the median of its reads, of the graph as written). All there are, where it is read
/// once in a run; little, where each step of an unrolled loop reads it. 0 of other nodes.
std::vector<double> constants_between(const prim::Graph& g);

/// What a kernel reads of constants is in its core's own cache when it starts: little has come
/// between. `between`: of constants_between(). True as well of kernels without constants.
bool finds_constants_near(const prim::Graph& g, const lower::Cluster& c,
                          const std::vector<double>& between, std::int64_t l2_bytes);

}  // namespace heddle::plan

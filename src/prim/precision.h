#pragma once
#include "prim/graph.h"

namespace heddle::prim {

/// The graph with its f32 values stored as `low` (f16 or bf16); arithmetic stays f32, as for every
/// value of a storage type. Inputs and outputs keep their types. Kept in f32: results of
/// reductions, scans and scattered sums, and arithmetic on them alone (statistics), positions,
/// random numbers, single constants, and constants that `low` cannot hold.
Graph with_storage(const Graph& g, DType low);

}  // namespace heddle::prim

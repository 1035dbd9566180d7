#pragma once
#include "prim/graph.h"

namespace heddle::prim {

/// The graph with the small integers of quantised networks as bytes between operators: what is f32
/// of integers that were rounded and bounded is f32 of bytes (less a zero point) where several
/// nodes read it, or one that is no Map. Fused with its readers it is as before; in memory it is a
/// quarter.
Graph with_bytes(const Graph& g);

}  // namespace heddle::prim

#pragma once
#include "lower/lower.h"

namespace heddle::lower::stitch {

/// True if no reduction of a stitched kernel is repeated for each of many positions, and if the
/// kernel's accesses are few enough to be looked at.
bool recomputes_little(const prim::Graph& g, const Cluster& c);

}  // namespace heddle::lower::stitch

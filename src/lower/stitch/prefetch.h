#pragma once
#include "kernel/kernel.h"
#include "lower/lower.h"

namespace heddle::lower::stitch {

/// The kernel with hints that fetch the next row of inputs too large for the caches, where loops
/// side by side read each row more than once.
kernel::Kernel prefetch_rows(const kernel::Kernel& k, const Target& target);

}  // namespace heddle::lower::stitch

#pragma once
#include "kernel/kernel.h"

namespace heddle::kernel {

/// Unroll and jam (Allen and Kennedy, "Optimizing Compilers for Modern Architectures", 8.4) of loops
/// over rows that reduce along the lanes: a few neighbouring rows go through the body's loops side
/// by side, so that the one's arithmetic fills the other's latency. Registers and scratch memory of
/// a row are private to it. Loops whose rows are not independent, for all that their text says, or
/// whose accumulators would not fit the registers, stay as they are.
Kernel with_rows_side_by_side(const Kernel& k);

}  // namespace heddle::kernel

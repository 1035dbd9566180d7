#pragma once
#include "kernel/kernel.h"
#include "support/result.h"

namespace heddle::kernel {

/// Tasks go through a buffer in order: task t reads elements [begin + t·step, begin + t·step +
/// count), as far as there are any.
struct Strip {
  std::int64_t begin = 0, step = 0, count = 0;
  bool operator==(const Strip&) const = default;
};
/// How the tasks of a phase (a top-level grid loop) read a buffer in grid memory, if pointers to
/// other memory may stand in for it: it is only loaded from, at places that no value decides.
/// Errors, with the reason: unsupported.
Result<Strip> strip_of(const Kernel& k, const For& phase, BufferId buffer);

}  // namespace heddle::kernel

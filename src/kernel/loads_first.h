#pragma once
#include <optional>

#include "kernel/kernel.h"

namespace heddle::kernel {

/// `count` tasks of a phase as one: tasks t to t + count - 1 for the phase's variable t.
struct TasksTogether {
  Kernel kernel;  ///< with the buffers and variables that they need of their own, without phases
  Body body;
};
/// The loads of all of them come before the first store, so that they are in flight together: what
/// is stored is kept in registers meanwhile. nullopt where a task does more than load, compute and
/// store (loops that are not unrolled around a store, what threads exchange through memory, reads
/// of what the phase writes), or has more to keep than a thread's registers hold.
std::optional<TasksTogether> loads_first(const Kernel& k, const For& phase, int count);

}  // namespace heddle::kernel

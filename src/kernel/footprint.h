#pragma once
#include <vector>

#include "kernel/kernel.h"

namespace heddle::kernel {

/// What the tasks of a phase touch of one buffer in grid memory, by share: equal parts of the
/// tasks, in order (share i of n: tasks [T·i/n, T·(i+1)/n)).
struct Touch {
  BufferId buffer;
  bool write = false;
  /// Elements [low, high] of each share (low > high: none), or one interval for all shares alike.
  /// Never too small; where the range analysis sees no bounds, the whole buffer.
  std::vector<ir::Interval> shares;
  bool operator==(const Touch&) const = default;
};

/// Touches of a phase (a top-level grid loop) by `shares` shares, at most as many as it has tasks:
/// what decides which tasks of one kernel have to wait for which of another. Reads and writes of a
/// buffer are apart; prefetches do not count.
std::vector<Touch> touches_of(const Kernel& k, const For& phase, std::int64_t shares);

}  // namespace heddle::kernel

#pragma once
#include <cstdint>
#include <functional>
#include <vector>

namespace heddle::runtime {

/// A block of memory needed from step `first` to step `last`, both included.
struct Lifetime {
  std::int64_t bytes = 0;
  int first = 0, last = 0;
};
struct MemoryPlan {
  std::vector<std::int64_t> offsets;  ///< by position, multiples of 64
  std::int64_t bytes = 0;             ///< size of the arena
  std::int64_t lower_bound = 0;       ///< most bytes alive in one step: no plan is smaller
};
/// Of blocks by position, the first of which ends before the second begins: may the second one have
/// its memory?
using MayFollow = std::function<bool(std::size_t earlier, std::size_t later)>;
/// Places the largest blocks first, each at the lowest gap free for its whole lifetime (best fit by
/// size, as TensorFlow Lite and XLA do; Pisarchyk and Lee, MLSys 2020).
MemoryPlan plan_memory(const std::vector<Lifetime>& blocks, const MayFollow& may_follow = {});

}  // namespace heddle::runtime

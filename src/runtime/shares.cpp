#include "runtime/shares.h"

#include <algorithm>

namespace heddle::runtime {
namespace {

constexpr int kHalfWord = 32;
/// A thread takes its own tasks in some steps, so that others find the rest.
constexpr std::uint64_t kOwnPart = 2, kOthersPart = 4;

std::uint64_t range(std::uint64_t first, std::uint64_t last) { return first << kHalfWord | last; }

}  // namespace

void Shares::reset(std::int64_t tasks) {
  const auto threads = static_cast<std::int64_t>(ranges_.size());
  tasks_ = tasks;
  unit_ = (tasks >> (kHalfWord - 1)) + 1;
  const std::int64_t units = (tasks + unit_ - 1) / unit_;
  for (std::int64_t i = 0; i < threads; ++i)
    ranges_[static_cast<std::size_t>(i)].units.store(
        range(static_cast<std::uint64_t>(units * i / threads),
              static_cast<std::uint64_t>(units * (i + 1) / threads)),
        std::memory_order_relaxed);
}

std::pair<std::int64_t, std::int64_t> Shares::take(int thread) {
  const std::size_t threads = ranges_.size(), own = static_cast<std::size_t>(thread);
  const auto tasks = [&](std::uint64_t first, std::uint64_t last) {
    return std::pair{static_cast<std::int64_t>(first) * unit_,
                     std::min(static_cast<std::int64_t>(last) * unit_, tasks_)};
  };
  for (std::size_t i = 0; i < threads; ++i) {
    std::atomic<std::uint64_t>& units = ranges_[(own + i) % threads].units;
    std::uint64_t seen = units.load(std::memory_order_relaxed);
    while (true) {
      const std::uint64_t first = seen >> kHalfWord, last = seen & 0xffffffffU, left = last - first;
      if (left == 0) break;
      const std::uint64_t part = threads == 1 ? 1
                                 : i == 0     ? kOwnPart
                                              : kOthersPart,
                          count = std::max<std::uint64_t>(left / part, 1);
      const auto [from, to] =
          i == 0 ? std::pair{first, first + count} : std::pair{last - count, last};
      const std::uint64_t rest = i == 0 ? range(to, last) : range(first, from);
      if (units.compare_exchange_weak(seen, rest, std::memory_order_relaxed))
        return tasks(from, to);
    }
  }
  return {0, 0};
}

}  // namespace heddle::runtime

#pragma once
#include <atomic>
#include <cstdint>
#include <utility>
#include <vector>

namespace heddle::runtime {

/// The tasks of a phase: an equal range for each thread, in order, so that neighbours meet in one
/// cache. A thread that is done takes from the ends of the others' ranges, as threads are seldom
/// equally fast (work stealing: Blumofe and Leiserson, "Scheduling multithreaded computations by
/// work stealing", JACM 1999).
class Shares {
 public:
  explicit Shares(int threads) : ranges_(static_cast<std::size_t>(threads)) {}
  /// Before the threads begin.
  void reset(std::int64_t tasks);
  /// The next tasks [first, second) of a thread; nothing if none are left.
  std::pair<std::int64_t, std::int64_t> take(int thread);

 private:
  /// Units [first, last), in halves of a word; of each thread in a line of its own.
  struct alignas(64) Range {
    std::atomic<std::uint64_t> units;
  };
  std::vector<Range> ranges_;
  std::int64_t tasks_ = 0, unit_ = 1;  ///< tasks of a unit
};

}  // namespace heddle::runtime

#pragma once
#include <atomic>
#include <functional>
#include <mutex>

#include "runtime/schedule.h"
#include "runtime/session.h"

namespace heddle::runtime {

/// A schedule on the threads of a pool: one parallel region, in which threads meet at counters.
class Monolith {
 public:
  /// `tasks`: by stage. Throws InternalError if the schedule cannot be proved right.
  /// `only`: of these stages, as in stages_of().
  Monolith(const Program& program, const StageLayout& layout, int workers, std::vector<Task> tasks,
           std::span<const int> only = {});
  const Schedule& schedule() const { return schedule_; }

  struct Run {
    const std::vector<std::vector<void*>>* args;          ///< by launch
    std::byte* scratch;                                   ///< of all threads
    std::int64_t scratch_stride;                          ///< bytes
    std::vector<std::vector<ItemTime>>* times = nullptr;  ///< by worker
    /// Called with a launch when it is complete, by the thread that completed it.
    std::function<void(std::size_t launch)> done = {};
  };
  /// Runs of several callers go one after another.
  void run(ThreadPool& pool, const Run& run);

 private:
  /// Items that a worker has completed in all runs, on a cache line of its own.
  struct alignas(64) Counter {
    std::atomic<std::uint64_t> items{0};
  };
  void work(int worker, const Run& run, std::atomic<int>* left, double start);
  void wait(int wait) const;

  std::vector<Stage> stages_;
  std::vector<Task> tasks_;
  Schedule schedule_;
  bool denormals_;             ///< are kept
  std::vector<int> items_of_;  ///< by launch
  std::mutex mutex_;
  std::vector<Counter> done_;  ///< by worker
  std::uint64_t runs_ = 0;     ///< before this one
};

}  // namespace heddle::runtime

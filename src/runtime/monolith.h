#pragma once
#include <atomic>
#include <functional>

#include "runtime/schedule.h"
#include "runtime/session.h"

namespace heddle::runtime {

/// A schedule on the threads of a pool: one parallel region, in which threads meet at counters.
class Monolith {
 public:
  /// Counters of the runs of one context, one after another. Each has a cache line of its own.
  class Progress {
   public:
    explicit Progress(int workers) : done_(static_cast<std::size_t>(workers)) {}

   private:
    friend Monolith;
    struct alignas(64) Counter {
      std::atomic<std::uint64_t> items{0};
    };
    std::vector<Counter> done_;
    std::uint64_t runs_ = 0;
  };

  /// `tasks`: by stage. Throws InternalError if the schedule cannot be proved right.
  Monolith(const Program& program, int workers, std::vector<Task> tasks);
  const Schedule& schedule() const { return schedule_; }

  struct Run {
    const std::vector<std::vector<void*>>* args;  ///< by launch
    std::byte* scratch;                           ///< of all threads
    std::int64_t scratch_stride;                  ///< bytes
    Progress* progress;
    std::vector<std::vector<ItemTime>>* times = nullptr;  ///< by worker
    /// Called with a launch when it is complete, by the thread that completed it.
    std::function<void(std::size_t launch)> done = {};
  };
  void run(ThreadPool& pool, const Run& run) const;

 private:
  void work(int worker, const Run& run, std::uint64_t runs, std::atomic<int>* left,
            double start) const;
  void wait(int wait, const Progress& progress, std::uint64_t runs) const;

  std::vector<Stage> stages_;
  std::vector<Task> tasks_;
  Schedule schedule_;
  std::vector<int> items_of_;  ///< by launch
};

}  // namespace heddle::runtime

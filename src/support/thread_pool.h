#pragma once
#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace heddle {

/// A moment's pause of a thread that waits in a loop.
inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

/// Waits for a condition that another running thread makes true: spins, then yields.
template <class F>
void spin_until(F&& condition) {
  // A thread that waits longer than this shares its core with somebody: let them run.
  constexpr int kSpinsBeforeYield = 4000;
  for (int spins = 0; !condition(); ++spins) {
    if (spins < kSpinsBeforeYield)
      relax();
    else
      std::this_thread::yield();
  }
}

/// A pool for short parallel regions: workers spin for a while after a region, then park, so that
/// back-to-back regions cost a fraction of a microsecond. The caller is thread 0. Regions from
/// several callers run one after another, so the machine is never oversubscribed.
class ThreadPool {
 public:
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;
  int threads() const { return threads_; }
  /// Runs body(thread) on every thread, 0..threads()-1; returns when all are done. body must not
  /// throw.
  void run(const std::function<void(int)>& body);
  /// Splits [0, count) over the threads dynamically.
  void for_each(std::int64_t count, const std::function<void(std::int64_t)>& body);

 private:
  void work(int thread);

  const int threads_;
  std::mutex region_;
  const std::function<void(int)>* body_ = nullptr;
  std::atomic<std::uint32_t> epoch_{0};
  std::atomic<int> running_{0};
  std::atomic<bool> stop_{false};
  std::mutex park_;
  std::condition_variable wake_;
  std::atomic<int> parked_{0};
  std::vector<std::thread> workers_;
};

}  // namespace heddle

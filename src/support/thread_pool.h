#pragma once
#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace heddle {

/// A meeting point for a fixed number of threads that are all running: spins, then yields.
class SpinBarrier {
 public:
  explicit SpinBarrier(int threads) : threads_(threads) {}
  void wait();

 private:
  const int threads_;
  std::atomic<int> arrived_{0};
  std::atomic<int> generation_{0};
};

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

#include "support/thread_pool.h"

namespace heddle {
namespace {

// About 50 µs of spinning: longer than the gap between two runs of a small model.
constexpr int kSpinsBeforePark = 2000;

}  // namespace

ThreadPool::ThreadPool(int threads) : threads_(threads < 1 ? 1 : threads) {
  for (int i = 1; i < threads_; ++i) workers_.emplace_back([this, i] { work(i); });
}

ThreadPool::~ThreadPool() {
  stop_.store(true);
  {
    const std::lock_guard lock(park_);
    epoch_.fetch_add(1);
  }
  wake_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::work(int thread) {
  std::uint32_t seen = 0;
  while (true) {
    for (int spins = 0; epoch_.load(std::memory_order_acquire) == seen; ++spins) {
      relax();
      if (spins < kSpinsBeforePark) continue;
      std::unique_lock lock(park_);
      parked_.fetch_add(1);
      wake_.wait(lock, [&] { return epoch_.load() != seen; });
      parked_.fetch_sub(1);
    }
    seen = epoch_.load(std::memory_order_acquire);
    if (stop_.load()) return;
    (*body_)(thread);
    running_.fetch_sub(1, std::memory_order_acq_rel);
  }
}

void ThreadPool::run(const std::function<void(int)>& body) {
  const std::lock_guard region(region_);
  if (threads_ == 1) return body(0);
  body_ = &body;
  running_.store(threads_ - 1, std::memory_order_release);
  epoch_.fetch_add(1, std::memory_order_seq_cst);
  if (parked_.load(std::memory_order_seq_cst) > 0) {
    // The lock orders this notify after a worker that is about to wait.
    { const std::lock_guard lock(park_); }
    wake_.notify_all();
  }
  body(0);
  spin_until([&] { return running_.load(std::memory_order_acquire) == 0; });
}

void ThreadPool::for_each(std::int64_t count, const std::function<void(std::int64_t)>& body) {
  std::atomic<std::int64_t> next{0};
  run([&](int) {
    for (std::int64_t i = next.fetch_add(1); i < count; i = next.fetch_add(1)) body(i);
  });
}

}  // namespace heddle

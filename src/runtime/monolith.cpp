#include "runtime/monolith.h"
#include "support/clock.h"
#include "support/denormals.h"

namespace heddle::runtime {
Monolith::Monolith(const Program& program, const StageLayout& layout, int workers,
                   std::vector<Task> tasks, std::span<const int> only)
    : stages_(stages_of(program, only)),
      tasks_(std::move(tasks)),
      schedule_(runtime::schedule(stages_, workers, layout)),
      denormals_(program.denormals),
      items_of_(program.launches.size()),
      done_(static_cast<std::size_t>(workers)) {
  const Status valid = validate(stages_, schedule_);
  HEDDLE_CHECK(valid.ok(), "{}", valid.ok() ? "" : valid.error().message);
  for (const std::vector<Schedule::Item>& list : schedule_.items)
    for (const Schedule::Item& item : list)
      ++items_of_[static_cast<std::size_t>(stages_[static_cast<std::size_t>(item.stage)].launch)];
}

void Monolith::wait(int wait) const {
  const std::vector<int>& wanted = schedule_.waits[static_cast<std::size_t>(wait)];
  for (std::size_t u = 0; u < wanted.size(); ++u) {
    if (wanted[u] == 0) continue;
    const std::uint64_t value =
        runs_ * schedule_.items[u].size() + static_cast<std::uint64_t>(wanted[u]);
    spin_until([&] { return done_[u].items.load(std::memory_order_acquire) >= value; });
  }
}

void Monolith::work(int worker, const Run& run, std::atomic<int>* left, double start) {
  const FlushDenormals flush(!denormals_);
  const auto w = static_cast<std::size_t>(worker);
  void* scratch = run.scratch + run.scratch_stride * worker;
  std::uint64_t done = runs_ * schedule_.items[w].size();
  for (const Schedule::Item& item : schedule_.items[w]) {
    const double came = run.times != nullptr ? now() : 0;
    if (item.wait >= 0) wait(item.wait);
    const double begin = run.times != nullptr && item.wait >= 0 ? now() : came;
    const Stage& stage = stages_[static_cast<std::size_t>(item.stage)];
    const auto launch = static_cast<std::size_t>(stage.launch);
    tasks_[static_cast<std::size_t>(item.stage)]((*run.args)[launch].data(), item.first, item.last,
                                                 scratch);
    done_[w].items.store(++done, std::memory_order_release);
    if (run.times != nullptr)
      (*run.times)[w].push_back({worker, stage.launch, stage.phase, item.first, item.last,
                                 begin - came, begin - start, now() - start});
    if (left != nullptr && left[launch].fetch_sub(1, std::memory_order_acq_rel) == 1)
      run.done(launch);
  }
}

void Monolith::run(ThreadPool& pool, const Run& run) {
  const std::lock_guard lock(mutex_);
  std::vector<std::atomic<int>> left(run.done ? items_of_.size() : 0);
  for (std::size_t l = 0; l < left.size(); ++l) {
    left[l].store(items_of_[l]);
    if (items_of_[l] == 0) run.done(l);  // without tasks: complete from the start
  }
  const double start = now();
  pool.run([&](int worker) { work(worker, run, left.empty() ? nullptr : left.data(), start); });
  ++runs_;
}

}  // namespace heddle::runtime

#include <algorithm>

#include "runtime/schedule.h"

namespace heddle::runtime {
namespace {

using Item = Schedule::Item;

/// Knows nothing of how schedules are made.
class Validator {
 public:
  Validator(const std::vector<Stage>& stages, const Schedule& schedule)
      : stages_(stages), schedule_(schedule), workers_(schedule.items.size()) {}

  Status run(int counter_bits) {
    HEDDLE_TRY(well_formed(counter_bits));
    HEDDLE_TRY(complete());
    HEDDLE_TRY(live());
    return ordered();
  }

 private:
  /// Position in a worker's list.
  struct At {
    std::size_t worker, position;
  };
  struct Access {
    Span span;
    bool write;
    At at;
  };

  const Item& item(const At& at) const { return schedule_.items[at.worker][at.position]; }
  std::string name(const At& at) const {
    const Item& x = item(at);
    return fmt::format("tasks {}..{} of stage {} (item {} of worker {})", x.first, x.last - 1,
                       x.stage, at.position, at.worker);
  }

  Status well_formed(int counter_bits) const {
    if (counter_bits < 1 || counter_bits > 64)
      return fail("schedule: counters of {} bits, want 1 to 64", counter_bits);
    for (const std::vector<int>& wait : schedule_.waits) {
      if (wait.size() != workers_)
        return fail("schedule: a wait for {} workers of {}", wait.size(), workers_);
      for (std::size_t u = 0; u < workers_; ++u)
        if (wait[u] < 0 || wait[u] > std::ssize(schedule_.items[u]))
          return fail("schedule: a wait for {} items of worker {}, which has {}", wait[u], u,
                      schedule_.items[u].size());
    }
    for (std::size_t w = 0; w < workers_; ++w) {
      // Between runs all workers meet, so a counter is never further than this from what is
      // waited for, and the sign of the difference is right.
      if (counter_bits < 64 && std::ssize(schedule_.items[w]) >= std::int64_t{1}
                                                                     << (counter_bits - 1))
        return fail("schedule: {} items of worker {} in a counter of {} bits",
                    schedule_.items[w].size(), w, counter_bits);
      for (const Item& x : schedule_.items[w])
        if (x.stage < 0 || x.stage >= std::ssize(stages_) || x.first < 0 || x.first >= x.last ||
            x.last > stages_[static_cast<std::size_t>(x.stage)].tasks || x.wait < -1 ||
            x.wait >= std::ssize(schedule_.waits))
          return fail("schedule: found tasks {}..{} of stage {}, wait {}", x.first, x.last, x.stage,
                      x.wait);
    }
    return Ok{};
  }

  Status complete() const {
    std::vector<std::vector<Span>> tasks(stages_.size());
    for (const auto& list : schedule_.items)
      for (const Item& x : list)
        tasks[static_cast<std::size_t>(x.stage)].push_back({x.first, x.last});
    for (std::size_t s = 0; s < stages_.size(); ++s) {
      std::ranges::sort(tasks[s], {}, &Span::begin);
      std::int64_t next = 0;
      for (const Span& x : tasks[s]) {
        if (x.begin != next)
          return fail("schedule: task {} of stage {} runs {}", std::min(x.begin, next), s,
                      x.begin > next ? "never" : "twice");
        next = x.end;
      }
      if (next != stages_[s].tasks)
        return fail("schedule: task {} of stage {} runs never", next, s);
    }
    return Ok{};
  }

  /// Runs the items in some order that the waits allow; what is complete before an item is the same
  /// in all orders.
  Status live() {
    std::vector<std::size_t> next(workers_);
    std::vector<std::vector<int>> known(workers_, std::vector<int>(workers_));
    before_.resize(workers_);
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t w = 0; w < workers_; ++w)
        for (; next[w] < schedule_.items[w].size() && may_run({w, next[w]}, next); ++next[w]) {
          moved = true;
          begin({w, next[w]}, known[w]);
        }
    }
    for (std::size_t w = 0; w < workers_; ++w)
      if (next[w] < schedule_.items[w].size())
        return fail("schedule: deadlock: {} waits for ever", name({w, next[w]}));
    return Ok{};
  }
  bool may_run(const At& at, const std::vector<std::size_t>& next) const {
    if (item(at).wait < 0) return true;
    const std::vector<int>& wait = schedule_.waits[static_cast<std::size_t>(item(at).wait)];
    for (std::size_t u = 0; u < workers_; ++u)
      if (static_cast<std::size_t>(wait[u]) > next[u]) return false;
    return true;
  }
  void begin(const At& at, std::vector<int>& known) {
    if (item(at).wait >= 0) {
      const std::vector<int>& theirs = after(static_cast<std::size_t>(item(at).wait));
      for (std::size_t v = 0; v < workers_; ++v) known[v] = std::max(known[v], theirs[v]);
    }
    known[at.worker] = static_cast<int>(at.position);
    before_[at.worker].push_back(known);
  }

  /// What is complete when a wait is met, which it can be: the same for all items that have it.
  const std::vector<int>& after(std::size_t number) {
    after_.resize(schedule_.waits.size());
    std::vector<int>& known = after_[number];
    if (!known.empty()) return known;
    known.resize(workers_);
    const std::vector<int>& wait = schedule_.waits[number];
    for (std::size_t u = 0; u < workers_; ++u) {
      if (wait[u] == 0) continue;
      // All that the last item waited for knew when it began is complete, and so is it.
      const std::vector<int>& theirs = before_[u][static_cast<std::size_t>(wait[u]) - 1];
      for (std::size_t v = 0; v < workers_; ++v) known[v] = std::max(known[v], theirs[v]);
      known[u] = std::max(known[u], wait[u]);
    }
    return known;
  }

  /// What an item touches of a stage's `touch`: the shares that its tasks lie in.
  static Span span_of(const Stage& stage, const Stage::Touch& touch, const Item& x) {
    if (touch.shares.size() == 1) return touch.shares[0];
    Span out;
    for (std::int64_t s = 0; s < std::ssize(touch.shares); ++s) {
      const Span& share = touch.shares[static_cast<std::size_t>(s)];
      if (stage.task_of(s + 1) <= x.first || stage.task_of(s) >= x.last || share.begin >= share.end)
        continue;
      if (out.begin >= out.end) out = share;
      out = {std::min(out.begin, share.begin), std::max(out.end, share.end)};
    }
    return out;
  }

  Status ordered() const {
    std::vector<std::vector<Access>> accesses;  // by memory
    for (std::size_t w = 0; w < workers_; ++w)
      for (std::size_t i = 0; i < schedule_.items[w].size(); ++i) {
        const Item& x = schedule_.items[w][i];
        const Stage& stage = stages_[static_cast<std::size_t>(x.stage)];
        for (const Stage::Touch& touch : stage.touches) {
          const Span span = span_of(stage, touch, x);
          if (span.begin >= span.end) continue;
          const auto memory = static_cast<std::size_t>(touch.memory);
          if (accesses.size() <= memory) accesses.resize(memory + 1);
          accesses[memory].push_back({span, touch.write, {w, i}});
        }
      }
    for (std::vector<Access>& list : accesses) HEDDLE_TRY(ordered(list));
    return Ok{};
  }
  /// Sweeps over one piece of memory; `open` are the accesses that reach into what follows.
  Status ordered(std::vector<Access>& list) const {
    std::ranges::sort(list, {}, [](const Access& a) { return a.span.begin; });
    std::vector<const Access*> open;
    for (const Access& now : list) {
      std::erase_if(open, [&](const Access* a) { return a->span.end <= now.span.begin; });
      for (const Access* other : open) HEDDLE_TRY(ordered(*other, now));
      open.push_back(&now);
    }
    return Ok{};
  }
  Status ordered(const Access& a, const Access& b) const {
    if ((!a.write && !b.write) || item(a.at).stage == item(b.at).stage) return Ok{};
    const bool in_order = item(a.at).stage < item(b.at).stage;
    const Access &first = in_order ? a : b, &second = in_order ? b : a;
    const std::vector<int>& known = before_[second.at.worker][second.at.position];
    if (known[first.at.worker] > static_cast<int>(first.at.position)) return Ok{};
    return fail("schedule: {} and {} both touch byte {}, and nothing orders them", name(first.at),
                name(second.at), std::max(a.span.begin, b.span.begin));
  }

  const std::vector<Stage>& stages_;
  const Schedule& schedule_;
  const std::size_t workers_;
  /// By worker and item: how many items of each worker are complete when it begins.
  std::vector<std::vector<std::vector<int>>> before_;
  std::vector<std::vector<int>> after_;  ///< by wait: what it says to be complete
};

}  // namespace

Status validate(const std::vector<Stage>& stages, const Schedule& schedule, int counter_bits) {
  return Validator(stages, schedule).run(counter_bits);
}

}  // namespace heddle::runtime

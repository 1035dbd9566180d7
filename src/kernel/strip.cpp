#include "kernel/strip.h"

#include <algorithm>

#include "kernel/footprint.h"
#include "kernel/traverse.h"
#include "support/match.h"

namespace heddle::kernel {
namespace {

constexpr std::int64_t kMostTasks = 1 << 17;
/// What neighbouring tasks may both read, and what lies between them, of what one reads.
constexpr double kMostOverlap = 0.25, kMostGap = 0.25;

/// Why loads alone are not how the phase reads the buffer; empty: they are.
std::string other_uses(const For& phase, BufferId buffer) {
  std::string found;
  const auto note = [&](BufferId id, const char* what) {
    if (id == buffer) found = what;
  };
  for_each_stmt(*phase.body, [&](const Stmt& s) {
    for_each_value_of(s, [&](const Value& root) {
      for_each_value(root, [&](const Value& v) {
        const Load* x = std::get_if<Load>(&v->op);
        if (x && !x->dynamic.empty()) note(x->buffer, "values decide what is read");
      });
    });
    match(
        s.op, [&](const Store& x) { note(x.buffer, "is written"); },
        [&](const Copy& x) { note(x.from, "is copied to shared memory by its tasks"); },
        [&](const TileCopy& x) { note(x.from, "is copied to shared memory by its tasks"); },
        [&](const Routine& x) {
          for (const BufferId id : x.buffers) note(id, "is read by a routine");
        },
        [](const auto&) {});
  });
  return found;
}

}  // namespace

Result<Strip> strip_of(const Kernel& k, const For& phase, BufferId buffer) {
  if (const std::string other = other_uses(phase, buffer); !other.empty())
    return unsupported("{}", other);
  const std::int64_t tasks = phase.end - phase.begin;
  if (tasks < 1 || tasks > kMostTasks) return unsupported("{} tasks", tasks);
  for (const Touch& touch : touches_of(k, phase, tasks)) {
    if (touch.buffer != buffer) continue;
    if (touch.shares.size() == 1 && tasks > 1) return unsupported("all tasks read the same");
    const auto& shares = touch.shares;
    Strip strip{shares[0].low, tasks > 1 ? shares[1].low - shares[0].low : 0, 0};
    for (const ir::Interval& s : shares) strip.count = std::max(strip.count, s.high - s.low + 1);
    const auto inside = [&](std::size_t t) {
      const std::int64_t first = strip.begin + static_cast<std::int64_t>(t) * strip.step;
      return shares[t].low > shares[t].high ||
             (shares[t].low >= first && shares[t].high < first + strip.count);
    };
    bool all = strip.count > 0 && strip.begin >= 0 && strip.step >= 0;
    for (std::size_t t = 0; all && t < shares.size(); ++t) all = inside(t);
    const auto count = static_cast<double>(strip.count), step = static_cast<double>(strip.step);
    if (!all || (tasks > 1 && (count - step > kMostOverlap * count)))
      return unsupported("tasks do not read one piece after the other");
    if (tasks > 1 && step - count > kMostGap * count)
      return unsupported("tasks leave out what lies between their pieces");
    return strip;
  }
  return unsupported("is not read");
}

}  // namespace heddle::kernel

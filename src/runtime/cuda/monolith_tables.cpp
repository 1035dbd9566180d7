#include "runtime/cuda/monolith_tables.h"

#include <algorithm>
#include <limits>
#include <map>

#include "runtime/cuda/ring.h"
#include "support/result.h"

namespace heddle::runtime::cuda {
namespace {

constexpr std::int64_t kTableBytes = 256 << 10;
constexpr std::int64_t kLine = 128;

/// Waits of one stage that differ only in what their own worker has done anyway become one, which
/// all blocks find in the cache.
void share_waits(Schedule& s) {
  struct Use {
    Schedule::Item* item;
    std::size_t worker;
    int position;
  };
  std::map<int, std::vector<Use>> by_stage;
  for (std::size_t w = 0; w < s.items.size(); ++w)
    for (std::size_t i = 0; i < s.items[w].size(); ++i)
      if (Schedule::Item& item = s.items[w][i]; item.wait >= 0)
        by_stage[item.stage].push_back({&item, w, static_cast<int>(i)});
  std::vector<std::vector<int>> kept;
  std::map<std::vector<int>, int> numbers;
  for (auto& [stage, uses] : by_stage) {
    std::vector<int> all(s.items.size());
    for (const Use& use : uses)
      std::ranges::transform(all, s.waits[static_cast<std::size_t>(use.item->wait)], all.begin(),
                             [](int a, int b) { return std::max(a, b); });
    for (const Use& use : uses) {
      std::vector<int> wait = s.waits[static_cast<std::size_t>(use.item->wait)];
      if (all[use.worker] <= use.position) wait[use.worker] = all[use.worker];
      const auto [at, fresh] = numbers.try_emplace(wait, static_cast<int>(kept.size()));
      if (fresh) kept.push_back(std::move(wait));
      use.item->wait = at->second;
    }
  }
  s.waits = std::move(kept);
}

}  // namespace

Schedule block_schedule(const std::vector<Stage>& stages, int blocks, const StageLayout& layout) {
  Schedule out = schedule(stages, blocks, layout);
  share_waits(out);
  return out;
}

std::vector<Stage> spread(std::vector<Stage> stages, int workers) {
  for (Stage& stage : stages)
    if (std::ranges::all_of(stage.touches, [](const auto& t) { return t.shares.size() == 1; }))
      stage.shares = std::clamp<std::int64_t>(stage.tasks, 1, workers);
  return stages;
}

std::vector<ConstantRange> constants_of(const Program& program, const Stage& stage) {
  std::vector<ConstantRange> out;
  const Launch& launch = program.launches[static_cast<std::size_t>(stage.launch)];
  const Phase& phase = launch.phases[static_cast<std::size_t>(stage.phase)];
  const std::vector<Paged> paged = paged_of(program, stage);
  for (const Touch& touch : phase.touches) {
    const Slot& slot = launch.args[static_cast<std::size_t>(touch.arg)];
    if (slot.kind != Slot::Kind::constant) continue;
    if (std::ranges::count(paged, touch.arg, &Paged::arg) > 0) continue;
    std::int64_t begin = 0, end = 0;
    for (const auto& [from, to] : touch.shares) {
      if (from >= to) continue;
      begin = begin < end ? std::min(begin, from) : from;
      end = std::max(end, to);
    }
    // All tasks alike, and much: a table, of which few rows are read.
    if (touch.shares.size() == 1 && phase.tasks > 1 && end - begin > kTableBytes) continue;
    if (begin < end) out.push_back({slot.index, begin, end - begin});
  }
  return out;
}

namespace {

/// Part `part` of `parts` of what the ranges hold, up to `most` bytes, in whole lines.
void add_part(const std::vector<ConstantRange>& ranges, std::int64_t most, std::int64_t part,
              std::int64_t parts, std::vector<ConstantRange>& out) {
  std::int64_t all = 0;
  for (const ConstantRange& r : ranges) all += r.bytes;
  all = std::min(all, most);
  const std::int64_t begin = all * part / parts / kLine * kLine,
                     end = part + 1 == parts ? all : all * (part + 1) / parts / kLine * kLine;
  std::int64_t at = 0;
  for (const ConstantRange& r : ranges) {
    const std::int64_t from = std::max(begin, at), to = std::min(end, at + r.bytes);
    if (from < to) out.push_back({r.constant, r.begin + from - at, to - from});
    at += r.bytes;
  }
}

}  // namespace

MonolithTables tables_of(const Schedule& schedule, const ConstantsRead& constants,
                         std::int64_t fetch_bytes) {
  MonolithTables t;
  for (const std::vector<int>& wait : schedule.waits) {
    t.first_wait.push_back(static_cast<int>(t.waits.size()));
    for (std::size_t u = 0; u < wait.size(); ++u)
      if (wait[u] > 0) t.waits.push_back({static_cast<int>(u), static_cast<unsigned>(wait[u])});
  }
  t.first_wait.push_back(static_cast<int>(t.waits.size()));
  struct Parts {
    std::int64_t all = 0, next = 0;
    std::vector<ConstantRange> ranges = {};
  };
  std::map<int, Parts> stages;
  for (const auto& items : schedule.items)
    for (const Schedule::Item& item : items)
      if (Parts& parts = stages[item.stage]; parts.all++ == 0 && constants)
        parts.ranges = constants(item.stage);
  for (const std::vector<Schedule::Item>& items : schedule.items) {
    t.first_item.push_back(static_cast<int>(t.items.size()));
    for (const Schedule::Item& item : items) {
      const int fetch = static_cast<int>(t.ranges.size());
      Parts& parts = stages[item.stage];
      add_part(parts.ranges, fetch_bytes, parts.next++, parts.all, t.ranges);
      t.items.push_back({item.stage, static_cast<int>(item.first), static_cast<int>(item.last),
                         item.wait, fetch, static_cast<int>(t.ranges.size()), 0, 0});
    }
  }
  t.first_item.push_back(static_cast<int>(t.items.size()));
  t.first_load.assign(t.first_item.size(), 0);
  return t;
}

std::vector<ItemTime> item_times(const std::vector<Stage>& stages, const MonolithTables& tables,
                                 std::span<const MonolithTimes> rows) {
  std::vector<ItemTime> out;
  const std::size_t blocks = tables.first_item.size() - 1;
  const auto begin_of = [&](std::size_t block) {
    return static_cast<std::size_t>(tables.first_item[block]);
  };
  // A block's own row is behind those of its items; blocks without items leave none.
  const auto own = [&](std::size_t b) -> const MonolithTimes& { return rows[begin_of(b + 1) + b]; };
  std::uint64_t start = std::numeric_limits<std::uint64_t>::max();
  for (std::size_t b = 0; b < blocks; ++b)
    if (begin_of(b) < begin_of(b + 1)) start = std::min(start, own(b).at[0]);
  for (std::size_t b = 0; b < blocks; ++b) {
    if (begin_of(b) == begin_of(b + 1)) continue;
    const auto& at = own(b).at;
    const double cycles = static_cast<double>(at[3] - at[1]);
    const double scale = cycles > 0 ? static_cast<double>(at[2] - at[0]) / cycles : 0;
    const auto seconds = [&](std::uint64_t clock) {
      return 1e-9 *
             (static_cast<double>(at[0] - start) + static_cast<double>(clock - at[1]) * scale);
    };
    for (std::size_t i = begin_of(b); i < begin_of(b + 1); ++i) {
      const MonolithItem& item = tables.items[i];
      const Stage& stage = stages[static_cast<std::size_t>(item.stage)];
      const auto& stamps = rows[i + b].at;
      const double begins = seconds(stamps[1]);
      out.push_back({static_cast<int>(b), stage.launch, stage.phase, item.first, item.last,
                     item.wait < 0 ? 0 : begins - seconds(stamps[0]), begins, seconds(stamps[2]),
                     static_cast<int>(at[4])});
    }
  }
  return out;
}

std::vector<LaunchTime> launch_times(const Program& program, const std::vector<ItemTime>& items) {
  std::vector<LaunchTime> out;
  for (std::size_t l = 0; l < program.launches.size(); ++l) {
    double begin = std::numeric_limits<double>::infinity(), end = 0;
    for (const ItemTime& item : items)
      if (item.launch == static_cast<int>(l))
        begin = std::min(begin, item.begin), end = std::max(end, item.end);
    out.push_back({program.launches[l].name, std::max(0.0, end - begin), end > 0 ? begin : 0});
  }
  return out;
}

std::string describe(const MonolithFailure& f, const Program& program,
                     const std::vector<Stage>& stages, const MonolithTables& tables) {
  const MonolithItem item = f.item < tables.items.size() ? tables.items[f.item] : MonolithItem{};
  const Stage& stage = stages[static_cast<std::size_t>(item.stage)];
  return fmt::format(
      "monolith: block {} waited in vain for block {}, before tasks {} to {} of kernel '{}', phase "
      "{}: found {} items complete, wanted {}",
      f.block, f.awaited, item.first, item.last,
      program.launches[static_cast<std::size_t>(stage.launch)].name, stage.phase, f.found,
      f.wanted);
}

}  // namespace heddle::runtime::cuda

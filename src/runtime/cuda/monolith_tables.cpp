#include "runtime/cuda/monolith_tables.h"

#include <algorithm>
#include <limits>

#include "support/result.h"

namespace heddle::runtime::cuda {

std::vector<StageOf> stages_of(const Program& program) {
  std::vector<StageOf> stages;
  for (std::size_t l = 0; l < program.launches.size(); ++l)
    for (std::size_t p = 0; p < program.launches[l].phases.size(); ++p) stages.push_back({l, p});
  return stages;
}

Schedule barrier_schedule(const Program& program, int workers) {
  Schedule schedule;
  schedule.workers = workers;
  schedule.items.resize(static_cast<std::size_t>(workers));
  const std::vector<StageOf> stages = stages_of(program);
  for (std::size_t s = 0; s < stages.size(); ++s) {
    const std::int64_t tasks = program.launches[stages[s].launch].phases[stages[s].phase].tasks;
    if (tasks == 0) continue;
    std::vector<int> done;
    for (const auto& items : schedule.items) done.push_back(static_cast<int>(items.size()));
    const bool first = std::ranges::all_of(done, [](int n) { return n == 0; });
    if (!first) schedule.waits.push_back(std::move(done));
    for (int u = 0; u < workers; ++u) {
      const std::int64_t begin = tasks * u / workers, end = tasks * (u + 1) / workers;
      if (begin == end) continue;
      schedule.items[static_cast<std::size_t>(u)].push_back(
          {static_cast<int>(s), begin, end,
           first ? -1 : static_cast<int>(schedule.waits.size()) - 1});
    }
  }
  return schedule;
}

MonolithTables tables_of(const Schedule& schedule, const ConstantsRead& constants,
                         std::int64_t fetch_bytes) {
  MonolithTables t;
  for (const std::vector<int>& wait : schedule.waits) {
    t.first_wait.push_back(static_cast<int>(t.waits.size()));
    for (std::size_t u = 0; u < wait.size(); ++u)
      if (wait[u] > 0) t.waits.push_back({static_cast<int>(u), static_cast<unsigned>(wait[u])});
  }
  t.first_wait.push_back(static_cast<int>(t.waits.size()));
  for (const std::vector<Schedule::Item>& items : schedule.items) {
    t.first_item.push_back(static_cast<int>(t.items.size()));
    for (const Schedule::Item& item : items) {
      const int fetch = static_cast<int>(t.ranges.size());
      std::int64_t left = fetch_bytes;
      if (constants && item.wait >= 0)
        for (ConstantRange range : constants(item.stage, item.first, item.last)) {
          range.bytes = std::min(range.bytes, left);
          if (range.bytes <= 0) continue;
          left -= range.bytes;
          t.ranges.push_back(range);
        }
      t.items.push_back({item.stage, static_cast<int>(item.first), static_cast<int>(item.last),
                         item.wait, fetch, static_cast<int>(t.ranges.size())});
    }
  }
  t.first_item.push_back(static_cast<int>(t.items.size()));
  return t;
}

std::vector<LaunchTime> launch_times(const Program& program, const MonolithTables& tables,
                                     std::span<const MonolithTimes> rows) {
  const std::vector<StageOf> stages = stages_of(program);
  std::vector<LaunchTime> out;
  std::vector<double> last(program.launches.size(), 0);
  for (const Launch& launch : program.launches)
    out.push_back({launch.name, 0, std::numeric_limits<double>::infinity()});
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
    const auto& [at] = own(b);
    const double cycles = static_cast<double>(at[3] - at[1]);
    const double scale = cycles > 0 ? static_cast<double>(at[2] - at[0]) / cycles : 0;
    const auto seconds = [&](std::uint64_t clock) {
      return 1e-9 *
             (static_cast<double>(at[0] - start) + static_cast<double>(clock - at[1]) * scale);
    };
    for (std::size_t i = begin_of(b); i < begin_of(b + 1); ++i) {
      const std::size_t launch = stages[static_cast<std::size_t>(tables.items[i].stage)].launch;
      const auto& stamps = rows[i + b].at;
      const double waits = seconds(stamps[0]), begins = seconds(stamps[1]),
                   ends = seconds(stamps[2]);
      const int row = static_cast<int>(at[4]);
      if (tables.items[i].wait >= 0)
        out[launch].spans.push_back({row, waits, begins - waits, true});
      out[launch].spans.push_back({row, begins, ends - begins, false});
      out[launch].begin = std::min(out[launch].begin, begins);
      last[launch] = std::max(last[launch], ends);
    }
  }
  for (std::size_t l = 0; l < out.size(); ++l) {
    if (out[l].spans.empty()) out[l].begin = 0;
    out[l].seconds = std::max(0.0, last[l] - out[l].begin);
  }
  return out;
}

std::string describe(const MonolithFailure& f, const Program& program,
                     const MonolithTables& tables) {
  const auto stages = stages_of(program);
  const MonolithItem item = f.item < tables.items.size() ? tables.items[f.item] : MonolithItem{};
  const StageOf stage = stages[static_cast<std::size_t>(item.stage)];
  return fmt::format(
      "monolith: block {} waited in vain for block {}, before tasks {} to {} of kernel '{}', phase "
      "{}: found {} items complete, wanted {}",
      f.block, f.awaited, item.first, item.last, program.launches[stage.launch].name, stage.phase,
      f.found, f.wanted);
}

}  // namespace heddle::runtime::cuda

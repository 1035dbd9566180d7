#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "runtime/cuda/driver_library.h"
#include "runtime/program.h"
#include "runtime/schedule.h"
#include "runtime/session.h"

namespace heddle::runtime::cuda {

// As the kernel reads them (codegen/cuda/prelude/monolith.cuh says what they mean).
struct MonolithStage {
  DevicePtr args;
  int function, threads;
};
struct MonolithItem {
  int stage, first, last, wait, fetch, fetch_end, step, step_end;
};
struct MonolithStep {
  int first, last, position, count;
  std::int64_t bias[kMostPaged];
};
struct MonolithWait {
  int block;
  unsigned items;
};
struct MonolithRange {
  DevicePtr begin;
  std::int64_t bytes;
};
struct MonolithFailure {
  unsigned failed, block, item, awaited, found, wanted;
};
struct MonolithTimes {
  std::uint64_t at[5];
};
struct MonolithParameters {
  DevicePtr stages, items, first_item, waits, first_wait, ranges, steps, loads, first_load,
      counters, failure, times;
  unsigned patience;
};
static_assert(sizeof(MonolithStage) == 16 && sizeof(MonolithItem) == 32 &&
              sizeof(MonolithStep) == 32 && sizeof(MonolithRange) == 16 &&
              sizeof(MonolithTimes) == 40 && sizeof(MonolithParameters) == 104);
constexpr std::int64_t kMonolithCounterBytes = 128;

/// The same stages in as many shares as there are workers, where all tasks touch the same.
std::vector<Stage> spread(std::vector<Stage> stages, int workers);

/// schedule(), in which items of a stage share their waits where they can. Blocks run this one, so
/// it is the one to validate.
Schedule block_schedule(const std::vector<Stage>& stages, int blocks, const StageLayout& layout);

/// Bytes of a constant that the tasks of a stage read, but for what comes through the ring.
struct ConstantRange {
  std::int64_t constant = 0, begin = 0, bytes = 0;
};
std::vector<ConstantRange> constants_of(const Program& program, const Stage& stage);
using ConstantsRead = std::function<std::vector<ConstantRange>(int stage)>;

/// A schedule without addresses.
struct MonolithTables {
  std::vector<MonolithItem> items;  ///< of block 0, of block 1, …
  std::vector<int> first_item, first_wait;
  std::vector<MonolithWait> waits;
  std::vector<ConstantRange> ranges;
  // Filled in by add_pages (cuda/ring.h):
  std::vector<MonolithStep> steps;   ///< of items
  std::vector<ConstantRange> loads;  ///< by position in the ring, of block 0, of block 1, …
  std::vector<int> first_load;       ///< by block, and the end
};
/// The constants of a stage, `fetch_bytes` of them at most, are asked for in equal parts by its
/// items: the cache is one, whoever asks.
MonolithTables tables_of(const Schedule& schedule, const ConstantsRead& constants,
                         std::int64_t fetch_bytes);

/// What the items took, from the stamps of a run (rows: items, and one more after each block's).
std::vector<ItemTime> item_times(const std::vector<Stage>& stages, const MonolithTables& tables,
                                 std::span<const MonolithTimes> rows);
/// From the first item's beginning to the last one's end.
std::vector<LaunchTime> launch_times(const Program& program, const std::vector<ItemTime>& items);
/// What a wait in vain was for.
std::string describe(const MonolithFailure& failure, const Program& program,
                     const std::vector<Stage>& stages, const MonolithTables& tables);

}  // namespace heddle::runtime::cuda

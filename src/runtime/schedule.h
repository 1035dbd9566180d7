#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/program.h"

namespace heddle::runtime {

/// A program as one parallel region (CPU) or one persistent kernel (GPU): the plan's kernels are
/// its stages, and workers (threads; resident blocks) walk through lists of items made beforehand
/// (MonoNN, OSDI'24; tile counters as in MPK and Hazy Research's megakernels).
///
/// Each worker runs its items in order. Before an item it waits until every worker u has completed
/// waits[item.wait][u] of its own items in this run; after it, it publishes how many it has
/// completed (release). Counters go on from run to run and are never reset.
struct Schedule {
  /// Tasks [first, last) of a stage.
  struct Item {
    int stage = 0;
    std::int64_t first = 0, last = 0;
    int wait = -1;  ///< position in `waits`; -1: none
    bool operator==(const Item&) const = default;
  };
  std::vector<std::vector<Item>> items;  ///< by worker
  std::vector<std::vector<int>> waits;   ///< each by worker: items to be complete, 0 for none
  int workers() const { return static_cast<int>(items.size()); }
  bool operator==(const Schedule&) const = default;
};

/// Bytes [begin, end) of a piece of memory.
struct Span {
  std::int64_t begin = 0, end = 0;
  bool operator==(const Span&) const = default;
};
/// A phase of a launch, as scheduling sees it.
struct Stage {
  /// What is touched of one piece of memory (0: the arena, 1 + i: output i): for each of equal
  /// shares of the tasks, in order, or once for all of them. What no stage writes is left out.
  struct Touch {
    int memory = 0;
    bool write = false;
    std::vector<Span> shares;
  };
  int launch = 0, phase = 0;
  std::int64_t tasks = 0;
  std::int64_t shares = 1;
  double seconds = 0;  ///< all tasks, on one worker
  std::vector<Touch> touches;
  /// First task of a share; of share `shares`: the number of tasks.
  std::int64_t task_of(std::int64_t share) const { return tasks * share / shares; }
};
/// Phases in order of execution. Where a phase does not say what it touches, it is everything.
/// `only`: stages that have tasks, where others are left out to be timed without them; empty: all.
std::vector<Stage> stages_of(const Program& program, std::span<const int> only = {});

/// By stage, those before it that it has to wait for, and which no other stage between them waits
/// for already.
std::vector<std::vector<int>> edges_of(const std::vector<Stage>& stages);

/// What two stages touch of each other's memory, wherever that lies: edges for which it is equal,
/// between the same code, are alike.
std::vector<std::int64_t> meeting_of(const Stage& then, const Stage& now);

/// List scheduling by the stages' seconds. Only waits that are not implied by others are made.
Schedule schedule(const std::vector<Stage>& stages, int workers, const StageLayout& layout);

/// Proof that a schedule computes what the stages in order do: every task runs once; some item can
/// always run (no deadlock, if all workers are resident); of two items of different stages that
/// touch the same bytes, one of them writing, the earlier stage's has been completed when the other
/// begins; and no counter of `counter_bits` (1 to 64) bits comes round to a value that is still
/// waited for. The error names stages, tasks and bytes.
Status validate(const std::vector<Stage>& stages, const Schedule& schedule, int counter_bits = 64);

}  // namespace heddle::runtime

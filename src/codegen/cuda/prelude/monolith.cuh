// A whole plan as one persistent cooperative kernel: each block walks its list of items.
#pragma once

namespace hd {

/// A phase of a launch: which function does its tasks, by how many threads of the block, with which
/// buffers.
struct MonolithStage {
  void* const* args;
  i32 function, threads;
};
/// Tasks [first, last) of a stage, after wait number `wait` (-1: none); constants [fetch, fetch_end) are
/// worth having in L2 before. With a ring, steps [step, step_end) are the same tasks.
struct MonolithItem {
  i32 stage, first, last, wait, fetch, fetch_end, step, step_end;
};
constexpr i32 kMostPaged = 2;
/// Tasks [first, last) of an item, whose constants are in the ring from `position` on; `bias`: where byte
/// 0 of an argument would be, behind the first of these pages; kNoPages: it is read where it is.
struct MonolithStep {
  i32 first, last, position, count;
  i64 bias[kMostPaged];
};
constexpr i64 kNoPages = -0x7fffffffffffffffll - 1;
/// Pages in the place of arguments; null: none.
struct MonolithPages {
  void* at[kMostPaged] = {};
  HD_FN void* of(i32 number, void* global) const { return at[number] != nullptr ? at[number] : global; }
};
/// A block of which so many items of this run must be complete.
struct MonolithWait {
  i32 block;
  u32 items;
};
struct MonolithRange {
  const u8* begin;
  i64 bytes;
};
/// What a wait in vain leaves in host memory before it traps.
struct MonolithFailure {
  u32 failed, block, item, awaited, found, wanted;
};
/// What a block keeps in memory of its own line: items completed in all runs, and runs.
struct alignas(128) MonolithCounter {
  u32 items, runs;
};
/// One row of `times`: clock64 before the wait, after it, and when the item was done. The last row of a
/// block has pairs of globaltimer and clock64 at its start and end, then its multiprocessor.
struct MonolithTimes {
  u64 at[5];
};
/// The tables of a monolith, in global memory. Counters are never reset: run number r of a block begins at
/// r times its number of items, modulo 2^32, and differences are what is compared.
struct Monolith {
  const MonolithStage* stages;
  const MonolithItem* items;
  const i32* first_item;  ///< by block, and the end
  const MonolithWait* waits;
  const i32* first_wait;  ///< by wait, and the end
  const MonolithRange* ranges;
  const MonolithStep* steps;
  const MonolithRange* loads;  ///< what the ring gets, by position
  const i32* first_load;       ///< by block, and the end
  MonolithCounter* counters;
  MonolithFailure* failure;
  MonolithTimes* times;  ///< null: not wanted
  u32 patience;          ///< polls until a wait is given up
};

#ifdef HEDDLE_EMULATE
#define HD_STAGE extern "C" __attribute__((noinline))
#else
/// A stage's function: one copy, however many stages it serves.
#define HD_STAGE extern "C" __device__ __noinline__
#endif

#ifndef HEDDLE_EMULATE
HD_FN void prefetch_l2(const void* global) { asm volatile("prefetch.global.L2 [%0];" ::"l"(global)); }
HD_FN u64 clock_cycles() {
  u64 t;
  asm volatile("mov.u64 %0, %%clock64;" : "=l"(t));
  return t;
}
HD_FN u64 clock_nanoseconds() {
  u64 t;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
  return t;
}
HD_FN u32 multiprocessor() {
  u32 n;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(n));
  return n;
}
HD_FN void fence_system() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }
#endif

/// Buffers known to be global memory: accesses need no test of where they are.
template <class... T>
HD_FN void assume_global([[maybe_unused]] const T*... p) {
#ifndef HEDDLE_EMULATE
  (__builtin_assume(__isGlobal(p)), ...);
#endif
}

/// `threads` of the block ask for the lines of a range, one each in turn.
HD_FN void monolith_fetch(const Monolith& m, const MonolithItem& item, i32 threads) {
  for (i32 r = item.fetch; r < item.fetch_end; ++r)
    for (i64 at = i64(threadIdx.x) * 128; at < m.ranges[r].bytes; at += i64(threads) * 128)
      prefetch_l2(m.ranges[r].begin + at);
}

[[noreturn]] HD_FN void monolith_fail(const Monolith& m, i32 item, i32 awaited, u32 found, u32 wanted) {
  *m.failure = {1, static_cast<u32>(blockIdx.x), static_cast<u32>(item), static_cast<u32>(awaited), found, wanted};
  fence_system();
  trap();
}

/// Until the blocks of wait `wait` have completed their items of run `run`: a thread polls a block.
HD_FN void monolith_wait(const Monolith& m, u32 run, i32 item, i32 wait, i32 threads) {
  for (i32 w = m.first_wait[wait] + static_cast<i32>(threadIdx.x); w < m.first_wait[wait + 1]; w += threads) {
    const MonolithWait on = m.waits[w];
    const u32 items = static_cast<u32>(m.first_item[on.block + 1] - m.first_item[on.block]);
    const u32 wanted = run * items + on.items;
    u32 found = load_acquire(&m.counters[on.block].items);
    for (u32 polls = 1; static_cast<i32>(found - wanted) < 0; ++polls) {
      if (polls == m.patience) monolith_fail(m, item, on.block, found, wanted);
      found = load_acquire(&m.counters[on.block].items);
    }
  }
}

/// Does the block's items in order by the first `team.threads()` of its threads, which meet through the
/// team; team.run(stage, item) does one.
template <class Team>
HD_FN void monolith_items(const Monolith& m, const Team& team) {
  MonolithCounter& own = m.counters[blockIdx.x];
  const i32 begin = m.first_item[blockIdx.x], end = m.first_item[blockIdx.x + 1];
  if (begin == end) return;
  const u32 run = own.runs, base = run * static_cast<u32>(end - begin);
  const bool timed = m.times != nullptr && threadIdx.x == 0;
  MonolithTimes* const whole = m.times + end + blockIdx.x;
  if (timed) whole->at[0] = clock_nanoseconds(), whole->at[1] = clock_cycles();
  for (i32 i = begin; i < end; ++i) {
    const MonolithItem item = m.items[i];
    const MonolithStage stage = m.stages[item.stage];
    u64* const stamps = m.times[i + blockIdx.x].at;
    if (timed) stamps[0] = clock_cycles();
    monolith_fetch(m, item, team.threads());
    if (item.wait >= 0) {
      monolith_wait(m, run, i, item.wait, team.threads());
      team.meet();  // what one thread has waited for, all see
    }
    if (timed) stamps[1] = clock_cycles();
    team.run(stage, item);
    team.meet();  // all are done, and shared memory is free
    if (threadIdx.x == 0) store_release(&own.items, base + static_cast<u32>(i - begin) + 1);
    if (timed) stamps[2] = clock_cycles();
  }
  if (threadIdx.x == 0) own.runs = run + 1;
  if (timed) whole->at[2] = clock_nanoseconds(), whole->at[3] = clock_cycles(), whole->at[4] = multiprocessor();
}

/// All threads of the block; run_stage(function, args, first, last) is called by those of the stage.
template <class Run>
struct MonolithBlock {
  const Run& run_stage;
  HD_FN i32 threads() const { return static_cast<i32>(blockDim.x); }
  HD_FN void meet() const { block_sync(); }
  HD_FN void run(const MonolithStage& stage, const MonolithItem& item) const {
    if (static_cast<i32>(threadIdx.x) < stage.threads) run_stage(stage.function, stage.args, item.first, item.last);
  }
};
template <class Run>
HD_FN void monolith_walk(const Monolith& m, Run&& run_stage) {
  monolith_items(m, MonolithBlock<Run>{run_stage});
}

}  // namespace hd

// The ring of a persistent kernel (sm_90a): a warp of its own brings constants into pages of the block's
// shared memory, in the order in which its items want them and ahead of what these wait for.
#pragma once

#ifdef HD_HOPPER
namespace hd {

/// kPages of kBytes from byte kAt of dynamic shared memory on, then their barriers. The first kThreads of
/// the block do stages, one warp behind them fills pages.
template <i32 kPages_, i32 kBytes_, i32 kAt, i32 kThreads_>
struct Ring {
  static constexpr i32 kPages = kPages_, kBytes = kBytes_, kThreads = kThreads_;
  unsigned char* pages;
  Mbarrier *full, *empty;
  HD_FN explicit Ring(unsigned char* shared)
      : pages(shared + kAt), full(reinterpret_cast<Mbarrier*>(pages + kPages * kBytes)), empty(full + kPages) {}
  HD_FN static i32 page(i32 position) { return position % kPages; }
  HD_FN static i32 parity(i32 position) { return position / kPages % 2; }
};

/// A page is full when its bytes are there, and empty when all warps that do stages have read them.
template <class R>
HD_FN void ring_begin(const R& ring) {
  if (threadIdx.x == 0) {
    for (i32 p = 0; p < R::kPages; ++p) {
      mbarrier_init(ring.full + p, 1);
      mbarrier_init(ring.empty + p, R::kThreads / 32);
    }
    mbarrier_fence();
  }
  block_sync();
}

/// By one warp: fills the block's positions in order, by lanes in turn. What comes a round later is asked
/// for in L2 meanwhile.
template <class R>
HD_FN void ring_fill(const Monolith& m, const R& ring) {
  const i32 begin = m.first_load[blockIdx.x], count = m.first_load[blockIdx.x + 1] - begin;
  for (i32 base = 0; base < count; base += 32) {
    MonolithRange mine{nullptr, 0};
    if (base + lane() < count) mine = m.loads[begin + base + lane()];
    for (i32 i = 0; i < 32 && base + i < count; ++i) {
      const i32 at = base + i, page = R::page(at), later = at + R::kPages - 1;
      if (lane() == i) {
        if (at > 0 && later < count) {
          const MonolithRange next = m.loads[begin + later];
          if (next.bytes > 0) bulk_prefetch(next.begin, static_cast<i32>(next.bytes));
        }
        mbarrier_wait(ring.empty + page, 1 - R::parity(at));
        mbarrier_arrive_expect(ring.full + page, static_cast<i32>(mine.bytes));
        if (mine.bytes > 0)
          bulk_load(ring.pages + page * R::kBytes, mine.begin, static_cast<i32>(mine.bytes), ring.full + page);
      }
      warp_sync();  // positions in order, so that a parity tells a phase from the last but one
    }
  }
}

/// The threads that do stages: run_stage(function, args, pages, first, last).
template <class R, class Run>
struct RingTeam {
  const Monolith& m;
  const R& ring;
  const Run& run_stage;
  HD_FN i32 threads() const { return R::kThreads; }
  HD_FN void meet() const { named_sync(2, R::kThreads); }
  HD_FN void run(const MonolithStage& stage, const MonolithItem& item) const {
    const bool takes_part = static_cast<i32>(threadIdx.x) < stage.threads;
    if (item.step == item.step_end && takes_part)
      run_stage(stage.function, stage.args, MonolithPages{}, item.first, item.last);
    for (i32 s = item.step; s < item.step_end; ++s) {
      const MonolithStep step = m.steps[s];
      const i32 end = step.position + step.count;
      for (i32 at = step.position; at < end; ++at) mbarrier_wait(ring.full + R::page(at), R::parity(at));
      MonolithPages pages;
      const u64 first = reinterpret_cast<u64>(ring.pages + R::page(step.position) * R::kBytes);
      HD_UNROLL
      for (i32 a = 0; a < kMostPaged; ++a)
        if (step.bias[a] != kNoPages) pages.at[a] = reinterpret_cast<void*>(first + static_cast<u64>(step.bias[a]));
      if (takes_part && step.first < step.last)
        run_stage(stage.function, stage.args, pages, step.first, step.last);
      warp_sync();  // all lanes have read
      if (lane() == 0)
        for (i32 at = step.position; at < end; ++at) mbarrier_arrive(ring.empty + R::page(at));
    }
  }
};

template <class R, class Run>
HD_FN void ring_walk(const Monolith& m, Run&& run_stage) {
  HD_DYNAMIC_SHARED(shared);
  const R ring(shared);
  ring_begin(ring);
  if (threadIdx.x >= R::kThreads) return ring_fill(m, ring);
  monolith_items(m, RingTeam<R, Run>{m, ring, run_stage});
}

}  // namespace hd
#endif

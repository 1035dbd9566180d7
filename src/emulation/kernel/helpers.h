// Emulated bodies of the prelude's helpers (codegen/cuda/prelude/*.cuh has the device bodies and
// says what they do). Included by heddle.cuh after its types.
#pragma once

namespace hd {

// memory.cuh
HEDDLE_EMU u32 shared_address(const void* p) { return emu::runtime.shared_address(p); }
HEDDLE_EMU uint4 load_once16(const void* p) { return *static_cast<const uint4*>(p); }
HEDDLE_EMU void store_once16(void* p, uint4 v) { *static_cast<uint4*>(p) = v; }

template <int kBytes>
HEDDLE_EMU void copy_async(void* shared, const void* global, bool valid = true) {
  static_assert(kBytes == 4 || kBytes == 8 || kBytes == 16);
  emu::runtime.copy_async(shared, global, kBytes, valid);
}
HEDDLE_EMU void copy_commit() { emu::runtime.copy_commit(); }
template <int kLeft>
HEDDLE_EMU void copy_wait() {
  emu::runtime.copy_wait(kLeft);
}

// The access itself is not instrumented: the call before it says what it is.
#define HEDDLE_EMU_ATOMIC __attribute__((no_sanitize("thread"), noinline)) inline
template <class T>
HEDDLE_EMU_ATOMIC T emulated_load(const T* p) {
  return *p;
}
template <class T>
HEDDLE_EMU_ATOMIC void emulated_store(T* p, T v) {
  *p = v;
}
HEDDLE_EMU u32 load_relaxed(const u32* p) {
  emu::runtime.spin();
  emu::runtime.atomic(p, 4, emu::kRead, emu::kRelaxed);
  return emulated_load(p);
}
HEDDLE_EMU u32 load_acquire(const u32* p) {
  emu::runtime.spin();
  emu::runtime.atomic(p, 4, emu::kRead, emu::kAcquire);
  return emulated_load(p);
}
HEDDLE_EMU void store_release(u32* p, u32 v) {
  emu::runtime.atomic(p, 4, emu::kWrite, emu::kRelease);
  emulated_store(p, v);
}
template <class T, class F>
HEDDLE_EMU T emulated_update(T* p, int order, F change) {
  emu::runtime.atomic(p, sizeof(T), emu::kUpdate, order);
  const T old = emulated_load(p);
  emulated_store(p, change(old));
  return old;
}
HEDDLE_EMU u32 add_release(u32* p, u32 v) {
  return emulated_update(p, emu::kRelease, [=](u32 old) { return old + v; });
}
HEDDLE_EMU u32 add_acq_rel(u32* p, u32 v) {
  return emulated_update(p, emu::kAcqRel, [=](u32 old) { return old + v; });
}
template <class T>
HEDDLE_EMU T add_relaxed(T* p, T v) {
  return emulated_update(p, emu::kRelaxed, [=](T old) { return static_cast<T>(old + v); });
}
template <class T>
HEDDLE_EMU T max_relaxed(T* p, T v) {
  return emulated_update(p, emu::kRelaxed, [=](T old) { return old < v ? v : old; });
}
template <class T>
HEDDLE_EMU T min_relaxed(T* p, T v) {
  return emulated_update(p, emu::kRelaxed, [=](T old) { return v < old ? v : old; });
}
template <class T>
HEDDLE_EMU T exchange_if_relaxed(T* p, T expected, T v) {
  return emulated_update(p, emu::kRelaxed, [=](T old) { return old == expected ? v : old; });
}
HEDDLE_EMU void fence_block() { emu::runtime.fence(0); }
HEDDLE_EMU void fence_device() { emu::runtime.fence(1); }
[[noreturn]] HEDDLE_EMU void trap() {
  emu::runtime.fail("trap");
  __builtin_unreachable();
}

// monolith.cuh
HEDDLE_EMU void prefetch_l2(const void*) {}
HEDDLE_EMU u64 emulated_clock() {
  static u64 ticks = 0;
  return ++ticks;
}
HEDDLE_EMU u64 clock_cycles() { return emulated_clock(); }
HEDDLE_EMU u64 clock_nanoseconds() { return emulated_clock(); }
HEDDLE_EMU u32 multiprocessor() { return emu::self->block.x; }
HEDDLE_EMU void fence_system() { emu::runtime.fence(1); }

// collective.cuh
HEDDLE_EMU void block_sync(emu::Site site = emu::here()) { emu::runtime.barrier(0, 0, site); }
HEDDLE_EMU void warp_sync(emu::Site site = emu::here()) {
  emu::runtime.exchange(emu::kWarpSync, nullptr, 0, site);
}
HEDDLE_EMU void named_sync(int id, int threads, emu::Site site = emu::here()) {
  emu::runtime.barrier(id, threads, site);
}
HEDDLE_EMU void named_arrive(int id, int threads, emu::Site site = emu::here()) {
  emu::runtime.arrive(id, threads, site);
}
inline u32 emulated_shuffle(u32 v, int from, emu::Site site) {
  const emu::Meeting* all = emu::runtime.exchange(emu::kShuffle, &v, 4, site);
  if ((emulated_load(&all->present) >> from & 1) == 0)
    emu::runtime.fail("shuffle from a lane that does not exist");
  return emulated_load(reinterpret_cast<const u32*>(all->lanes[from].bytes));
}
HEDDLE_EMU u32 shuffle(u32 v, int from, emu::Site site = emu::here()) {
  return emulated_shuffle(v, from & 31, site);
}
HEDDLE_EMU u32 shuffle_xor(u32 v, int mask, emu::Site site = emu::here()) {
  return emulated_shuffle(v, (emu::self->lane ^ mask) & 31, site);
}
HEDDLE_EMU u32 shuffle_down(u32 v, int by, emu::Site site = emu::here()) {
  const int lane = emu::self->lane;
  return emulated_shuffle(v, lane + by < 32 ? lane + by : lane, site);
}
HEDDLE_EMU u32 shuffle_up(u32 v, int by, emu::Site site = emu::here()) {
  const int lane = emu::self->lane;
  return emulated_shuffle(v, lane - by >= 0 ? lane - by : lane, site);
}
inline u32 ballot(bool p, emu::Site site = emu::here()) {
  const u32 mine = p;
  const emu::Meeting* all = emu::runtime.exchange(emu::kBallot, &mine, 4, site);
  u32 out = 0;
  for (int i = 0; i < 32; ++i)
    if (emulated_load(&all->present) >> i & 1)
      out |= emulated_load(reinterpret_cast<const u32*>(all->lanes[i].bytes)) << i;
  return out;
}

// mma.cuh
#define HEDDLE_EMU_LOAD_MATRIX(name, count, transposed)                                 \
  HEDDLE_EMU void name(u32(&r)[count], const void* row, emu::Site site = emu::here()) { \
    emu::runtime.load_matrix(r, count, row, transposed, site);                          \
  }
HEDDLE_EMU_LOAD_MATRIX(load_matrix_x4, 4, 0)
HEDDLE_EMU_LOAD_MATRIX(load_matrix_x2, 2, 0)
HEDDLE_EMU_LOAD_MATRIX(load_matrix_x4_transposed, 4, 1)
HEDDLE_EMU_LOAD_MATRIX(load_matrix_x2_transposed, 2, 1)
#undef HEDDLE_EMU_LOAD_MATRIX
#define HEDDLE_EMU_MULTIPLY(name, element)                               \
  HEDDLE_EMU void name(float(&d)[4], const u32(&a)[4], const u32(&b)[2], \
                       emu::Site site = emu::here()) {                   \
    emu::runtime.multiply(emu::element, d, a, b, site);                  \
  }
HEDDLE_EMU_MULTIPLY(mma_bf16, kBf16)
HEDDLE_EMU_MULTIPLY(mma_f16, kF16)
HEDDLE_EMU_MULTIPLY(mma_tf32, kTf32)
#undef HEDDLE_EMU_MULTIPLY

// hopper.cuh
struct TensorMap;
HEDDLE_EMU void mbarrier_init(u64* b, int count) { emu::runtime.mbarrier_init(b, count); }
HEDDLE_EMU void mbarrier_fence() { emu::runtime.mbarrier_fence(); }
HEDDLE_EMU void mbarrier_arrive(u64* b) { emu::runtime.mbarrier_arrive(b, 0); }
HEDDLE_EMU void mbarrier_arrive_expect(u64* b, int bytes) {
  emu::runtime.mbarrier_arrive(b, bytes);
}
HEDDLE_EMU void mbarrier_wait(u64* b, int parity, emu::Site site = emu::here()) {
  emu::runtime.mbarrier_wait(b, parity, site);
}
HEDDLE_EMU void tma_load_2d(void* shared, const TensorMap* map, int x, int y, u64* b) {
  const int at[] = {x, y};
  emu::runtime.tma_load(shared, map, at, 2, b);
}
HEDDLE_EMU void tma_load_3d(void* shared, const TensorMap* map, int x, int y, int z, u64* b) {
  const int at[] = {x, y, z};
  emu::runtime.tma_load(shared, map, at, 3, b);
}
HEDDLE_EMU void tma_load_4d(void* shared, const TensorMap* map, int x, int y, int z, int w,
                            u64* b) {
  const int at[] = {x, y, z, w};
  emu::runtime.tma_load(shared, map, at, 4, b);
}
HEDDLE_EMU void bulk_load(void* shared, const void* global, int bytes, u64* b) {
  emu::runtime.bulk_load(shared, global, bytes, b);
}
HEDDLE_EMU void bulk_prefetch(const void* global, int bytes) {
  emu::runtime.bulk_prefetch(global, bytes);
}
HEDDLE_EMU void tma_prefetch(const TensorMap*) {}
HEDDLE_EMU void fence_async() { emu::runtime.fence_async(); }
template <int kRegisters>
HEDDLE_EMU void registers_increase() {}
template <int kRegisters>
HEDDLE_EMU void registers_decrease() {}
HEDDLE_EMU void wgmma_fence() { emu::runtime.products_fence(); }
HEDDLE_EMU void wgmma_commit() { emu::runtime.products_commit(); }
template <int kLeft>
HEDDLE_EMU void wgmma_wait(emu::Site site = emu::here()) {
  emu::runtime.products_wait(kLeft, site);
}
template <int N>
HEDDLE_EMU void wgmma_bf16(float (&d)[N / 2], u64 a, u64 b, emu::Site site = emu::here()) {
  emu::runtime.product(emu::kBf16, N, d, a, b, site);
}
template <int N>
HEDDLE_EMU void wgmma_f16(float (&d)[N / 2], u64 a, u64 b, emu::Site site = emu::here()) {
  emu::runtime.product(emu::kF16, N, d, a, b, site);
}
template <int N>
HEDDLE_EMU void wgmma_tf32(float (&d)[N / 2], u64 a, u64 b, emu::Site site = emu::here()) {
  emu::runtime.product(emu::kTf32, N, d, a, b, site);
}
HEDDLE_EMU u32 cluster_rank() { return emu::self->cluster_rank; }
HEDDLE_EMU u32 cluster_size() { return emu::self->cluster_size; }
HEDDLE_EMU void cluster_arrive(emu::Site site = emu::here()) { emu::runtime.cluster_arrive(site); }
HEDDLE_EMU void cluster_wait(emu::Site site = emu::here()) { emu::runtime.cluster_wait(site); }
HEDDLE_EMU void cluster_sync(emu::Site site = emu::here()) {
  emu::runtime.cluster_arrive(site);
  emu::runtime.cluster_wait(site);
}
template <class T>
HEDDLE_EMU T* cluster_map(T* shared, u32 rank) {
  return static_cast<T*>(emu::runtime.cluster_map(shared, rank));
}
HEDDLE_EMU void dependency_wait() {}
HEDDLE_EMU void dependents_launch() {}

}  // namespace hd

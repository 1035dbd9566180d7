// Vector and streaming accesses, asynchronous copies, atomics with named orders, fences.
#pragma once

/// The block's dynamic shared memory (Grid::shared_bytes) as `unsigned char* name`, 1024-byte aligned.
#ifdef HEDDLE_EMULATE
#define HD_DYNAMIC_SHARED(name) unsigned char* const name = emu::dynamic_shared()
#else
#define HD_DYNAMIC_SHARED(name) extern __shared__ __align__(1024) unsigned char name[]
#endif

namespace hd {

/// N consecutive elements as one access of up to 16 bytes (more: several); p is aligned to it.
template <int N, class T>
HD_FN Vec<T, N> load_vec(const T* p) {
  return *reinterpret_cast<const Vec<T, N>*>(p);
}
template <class T, int N>
HD_FN void store_vec(T* p, const Vec<T, N>& value) {
  *reinterpret_cast<Vec<T, N>*>(p) = value;
}

#ifndef HEDDLE_EMULATE
/// Shared memory address as PTX instructions take it.
HD_FN u32 shared_address(const void* p) { return static_cast<u32>(__cvta_generic_to_shared(p)); }

/// 16 bytes of global memory that nobody writes during the kernel, read once: past L1.
HD_FN uint4 load_once16(const void* p) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p));
  return v;
}
/// 16 bytes to global memory that are not read again soon.
HD_FN void store_once16(void* p, uint4 v) {
  asm volatile("st.global.cs.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
               : "memory");
}

/// Starts an asynchronous copy of kBytes (4, 8, 16) from global to shared memory; zeros instead if
/// not `valid` (then `global` is not read). Both addresses are aligned to kBytes.
template <int kBytes>
HD_FN void copy_async(void* shared, const void* global, bool valid = true) {
  static_assert(kBytes == 4 || kBytes == 8 || kBytes == 16);
  const int bytes = valid ? kBytes : 0;
  if constexpr (kBytes == 16)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)), "l"(global),
                 "r"(bytes)
                 : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(shared_address(shared)), "l"(global),
                 "n"(kBytes), "r"(bytes)
                 : "memory");
}
/// Ends this thread's group of copies started since the last call.
HD_FN void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/// Waits until at most kLeft of this thread's groups are in flight. Other threads see the data after a
/// barrier.
template <int kLeft>
HD_FN void copy_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
}

// Atomics and ordered accesses to global memory, at the scope of the device. `relaxed` orders nothing:
// data needs release on one side and acquire on the other, or fences.
HD_FN u32 load_relaxed(const u32* p) {
  u32 v;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}
HD_FN u32 load_acquire(const u32* p) {
  u32 v;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}
HD_FN void store_release(u32* p, u32 v) {
  asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}
/// These give the old value.
HD_FN u32 add_release(u32* p, u32 v) {
  u32 old;
  asm volatile("atom.add.release.gpu.global.u32 %0, [%1], %2;" : "=r"(old) : "l"(p), "r"(v) : "memory");
  return old;
}
HD_FN u32 add_acq_rel(u32* p, u32 v) {
  u32 old;
  asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], %2;" : "=r"(old) : "l"(p), "r"(v) : "memory");
  return old;
}
/// T: i32, u32, u64, float, double (generic address: global or shared memory).
template <class T>
HD_FN T add_relaxed(T* p, T v) {
  return atomicAdd(p, v);
}
/// T: i32, u32, i64, u64.
template <class T>
HD_FN T max_relaxed(T* p, T v) {
  return atomicMax(p, v);
}
template <class T>
HD_FN T min_relaxed(T* p, T v) {
  return atomicMin(p, v);
}
/// T: i32, u32, u64. Stores `v` if *p equals `expected`; gives the old value.
template <class T>
HD_FN T exchange_if_relaxed(T* p, T expected, T v) {
  return atomicCAS(p, expected, v);
}

/// This thread's earlier accesses come before its later ones, as seen by the block or the device.
HD_FN void fence_block() { asm volatile("fence.acq_rel.cta;" ::: "memory"); }
HD_FN void fence_device() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }
[[noreturn]] HD_FN void trap() {
  asm volatile("trap;");
  __builtin_unreachable();
}
#endif

/// The streaming forms of load_vec and store_vec for 16 bytes.
template <class T>
HD_FN Vec<T, 16 / sizeof(T)> load_once(const T* p) {
  const uint4 bits = load_once16(p);
  return reinterpret_cast<const Vec<T, 16 / sizeof(T)>&>(bits);
}
template <class T>
HD_FN void store_once(T* p, const Vec<T, 16 / sizeof(T)>& value) {
  store_once16(p, reinterpret_cast<const uint4&>(value));
}

}  // namespace hd

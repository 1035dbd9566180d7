// Device functions that generated text calls besides the prelude's.
#include "codegen/cuda/emitter.h"

namespace heddle::codegen::cuda {

std::string unit_header() {
  return R"(#include "heddle.cuh"

namespace hdk {

using namespace hd;

/// Floor division and remainder by a positive divisor.
template <class T>
HD_FN T floor_div(T a, T b) {
  const T q = a / b;
  return q * b > a ? q - 1 : q;
}
template <class T>
HD_FN T floor_rem(T a, T b) {
  return a - floor_div(a, b) * b;
}
HD_FN i64 clamped(i64 at, i64 extent) { return at < 0 ? 0 : at >= extent ? extent - 1 : at; }

/// Who meets: the block, or as many of its threads as do a stage.
struct WholeBlock {
  HD_FN void operator()() const { block_sync(); }
};
template <int kThreads>
struct Threads {
  HD_FN void operator()() const { named_sync(1, kThreads); }
};

/// Combines each v[i] over teams of kWidth threads, kStride apart, in a block of kThreads; every
/// member gets the result. First inside warps, then the warps' parts, always in the same order.
/// `scratch`: kCount * kThreads values, unused inside a warp.
template <int kWidth, int kStride, int kThreads, int kCount, class T, class Op, class Meet = WholeBlock>
HD_FN void combine(T* v, Op op, T* scratch, Meet meet = {}) {
  constexpr int kRun = kWidth * kStride < 32 ? kWidth * kStride : 32;
  HD_UNROLL
  for (int i = 0; i < kCount; ++i) {
    HD_UNROLL
    for (int mask = kRun / 2; mask >= kStride; mask /= 2) {
      const T other = shuffle_xor(v[i], mask);
      v[i] = (threadIdx.x & mask) ? op(other, v[i]) : op(v[i], other);
    }
  }
  if constexpr (kWidth * kStride <= 32) {
    if constexpr (kThreads >= 32) warp_sync();
  } else {
    // A part is what a warp has for one of its columns: threads equal modulo kStride.
    constexpr int kColumns = kStride < 32 ? kStride : 32;
    constexpr int kParts = kStride < 32 ? kWidth * kStride / 32 : kWidth;
    constexpr int kSlots = kThreads / 32 * kColumns;
    const int t = static_cast<int>(threadIdx.x), member = t / kStride % kWidth;
    const int own = t / 32 * kColumns + t % kColumns;
    const int team = t / (kWidth * kStride) * kParts * kStride + t % kStride;
    if (kColumns == 32 || t % 32 < kColumns) {
      HD_UNROLL
      for (int i = 0; i < kCount; ++i) scratch[i * kSlots + own] = v[i];
    }
    meet();
    const auto total = [&](int i) {
      T sum = scratch[i * kSlots + team];
      HD_UNROLL
      for (int p = 1; p < kParts; ++p) sum = op(sum, scratch[i * kSlots + team + p * kStride]);
      return sum;
    };
    if constexpr (kCount * kParts <= 16) {
      HD_UNROLL
      for (int i = 0; i < kCount; ++i) v[i] = total(i);
    } else {
      for (int i = member; i < kCount; i += kWidth) scratch[i * kSlots + team] = total(i);
      meet();
      HD_UNROLL
      for (int i = 0; i < kCount; ++i) v[i] = scratch[i * kSlots + team];
    }
    meet();
  }
}

/// Combines what the blocks of a cluster of kBlocks have, the same in all threads of a block; all get
/// the result, combined in the blocks' order. `scratch`: (kBlocks + 1) * kCount values at the same
/// place in all blocks, free at the start.
template <int kBlocks, int kCount, class T, class Op>
HD_FN void combine_cluster(T* v, Op op, T* scratch) {
  T* parts = scratch + kCount;
  const int t = static_cast<int>(threadIdx.x);
  if (t == 0) {
    HD_UNROLL
    for (int i = 0; i < kCount; ++i) scratch[i] = v[i];
  }
  cluster_sync();
  if (t < kBlocks * kCount) parts[t] = cluster_map(scratch, t / kCount)[t % kCount];
  cluster_sync();
  HD_UNROLL
  for (int i = 0; i < kCount; ++i) {
    v[i] = parts[i];
    HD_UNROLL
    for (int b = 1; b < kBlocks; ++b) v[i] = op(v[i], parts[b * kCount + i]);
  }
  block_sync();
}

template <class T>
HD_FN bool key_before(T a, T b) {
  if constexpr (kIsFloat<T>) {
    if (a != a) return false;
    if (b != b) return true;
  }
  return a < b;
}
/// Positions 0..n-1 in the order of their keys (a NaN is the largest; equal keys by position), by
/// all threads of the block: odd-even merge sort of positions (Batcher 1968), any n.
template <i64 threads, class T, class Meet = WholeBlock>
HD_FN void sort_positions(const T* keys, i64* order, i64 n, bool descending, Meet meet = {}) {
  const i64 t = threadIdx.x;
  for (i64 i = t; i < n; i += threads) order[i] = i;
  meet();
  for (i64 p = 1; p < n; p *= 2) {
    for (i64 k = p; k >= 1; k /= 2) {
      for (i64 i = t; i + k < n; i += threads) {
        // Comparators (i, i + k) of the network: those of one merge of 2p keys.
        const i64 from = k % p;
        if (i < from || (i - from) / k % 2 != 0 || i / (2 * p) != (i + k) / (2 * p)) continue;
        const i64 a = order[i], b = order[i + k];
        const T x = keys[descending ? b : a], y = keys[descending ? a : b];
        const bool in_order = key_before(x, y) || (!key_before(y, x) && a < b);
        if (!in_order) order[i] = b, order[i + k] = a;
      }
      meet();
    }
  }
}

}  // namespace hdk
)";
}

}  // namespace heddle::codegen::cuda

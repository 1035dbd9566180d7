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

/// Combines each v[i] over teams of kWidth threads, kStride apart, in a block of kThreads; every
/// member gets the result. `scratch`: kCount * kThreads values, unused inside a warp.
template <int kWidth, int kStride, int kThreads, int kCount, class T, class Op>
HD_FN void combine(T* v, Op op, T* scratch) {
  if constexpr (kWidth * kStride <= 32) {
    HD_UNROLL
    for (int i = 0; i < kCount; ++i) {
      HD_UNROLL
      for (int mask = kWidth * kStride / 2; mask >= kStride; mask /= 2) {
        const T other = shuffle_xor(v[i], mask);
        v[i] = (threadIdx.x & mask) ? op(other, v[i]) : op(v[i], other);
      }
    }
    if constexpr (kThreads >= 32) warp_sync();
  } else {
    const int t = static_cast<int>(threadIdx.x);
    const int member = t / kStride % kWidth;
    HD_UNROLL
    for (int i = 0; i < kCount; ++i) scratch[i * kThreads + t] = v[i];
    block_sync();
    for (int half = kWidth / 2; half > 0; half /= 2) {
      if (member < half) {
        HD_UNROLL
        for (int i = 0; i < kCount; ++i)
          scratch[i * kThreads + t] =
              op(scratch[i * kThreads + t], scratch[i * kThreads + t + half * kStride]);
      }
      block_sync();
    }
    HD_UNROLL
    for (int i = 0; i < kCount; ++i) v[i] = scratch[i * kThreads + t - member * kStride];
    block_sync();
  }
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
template <class T>
HD_FN void sort_positions(const T* keys, i64* order, i64 n, bool descending) {
  const i64 t = threadIdx.x, threads = blockDim.x;
  for (i64 i = t; i < n; i += threads) order[i] = i;
  block_sync();
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
      block_sync();
    }
  }
}

}  // namespace hdk
)";
}

}  // namespace heddle::codegen::cuda

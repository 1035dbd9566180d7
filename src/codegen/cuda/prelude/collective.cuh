// Barriers, shuffles, reductions.
#pragma once

namespace hd {

HD_FN int lane() { return static_cast<int>(threadIdx.x & 31); }
HD_FN int warp() { return static_cast<int>(threadIdx.x >> 5); }

#ifndef HEDDLE_EMULATE
/// All threads of the block meet; what they wrote to shared and global memory is seen by each other.
HD_FN void block_sync() { __syncthreads(); }
HD_FN void warp_sync() { __syncwarp(); }
/// Barriers 1 to 15 for `threads` threads of the block (a multiple of 32): sync waits, arrive does not.
HD_FN void named_sync(int id, int threads) {
  asm volatile("barrier.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
HD_FN void named_arrive(int id, int threads) {
  asm volatile("barrier.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
/// The value of lane `from`, of lane ^ mask, of lane + by (the own value past the end).
HD_FN u32 shuffle(u32 v, int from) { return __shfl_sync(0xffffffffu, v, from); }
HD_FN u32 shuffle_xor(u32 v, int mask) { return __shfl_xor_sync(0xffffffffu, v, mask); }
HD_FN u32 shuffle_down(u32 v, int by) { return __shfl_down_sync(0xffffffffu, v, by); }
HD_FN u32 shuffle_up(u32 v, int by) { return __shfl_up_sync(0xffffffffu, v, by); }
/// One bit a lane.
HD_FN u32 ballot(bool p) { return __ballot_sync(0xffffffffu, p); }
#endif

/// The shuffles for every trivially copyable T, word by word.
template <class T, class F>
HD_FN T shuffle_words(T v, F&& word) {
  constexpr int kWords = (sizeof(T) + 3) / 4;
  union Words {
    u32 at[kWords];
    T value;
    HD_FN Words() {}
  };
  Words in, out;
  in.at[kWords - 1] = 0;
  in.value = v;
  HD_UNROLL
  for (int i = 0; i < kWords; ++i) out.at[i] = word(in.at[i]);
  return out.value;
}
template <class T>
HD_FN T shuffle(T v, int from) {
  return shuffle_words(v, [=](u32 w) { return shuffle(w, from); });
}
template <class T>
HD_FN T shuffle_xor(T v, int mask) {
  return shuffle_words(v, [=](u32 w) { return shuffle_xor(w, mask); });
}
template <class T>
HD_FN T shuffle_down(T v, int by) {
  return shuffle_words(v, [=](u32 w) { return shuffle_down(w, by); });
}
template <class T>
HD_FN T shuffle_up(T v, int by) {
  return shuffle_words(v, [=](u32 w) { return shuffle_up(w, by); });
}

// Combiners of ir::Monoid.
struct Sum {
  template <class T>
  HD_FN T operator()(T a, T b) const {
    return add(a, b);
  }
};
struct Prod {
  template <class T>
  HD_FN T operator()(T a, T b) const {
    return mul(a, b);
  }
};
struct Max {
  template <class T>
  HD_FN T operator()(T a, T b) const {
    return max(a, b);
  }
};
struct Min {
  template <class T>
  HD_FN T operator()(T a, T b) const {
    return min(a, b);
  }
};
struct Any {
  HD_FN bool operator()(bool a, bool b) const { return a || b; }
};
struct All {
  HD_FN bool operator()(bool a, bool b) const { return a && b; }
};
/// A value and where it was; arg-reductions prefer NaN, then the extreme, then the lowest index.
template <class T>
struct Indexed {
  T value;
  i64 index;
};
template <bool kMax>
struct ArgExtreme {
  template <class T>
  HD_FN Indexed<T> operator()(Indexed<T> a, Indexed<T> b) const {
    bool first = kMax ? b.value < a.value : a.value < b.value;
    bool second = kMax ? a.value < b.value : b.value < a.value;
    if constexpr (kIsFloat<T>) {
      const bool nan_a = a.value != a.value, nan_b = b.value != b.value;
      if (nan_a || nan_b) first = nan_a && !nan_b, second = nan_b && !nan_a;
    }
    return first || (!second && a.index <= b.index) ? a : b;
  }
};
using ArgMax = ArgExtreme<true>;
using ArgMin = ArgExtreme<false>;

/// Combines the values of each group of kWidth neighbouring lanes (a power of two up to 32); every
/// lane of the group gets the result. The order is fixed: results repeat bit by bit.
template <int kWidth = 32, class T, class Op>
HD_FN T warp_reduce(T v, Op op) {
  HD_UNROLL
  for (int mask = kWidth / 2; mask > 0; mask /= 2) {
    const T other = shuffle_xor(v, mask);
    // The lower lane's value first on both sides, so that both compute the same.
    v = lane() & mask ? op(other, v) : op(v, other);
  }
  return v;
}
/// Combines the values of all kThreads threads of the block (a multiple of 32); every thread gets the
/// result. `scratch`: kThreads / 32 values in shared memory, free again at the end.
template <int kThreads, class T, class Op>
HD_FN T block_reduce(T v, Op op, T* scratch) {
  v = warp_reduce(v, op);
  if constexpr (kThreads > 32) {
    if (lane() == 0) scratch[warp()] = v;
    block_sync();
    v = scratch[0];
    HD_UNROLL
    for (int w = 1; w < kThreads / 32; ++w) v = op(v, scratch[w]);
    block_sync();
  }
  return v;
}

/// All blocks of a cooperative launch meet; what they wrote to global memory is seen by each other.
/// `counter` starts at zero and is never reset: each barrier adds 2^31 in total, so its top bit flips
/// when the last block arrives (the idea of cooperative groups; a counter that is reset has an ABA
/// problem). A block that waits for seconds traps: some block died or was not resident.
HD_FN void grid_barrier(u32* counter) {
  block_sync();
  if (threadIdx.x == 0) {
    const u32 step = blockIdx.x == 0 ? 0x80000000u - (gridDim.x - 1) : 1u;
    const u32 before = add_release(counter, step);
    u32 spins = 0;
    while (((load_acquire(counter) ^ before) & 0x80000000u) == 0)
      if (++spins == 1u << 26) trap();
  }
  block_sync();
}

}  // namespace hd

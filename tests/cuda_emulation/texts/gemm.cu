#include "heddle.cuh"
// C[M, N] = A[M, K] B[N, K]^T: bf16 with f32 accumulation, tiles of 64 x 64 x 32, four warps of 32 x 32,
// three stages of asynchronous copies. Any M and N; K a multiple of 8.
constexpr int kTile = 64, kDepth = 32, kStages = 3, kRow = kDepth + 8;

__device__ inline void load_stage(hd::bf16* to, const hd::bf16* from, int first, int rows, int K, int k0) {
  for (int i = 0; i < 2; ++i) {
    const int c = threadIdx.x + i * 128, r = c >> 2, k = (c & 3) * 8;
    const bool valid = first + r < rows && k0 + k < K;
    hd::copy_async<16>(to + r * kRow + k, valid ? from + (hd::i64)(first + r) * K + k0 + k : from, valid);
  }
}

extern "C" __global__ void __launch_bounds__(128) gemm(const hd::bf16* __restrict__ A, const hd::bf16* __restrict__ B, hd::bf16* __restrict__ C, int M, int N, int K) {
  HD_DYNAMIC_SHARED(shared);
  hd::bf16* const sa = reinterpret_cast<hd::bf16*>(shared);
  hd::bf16* const sb = sa + kStages * kTile * kRow;
  const int lane = threadIdx.x & 31, w = threadIdx.x >> 5, wm = (w >> 1) * 32, wn = (w & 1) * 32;
  const int m0 = blockIdx.y * kTile, n0 = blockIdx.x * kTile, steps = (K + kDepth - 1) / kDepth;
  float acc[2][4][4] = {};
  for (int s = 0; s < kStages - 1; ++s) {
    if (s < steps) {
      load_stage(sa + s * kTile * kRow, A, m0, M, K, s * kDepth);
      load_stage(sb + s * kTile * kRow, B, n0, N, K, s * kDepth);
    }
    hd::copy_commit();
  }
  for (int step = 0; step < steps; ++step) {
    hd::copy_wait<kStages - 2>();
    hd::block_sync();
    const int next = step + kStages - 1;
    if (next < steps) {
      load_stage(sa + next % kStages * kTile * kRow, A, m0, M, K, next * kDepth);
      load_stage(sb + next % kStages * kTile * kRow, B, n0, N, K, next * kDepth);
    }
    hd::copy_commit();
    const int s = step % kStages;
    HD_UNROLL
    for (int k = 0; k < kDepth; k += 16) {
      unsigned a[2][4], b[2][4];
      HD_UNROLL
      for (int i = 0; i < 2; ++i) {
        hd::load_matrix_x4(a[i], sa + (s * kTile + wm + i * 16 + (lane & 15)) * kRow + k + (lane >> 4) * 8);
        hd::load_matrix_x4(b[i], sb + (s * kTile + wn + i * 16 + (lane & 7) + (lane >> 4) * 8) * kRow + k + (lane >> 3 & 1) * 8);
      }
      HD_UNROLL
      for (int i = 0; i < 2; ++i)
        HD_UNROLL
        for (int j = 0; j < 4; ++j) {
          const unsigned bb[2] = {b[j >> 1][(j & 1) * 2], b[j >> 1][(j & 1) * 2 + 1]};
          hd::mma_bf16(acc[i][j], a[i], bb);
        }
    }
  }
  HD_UNROLL
  for (int i = 0; i < 2; ++i)
    HD_UNROLL
    for (int j = 0; j < 4; ++j)
      for (int e = 0; e < 4; ++e) {
        const int r = m0 + wm + i * 16 + (lane >> 2) + e / 2 * 8, c = n0 + wn + j * 8 + (lane & 3) * 2 + e % 2;
        if (r < M && c < N) C[(hd::i64)r * N + c] = hd::to_bf16(acc[i][j][e]);
      }
}

#include "heddle.cuh"
// C[M, N] = A[M, K] B[N, K]^T: TMA with 128-byte swizzle, a ring of barriers, products of a warpgroup.
// Warps 0 to 3 consume, warp 4 produces. Any M, N, K: tiles outside read as zero.
constexpr int kStages = 4, kTileBytes = 64 * 64 * 2;

extern "C" __global__ void __launch_bounds__(160) hopper_gemm(const __grid_constant__ hd::TensorMap a_map, const __grid_constant__ hd::TensorMap b_map, hd::bf16* __restrict__ C, int M, int N, int K) {
  HD_DYNAMIC_SHARED(shared);
  unsigned char* const sa = shared;
  unsigned char* const sb = shared + kStages * kTileBytes;
  hd::Mbarrier* const full = reinterpret_cast<hd::Mbarrier*>(shared + 2 * kStages * kTileBytes);
  hd::Mbarrier* const empty = full + kStages;
  const int t = threadIdx.x, lane = t & 31, w = t >> 5, steps = (K + 63) / 64, m0 = blockIdx.y * 64, n0 = blockIdx.x * 64;
  if (t == 0) {
    for (int s = 0; s < kStages; ++s) {
      hd::mbarrier_init(full + s, 1);
      hd::mbarrier_init(empty + s, 1);
    }
    hd::mbarrier_fence();
  }
  hd::block_sync();
  if (w == 4) {
    if (lane == 0)
      for (int k = 0; k < steps; ++k) {
        const int s = k % kStages;
        hd::mbarrier_wait(empty + s, (k / kStages & 1) ^ 1);
        hd::mbarrier_arrive_expect(full + s, 2 * kTileBytes);
        hd::tma_load_2d(sa + s * kTileBytes, &a_map, k * 64, m0, full + s);
        hd::tma_load_2d(sb + s * kTileBytes, &b_map, k * 64, n0, full + s);
      }
    return;
  }
  float acc[32] = {};
  for (int k = 0; k < steps; ++k) {
    const int s = k % kStages;
    hd::mbarrier_wait(full + s, k / kStages & 1);
    hd::wgmma_fence();
    for (int i = 0; i < 4; ++i)
      hd::wgmma_bf16<64>(acc, hd::descriptor_128(sa + s * kTileBytes + i * 32), hd::descriptor_128(sb + s * kTileBytes + i * 32));
    hd::wgmma_commit();
    // One group stays in flight: the stage before is free.
    hd::wgmma_wait<1>();
    if (k > 0 && t == 0) hd::mbarrier_arrive(empty + (k - 1) % kStages);
  }
  hd::wgmma_wait<0>();
  for (int j = 0; j < 8; ++j)
    for (int e = 0; e < 4; ++e) {
      const int r = m0 + w * 16 + (lane >> 2) + e / 2 * 8, c = n0 + j * 8 + (lane & 3) * 2 + e % 2;
      if (r < M && c < N) C[(hd::i64)r * N + c] = hd::to_bf16(acc[j * 4 + e]);
    }
}

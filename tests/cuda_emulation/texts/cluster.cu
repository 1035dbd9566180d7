#include "heddle.cuh"
// The sum of x over a cluster of two blocks, by distributed shared memory; and a pipeline by named
// barriers inside a block. out[block] = sum, turned[i] = x reversed inside each block.
extern "C" __global__ void __launch_bounds__(64) cluster(const float* __restrict__ x, float* out, float* turned) {
  __shared__ float partial[2];
  __shared__ float total;
  __shared__ float stage[32];
  const int t = threadIdx.x, lane = t & 31, w = t >> 5;
  const float sum = hd::warp_reduce(x[blockIdx.x * 64 + t], hd::Sum{});
  if (lane == 0) partial[w] = sum;
  hd::block_sync();
  if (t == 0) total = partial[0] + partial[1];
  hd::cluster_sync();
  if (t == 0) {
    float all = 0;
    for (unsigned rank = 0; rank < hd::cluster_size(); ++rank) all += *hd::cluster_map(&total, rank);
    out[blockIdx.x] = all;
  }
  // Warp 0 produces two halves through one stage, warp 1 consumes.
  for (int half = 0; half < 2; ++half) {
    const int i = blockIdx.x * 64 + 32 * half;
    if (w == 0) {
      hd::named_sync(1, 64);
      stage[lane] = x[i + lane];
      hd::named_arrive(2, 64);
    } else {
      hd::named_arrive(1, 64);
      hd::named_sync(2, 64);
      turned[i + lane] = stage[31 - lane];
    }
  }
  hd::cluster_sync();
}

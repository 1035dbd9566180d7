#include "heddle.cuh"
// `layers` times: h <- (h + W_l h) / rms(h), a row of W a warp, grid barriers between layers. h has two
// halves of d elements, of which layer l reads half l % 2.
extern "C" __global__ void __launch_bounds__(64) persistent(const hd::bf16* __restrict__ W, float* h, unsigned* counter, int d, int layers) {
  __shared__ float squares[2];
  __shared__ float scale;
  const int t = threadIdx.x, lane = t & 31, w = t >> 5;
  for (int l = 0; l < layers; ++l) {
    const float* in = h + (l & 1) * d;
    float* out = h + ((l + 1) & 1) * d;
    float s = 0;
    for (int i = t; i < d; i += 64) s += in[i] * in[i];
    s = hd::warp_reduce(s, hd::Sum{});
    if (lane == 0) squares[w] = s;
    hd::block_sync();
    if (t == 0) scale = hd::rsqrt((squares[0] + squares[1]) / d + 1e-5f);
    hd::block_sync();
    for (int r = blockIdx.x * 2 + w; r < d; r += gridDim.x * 2) {
      float a = 0;
      for (int i = lane; i < d; i += 32) a += hd::to_f32(W[((hd::i64)l * d + r) * d + i]) * in[i];
      a = hd::warp_reduce(a, hd::Sum{});
      if (lane == 0) out[r] = (in[r] + a) * scale;
    }
    hd::grid_barrier(counter);
  }
}

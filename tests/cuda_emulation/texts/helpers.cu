#include "heddle.cuh"
// Each helper of the prelude once; tests compare with plain C++, under the emulation or on a GPU.
using namespace hd;

extern "C" __global__ void convert(const float* x, u16* half, u16* brain, u32* tensor, u32* pairs, float* back, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  half[i] = to_f16(x[i]).bits;
  brain[i] = to_bf16(x[i]).bits;
  tensor[i] = to_tf32(x[i]);
  pairs[2 * i] = pack_f16(x[i], x[n - 1 - i]);
  pairs[2 * i + 1] = pack_bf16(x[i], x[n - 1 - i]);
  back[3 * i] = to_f32(to_f16(x[i]));
  back[3 * i + 1] = low_f16(pairs[2 * i]) + 0.0f;
  back[3 * i + 2] = high_bf16(pairs[2 * i + 1]);
}

extern "C" __global__ void functions(const float* x, float* out, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const float v = x[i];
  float* o = out + 16 * i;
  o[0] = exp(v), o[1] = log(abs(v)), o[2] = sqrt(abs(v)), o[3] = rsqrt(abs(v)), o[4] = sin(v), o[5] = cos(v);
  o[6] = tanh(v), o[7] = erf(v), o[8] = floor(v), o[9] = hd::round(v), o[10] = pow(abs(v), 1.5f), o[11] = hd::fmod(v, 0.7f);
  o[12] = floor_mod(v, 0.7f), o[13] = hd::max(v, bits_to_f32(0x7fc00000u)), o[14] = static_cast<float>(cast<signed char>(v * 100)), o[15] = atan2(v, 0.5f);
}

extern "C" __global__ void lanes(const u32* x, u32* out) {
  const u32 v = x[threadIdx.x];
  u32* o = out + 8 * threadIdx.x;
  o[0] = shuffle(v, 3), o[1] = shuffle_xor(v, 5), o[2] = shuffle_down(v, 4), o[3] = shuffle_up(v, 4);
  o[4] = ballot(v & 1);
  o[5] = warp_reduce<8>(v, Sum{});
  o[6] = warp_reduce(v, Max{});
  o[7] = warp_reduce<4>(v, Min{});
}

extern "C" __global__ void __launch_bounds__(96) blocks(const float* x, double* out) {
  __shared__ float sums[3];
  __shared__ Indexed<float> best[3];
  const float v = x[threadIdx.x];
  const float sum = block_reduce<96>(v, Sum{}, sums);
  const Indexed<float> most = block_reduce<96>(Indexed<float>{v, threadIdx.x}, ArgMax{}, best);
  out[3 * threadIdx.x] = sum, out[3 * threadIdx.x + 1] = most.value, out[3 * threadIdx.x + 2] = most.index;
}

extern "C" __global__ void atomics(u32* count, float* sum, int* extremes, u32* slots) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  add_relaxed(count, 1u);
  add_relaxed(sum, 0.5f);
  max_relaxed(extremes, i * 37 % 101);
  min_relaxed(extremes + 1, i * 37 % 101 - 50);
  slots[i] = exchange_if_relaxed(count + 1, 0u, static_cast<u32>(i + 1)) == 0u;
  slots[i] += 2 * (add_acq_rel(count + 2, 3u) % 3u == 0u);
}

extern "C" __global__ void copies(const float* x, float* out) {
  HD_DYNAMIC_SHARED(shared);
  float* s = reinterpret_cast<float*>(shared);
  const int t = threadIdx.x;
  copy_async<16>(s + 4 * t, x + 4 * t, t % 3 != 0);
  copy_commit();
  copy_async<8>(s + 128 + 2 * t, x + 128 + 2 * t);
  copy_async<4>(s + 192 + t, x + 192 + t, t != 5);
  copy_commit();
  copy_wait<1>();
  block_sync();
  for (int i = t; i < 128; i += 32) out[i] = s[127 - i];
  copy_wait<0>();
  block_sync();
  for (int i = 128 + t; i < 224; i += 32) out[i] = s[351 - i];
}

extern "C" __global__ void matrices(const u16* x, u32* out) {
  __shared__ uint4 rows[32];
  const int t = threadIdx.x;
  u16* s = reinterpret_cast<u16*>(rows);
  for (int i = t; i < 256; i += 32) s[i] = x[i];
  block_sync();
  u32 four[4], two[2];
  load_matrix_x4(four, s + 8 * t);
  for (int i = 0; i < 4; ++i) out[12 * t + i] = four[i];
  load_matrix_x4_transposed(four, s + 8 * (31 - t));
  for (int i = 0; i < 4; ++i) out[12 * t + 4 + i] = four[i];
  load_matrix_x2(two, s + 8 * (t & 15));
  for (int i = 0; i < 2; ++i) out[12 * t + 8 + i] = two[i];
  load_matrix_x2_transposed(two, s + 8 * (t & 15));
  for (int i = 0; i < 2; ++i) out[12 * t + 10 + i] = two[i];
}

// a, b: fragments of each lane as registers; c: 16 x 8.
template <class F>
__device__ void multiply_with(F multiply, const u32* a, const u32* b, float* c) {
  const int t = threadIdx.x, row = t / 4, column = t % 4 * 2;
  u32 ra[4], rb[2];
  for (int i = 0; i < 4; ++i) ra[i] = a[4 * t + i];
  for (int i = 0; i < 2; ++i) rb[i] = b[2 * t + i];
  float d[4];
  for (int i = 0; i < 4; ++i) d[i] = c[(row + i / 2 * 8) * 8 + column + i % 2];
  multiply(d, ra, rb);
  for (int i = 0; i < 4; ++i) c[(row + i / 2 * 8) * 8 + column + i % 2] = d[i];
}
extern "C" __global__ void multiply_bf16(const u32* a, const u32* b, float* c) {
  multiply_with([](float (&d)[4], const u32 (&x)[4], const u32 (&y)[2]) { mma_bf16(d, x, y); }, a, b, c);
}
extern "C" __global__ void multiply_f16(const u32* a, const u32* b, float* c) {
  multiply_with([](float (&d)[4], const u32 (&x)[4], const u32 (&y)[2]) { mma_f16(d, x, y); }, a, b, c);
}
extern "C" __global__ void multiply_tf32(const u32* a, const u32* b, float* c) {
  multiply_with([](float (&d)[4], const u32 (&x)[4], const u32 (&y)[2]) { mma_tf32(d, x, y); }, a, b, c);
}

#ifdef HD_HOPPER
// A tile of 64 x 32 (3d: 16 x 8 x 4) elements of 16 bits, as it lies in shared memory.
extern "C" __global__ void tile_2d(const __grid_constant__ TensorMap map, u16* out, int x, int y) {
  HD_DYNAMIC_SHARED(shared);
  __shared__ Mbarrier arrived;
  if (threadIdx.x == 0) {
    mbarrier_init(&arrived, 1);
    mbarrier_fence();
    mbarrier_arrive_expect(&arrived, 4096);
    tma_load_2d(shared, &map, x, y, &arrived);
  }
  block_sync();
  mbarrier_wait(&arrived, 0);
  for (int i = threadIdx.x; i < 2048; i += blockDim.x) out[i] = reinterpret_cast<u16*>(shared)[i];
}
extern "C" __global__ void tile_3d(const __grid_constant__ TensorMap map, u16* out, int x, int y, int z) {
  HD_DYNAMIC_SHARED(shared);
  __shared__ Mbarrier arrived;
  if (threadIdx.x == 0) {
    mbarrier_init(&arrived, 1);
    mbarrier_fence();
    mbarrier_arrive_expect(&arrived, 1024);
    tma_load_3d(shared, &map, x, y, z, &arrived);
  }
  block_sync();
  mbarrier_wait(&arrived, 0);
  for (int i = threadIdx.x; i < 512; i += blockDim.x) out[i] = reinterpret_cast<u16*>(shared)[i];
}
// Bytes as they lie, in two pieces that complete one phase.
extern "C" __global__ void bulk(const u8* from, u8* out, int bytes) {
  HD_DYNAMIC_SHARED(shared);
  __shared__ Mbarrier arrived;
  if (threadIdx.x == 0) {
    mbarrier_init(&arrived, 1);
    mbarrier_fence();
    bulk_prefetch(from, bytes);
    mbarrier_arrive_expect(&arrived, bytes);
    bulk_load(shared, from + 16, bytes - 16, &arrived);
    bulk_load(shared + bytes - 16, from, 16, &arrived);
  }
  block_sync();
  mbarrier_wait(&arrived, 0);
  for (int i = threadIdx.x; i < bytes; i += blockDim.x) out[i] = shared[i];
}

// c[64, N] += a[64, 128 bytes] b[N, 128 bytes]^T in four products, operands written by threads.
template <int N, class F>
__device__ void product_with(F product, const u32* a, const u32* b, float* c, unsigned char* shared) {
  u32* sa = reinterpret_cast<u32*>(shared);
  u32* sb = reinterpret_cast<u32*>(shared + 8192);
  const int t = threadIdx.x;
  for (int i = t; i < 64 * 32; i += 128) sa[i ^ ((i >> 5 & 7) << 2)] = a[i];
  for (int i = t; i < N * 32; i += 128) sb[i ^ ((i >> 5 & 7) << 2)] = b[i];
  fence_async();
  block_sync();
  float d[N / 2];
  const int row = t / 32 * 16 + t % 32 / 4, column = t % 4 * 2;
  for (int i = 0; i < N / 2; ++i) d[i] = c[(row + i % 4 / 2 * 8) * N + i / 4 * 8 + column + i % 2];
  wgmma_fence();
  for (int k = 0; k < 4; ++k) product(d, descriptor_128(shared + 32 * k), descriptor_128(shared + 8192 + 32 * k));
  wgmma_commit();
  wgmma_wait<0>();
  for (int i = 0; i < N / 2; ++i) c[(row + i % 4 / 2 * 8) * N + i / 4 * 8 + column + i % 2] = d[i];
}
#define PRODUCT(kind, n)                                                                                     \
  {                                                                                                          \
    HD_DYNAMIC_SHARED(shared);                                                                               \
    product_with<n>([](float (&d)[n / 2], u64 x, u64 y) { wgmma_##kind<n>(d, x, y); }, a, b, c, shared);     \
  }
extern "C" __global__ void __launch_bounds__(128) product_bf16_8(const u32* a, const u32* b, float* c) PRODUCT(bf16, 8)
extern "C" __global__ void __launch_bounds__(128) product_bf16_96(const u32* a, const u32* b, float* c) PRODUCT(bf16, 96)
extern "C" __global__ void __launch_bounds__(128) product_f16_64(const u32* a, const u32* b, float* c) PRODUCT(f16, 64)
extern "C" __global__ void __launch_bounds__(128) product_tf32_32(const u32* a, const u32* b, float* c) PRODUCT(tf32, 32)
#endif

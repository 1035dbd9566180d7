// The CUDA language for a C++ compiler, as far as generated kernels and the prelude use it. No
// other header is included: what is needed of the C library is declared here.
#pragma once
#include "runtime.h"

#define __global__
#define __device__
#define __host__
#define __constant__ static
#define __grid_constant__
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __align__(n) __attribute__((aligned(n)))
#define __forceinline__ inline __attribute__((always_inline))
#define HEDDLE_EMU inline __attribute__((always_inline))
// Static shared variables lie in one section, which the scheduler swaps when it changes the block.
#define __shared__ static __attribute__((section("emu_shared"), aligned(16)))

using size_t = decltype(sizeof(0));
struct uint3 {
  unsigned x, y, z;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};

namespace emu {
inline const Self* self;
inline Runtime runtime;  // filled in at each launch

constexpr Site here(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  return {file, line};
}

template <int... I>
struct Indices {};
template <class... A, int... I>
__attribute__((no_sanitize("thread"))) void call_at(void (*kernel)(A...), void** arguments,
                                                    Indices<I...>) {
  kernel(*static_cast<A*>(arguments[I])...);
}
/// Calls a kernel with arguments as cuLaunchKernel takes them.
template <class... A>
void call(void (*kernel)(A...), void** arguments) {
  call_at(kernel, arguments, Indices<__integer_pack(sizeof...(A))...>{});
}
template <class... A>
struct Sizes {
  static constexpr unsigned long bytes[] = {sizeof(A)..., 0};
};
template <class... A>
constexpr Entry entry(const char* symbol, void (*call)(void**), int max_threads, void (*)(A...)) {
  return {symbol, call, Sizes<A...>::bytes, sizeof...(A), max_threads};
}

HEDDLE_EMU unsigned char* dynamic_shared() { return self->dynamic_shared; }

HEDDLE_EMU float from_bits(unsigned bits) { return __builtin_bit_cast(float, bits); }
HEDDLE_EMU unsigned to_bits(float value) { return __builtin_bit_cast(unsigned, value); }

/// Exact: scaling by powers of two turns a half into a float.
inline float f16_to_f32(unsigned short h) {
  const unsigned sign = (h & 0x8000u) << 16, magnitude = h & 0x7fffu;
  if (magnitude >= 0x7c00u) return from_bits(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
  return from_bits(sign | to_bits(from_bits(magnitude << 13) * 0x1p112f));
}
inline unsigned short f32_to_f16(float x) {
  const unsigned bits = to_bits(x), sign = bits >> 16 & 0x8000u;
  const unsigned magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return 0x7fff;
  if (magnitude >= 0x477ff000u) return static_cast<unsigned short>(sign | 0x7c00u);
  // Below 2^-14 the unit of the result is fixed: adding one half of it aligns and rounds.
  if (magnitude < 0x38800000u)
    return static_cast<unsigned short>(sign |
                                       (to_bits(from_bits(magnitude) + 0.5f) - to_bits(0.5f)));
  return static_cast<unsigned short>(sign |
                                     (magnitude + 0xc8000fffu + (magnitude >> 13 & 1)) >> 13);
}
inline unsigned short f32_to_bf16(float x) {
  const unsigned bits = to_bits(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
  return static_cast<unsigned short>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
/// Ties away from zero.
inline unsigned f32_to_tf32(float x) {
  const unsigned bits = to_bits(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fffffffu;
  if ((bits & 0x7fffffffu) == 0x7f800000u) return bits;
  return (bits + 0x1000u) & 0xffffe000u;
}
}  // namespace emu

#define threadIdx (emu::self->thread)
#define blockIdx (emu::self->block)
#define blockDim (emu::self->threads)
#define gridDim (emu::self->blocks)
#define warpSize 32

HEDDLE_EMU uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
HEDDLE_EMU float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
HEDDLE_EMU unsigned __float_as_uint(float f) { return emu::to_bits(f); }
HEDDLE_EMU float __uint_as_float(unsigned u) { return emu::from_bits(u); }
HEDDLE_EMU void __syncthreads(emu::Site site = emu::here()) { emu::runtime.barrier(0, 0, site); }

#define HEDDLE_EMU_MATH1(name)             \
  extern "C" double name(double) noexcept; \
  extern "C" float name##f(float) noexcept;
#define HEDDLE_EMU_MATH2(name)                     \
  extern "C" double name(double, double) noexcept; \
  extern "C" float name##f(float, float) noexcept;
HEDDLE_EMU_MATH1(exp)
HEDDLE_EMU_MATH1(log)
HEDDLE_EMU_MATH1(sqrt) HEDDLE_EMU_MATH1(sin) HEDDLE_EMU_MATH1(cos) HEDDLE_EMU_MATH1(tan)
    HEDDLE_EMU_MATH1(asin) HEDDLE_EMU_MATH1(acos) HEDDLE_EMU_MATH1(atan) HEDDLE_EMU_MATH1(sinh)
        HEDDLE_EMU_MATH1(cosh) HEDDLE_EMU_MATH1(tanh) HEDDLE_EMU_MATH1(asinh)
            HEDDLE_EMU_MATH1(acosh) HEDDLE_EMU_MATH1(atanh) HEDDLE_EMU_MATH1(erf)
                HEDDLE_EMU_MATH1(floor) HEDDLE_EMU_MATH1(ceil) HEDDLE_EMU_MATH1(rint)
                    HEDDLE_EMU_MATH1(trunc) HEDDLE_EMU_MATH1(fabs) HEDDLE_EMU_MATH1(exp2)
                        HEDDLE_EMU_MATH1(log2) HEDDLE_EMU_MATH2(pow) HEDDLE_EMU_MATH2(atan2)
                            HEDDLE_EMU_MATH2(fmod) HEDDLE_EMU_MATH2(fmax) HEDDLE_EMU_MATH2(fmin)
#undef HEDDLE_EMU_MATH1
#undef HEDDLE_EMU_MATH2
                                HEDDLE_EMU float rsqrtf(float x) {
  return static_cast<float>(1 / ::sqrt(static_cast<double>(x)));
}
HEDDLE_EMU double rsqrt(double x) { return 1 / ::sqrt(x); }
inline double sinpi(double x) {
  const double r = ::fmod(x, 2.0);  // exact
  return ::sin(3.14159265358979323846 * r);
}
inline double cospi(double x) {
  const double r = ::fmod(x, 2.0);
  return ::cos(3.14159265358979323846 * r);
}

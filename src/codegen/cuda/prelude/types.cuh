// Scalar types, conversions, vectors.
#pragma once
#ifdef HEDDLE_EMULATE
#define HD_FN inline __attribute__((always_inline))
#else
#define HD_FN __device__ __forceinline__
#endif
#define HD_UNROLL _Pragma("unroll")
#define HD_PRAGMA(text) _Pragma(#text)
#ifdef HEDDLE_EMULATE
#define HD_UNROLL_BY(n)
#else
#define HD_UNROLL_BY(n) HD_PRAGMA(unroll n)
#endif

namespace hd {

using i8 = signed char;
using i16 = short;
using i32 = int;
using i64 = long long;
using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using f32 = float;
using f64 = double;
using b1 = bool;  // stored as one byte, 0 or 1

/// Storage types: arithmetic on them is done in f32.
struct alignas(2) f16 {
  u16 bits;
};
struct alignas(2) bf16 {
  u16 bits;
};

HD_FN float bits_to_f32(u32 bits) { return __uint_as_float(bits); }
HD_FN u32 f32_to_bits(float value) { return __float_as_uint(value); }

HD_FN float to_f32(bf16 x) { return bits_to_f32(static_cast<u32>(x.bits) << 16); }
#ifndef HEDDLE_EMULATE
HD_FN float to_f32(f16 x) {
  float out;
  asm("cvt.f32.f16 %0, %1;" : "=f"(out) : "h"(x.bits));
  return out;
}
/// Round to nearest even.
HD_FN f16 to_f16(float x) {
  f16 out;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(out.bits) : "f"(x));
  return out;
}
HD_FN bf16 to_bf16(float x) {
  bf16 out;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(out.bits) : "f"(x));
  return out;
}
/// Two halves in one register, `low` in the low bits.
HD_FN u32 pack_bf16(float low, float high) {
  u32 out;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
  return out;
}
HD_FN u32 pack_f16(float low, float high) {
  u32 out;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
  return out;
}
/// The nearest tf32 value (ties away from zero), as the f32 pattern that the tensor cores take.
HD_FN u32 to_tf32(float x) {
  u32 out;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(out) : "f"(x));
  return out;
}
#else
inline float to_f32(f16 x) { return emu::f16_to_f32(x.bits); }
inline f16 to_f16(float x) { return {emu::f32_to_f16(x)}; }
inline bf16 to_bf16(float x) { return {emu::f32_to_bf16(x)}; }
inline u32 pack_bf16(float low, float high) {
  return emu::f32_to_bf16(low) | static_cast<u32>(emu::f32_to_bf16(high)) << 16;
}
inline u32 pack_f16(float low, float high) {
  return emu::f32_to_f16(low) | static_cast<u32>(emu::f32_to_f16(high)) << 16;
}
inline u32 to_tf32(float x) { return emu::f32_to_tf32(x); }
#endif
HD_FN float low_bf16(u32 pair) { return bits_to_f32(pair << 16); }
HD_FN float high_bf16(u32 pair) { return bits_to_f32(pair & 0xffff0000u); }
HD_FN float low_f16(u32 pair) { return to_f32(f16{static_cast<u16>(pair)}); }
HD_FN float high_f16(u32 pair) { return to_f32(f16{static_cast<u16>(pair >> 16)}); }

template <class T>
inline constexpr bool kIsStorage = false;
template <>
inline constexpr bool kIsStorage<f16> = true;
template <>
inline constexpr bool kIsStorage<bf16> = true;
template <class A, class B>
inline constexpr bool kSame = false;
template <class A>
inline constexpr bool kSame<A, A> = true;
template <class T>
inline constexpr bool kIsFloat = kSame<T, float> || kSame<T, double>;

/// The type in which values stored as T are computed (f16, bf16: f32).
template <class T>
struct Compute {
  using type = T;
};
template <>
struct Compute<f16> {
  using type = float;
};
template <>
struct Compute<bf16> {
  using type = float;
};
/// Stored value to compute type and back; the identity but for f16 and bf16.
template <class T>
HD_FN typename Compute<T>::type widen(T x) {
  if constexpr (kIsStorage<T>)
    return to_f32(x);
  else
    return x;
}
template <class T>
HD_FN T narrow(typename Compute<T>::type x) {
  if constexpr (kSame<T, f16>)
    return to_f16(x);
  else if constexpr (kSame<T, bf16>)
    return to_bf16(x);
  else
    return x;
}

/// N elements read and written as one access of up to 16 bytes; element i is at[i].
template <class T, int N>
struct alignas(sizeof(T) * N <= 16 ? sizeof(T) * N : 16) Vec {
  static_assert((N & (N - 1)) == 0, "a power of two");
  T at[N];
};

}  // namespace hd

// The scalar functions of ir::ScalarFn with their meaning (docs/ir-semantics.md): integer arithmetic
// wraps, division by zero gives 0, round goes to even, casts from float truncate and saturate (NaN:
// 0), min and max propagate NaN. Functions of f32 are the toolkit's accurate ones (1 to 4 ulp; the
// text is compiled without --use_fast_math).
#pragma once

namespace hd {

HD_FN bool isnan(float x) { return x != x; }
HD_FN bool isnan(double x) { return x != x; }
HD_FN bool isinf(float x) { return ::fabsf(x) == bits_to_f32(0x7f800000u); }
HD_FN bool isinf(double x) { return ::fabs(x) == static_cast<double>(bits_to_f32(0x7f800000u)); }

#define HD_UNARY(name, f32_function, f64_function)           \
  HD_FN float name(float x) { return ::f32_function(x); }    \
  HD_FN double name(double x) { return ::f64_function(x); }
HD_UNARY(exp, expf, exp)
HD_UNARY(log, logf, log)
HD_UNARY(sqrt, sqrtf, sqrt)
HD_UNARY(rsqrt, rsqrtf, rsqrt)
HD_UNARY(sin, sinf, sin)
HD_UNARY(cos, cosf, cos)
HD_UNARY(tan, tanf, tan)
HD_UNARY(asin, asinf, asin)
HD_UNARY(acos, acosf, acos)
HD_UNARY(atan, atanf, atan)
HD_UNARY(sinh, sinhf, sinh)
HD_UNARY(cosh, coshf, cosh)
HD_UNARY(tanh, tanhf, tanh)
HD_UNARY(asinh, asinhf, asinh)
HD_UNARY(acosh, acoshf, acosh)
HD_UNARY(atanh, atanhf, atanh)
HD_UNARY(erf, erff, erf)
HD_UNARY(floor, floorf, floor)
HD_UNARY(ceil, ceilf, ceil)
HD_UNARY(round, rintf, rint)
HD_UNARY(trunc, truncf, trunc)
#undef HD_UNARY
/// To what the storage type holds, without becoming one.
template <class T>
HD_FN T round_f16(T x) {
  return static_cast<T>(to_f32(to_f16(static_cast<float>(x))));
}
template <class T>
HD_FN T round_bf16(T x) {
  return static_cast<T>(to_f32(to_bf16(static_cast<float>(x))));
}

HD_FN float pow(float x, float y) { return ::powf(x, y); }
HD_FN double pow(double x, double y) { return ::pow(x, y); }
HD_FN float atan2(float y, float x) { return ::atan2f(y, x); }
HD_FN double atan2(double y, double x) { return ::atan2(y, x); }

/// The unsigned type of T's width: its arithmetic wraps where T's would overflow.
template <int kBytes>
struct UnsignedOf;
template <>
struct UnsignedOf<1> {
  using type = u8;
};
template <>
struct UnsignedOf<2> {
  using type = u16;
};
template <>
struct UnsignedOf<4> {
  using type = u32;
};
template <>
struct UnsignedOf<8> {
  using type = u64;
};
template <class T>
using Unsigned = typename UnsignedOf<sizeof(T)>::type;
template <class T>
inline constexpr bool kIsSigned = static_cast<T>(-1) < static_cast<T>(0);

template <class T>
HD_FN T neg(T x) {
  if constexpr (kIsFloat<T>)
    return -x;
  else
    return static_cast<T>(Unsigned<T>(0) - static_cast<Unsigned<T>>(x));
}
template <class T>
HD_FN T abs(T x) {
  if constexpr (kSame<T, float>)
    return ::fabsf(x);
  else if constexpr (kSame<T, double>)
    return ::fabs(x);
  else
    return x < T(0) ? neg(x) : x;
}
/// ±1 by sign; zeros and NaN stay.
template <class T>
HD_FN T sign(T x) {
  return x > T(0) ? T(1) : x < T(0) ? T(-1) : x;
}

template <class T>
HD_FN T add(T x, T y) {
  if constexpr (kIsFloat<T>)
    return x + y;
  else
    return static_cast<T>(static_cast<Unsigned<T>>(x) + static_cast<Unsigned<T>>(y));
}
template <class T>
HD_FN T sub(T x, T y) {
  if constexpr (kIsFloat<T>)
    return x - y;
  else
    return static_cast<T>(static_cast<Unsigned<T>>(x) - static_cast<Unsigned<T>>(y));
}
template <class T>
HD_FN T mul(T x, T y) {
  if constexpr (kIsFloat<T>)
    return x * y;
  else  // in 64 bits: u16 promotes to int, whose product could overflow
    return static_cast<T>(static_cast<u64>(x) * static_cast<u64>(y));
}
template <class T>
HD_FN T div(T x, T y) {
  if constexpr (kIsFloat<T>) {
    return x / y;
  } else {
    if (y == T(0)) return T(0);
    if constexpr (kIsSigned<T>)
      if (y == T(-1)) return neg(x);
    return static_cast<T>(x / y);
  }
}
template <class T>
HD_FN T recip(T x) {
  return div(T(1), x);
}
/// The remainder of truncated division (C's %, fmod).
template <class T>
HD_FN T fmod(T x, T y) {
  if constexpr (kSame<T, float>) {
    return ::fmodf(x, y);
  } else if constexpr (kSame<T, double>) {
    return ::fmod(x, y);
  } else {
    if (y == T(0)) return T(0);
    if constexpr (kIsSigned<T>)
      if (y == T(-1)) return T(0);
    return static_cast<T>(x % y);
  }
}
/// Low·low + high·high of the 16-bit halves; wraps.
HD_FN int dot2(int x, int y) {
  return static_cast<int>(
      static_cast<unsigned>(static_cast<short>(x) * static_cast<short>(y)) +
      static_cast<unsigned>((x >> 16) * (y >> 16)));
}
/// Σ of the four bytes of x, unsigned, by those of y, signed.
HD_FN int dot4(int x, int y) {
  int sum = 0;
  for (int shift = 0; shift < 32; shift += 8)
    sum += static_cast<unsigned char>(x >> shift) * static_cast<signed char>(y >> shift);
  return sum;
}
/// The remainder that has the divisor's sign (Python's %).
template <class T>
HD_FN T floor_mod(T x, T y) {
  const T r = fmod(x, y);
  return r != T(0) && (r < T(0)) != (y < T(0)) ? add(r, y) : r;
}
template <class T>
HD_FN T int_pow(T base, T exponent) {
  if constexpr (kIsSigned<T>)
    if (exponent < T(0)) return base == T(1) ? T(1) : base == T(-1) ? (exponent % 2 ? T(-1) : T(1)) : T(0);
  T result = T(1);
  for (u64 e = static_cast<u64>(exponent); e != 0; e >>= 1) {
    if (e & 1) result = mul(result, base);
    base = mul(base, base);
  }
  return result;
}

template <class T>
HD_FN T min(T x, T y) {
  return y < x ? y : x;
}
template <class T>
HD_FN T max(T x, T y) {
  return x < y ? y : x;
}
#ifndef HEDDLE_EMULATE
template <>
HD_FN float min(float x, float y) {
  float out;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(out) : "f"(x), "f"(y));
  return out;
}
template <>
HD_FN float max(float x, float y) {
  float out;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(out) : "f"(x), "f"(y));
  return out;
}
#else
template <>
inline float min(float x, float y) {
  return x != x || y != y ? x + y : y < x ? y : x;
}
template <>
inline float max(float x, float y) {
  return x != x || y != y ? x + y : x < y ? y : x;
}
#endif
template <>
HD_FN double min(double x, double y) {
  return x != x || y != y ? x + y : y < x ? y : x;
}
template <>
HD_FN double max(double x, double y) {
  return x != x || y != y ? x + y : x < y ? y : x;
}

/// Shifts by the width or more (or by a negative amount) give 0, to the right the sign.
template <class T>
HD_FN T shift_left(T x, T by) {
  const bool far = by < T(0) || static_cast<u64>(by) >= 8 * sizeof(T);
  return far ? T(0) : static_cast<T>(static_cast<u64>(x) << by);
}
template <class T>
HD_FN T shift_right(T x, T by) {
  const bool far = by < T(0) || static_cast<u64>(by) >= 8 * sizeof(T);
  return far ? (x < T(0) ? T(-1) : T(0)) : static_cast<T>(x >> by);
}

template <class To>
inline constexpr To kLowest = kIsSigned<To> ? static_cast<To>(Unsigned<To>(1) << (8 * sizeof(To) - 1)) : To(0);
template <class To>
inline constexpr To kHighest = static_cast<To>(static_cast<Unsigned<To>>(~static_cast<Unsigned<To>>(kLowest<To>)));

/// Conversion between compute types. Float to integer truncates and saturates, NaN gives 0; integers
/// wrap; anything nonzero is true.
template <class To, class From>
HD_FN To cast(From x) {
  if constexpr (kSame<To, From>) {
    return x;
  } else if constexpr (kSame<To, bool>) {
    return x != From(0);
  } else if constexpr (kIsFloat<From> && !kIsFloat<To>) {
    // Powers of two are exact in every float type, so the limits are tested without rounding.
    constexpr From kEnd = static_cast<From>(u64(1) << (8 * sizeof(To) - 1)) * (kIsSigned<To> ? 1 : 2);
    if (x != x) return To(0);
    if (x >= kEnd) return kHighest<To>;
    if (kIsSigned<To> ? x <= -kEnd : x <= From(0)) return kLowest<To>;
    return static_cast<To>(x);
  } else {
    return static_cast<To>(x);
  }
}

/// The same bits as another type of as many.
template <class To, class From>
HD_FN To bitcast(From x) {
  return __builtin_bit_cast(To, x);
}

template <class T>
HD_FN T select(bool condition, T then, T otherwise) {
  return condition ? then : otherwise;
}

}  // namespace hd

// What each scalar function means, on doubles and on integers.
#include <algorithm>
#include <cmath>
#include <iterator>

#include "ir/philox.h"
#include "ir/scalar.h"
#include "support/dtype.h"
#include "support/result.h"

namespace heddle::ir {
namespace {

using D = double;
using I = std::int64_t;
using U = std::uint64_t;

D min_nan(D a, D b) { return std::isnan(a) || std::isnan(b) ? a + b : std::min(a, b); }
D max_nan(D a, D b) { return std::isnan(a) || std::isnan(b) ? a + b : std::max(a, b); }
D floor_mod_double(D a, D b) {
  const D r = std::fmod(a, b);
  return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}
/// Bit patterns of doubles that hold integers.
I as_int(D v) { return v >= 9.2e18 || !(v > -9.2e18) ? 0 : static_cast<I>(v); }

I negated(I x) { return static_cast<I>(-static_cast<U>(x)); }
I wrapping_mul(I a, I b) { return static_cast<I>(static_cast<U>(a) * static_cast<U>(b)); }
I dot_of_halves(I x, I y) {
  const auto low = [](I v) { return static_cast<I>(static_cast<std::int16_t>(v)); };
  return low(x) * low(y) + low(x >> 16) * low(y >> 16);
}
I dot_of_bytes(I x, I y) {
  I sum = 0;
  for (int shift = 0; shift < 32; shift += 8)
    sum += static_cast<I>(static_cast<std::uint8_t>(x >> shift)) *
           static_cast<I>(static_cast<std::int8_t>(y >> shift));
  return sum;
}
I int_pow(I base, I exponent, bool is_unsigned) {
  if (exponent < 0 && !is_unsigned) return base == 1 ? 1 : base == -1 ? (exponent % 2 ? -1 : 1) : 0;
  I result = 1;
  for (U e = static_cast<U>(exponent); e != 0; e >>= 1) {
    if (e & 1) result = wrapping_mul(result, base);
    base = wrapping_mul(base, base);
  }
  return result;
}
I int_div(I a, I b, bool is_unsigned) {
  if (b == 0) return 0;
  if (is_unsigned) return static_cast<I>(static_cast<U>(a) / static_cast<U>(b));
  return b == -1 ? negated(a) : a / b;
}
I int_rem(I a, I b, bool is_unsigned) {
  if (b == 0 || (b == -1 && !is_unsigned)) return 0;
  if (is_unsigned) return static_cast<I>(static_cast<U>(a) % static_cast<U>(b));
  return a % b;
}
I int_floor_mod(I a, I b, bool is_unsigned) {
  const I r = int_rem(a, b, is_unsigned);
  return !is_unsigned && r != 0 && (r < 0) != (b < 0) ? r + b : r;
}
I shift(I a, I by, DType type, bool left) {
  const bool far = by < 0 || by >= (type == DType::b1 ? 1 : static_cast<I>(8 * size_of(type)));
  if (left) return far ? 0 : static_cast<I>(static_cast<U>(a) << by);
  if (!is_unsigned_int(type)) return far ? (a < 0 ? -1 : 0) : a >> by;
  return far ? 0 : static_cast<I>(static_cast<U>(a) >> by);
}
bool is_less(I a, I b, DType t) {
  return is_unsigned_int(t) ? static_cast<U>(a) < static_cast<U>(b) : a < b;
}

I same(I x, I, I, DType) { return x; }
I never(I, I, I, DType) { return 0; }

struct Meaning {
  ScalarFn fn;
  D (*real)(D x, D y, D z);
  I (*integer)(I x, I y, I z, DType type);  ///< null: none on integers
};

using enum ScalarFn;
constexpr Meaning kMeanings[] = {
    {neg, [](D x, D, D) { return -x; }, [](I x, I, I, DType t) { return wrap(negated(x), t); }},
    {abs, [](D x, D, D) { return std::fabs(x); },
     [](I x, I, I, DType t) { return is_unsigned_int(t) || x >= 0 ? x : wrap(negated(x), t); }},
    {exp, [](D x, D, D) { return std::exp(x); }, nullptr},
    {log, [](D x, D, D) { return std::log(x); }, nullptr},
    {sqrt, [](D x, D, D) { return std::sqrt(x); }, nullptr},
    {rsqrt, [](D x, D, D) { return 1 / std::sqrt(x); }, nullptr},
    {recip, [](D x, D, D) { return 1 / x; },
     [](I x, I, I, DType t) { return int_div(1, x, is_unsigned_int(t)); }},
    {sin, [](D x, D, D) { return std::sin(x); }, nullptr},
    {cos, [](D x, D, D) { return std::cos(x); }, nullptr},
    {tan, [](D x, D, D) { return std::tan(x); }, nullptr},
    {asin, [](D x, D, D) { return std::asin(x); }, nullptr},
    {acos, [](D x, D, D) { return std::acos(x); }, nullptr},
    {atan, [](D x, D, D) { return std::atan(x); }, nullptr},
    {sinh, [](D x, D, D) { return std::sinh(x); }, nullptr},
    {cosh, [](D x, D, D) { return std::cosh(x); }, nullptr},
    {tanh, [](D x, D, D) { return std::tanh(x); }, nullptr},
    {asinh, [](D x, D, D) { return std::asinh(x); }, nullptr},
    {acosh, [](D x, D, D) { return std::acosh(x); }, nullptr},
    {atanh, [](D x, D, D) { return std::atanh(x); }, nullptr},
    {erf, [](D x, D, D) { return std::erf(x); }, nullptr},
    {floor, [](D x, D, D) { return std::floor(x); }, same},
    {ceil, [](D x, D, D) { return std::ceil(x); }, same},
    {round, [](D x, D, D) { return std::nearbyint(x); }, same},
    {trunc, [](D x, D, D) { return std::trunc(x); }, same},
    {round_f16, [](D x, D, D) -> D { return f16_to_f32(f32_to_f16(static_cast<float>(x))); },
     nullptr},
    {round_bf16, [](D x, D, D) -> D { return bf16_to_f32(f32_to_bf16(static_cast<float>(x))); },
     nullptr},
    {sign, [](D x, D, D) -> D { return std::isnan(x) ? x : (x > 0) - (x < 0); },
     [](I x, I, I, DType t) -> I { return is_unsigned_int(t) ? x != 0 : (x > 0) - (x < 0); }},
    {logical_not, [](D x, D, D) -> D { return x == 0; },
     [](I x, I, I, DType) -> I { return x == 0; }},
    {bit_not, [](D x, D, D) { return static_cast<D>(~as_int(x)); },
     [](I x, I, I, DType t) { return t == DType::b1 ? static_cast<I>(x == 0) : wrap(~x, t); }},
    {isnan, [](D x, D, D) -> D { return std::isnan(x); }, never},
    {isinf, [](D x, D, D) -> D { return std::isinf(x); }, never},
    {cast, [](D x, D, D) { return x; }, [](I x, I, I, DType t) { return wrap(x, t); }},
    // Not an operation on numbers: who evaluates it has the bits.
    {bitcast, [](D x, D, D) { return x; }, [](I x, I, I, DType t) { return wrap(x, t); }},
    {add, [](D x, D y, D) { return x + y; },
     [](I x, I y, I, DType t) {
       return wrap(static_cast<I>(static_cast<U>(x) + static_cast<U>(y)), t);
     }},
    {sub, [](D x, D y, D) { return x - y; },
     [](I x, I y, I, DType t) {
       return wrap(static_cast<I>(static_cast<U>(x) - static_cast<U>(y)), t);
     }},
    {mul, [](D x, D y, D) { return x * y; },
     [](I x, I y, I, DType t) { return wrap(wrapping_mul(x, y), t); }},
    {div, [](D x, D y, D) { return x / y; },
     [](I x, I y, I, DType t) { return wrap(int_div(x, y, is_unsigned_int(t)), t); }},
    {fmod, [](D x, D y, D) { return std::fmod(x, y); },
     [](I x, I y, I, DType t) { return int_rem(x, y, is_unsigned_int(t)); }},
    {floor_mod, [](D x, D y, D) { return floor_mod_double(x, y); },
     [](I x, I y, I, DType t) { return int_floor_mod(x, y, is_unsigned_int(t)); }},
    {pow, [](D x, D y, D) { return std::pow(x, y); },
     [](I x, I y, I, DType t) { return wrap(int_pow(x, y, is_unsigned_int(t)), t); }},
    {min, [](D x, D y, D) { return min_nan(x, y); },
     [](I x, I y, I, DType t) { return is_less(x, y, t) ? x : y; }},
    {max, [](D x, D y, D) { return max_nan(x, y); },
     [](I x, I y, I, DType t) { return is_less(x, y, t) ? y : x; }},
    {atan2, [](D x, D y, D) { return std::atan2(x, y); }, nullptr},
    {logical_and, [](D x, D y, D) -> D { return x != 0 && y != 0; },
     [](I x, I y, I, DType) -> I { return x != 0 && y != 0; }},
    {logical_or, [](D x, D y, D) -> D { return x != 0 || y != 0; },
     [](I x, I y, I, DType) -> I { return x != 0 || y != 0; }},
    {logical_xor, [](D x, D y, D) -> D { return (x != 0) != (y != 0); },
     [](I x, I y, I, DType) -> I { return (x != 0) != (y != 0); }},
    {bit_and, [](D x, D y, D) { return static_cast<D>(as_int(x) & as_int(y)); },
     [](I x, I y, I, DType) { return x & y; }},
    {bit_or, [](D x, D y, D) { return static_cast<D>(as_int(x) | as_int(y)); },
     [](I x, I y, I, DType) { return x | y; }},
    {bit_xor, [](D x, D y, D) { return static_cast<D>(as_int(x) ^ as_int(y)); },
     [](I x, I y, I, DType) { return x ^ y; }},
    {shift_left,
     [](D x, D y, D) { return static_cast<D>(shift(as_int(x), as_int(y), DType::i64, true)); },
     [](I x, I y, I, DType t) { return wrap(shift(x, y, t, true), t); }},
    {shift_right,
     [](D x, D y, D) { return static_cast<D>(shift(as_int(x), as_int(y), DType::i64, false)); },
     [](I x, I y, I, DType t) { return wrap(shift(x, y, t, false), t); }},
    {equal, [](D x, D y, D) -> D { return x == y; },
     [](I x, I y, I, DType) -> I { return x == y; }},
    {not_equal, [](D x, D y, D) -> D { return x != y; },
     [](I x, I y, I, DType) -> I { return x != y; }},
    {less, [](D x, D y, D) -> D { return x < y; },
     [](I x, I y, I, DType t) -> I { return is_less(x, y, t); }},
    {less_equal, [](D x, D y, D) -> D { return x <= y; },
     [](I x, I y, I, DType t) -> I { return is_less(x, y, t) || x == y; }},
    {greater, [](D x, D y, D) -> D { return x > y; },
     [](I x, I y, I, DType t) -> I { return is_less(y, x, t); }},
    {greater_equal, [](D x, D y, D) -> D { return x >= y; },
     [](I x, I y, I, DType t) -> I { return !is_less(x, y, t); }},
    {dot2, [](D x, D y, D) { return static_cast<D>(dot_of_halves(as_int(x), as_int(y))); },
     [](I x, I y, I, DType t) { return wrap(dot_of_halves(x, y), t); }},
    {dot4, [](D x, D y, D) { return static_cast<D>(dot_of_bytes(as_int(x), as_int(y))); },
     [](I x, I y, I, DType t) { return wrap(dot_of_bytes(x, y), t); }},
    {random_bits, [](D x, D y, D) { return static_cast<D>(philox_bits(as_int(y), as_int(x))); },
     [](I x, I y, I, DType) -> I { return philox_bits(static_cast<U>(y), static_cast<U>(x)); }},
    {select, [](D x, D y, D z) { return x != 0 ? y : z; },
     [](I x, I y, I z, DType) { return x != 0 ? y : z; }},
};

constexpr bool in_order() {
  for (int i = 0; i < kScalarFnCount; ++i)
    if (kMeanings[i].fn != static_cast<ScalarFn>(i)) return false;
  return std::size(kMeanings) == kScalarFnCount;
}
static_assert(in_order());

/// The argument at position i, or 0.
template <class T>
T at(std::span<const T> args, std::size_t i) {
  return i < args.size() ? args[i] : 0;
}

}  // namespace

double apply(ScalarFn fn, std::span<const double> args) {
  return kMeanings[static_cast<int>(fn)].real(args[0], at(args, 1), at(args, 2));
}

std::int64_t apply_int(ScalarFn fn, std::span<const std::int64_t> args, DType type) {
  const auto meaning = kMeanings[static_cast<int>(fn)].integer;
  HEDDLE_CHECK(meaning != nullptr, "{} has no meaning on {}", info(fn).name, name_of(type));
  return meaning(args[0], at(args, 1), at(args, 2), type);
}

bool float_only(ScalarFn fn) { return kMeanings[static_cast<int>(fn)].integer == nullptr; }

}  // namespace heddle::ir

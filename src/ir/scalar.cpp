#include "ir/scalar.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>

#include "support/result.h"

namespace heddle::ir {

std::int64_t wrap(std::int64_t v, DType type) {
  switch (type) {
    case DType::i8:
      return static_cast<std::int8_t>(v);
    case DType::i16:
      return static_cast<std::int16_t>(v);
    case DType::i32:
      return static_cast<std::int32_t>(v);
    case DType::u8:
      return static_cast<std::uint8_t>(v);
    case DType::u16:
      return static_cast<std::uint16_t>(v);
    case DType::u32:
      return static_cast<std::uint32_t>(v);
    case DType::b1:
      return v != 0;
    case DType::i64:
    case DType::u64:
      return v;
    case DType::f32:
    case DType::f64:
    case DType::f16:
    case DType::bf16:
      break;
  }
  HEDDLE_CHECK(false, "integer arithmetic on {}", name_of(type));
}

namespace {

// Indexed by ScalarFn: name, arity, expensive, gives_bool, flops. The flops are vector instructions
// per element of a polynomial evaluation on AVX2 or AVX-512, to the nearest few.
constexpr ScalarFnInfo kInfo[] = {
    {"neg", 1, false, false, 1},          {"abs", 1, false, false, 1},
    {"exp", 1, true, false, 14},          {"log", 1, true, false, 20},
    {"sqrt", 1, false, false, 6},         {"rsqrt", 1, false, false, 8},
    {"recip", 1, false, false, 4},        {"sin", 1, true, false, 24},
    {"cos", 1, true, false, 24},          {"tan", 1, true, false, 40},
    {"asin", 1, true, false, 30},         {"acos", 1, true, false, 30},
    {"atan", 1, true, false, 30},         {"sinh", 1, true, false, 34},
    {"cosh", 1, true, false, 34},         {"tanh", 1, true, false, 20},
    {"asinh", 1, true, false, 40},        {"acosh", 1, true, false, 40},
    {"atanh", 1, true, false, 40},        {"erf", 1, true, false, 24},
    {"floor", 1, false, false, 1},        {"ceil", 1, false, false, 1},
    {"round", 1, false, false, 1},        {"trunc", 1, false, false, 1},
    {"sign", 1, false, false, 3},         {"logical_not", 1, false, true, 1},
    {"bit_not", 1, false, false, 1},      {"isnan", 1, false, true, 1},
    {"isinf", 1, false, true, 2},         {"cast", 1, false, false, 1},
    {"bitcast", 1, false, false, 1},      {"add", 2, false, false, 1},
    {"sub", 2, false, false, 1},          {"mul", 2, false, false, 1},
    {"div", 2, false, false, 4},          {"fmod", 2, true, false, 12},
    {"floor_mod", 2, true, false, 12},    {"pow", 2, true, false, 50},
    {"min", 2, false, false, 2},          {"max", 2, false, false, 2},
    {"atan2", 2, true, false, 40},        {"logical_and", 2, false, true, 1},
    {"logical_or", 2, false, true, 1},    {"logical_xor", 2, false, true, 1},
    {"bit_and", 2, false, false, 1},      {"bit_or", 2, false, false, 1},
    {"bit_xor", 2, false, false, 1},      {"shift_left", 2, false, false, 1},
    {"shift_right", 2, false, false, 1},  {"equal", 2, false, true, 1},
    {"not_equal", 2, false, true, 1},     {"less", 2, false, true, 1},
    {"less_equal", 2, false, true, 1},    {"greater", 2, false, true, 1},
    {"greater_equal", 2, false, true, 1}, {"select", 3, false, false, 1},
};
static_assert(std::size(kInfo) == kScalarFnCount);

constexpr std::string_view kMonoids[] = {"sum", "prod", "max",    "min",
                                         "any", "all",  "argmax", "argmin"};

double min_nan(double a, double b) {
  return std::isnan(a) || std::isnan(b) ? a + b : std::min(a, b);
}
double max_nan(double a, double b) {
  return std::isnan(a) || std::isnan(b) ? a + b : std::max(a, b);
}
double floor_mod_double(double a, double b) {
  const double r = std::fmod(a, b);
  return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}
/// Bit patterns of doubles that hold integers.
std::int64_t as_int(double v) {
  return v >= 9.2e18 || !(v > -9.2e18) ? 0 : static_cast<std::int64_t>(v);
}

int bits_of(DType t) { return t == DType::b1 ? 1 : static_cast<int>(8 * size_of(t)); }

using U = std::uint64_t;
std::int64_t wrapping_mul(std::int64_t a, std::int64_t b) {
  return static_cast<std::int64_t>(static_cast<U>(a) * static_cast<U>(b));
}
std::int64_t int_pow(std::int64_t base, std::int64_t exponent, bool is_unsigned) {
  if (exponent < 0 && !is_unsigned) return base == 1 ? 1 : base == -1 ? (exponent % 2 ? -1 : 1) : 0;
  std::int64_t result = 1;
  for (U e = static_cast<U>(exponent); e != 0; e >>= 1) {
    if (e & 1) result = wrapping_mul(result, base);
    base = wrapping_mul(base, base);
  }
  return result;
}
std::int64_t int_div(std::int64_t a, std::int64_t b, bool is_unsigned) {
  if (b == 0) return 0;
  if (is_unsigned) return static_cast<std::int64_t>(static_cast<U>(a) / static_cast<U>(b));
  return b == -1 ? static_cast<std::int64_t>(-static_cast<U>(a)) : a / b;
}
std::int64_t int_rem(std::int64_t a, std::int64_t b, bool is_unsigned) {
  if (b == 0 || (b == -1 && !is_unsigned)) return 0;
  if (is_unsigned) return static_cast<std::int64_t>(static_cast<U>(a) % static_cast<U>(b));
  return a % b;
}
std::int64_t shift(std::int64_t a, std::int64_t by, DType type, bool left) {
  const bool far = by < 0 || by >= bits_of(type);
  if (left) return far ? 0 : static_cast<std::int64_t>(static_cast<U>(a) << by);
  if (!is_unsigned_int(type)) return far ? (a < 0 ? -1 : 0) : a >> by;
  return far ? 0 : static_cast<std::int64_t>(static_cast<U>(a) >> by);
}

}  // namespace

const ScalarFnInfo& info(ScalarFn fn) { return kInfo[static_cast<int>(fn)]; }

std::optional<ScalarFn> scalar_fn_named(std::string_view name) {
  for (int i = 0; i < kScalarFnCount; ++i)
    if (kInfo[i].name == name) return static_cast<ScalarFn>(i);
  return std::nullopt;
}

double apply(ScalarFn fn, std::span<const double> args) {
  const double x = args[0], y = args.size() > 1 ? args[1] : 0;
  switch (fn) {
    case ScalarFn::neg:
      return -x;
    case ScalarFn::abs:
      return std::fabs(x);
    case ScalarFn::exp:
      return std::exp(x);
    case ScalarFn::log:
      return std::log(x);
    case ScalarFn::sqrt:
      return std::sqrt(x);
    case ScalarFn::rsqrt:
      return 1 / std::sqrt(x);
    case ScalarFn::recip:
      return 1 / x;
    case ScalarFn::sin:
      return std::sin(x);
    case ScalarFn::cos:
      return std::cos(x);
    case ScalarFn::tan:
      return std::tan(x);
    case ScalarFn::asin:
      return std::asin(x);
    case ScalarFn::acos:
      return std::acos(x);
    case ScalarFn::atan:
      return std::atan(x);
    case ScalarFn::sinh:
      return std::sinh(x);
    case ScalarFn::cosh:
      return std::cosh(x);
    case ScalarFn::tanh:
      return std::tanh(x);
    case ScalarFn::asinh:
      return std::asinh(x);
    case ScalarFn::acosh:
      return std::acosh(x);
    case ScalarFn::atanh:
      return std::atanh(x);
    case ScalarFn::erf:
      return std::erf(x);
    case ScalarFn::floor:
      return std::floor(x);
    case ScalarFn::ceil:
      return std::ceil(x);
    case ScalarFn::round:
      return std::nearbyint(x);
    case ScalarFn::trunc:
      return std::trunc(x);
    case ScalarFn::sign:
      return std::isnan(x) ? x : (x > 0) - (x < 0);
    case ScalarFn::logical_not:
      return x == 0;
    case ScalarFn::bit_not:
      return static_cast<double>(~as_int(x));
    case ScalarFn::isnan:
      return std::isnan(x);
    case ScalarFn::isinf:
      return std::isinf(x);
    case ScalarFn::cast:
    case ScalarFn::bitcast:  // not an operation on numbers: who evaluates it has the bits
      return x;
    case ScalarFn::add:
      return x + y;
    case ScalarFn::sub:
      return x - y;
    case ScalarFn::mul:
      return x * y;
    case ScalarFn::div:
      return x / y;
    case ScalarFn::fmod:
      return std::fmod(x, y);
    case ScalarFn::floor_mod:
      return floor_mod_double(x, y);
    case ScalarFn::pow:
      return std::pow(x, y);
    case ScalarFn::min:
      return min_nan(x, y);
    case ScalarFn::max:
      return max_nan(x, y);
    case ScalarFn::atan2:
      return std::atan2(x, y);
    case ScalarFn::logical_and:
      return x != 0 && y != 0;
    case ScalarFn::logical_or:
      return x != 0 || y != 0;
    case ScalarFn::logical_xor:
      return (x != 0) != (y != 0);
    case ScalarFn::bit_and:
      return static_cast<double>(as_int(x) & as_int(y));
    case ScalarFn::bit_or:
      return static_cast<double>(as_int(x) | as_int(y));
    case ScalarFn::bit_xor:
      return static_cast<double>(as_int(x) ^ as_int(y));
    case ScalarFn::shift_left:
      return static_cast<double>(shift(as_int(x), as_int(y), DType::i64, true));
    case ScalarFn::shift_right:
      return static_cast<double>(shift(as_int(x), as_int(y), DType::i64, false));
    case ScalarFn::equal:
      return x == y;
    case ScalarFn::not_equal:
      return x != y;
    case ScalarFn::less:
      return x < y;
    case ScalarFn::less_equal:
      return x <= y;
    case ScalarFn::greater:
      return x > y;
    case ScalarFn::greater_equal:
      return x >= y;
    case ScalarFn::select:
      return x != 0 ? y : args[2];
  }
  return 0;
}

std::int64_t apply_int(ScalarFn fn, std::span<const std::int64_t> args, DType type) {
  const std::int64_t x = args[0], y = args.size() > 1 ? args[1] : 0;
  const bool is_unsigned = is_unsigned_int(type);
  const bool less = is_unsigned ? static_cast<U>(x) < static_cast<U>(y) : x < y;
  switch (fn) {
    case ScalarFn::neg:
      return wrap(static_cast<std::int64_t>(-static_cast<U>(x)), type);
    case ScalarFn::abs:
      return is_unsigned || x >= 0 ? x : wrap(static_cast<std::int64_t>(-static_cast<U>(x)), type);
    case ScalarFn::floor:
    case ScalarFn::ceil:
    case ScalarFn::round:
    case ScalarFn::trunc:
      return x;
    case ScalarFn::cast:
    case ScalarFn::bitcast:
      return wrap(x, type);
    case ScalarFn::sign:
      return is_unsigned ? x != 0 : (x > 0) - (x < 0);
    case ScalarFn::logical_not:
      return x == 0;
    case ScalarFn::bit_not:
      return type == DType::b1 ? x == 0 : wrap(~x, type);
    case ScalarFn::isnan:
    case ScalarFn::isinf:
      return 0;
    case ScalarFn::recip:
      return int_div(1, x, is_unsigned);
    case ScalarFn::add:
      return wrap(static_cast<std::int64_t>(static_cast<U>(x) + static_cast<U>(y)), type);
    case ScalarFn::sub:
      return wrap(static_cast<std::int64_t>(static_cast<U>(x) - static_cast<U>(y)), type);
    case ScalarFn::mul:
      return wrap(wrapping_mul(x, y), type);
    case ScalarFn::div:
      return wrap(int_div(x, y, is_unsigned), type);
    case ScalarFn::fmod:
      return int_rem(x, y, is_unsigned);
    case ScalarFn::floor_mod: {
      const std::int64_t r = int_rem(x, y, is_unsigned);
      return !is_unsigned && r != 0 && (r < 0) != (y < 0) ? r + y : r;
    }
    case ScalarFn::pow:
      return wrap(int_pow(x, y, is_unsigned), type);
    case ScalarFn::min:
      return less ? x : y;
    case ScalarFn::max:
      return less ? y : x;
    case ScalarFn::logical_and:
      return x != 0 && y != 0;
    case ScalarFn::logical_or:
      return x != 0 || y != 0;
    case ScalarFn::logical_xor:
      return (x != 0) != (y != 0);
    case ScalarFn::bit_and:
      return x & y;
    case ScalarFn::bit_or:
      return x | y;
    case ScalarFn::bit_xor:
      return x ^ y;
    case ScalarFn::shift_left:
      return wrap(shift(x, y, type, true), type);
    case ScalarFn::shift_right:
      return wrap(shift(x, y, type, false), type);
    case ScalarFn::equal:
      return x == y;
    case ScalarFn::not_equal:
      return x != y;
    case ScalarFn::less:
      return less;
    case ScalarFn::less_equal:
      return less || x == y;
    case ScalarFn::greater:
      return !less && x != y;
    case ScalarFn::greater_equal:
      return !less;
    case ScalarFn::select:
      return x != 0 ? y : args[2];
    default:  // float_only
      break;
  }
  HEDDLE_CHECK(false, "{} has no meaning on {}", info(fn).name, name_of(type));
}

bool can_bitcast(DType from, DType to) {
  const auto whole = [](DType t) {
    return t != DType::f16 && t != DType::bf16 && t != DType::b1 && size_of(t) >= 4;
  };
  return whole(from) && whole(to) && size_of(from) == size_of(to);
}

bool float_only(ScalarFn fn) {
  switch (fn) {
    case ScalarFn::exp:
    case ScalarFn::log:
    case ScalarFn::sqrt:
    case ScalarFn::rsqrt:
    case ScalarFn::sin:
    case ScalarFn::cos:
    case ScalarFn::tan:
    case ScalarFn::asin:
    case ScalarFn::acos:
    case ScalarFn::atan:
    case ScalarFn::sinh:
    case ScalarFn::cosh:
    case ScalarFn::tanh:
    case ScalarFn::asinh:
    case ScalarFn::acosh:
    case ScalarFn::atanh:
    case ScalarFn::erf:
    case ScalarFn::atan2:
      return true;
    default:
      return false;
  }
}

std::string_view name_of(Monoid m) { return kMonoids[static_cast<int>(m)]; }

std::optional<Monoid> monoid_named(std::string_view name) {
  for (std::size_t i = 0; i < std::size(kMonoids); ++i)
    if (kMonoids[i] == name) return static_cast<Monoid>(i);
  return std::nullopt;
}

double identity(Monoid m, DType type) {
  if (!is_float(type)) {
    const std::int64_t v = identity_int(m, type);
    return type == DType::u64 ? static_cast<double>(static_cast<U>(v)) : static_cast<double>(v);
  }
  switch (m) {
    case Monoid::sum:
      return 0;
    case Monoid::prod:
      return 1;
    case Monoid::max:
    case Monoid::argmax:
      return -std::numeric_limits<double>::infinity();
    case Monoid::min:
    case Monoid::argmin:
      return std::numeric_limits<double>::infinity();
    case Monoid::any:
      return 0;
    case Monoid::all:
      return 1;
  }
  return 0;
}

std::int64_t identity_int(Monoid m, DType type) {
  const int bits = bits_of(type);
  const bool is_signed = is_signed_int(type);
  switch (m) {
    case Monoid::sum:
    case Monoid::any:
      return 0;
    case Monoid::prod:
    case Monoid::all:
      return 1;
    case Monoid::max:
    case Monoid::argmax:
      return is_signed ? static_cast<std::int64_t>(~U{0} << (bits - 1)) : 0;
    case Monoid::min:
    case Monoid::argmin:
      if (type == DType::b1) return 1;
      return static_cast<std::int64_t>(~U{0} >> (64 - bits + (is_signed ? 1 : 0)));
  }
  return 0;
}

ScalarFn combiner(Monoid m) {
  switch (m) {
    case Monoid::sum:
      return ScalarFn::add;
    case Monoid::prod:
      return ScalarFn::mul;
    case Monoid::max:
      return ScalarFn::max;
    case Monoid::min:
      return ScalarFn::min;
    case Monoid::any:
      return ScalarFn::logical_or;
    case Monoid::all:
      return ScalarFn::logical_and;
    case Monoid::argmax:
    case Monoid::argmin:
      break;
  }
  HEDDLE_CHECK(false, "{} has no scalar combiner", name_of(m));
}

}  // namespace heddle::ir

#include "ir/scalar.h"

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
    {"round_f16", 1, false, false, 2},    {"round_bf16", 1, false, false, 8},
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
    {"greater_equal", 2, false, true, 1}, {"dot2", 2, false, false, 2},
    {"dot4", 2, false, false, 2},         {"random_bits", 2, true, false, 40},
    {"select", 3, false, false, 1},
};
static_assert(std::size(kInfo) == kScalarFnCount);

constexpr std::string_view kMonoids[] = {"sum", "prod", "max",    "min",
                                         "any", "all",  "argmax", "argmin"};

int bits_of(DType t) { return t == DType::b1 ? 1 : static_cast<int>(8 * size_of(t)); }

using U = std::uint64_t;

}  // namespace

const ScalarFnInfo& info(ScalarFn fn) { return kInfo[static_cast<int>(fn)]; }

std::optional<ScalarFn> scalar_fn_named(std::string_view name) {
  for (int i = 0; i < kScalarFnCount; ++i)
    if (kInfo[i].name == name) return static_cast<ScalarFn>(i);
  return std::nullopt;
}

bool can_bitcast(DType from, DType to) {
  const auto whole = [](DType t) {
    return t != DType::f16 && t != DType::bf16 && t != DType::b1 && size_of(t) >= 4;
  };
  return whole(from) && whole(to) && size_of(from) == size_of(to);
}

std::optional<ScalarFn> rounding_to(DType type) {
  if (type == DType::f16) return ScalarFn::round_f16;
  if (type == DType::bf16) return ScalarFn::round_bf16;
  return std::nullopt;
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

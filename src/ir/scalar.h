#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "support/dtype.h"

namespace heddle::ir {

/// The closed list of scalar functions, shared by Map primitives and kernel expressions.
/// Semantics (docs/ir-semantics.md): integer arithmetic wraps; integer division truncates and
/// yields 0 for a zero divisor; round goes to even; shifts by the width or more give 0 (or the
/// sign); float→integer casts truncate and saturate, NaN gives 0; bitcast keeps the bits; min and
/// max propagate NaN; comparisons and logic give b1.
enum class ScalarFn : std::uint8_t {
  // unary
  neg,
  abs,
  exp,
  log,
  sqrt,
  rsqrt,
  recip,
  sin,
  cos,
  tan,
  asin,
  acos,
  atan,
  sinh,
  cosh,
  tanh,
  asinh,
  acosh,
  atanh,
  erf,
  floor,
  ceil,
  round,
  trunc,
  round_f16,   // to what an f16 holds, without becoming one: half to even, infinite from 65520
  round_bf16,  // to what a bf16 holds
  sign,
  logical_not,
  bit_not,
  isnan,
  isinf,
  cast,
  bitcast,
  // binary
  add,
  sub,
  mul,
  div,
  fmod,
  floor_mod,
  pow,
  min,
  max,
  atan2,
  logical_and,
  logical_or,
  logical_xor,
  bit_and,
  bit_or,
  bit_xor,
  shift_left,
  shift_right,
  equal,
  not_equal,
  less,
  less_equal,
  greater,
  greater_equal,
  dot2,         // i32 of two i16 halves each: low·low + high·high
  dot4,         // i32 of four bytes each: Σ x's, unsigned, by y's, signed
  random_bits,  // i64: 24 bits of number x of the Philox stream with key y
  // ternary: select(condition, a, b)
  select,
};
constexpr int kScalarFnCount = static_cast<int>(ScalarFn::select) + 1;

struct ScalarFnInfo {
  std::string_view name;
  int arity;
  bool expensive;   ///< worth storing rather than recomputing (exp, erf, div is not)
  bool gives_bool;  ///< result is b1 whatever the arguments
  double flops;     ///< cost model: vector operations per element, roughly
};
const ScalarFnInfo& info(ScalarFn fn);
std::optional<ScalarFn> scalar_fn_named(std::string_view name);

/// True if a value of `from` may be read as one of `to` of the same bits: f32, i32, u32 or f64,
/// i64, u64. Narrower types are computed in wider ones, so their bits are not at hand.
bool can_bitcast(DType from, DType to);
/// The function that rounds as storing in `type` does; nullopt where storing rounds nothing.
std::optional<ScalarFn> rounding_to(DType type);
/// True if the function has no meaning on integers (exp, sqrt, …).
bool float_only(ScalarFn fn);

/// The reference meaning on doubles, for floating types (double arithmetic) and b1 results.
double apply(ScalarFn fn, std::span<const double> args);
/// The value that a `type` holds after storing the low bits of v; u64 keeps its bit pattern.
std::int64_t wrap(std::int64_t v, DType type);
/// The reference meaning on integers of type `type` (wraps to the width of the type).
std::int64_t apply_int(ScalarFn fn, std::span<const std::int64_t> args, DType type);

/// An associative reduction with identity. argmin/argmax give the first index (i64) of the extreme.
enum class Monoid : std::uint8_t { sum, prod, max, min, any, all, argmax, argmin };
std::string_view name_of(Monoid m);
std::optional<Monoid> monoid_named(std::string_view name);
/// Identity for `type`: -inf or the lowest integer for max, 0 for sum, …
double identity(Monoid m, DType type);
std::int64_t identity_int(Monoid m, DType type);
/// The binary function that combines two values; not for argmax/argmin.
ScalarFn combiner(Monoid m);

}  // namespace heddle::ir

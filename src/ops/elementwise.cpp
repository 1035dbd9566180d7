#include "ops/families.h"
#include "ops/host.h"
#include "ops/util.h"

/// Operators that compute each element from the elements at the same (broadcast) place.
namespace heddle::ops {
namespace {

using ir::ScalarFn;

/// Aligns b with a as opsets before 7 did: `broadcast` = 1 and an axis at which b's shape starts.
Result<NodeId> legacy_aligned(const Call& call, Builder& b, NodeId a, NodeId x) {
  if (call.opset >= 7 || call.attribute_int("broadcast", 0) == 0) return x;
  const int rank = b.rank(a), own = b.rank(x);
  const std::int64_t axis = call.attribute_int("axis", rank - own);
  if (axis < 0 || axis > rank - own)
    return call.error("axis is {}, input 1 has rank {}, input 0 rank {}", axis, own, rank);
  Shape shape = b.shape(x);
  shape.resize(static_cast<std::size_t>(rank - axis), 1);
  return b.reshape(x, shape);
}

Status want_broadcast(const Call& call, Builder& b, const std::vector<NodeId>& args) {
  Shape shape = b.shape(args[0]);
  for (std::size_t i = 1; i < args.size(); ++i) {
    const auto both = broadcast_shapes(shape, b.shape(args[i]));
    if (!both)
      return call.error("input {} has shape {}, which does not broadcast with {}", i,
                        to_string(b.shape(args[i])), to_string(shape));
    shape = *both;
  }
  if (!checked_element_count(shape, b.dtype(args[0])))
    return call.error("the result would have shape {}", to_string(shape));
  return Ok{};
}

Status want_same_type(const Call& call, Builder& b, const std::vector<NodeId>& args) {
  for (std::size_t i = 1; i < args.size(); ++i)
    if (b.dtype(args[i]) != b.dtype(args[0]))
      return call.error("input {} is {}, want {} like input 0", i, name_of(b.dtype(args[i])),
                        name_of(b.dtype(args[0])));
  return Ok{};
}

enum class Domain { number, floating, integer, boolean, any };
Status want_domain(const Call& call, Builder& b, NodeId x, Domain domain) {
  const DType t = b.dtype(x);
  const bool fits = domain == Domain::any || (domain == Domain::number && t != DType::b1) ||
                    (domain == Domain::floating && is_float(t)) ||
                    (domain == Domain::integer && is_int(t)) ||
                    (domain == Domain::boolean && t == DType::b1);
  if (!fits) return call.error("found element type {}", name_of(t));
  return Ok{};
}

template <ScalarFn fn, Domain domain>
Result<Values> unary(const Call& call, Builder& b) {
  HEDDLE_TRY(want_domain(call, b, call.in(0), domain));
  return Values{b.map(fn, {call.in(0)})};
}

template <ScalarFn fn, Domain domain>
Result<Values> binary(const Call& call, Builder& b) {
  const NodeId x = call.in(0);
  const NodeId y = HEDDLE_TRY(legacy_aligned(call, b, x, call.in(1)));
  HEDDLE_TRY(want_same_type(call, b, {x, y}));
  HEDDLE_TRY(want_domain(call, b, x, domain));
  HEDDLE_TRY(want_broadcast(call, b, {x, y}));
  return Values{b.map(fn, {x, y})};
}

template <ScalarFn fn>
Result<Values> variadic(const Call& call, Builder& b) {
  std::vector<NodeId> args;
  for (std::size_t i = 0; i < call.args.size(); ++i) {
    if (!call.has(static_cast<int>(i))) return call.error("input {} is missing", i);
    args.push_back(call.in(static_cast<int>(i)));
  }
  HEDDLE_TRY(want_same_type(call, b, args));
  HEDDLE_TRY(want_broadcast(call, b, args));
  HEDDLE_TRY(want_domain(call, b, args[0], Domain::number));
  NodeId sum = args[0];
  for (std::size_t i = 1; i < args.size(); ++i) sum = b.map(fn, {sum, args[i]});
  return Values{sum};
}

Result<Values> mean(const Call& call, Builder& b) {
  const Values sum = HEDDLE_TRY(variadic<ScalarFn::add>(call, b));
  HEDDLE_TRY(want_domain(call, b, sum[0], Domain::floating));
  return Values{b.div(sum[0], static_cast<double>(call.args.size()))};
}

/// The exponent may have another type than the base; the result has the base's.
Result<Values> pow(const Call& call, Builder& b) {
  const NodeId x = call.in(0);
  NodeId y = HEDDLE_TRY(legacy_aligned(call, b, x, call.in(1)));
  HEDDLE_TRY(want_broadcast(call, b, {x, y}));
  HEDDLE_TRY(want_domain(call, b, x, Domain::number));
  HEDDLE_TRY(want_domain(call, b, y, Domain::number));
  // An integer base with a real exponent is computed in f64 and truncated.
  if (is_int(b.dtype(x)) && is_float(b.dtype(y)))
    return Values{
        b.cast(b.map(ScalarFn::pow, {b.cast(x, DType::f64), b.cast(y, DType::f64)}), b.dtype(x))};
  return Values{b.map(ScalarFn::pow, {x, b.cast(y, b.dtype(x))})};
}

/// fmod=1: the sign of the dividend; else (integers) the sign of the divisor.
Result<Values> mod(const Call& call, Builder& b) {
  const bool fmod = call.attribute_int("fmod", 0) != 0;
  if (!fmod && is_float(b.dtype(call.in(0)))) return call.error("floating operands want fmod = 1");
  return fmod ? binary<ScalarFn::fmod, Domain::number>(call, b)
              : binary<ScalarFn::floor_mod, Domain::number>(call, b);
}

Result<Values> shift(const Call& call, Builder& b) {
  const int left = HEDDLE_TRY(choice(call, "direction", "", {"RIGHT", "LEFT"}));
  return left ? binary<ScalarFn::shift_left, Domain::integer>(call, b)
              : binary<ScalarFn::shift_right, Domain::integer>(call, b);
}

/// Strings are equal when their numbers are.
Result<Values> equal(const Call& call, Builder& b) {
  for (int i = 0; i < 2; ++i)
    if (call.format(i) != Format::plain && call.format(i) != Format::text)
      return call.unsupported("input {} is {}, which only stores", i, name_of(call.format(i)));
  if (call.format(0) != call.format(1)) return call.error("found a string and a number");
  return binary<ScalarFn::equal, Domain::any>(call, b);
}

Result<Values> where(const Call& call, Builder& b) {
  if (call.format(1) != call.format(2)) return call.error("inputs 1 and 2 differ in type");
  call.result_format = call.format(1);
  HEDDLE_TRY(want_type(call, b, 0, DType::b1));
  HEDDLE_TRY(want_same_type(call, b, {call.in(1), call.in(2)}));
  HEDDLE_TRY(want_broadcast(call, b, {call.in(1), call.in(2), call.in(0)}));
  return Values{b.select(call.in(0), call.in(1), call.in(2))};
}

/// Rounded wherever the result lies: a cast to a storage type alone rounds where it is stored.
NodeId rounded(Builder& b, NodeId x, DType type) {
  const DType from = b.dtype(x);
  const auto rounding = ir::rounding_to(type);
  if (!rounding || from == type || size_of(from) == 1) return b.cast(x, type);
  return b.cast(b.map(*rounding, {b.cast(x, DType::f32)}), type);
}

/// Input 0 as numbers of `type`, or in a format that only stores.
Result<Values> converted(const Call& call, Builder& b, Format format, DType type) {
  const Format from = call.format(0);
  const NodeId x = from == Format::plain
                       ? call.in(0)
                       : decode(b, call.in(0), from, format != Format::plain ? DType::f32 : type);
  call.result_format = format;
  if (format == Format::plain) return Values{rounded(b, x, type)};
  using Round = Encoding::Round;
  const Round rounds[] = {Round::up, Round::down, Round::nearest};
  const int round = HEDDLE_TRY(choice(call, "round_mode", "up", {"up", "down", "nearest"}));
  return Values{encode(b, x, format, {call.attribute_int("saturate", 1) != 0, rounds[round]})};
}

Result<Values> cast(const Call& call, Builder& b) {
  // Before opset 6 the type was given by name.
  const auto to = call.attributes.find("to");
  if (to != call.attributes.end() && std::holds_alternative<std::string>(to->second)) {
    const std::string& name = std::get<std::string>(to->second);
    constexpr std::pair<std::string_view, DType> kNames[] = {
        {"FLOAT", DType::f32},  {"DOUBLE", DType::f64}, {"FLOAT16", DType::f16},
        {"INT8", DType::i8},    {"INT16", DType::i16},  {"INT32", DType::i32},
        {"INT64", DType::i64},  {"UINT8", DType::u8},   {"UINT16", DType::u16},
        {"UINT32", DType::u32}, {"UINT64", DType::u64}, {"BOOL", DType::b1}};
    for (const auto& [text, type] : kNames)
      if (text == name) return Values{rounded(b, call.in(0), type)};
    return call.unsupported("cannot cast to '{}'", name);
  }
  const std::int64_t number = call.attribute_int("to", 0);
  const Format format = format_of_onnx(number);
  return converted(
      call, b, format,
      format == Format::plain ? HEDDLE_TRY(dtype_of_onnx(call, number)) : carrier_of(format));
}

Result<Values> cast_like(const Call& call, Builder& b) {
  return converted(call, b, call.format(1), b.dtype(call.in(1)));
}

/// The same bits as another type of their width. Narrow types are computed in wider ones, so their
/// bits are made and read by arithmetic.
Result<Values> bit_cast(const Call& call, Builder& b) {
  const NodeId x = call.in(0);
  const DType from = b.dtype(x), to = HEDDLE_TRY(dtype_of_onnx(call, call.attribute_int("to", 0)));
  if (size_of(from) != size_of(to))
    return call.error("{} and {} differ in width", name_of(from), name_of(to));
  if (from == to || ir::can_bitcast(from, to)) return Values{b.bitcast(x, to)};
  if (!is_float(from) && !is_float(to)) return Values{b.cast(x, to)};
  return call.unsupported("the bits of {} as {}", name_of(from), name_of(to));
}

Result<Values> clamped(const Call& call, Builder& b, std::optional<NodeId> low,
                       std::optional<NodeId> high) {
  NodeId x = call.in(0);
  HEDDLE_TRY(want_domain(call, b, x, Domain::number));
  for (const auto& bound : {low, high}) {
    if (!bound) continue;
    if (element_count(b.shape(*bound)) != 1 || b.dtype(*bound) != b.dtype(x))
      return call.error("a bound is {}, want one {}", to_string(b.type(*bound)),
                        name_of(b.dtype(x)));
  }
  if (low) x = b.max(x, b.reshape(*low, {}));
  if (high) x = b.min(x, b.reshape(*high, {}));
  return Values{x};
}

Result<Values> clip(const Call& call, Builder& b) {
  return clamped(call, b, call.has(1) ? std::optional(call.in(1)) : std::nullopt,
                 call.has(2) ? std::optional(call.in(2)) : std::nullopt);
}

/// Before opset 11 the bounds were attributes.
Result<Values> clip_attributes(const Call& call, Builder& b) {
  const DType type = b.dtype(call.in(0));
  std::optional<NodeId> low, high;
  if (call.has_attribute("min")) low = b.scalar(type, call.attribute_float("min", 0));
  if (call.has_attribute("max")) high = b.scalar(type, call.attribute_float("max", 0));
  return clamped(call, b, low, high);
}

/// What has a 16-bit type counts as infinite from where storing it rounds to infinity.
NodeId is_infinite(Builder& b, NodeId x) {
  const DType type = b.dtype(x);
  if (!ir::rounding_to(type)) return b.map(ScalarFn::isinf, {x});
  const NodeId limit = b.scalar(DType::f32, type == DType::f16 ? 65520 : 0x1.ffp127);
  return b.map(ScalarFn::greater_equal, {b.map(ScalarFn::abs, {b.cast(x, DType::f32)}), limit});
}

Result<Values> is_inf(const Call& call, Builder& b) {
  const NodeId x = call.in(0);
  HEDDLE_TRY(want_domain(call, b, x, Domain::floating));
  const bool negative = call.attribute_int("detect_negative", 1) != 0,
             positive = call.attribute_int("detect_positive", 1) != 0;
  const NodeId inf = is_infinite(b, x);
  const NodeId zero = b.scalar(b.dtype(x), 0);
  if (negative && positive) return Values{inf};
  if (!negative && !positive) return Values{b.full({DType::b1, b.shape(x)}, 0)};
  return Values{b.map(ScalarFn::logical_and,
                      {inf, b.map(negative ? ScalarFn::less : ScalarFn::greater, {x, zero})})};
}

Result<Values> reciprocal(const Call& call, Builder& b) {
  HEDDLE_TRY(want_domain(call, b, call.in(0), Domain::floating));
  return Values{b.div(b.scalar(b.dtype(call.in(0)), 1), call.in(0))};
}

using enum Domain;
/// alpha·x + beta
Result<Values> affine(const Call& call, Builder& b) {
  HEDDLE_TRY(want_float(call, b, 0));
  const NodeId scaled = b.mul(call.in(0), call.attribute_float("alpha", 1));
  return Values{b.add(scaled, call.attribute_float("beta", 0))};
}
Result<Values> scale(const Call& call, Builder& b) {
  HEDDLE_TRY(want_float(call, b, 0));
  return Values{b.mul(call.in(0), call.attribute_float("scale", 1))};
}

constexpr OpDef kElementwiseOps[] = {
    {"Affine", 1, 1, 1, affine},
    {"Scale", 1, 1, 1, scale},
    {"Abs", 1, 1, 1, unary<ScalarFn::abs, number>},
    {"Neg", 1, 1, 1, unary<ScalarFn::neg, number>},
    {"Exp", 1, 1, 1, unary<ScalarFn::exp, floating>},
    {"Log", 1, 1, 1, unary<ScalarFn::log, floating>},
    {"Sqrt", 1, 1, 1, unary<ScalarFn::sqrt, floating>},
    {"Reciprocal", 1, 1, 1, reciprocal},
    {"Sin", 1, 1, 1, unary<ScalarFn::sin, floating>},
    {"Cos", 1, 1, 1, unary<ScalarFn::cos, floating>},
    {"Tan", 1, 1, 1, unary<ScalarFn::tan, floating>},
    {"Asin", 1, 1, 1, unary<ScalarFn::asin, floating>},
    {"Acos", 1, 1, 1, unary<ScalarFn::acos, floating>},
    {"Atan", 1, 1, 1, unary<ScalarFn::atan, floating>},
    {"Sinh", 1, 1, 1, unary<ScalarFn::sinh, floating>},
    {"Cosh", 1, 1, 1, unary<ScalarFn::cosh, floating>},
    {"Asinh", 1, 1, 1, unary<ScalarFn::asinh, floating>},
    {"Acosh", 1, 1, 1, unary<ScalarFn::acosh, floating>},
    {"Atanh", 1, 1, 1, unary<ScalarFn::atanh, floating>},
    {"Tanh", 1, 1, 1, unary<ScalarFn::tanh, floating>},
    {"Erf", 1, 1, 1, unary<ScalarFn::erf, floating>},
    {"Floor", 1, 1, 1, unary<ScalarFn::floor, floating>},
    {"Ceil", 1, 1, 1, unary<ScalarFn::ceil, floating>},
    {"Round", 1, 1, 1, unary<ScalarFn::round, floating>},
    {"Sign", 1, 1, 1, unary<ScalarFn::sign, number>},
    {"Not", 1, 1, 1, unary<ScalarFn::logical_not, boolean>},
    {"BitwiseNot", 1, 1, 1, unary<ScalarFn::bit_not, integer>},
    {"IsNaN", 1, 1, 1, unary<ScalarFn::isnan, floating>},
    {"IsInf", 1, 1, 1, is_inf},
    {"Add", 1, 2, 2, binary<ScalarFn::add, number>},
    {"Sub", 1, 2, 2, binary<ScalarFn::sub, number>},
    {"Mul", 1, 2, 2, binary<ScalarFn::mul, number>},
    {"Div", 1, 2, 2, binary<ScalarFn::div, number>},
    {"Pow", 1, 2, 2, pow},
    {"Mod", 10, 2, 2, mod},
    {"And", 1, 2, 2, binary<ScalarFn::logical_and, boolean>},
    {"Or", 1, 2, 2, binary<ScalarFn::logical_or, boolean>},
    {"Xor", 1, 2, 2, binary<ScalarFn::logical_xor, boolean>},
    {"BitwiseAnd", 1, 2, 2, binary<ScalarFn::bit_and, integer>},
    {"BitwiseOr", 1, 2, 2, binary<ScalarFn::bit_or, integer>},
    {"BitwiseXor", 1, 2, 2, binary<ScalarFn::bit_xor, integer>},
    {"BitShift", 1, 2, 2, shift},
    {"Equal", 1, 2, 2, equal, OpDef::Stored::knows},
    {"Less", 1, 2, 2, binary<ScalarFn::less, number>},
    {"LessOrEqual", 1, 2, 2, binary<ScalarFn::less_equal, number>},
    {"Greater", 1, 2, 2, binary<ScalarFn::greater, number>},
    {"GreaterOrEqual", 1, 2, 2, binary<ScalarFn::greater_equal, number>},
    {"Sum", 1, 1, -1, variadic<ScalarFn::add>},
    {"Max", 1, 1, -1, variadic<ScalarFn::max>},
    {"Min", 1, 1, -1, variadic<ScalarFn::min>},
    {"Mean", 1, 1, -1, mean},
    {"Where", 1, 3, 3, where, OpDef::Stored::knows},
    {"Cast", 1, 1, 1, cast, OpDef::Stored::knows, cast_text},
    {"CastLike", 1, 2, 2, cast_like, OpDef::Stored::knows, cast_text},
    {"BitCast", 26, 1, 1, bit_cast},
    {"Clip", 1, 1, 1, clip_attributes},
    {"Clip", 11, 1, 3, clip},
};

}  // namespace

std::span<const OpDef> elementwise_ops() { return kElementwiseOps; }

}  // namespace heddle::ops

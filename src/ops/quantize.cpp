#include <algorithm>
#include <limits>

#include "ops/families.h"
#include "ops/quantize.h"
#include "ops/window.h"

/// Quantisation and products of quantised integers.
namespace heddle::ops {
namespace {

using ir::ScalarFn;

/// A scale or zero point against x: a scalar, a vector along `axis`, or blocks of `block` along it.
Result<NodeId> aligned(const Call& call, Builder& b, NodeId v, NodeId x, int axis,
                       std::int64_t block) {
  const Shape shape = b.shape(v);
  const Shape like = b.shape(x);
  if (element_count(shape) == 1) return b.broadcast(b.reshape(v, {}), like);
  if (block > 0) {
    if (shape.size() != like.size() || at(shape, axis) * block < at(like, axis))
      return call.error("blocks of {} along axis {}: found shape {} for {}", block, axis,
                        to_string(shape), to_string(like));
    for (int d = 0; d < static_cast<int>(like.size()); ++d)
      if (d != axis && at(shape, d) != at(like, d))
        return call.error("found shape {} for {}", to_string(shape), to_string(like));
    prim::Access access{dims(static_cast<int>(like.size())), {}};
    access.index[static_cast<std::size_t>(axis)] = ir::floor_div(dim(axis), block);
    return b.view(v, like, access);
  }
  if (shape.size() != 1 || axis >= static_cast<int>(like.size()) || shape[0] != at(like, axis))
    return call.error("found shape {} along axis {} of {}", to_string(shape), axis,
                      to_string(like));
  Shape along(like.size(), 1);
  along[static_cast<std::size_t>(axis)] = shape[0];
  return b.broadcast(b.reshape(v, along), like);
}

struct Axis {
  int axis = 0;
  std::int64_t block = 0;
};
Result<Axis> axis_of(const Call& call, Builder& b) {
  const int rank = b.rank(call.in(0));
  const std::int64_t given = call.attribute_int("axis", 1);
  const bool per_tensor = element_count(b.shape(call.in(1))) == 1;
  return Axis{per_tensor ? 0 : HEDDLE_TRY(call.normalize_axis(given, rank)),
              std::clamp<std::int64_t>(call.attribute_int("block_size", 0), 0, kMaxTableElements)};
}

struct Limits {
  double low, high;
};
Limits limits_of(DType type) {
  if (type == DType::i8) return {-128, 127};
  if (type == DType::u8) return {0, 255};
  return type == DType::i16 ? Limits{-32768, 32767} : Limits{0, 65535};
}

NodeId saturated(Builder& b, NodeId x, DType type, const Limits& limits) {
  const auto [low, high] = limits;
  return b.cast(b.min(b.max(x, b.scalar(b.dtype(x), low)), b.scalar(b.dtype(x), high)), type);
}
NodeId saturated(Builder& b, NodeId x, DType type) {
  return saturated(b, x, type, limits_of(type));
}

/// limit - zero point, a constant at once where that is one: passes see the bounds of what is cast.
NodeId limit_less_zero(const Call& call, Builder& b, double limit, DType real) {
  const Tensor* zero = b.graph().constant_of(call.in(2));
  if (zero == nullptr) return b.sub(b.scalar(real, limit), b.cast(call.in(2), real));
  Tensor out({real, zero->shape()});
  for (std::int64_t i = 0; i < out.count(); ++i)
    out.set(i, limit - static_cast<double>(zero->int_at(i)));
  return b.constant(out);
}

/// saturate(round(x) + zero_point), where the bounds come first: what the zero point is taken from
/// again, as it is by the next dequantisation, then never had it added.
Result<NodeId> with_zero(const Call& call, Builder& b, NodeId x, DType type, const Limits& limits,
                         const Axis& axis) {
  const DType real = b.dtype(x);
  const auto spread = [&](NodeId v) {
    return aligned(call, b, v, call.in(0), axis.axis, axis.block);
  };
  x = b.max(x, HEDDLE_TRY(spread(limit_less_zero(call, b, limits.low, real))));
  x = b.min(x, HEDDLE_TRY(spread(limit_less_zero(call, b, limits.high, real))));
  const NodeId zero = HEDDLE_TRY(spread(b.cast(call.in(2), DType::i32)));
  return b.cast(b.add(b.cast(x, DType::i32), zero), type);
}

/// saturate(round(x / scale) + zero_point); formats of floats round by themselves and have no zero
/// point.
Result<Values> quantize(const Call& call, Builder& b) {
  const NodeId x = call.in(0);
  HEDDLE_TRY(want_number(call, b, 0));
  const Axis axis = HEDDLE_TRY(axis_of(call, b));
  const std::int64_t number = call.attribute_int("output_dtype", 0);
  Format format = call.has(2) ? call.format(2) : format_of_onnx(number);
  DType type = DType::u8;
  if (format != Format::plain)
    type = carrier_of(format);
  else if (call.has(2) || number != 0)
    type = call.has(2) ? b.dtype(call.in(2)) : HEDDLE_TRY(dtype_of_onnx(call, number));
  if (type != DType::i8 && type != DType::u8 && type != DType::i16 && type != DType::u16)
    return call.unsupported("cannot quantise to {}", name_of(type));
  call.result_format = format;
  DType real = is_float(b.dtype(x)) ? compute_type(b.dtype(x)) : DType::f32;
  if (call.attribute_int("precision", 0) != 0)
    real = compute_type(HEDDLE_TRY(attribute_dtype(call, "precision", real)));
  const NodeId scale =
      HEDDLE_TRY(aligned(call, b, b.cast(call.in(1), real), x, axis.axis, axis.block));
  NodeId y = b.div(b.cast(x, real), scale);
  const auto range = int_range(format);
  if (format == Format::f4e2m1 && call.has(2))  // adding it makes minus zero zero
    y = b.select(b.map(ir::ScalarFn::equal, {y, b.scalar(real, 0)}), b.scalar(real, 0), y);
  if (format != Format::plain && !range)
    return Values{encode(b, y, format, {.saturate = call.attribute_int("saturate", 1) != 0})};
  y = b.map(ScalarFn::round, {y});
  Limits limits = limits_of(type);
  if (range) limits = {static_cast<double>(range->low), static_cast<double>(range->high)};
  if (call.has(2)) return Values{HEDDLE_TRY(with_zero(call, b, y, type, limits, axis))};
  return Values{saturated(b, y, type, limits)};
}

/// (x - zero_point)·scale; formats of floats have no zero point but 0.
Result<Values> dequantize(const Call& call, Builder& b) {
  const NodeId x = call.in(0);
  HEDDLE_TRY(want_int(call, b, 0));
  HEDDLE_TRY(want_float(call, b, 1));
  const Axis axis = HEDDLE_TRY(axis_of(call, b));
  const DType out = HEDDLE_TRY(attribute_dtype(call, "output_dtype", b.dtype(call.in(1))));
  if (!is_float(out)) return call.error("output_dtype is {}", name_of(out));
  const DType real = compute_type(out);
  if (call.format(0) == Format::text) return call.error("input 0 is a string");
  const bool floats = call.format(0) != Format::plain && !int_range(call.format(0));
  NodeId y = floats ? decode(b, x, call.format(0), real) : b.cast(x, DType::i32);
  if (call.has(2) && !floats)
    y = b.sub(
        y, HEDDLE_TRY(aligned(call, b, b.cast(call.in(2), DType::i32), x, axis.axis, axis.block)));
  const NodeId scale =
      HEDDLE_TRY(aligned(call, b, b.cast(call.in(1), real), x, axis.axis, axis.block));
  return Values{b.cast(b.mul(b.cast(y, real), scale), out)};
}

/// scale = (max(x, 0) - min(x, 0)) / 255, zero_point = saturate(round(-min / scale))
Result<Values> dynamic_quantize(const Call& call, Builder& b) {
  HEDDLE_TRY(want_type(call, b, 0, DType::f32));
  const NodeId x = call.in(0);
  const auto [scale, zero] = dynamic_scale(b, x);
  const NodeId y = b.add(b.map(ScalarFn::round, {b.div(x, scale)}), zero);
  return Values{saturated(b, y, DType::u8), scale, b.cast(zero, DType::u8)};
}

/// An integer operand less its zero point, in i32; per row (axis) where the zero point is a vector.
Result<NodeId> centred(const Call& call, Builder& b, int value, int zero, int axis) {
  const NodeId x = b.cast(call.in(value), DType::i32);
  if (!call.has(zero)) return x;
  return b.sub(
      x, HEDDLE_TRY(aligned(call, b, b.cast(call.in(zero), DType::i32), call.in(value), axis, 0)));
}

Status want_inner(const Call& call, Builder& b, NodeId x, NodeId y) {
  const Shape &s = b.shape(x), &t = b.shape(y);
  if (s.size() < 2 || t.size() < 2 || s.back() != t[t.size() - 2] ||
      !broadcast_shapes({s.begin(), s.end() - 2}, {t.begin(), t.end() - 2}))
    return call.error("shapes {} and {} do not multiply", to_string(s), to_string(t));
  return Ok{};
}

Result<Values> matmul_integer(const Call& call, Builder& b) {
  HEDDLE_TRY(want_int(call, b, 0));
  HEDDLE_TRY(want_int(call, b, 1));
  HEDDLE_TRY(want_inner(call, b, call.in(0), call.in(1)));
  const NodeId x = HEDDLE_TRY(centred(call, b, 0, 2, b.rank(call.in(0)) - 2));
  const NodeId y = HEDDLE_TRY(centred(call, b, 1, 3, b.rank(call.in(1)) - 1));
  return Values{b.matmul(x, y)};
}

Result<Values> qlinear_matmul(const Call& call, Builder& b) {
  HEDDLE_TRY(want_int(call, b, 0));
  HEDDLE_TRY(want_int(call, b, 3));
  HEDDLE_TRY(want_inner(call, b, call.in(0), call.in(3)));
  const NodeId x = HEDDLE_TRY(centred(call, b, 0, 2, b.rank(call.in(0)) - 2));
  const NodeId y = HEDDLE_TRY(centred(call, b, 3, 5, b.rank(call.in(3)) - 1));
  const NodeId product = b.matmul(x, y);
  // One for all, or one for each row of the first and of what is made, each column of the second.
  const int rows = b.rank(product) - 2, columns = rows + 1;
  const auto real = [&](int i, int axis) {
    return aligned(call, b, b.cast(call.in(i), DType::f32), product, axis, 0);
  };
  const NodeId scale = b.div(b.mul(HEDDLE_TRY(real(1, rows)), HEDDLE_TRY(real(4, columns))),
                             HEDDLE_TRY(real(6, rows)));
  const NodeId rounded = b.map(ScalarFn::round, {b.mul(b.cast(product, DType::f32), scale)});
  return Values{saturated(b, b.add(rounded, HEDDLE_TRY(real(7, rows))), b.dtype(call.in(7)))};
}

/// x and w less their zero points (x's is one value, w's may be one per output channel), convolved
/// in i32. Padding is with x's zero point, so it adds nothing.
Result<NodeId> integer_conv(const Call& call, Builder& b, int x, int x_zero, int w, int w_zero) {
  HEDDLE_TRY(want_int(call, b, x));
  HEDDLE_TRY(want_int(call, b, w));
  const Builder::Conv geometry =
      HEDDLE_TRY(conv_geometry(call, b.shape(call.in(x)), b.shape(call.in(w))));
  if (call.has(x_zero) && element_count(b.shape(call.in(x_zero))) != 1)
    return call.error("input {} has shape {}, want one zero point", x_zero,
                      to_string(b.shape(call.in(x_zero))));
  return b.conv(HEDDLE_TRY(centred(call, b, x, x_zero, 0)),
                HEDDLE_TRY(centred(call, b, w, w_zero, 0)), geometry);
}

Result<Values> conv_integer(const Call& call, Builder& b) {
  return Values{HEDDLE_TRY(integer_conv(call, b, 0, 2, 1, 3))};
}

/// saturate(round((x*w + bias)·x_scale·w_scale/y_scale) + y_zero)
Result<Values> qlinear_conv(const Call& call, Builder& b) {
  NodeId y = HEDDLE_TRY(integer_conv(call, b, 0, 2, 3, 5));
  const std::int64_t channels = at(b.shape(y), 1);
  if (call.has(8)) {
    HEDDLE_TRY(want_type(call, b, 8, DType::i32));
    HEDDLE_TRY(want_channels(call, b, 8, channels));
    y = b.add(y, per_channel(b, call.in(8), b.rank(y)));
  }
  for (const int i : {1, 6, 7})
    if (element_count(b.shape(call.in(i))) != 1)
      return call.error("input {} has shape {}, want one value", i, to_string(b.shape(call.in(i))));
  for (const int i : {1, 4, 6}) HEDDLE_TRY(want_type(call, b, i, DType::f32));
  if (const std::int64_t scales = element_count(b.shape(call.in(4)));
      scales != 1 && scales != channels)
    return call.error("input 4 has {} scales, want 1 or {}", scales, channels);
  const auto scalar = [&](int i) { return b.cast(b.reshape(call.in(i), {}), DType::f32); };
  const NodeId scale = b.div(b.mul(per_channel(b, call.in(4), b.rank(y)), scalar(1)), scalar(6));
  const NodeId scaled = b.map(ScalarFn::round, {b.mul(b.cast(y, DType::f32), scale)});
  return Values{saturated(b, b.add(scaled, scalar(7)), b.dtype(call.in(7)))};
}

/// With attribute channels_last: [N, spatial…, C].
Result<Values> qlinear_conv_microsoft(const Call& call, Builder& b) {
  if (call.attribute_int("channels_last", 0) == 0) return qlinear_conv(call, b);
  HEDDLE_TRY(want_rank(call, b, 0, 3, 6));
  Call plain = call;
  plain.args[0] = channels_first(b, call.in(0));
  return Values{channels_last(b, HEDDLE_TRY(qlinear_conv(plain, b))[0])};
}

constexpr OpDef kQuantizeOps[] = {
    {"QuantizeLinear", 10, 2, 3, quantize, OpDef::Stored::knows},
    {"DequantizeLinear", 10, 2, 3, dequantize, OpDef::Stored::knows},
    {"com.microsoft::QuantizeLinear", 1, 2, 3, quantize, OpDef::Stored::knows},
    {"com.microsoft::DequantizeLinear", 1, 2, 3, dequantize, OpDef::Stored::knows},
    {"DynamicQuantizeLinear", 11, 1, 1, dynamic_quantize},
    {"MatMulInteger", 10, 2, 4, matmul_integer},
    {"ConvInteger", 10, 2, 4, conv_integer},
    {"QLinearConv", 10, 8, 9, qlinear_conv},
    {"com.microsoft::QLinearConv", 1, 8, 9, qlinear_conv_microsoft},
    {"QLinearMatMul", 10, 8, 8, qlinear_matmul},
};

}  // namespace

DynamicScale dynamic_scale(Builder& b, NodeId x) {
  const NodeId zero = b.scalar(DType::f32, 0);
  const std::vector<int> all = axes_from(0, b.rank(x));
  const NodeId high = b.max(b.reduce_max(x, all, false), zero);
  const NodeId low = b.min(b.reduce(ir::Monoid::min, x, all, false), zero);
  const NodeId step = b.div(b.sub(high, low), 255.0);
  const NodeId scale =
      b.select(b.map(ScalarFn::equal, {step, zero}), b.scalar(DType::f32, 1), step);
  const NodeId point = b.min(b.max(b.div(b.neg(low), scale), zero), b.scalar(DType::f32, 255));
  return {scale, b.map(ScalarFn::round, {point})};
}

std::span<const OpDef> quantize_ops() { return kQuantizeOps; }

}  // namespace heddle::ops

#include <algorithm>

#include "ops/families.h"
#include "ops/quantize.h"
#include "ops/window.h"

/// The quantised and fused operators that ONNX Runtime's quantiser writes (com.microsoft), taken
/// apart into arithmetic on real numbers or i32.
namespace heddle::ops {
namespace {

using ir::ScalarFn;

Status want_one(const Call& call, Builder& b, int i, bool real) {
  if (element_count(b.shape(call.in(i))) != 1)
    return call.unsupported("input {} has shape {}: only one value per tensor is supported", i,
                            to_string(b.shape(call.in(i))));
  if (real) return want_type(call, b, i, DType::f32);
  return want_int(call, b, i);
}

NodeId scalar(const Call& call, Builder& b, int i, DType type) {
  return b.cast(b.reshape(call.in(i), {}), type);
}

/// The real numbers that input `value` stands for; its scale and zero point follow it.
Result<NodeId> real_of(const Call& call, Builder& b, int value, int scale, int zero) {
  HEDDLE_TRY(want_int(call, b, value));
  HEDDLE_TRY(want_one(call, b, scale, true));
  NodeId x = b.cast(call.in(value), DType::i32);
  if (call.has(zero)) {
    HEDDLE_TRY(want_one(call, b, zero, false));
    x = b.sub(x, scalar(call, b, zero, DType::i32));
  }
  return b.mul(b.cast(x, DType::f32), scalar(call, b, scale, DType::f32));
}

/// Whether a zero point is added to what has been rounded, or before: ties differ if it is odd.
enum class ZeroPoint { after, before };

/// saturate(round(y / scale) + zero) as `otherwise`, or the zero point's type.
Result<NodeId> quantised(const Call& call, Builder& b, NodeId y, int scale, int zero,
                         DType otherwise, ZeroPoint when = ZeroPoint::after) {
  HEDDLE_TRY(want_one(call, b, scale, true));
  DType type = otherwise;
  NodeId point = b.scalar(DType::f32, 0);
  if (call.has(zero)) {
    HEDDLE_TRY(want_one(call, b, zero, false));
    type = b.dtype(call.in(zero));
    point = scalar(call, b, zero, DType::f32);
  }
  if (type != DType::i8 && type != DType::u8)
    return call.unsupported("cannot quantise to {}", name_of(type));
  y = b.div(y, scalar(call, b, scale, DType::f32));
  const auto round = [&](NodeId v) { return b.map(ScalarFn::round, {v}); };
  y = when == ZeroPoint::after ? b.add(round(y), point) : round(b.add(y, point));
  const bool sign = type == DType::i8;
  const auto bound = [&](double v) { return b.scalar(DType::f32, v); };
  return b.cast(b.min(b.max(y, bound(sign ? -128 : 0)), bound(sign ? 127 : 255)), type);
}

template <ScalarFn fn>
Result<Values> qlinear_binary(const Call& call, Builder& b) {
  const NodeId x = HEDDLE_TRY(real_of(call, b, 0, 1, 2)), y = HEDDLE_TRY(real_of(call, b, 3, 4, 5));
  if (!broadcast_shapes(b.shape(x), b.shape(y)))
    return call.error("{} and {} do not broadcast", to_string(b.shape(x)), to_string(b.shape(y)));
  const NodeId z = fn == ScalarFn::add ? b.add(x, y) : b.mul(x, y);
  return Values{HEDDLE_TRY(quantised(call, b, z, 6, 7, b.dtype(call.in(0))))};
}

/// Inputs X, scale, zero, output scale, zero: the function of the real numbers, quantised again.
template <class F>
Result<Values> qlinear_unary(const Call& call, Builder& b, F&& function,
                             ZeroPoint when = ZeroPoint::after) {
  const NodeId x = HEDDLE_TRY(real_of(call, b, 0, 1, 2));
  const NodeId y = HEDDLE_TRY(function(x));
  return Values{HEDDLE_TRY(quantised(call, b, y, 3, 4, b.dtype(call.in(0)), when))};
}

Result<Values> qlinear_sigmoid(const Call& call, Builder& b) {
  return qlinear_unary(call, b, [&](NodeId x) -> Result<NodeId> { return b.sigmoid(x); });
}

NodeId leaky(Builder& b, NodeId x, double alpha) {
  const NodeId below = b.map(ScalarFn::less, {x, b.scalar(b.dtype(x), 0)});
  return b.select(below, b.mul(x, alpha), x);
}

Result<Values> qlinear_leaky_relu(const Call& call, Builder& b) {
  const double alpha = call.attribute_float("alpha", 0.01);
  return qlinear_unary(call, b, [&](NodeId x) -> Result<NodeId> { return leaky(b, x, alpha); });
}

Result<Values> qlinear_softmax(const Call& call, Builder& b) {
  return qlinear_unary(call, b, [&](NodeId x) -> Result<NodeId> {
    const int axis = HEDDLE_TRY(call.axis("axis", -1, b.rank(x)));
    if (call.attribute_int("opset", 13) < 13 && axis != b.rank(x) - 1)
      return call.unsupported("axis {} as before opset 13", axis);
    return b.softmax(x, {axis});
  });
}

Result<Values> qlinear_global_pool(const Call& call, Builder& b) {
  HEDDLE_TRY(want_rank(call, b, 0, 3, 8));
  const bool last = call.attribute_int("channels_last", 0) != 0;
  return qlinear_unary(call, b, [&](NodeId x) -> Result<NodeId> {
    std::vector<int> axes = axes_from(last ? 1 : 2, b.rank(x));
    if (last) axes.pop_back();
    for (const int axis : axes)
      if (at(b.shape(x), axis) == 0) return call.error("input 0 is empty");
    return b.mean(x, axes);
  });
}

/// Condition, then X and Y with scale and zero point each, then those of the result.
Result<Values> qlinear_where(const Call& call, Builder& b) {
  HEDDLE_TRY(want_type(call, b, 0, DType::b1));
  const NodeId x = HEDDLE_TRY(real_of(call, b, 1, 2, 3)), y = HEDDLE_TRY(real_of(call, b, 4, 5, 6));
  const auto both = broadcast_shapes(b.shape(x), b.shape(y));
  if (!both || !broadcast_shapes(*both, b.shape(call.in(0))))
    return call.error("{}, {} and {} do not broadcast", to_string(b.shape(call.in(0))),
                      to_string(b.shape(x)), to_string(b.shape(y)));
  const NodeId z = b.select(call.in(0), x, y);
  return Values{HEDDLE_TRY(quantised(call, b, z, 7, 8, b.dtype(call.in(1))))};
}

Result<Values> qlinear_reduce_mean(const Call& call, Builder& b) {
  return qlinear_unary(call, b, [&](NodeId x) -> Result<NodeId> {
    const auto given = call.attribute_ints("axes", {});
    std::vector<int> axes = HEDDLE_TRY(call.normalize_axes(given, b.rank(x)));
    if (given.empty()) axes = axes_from(0, b.rank(x));
    for (const int axis : axes)
      if (at(b.shape(x), axis) == 0) return call.error("input 0 is empty");
    return b.mean(x, axes, call.attribute_int("keepdims", 1) != 0);
  });
}

/// Output scale and zero point, then value, scale and zero point of each part.
Result<Values> qlinear_concat(const Call& call, Builder& b) {
  if (call.args.size() < 5 || call.args.size() % 3 != 2)
    return call.error("has {} inputs, want 2 and 3 for each part", call.args.size());
  std::vector<NodeId> parts;
  for (int i = 2; i < static_cast<int>(call.args.size()); i += 3)
    parts.push_back(HEDDLE_TRY(real_of(call, b, i, i + 1, i + 2)));
  const Shape first = b.shape(parts[0]);
  const int axis = HEDDLE_TRY(call.axis("axis", 0, static_cast<int>(first.size())));
  for (const NodeId part : parts) {
    Shape shape = b.shape(part);
    if (shape.size() == first.size())
      shape[static_cast<std::size_t>(axis)] = first[static_cast<std::size_t>(axis)];
    if (shape != first)
      return call.error("{} and {} do not join", to_string(first), to_string(b.shape(part)));
  }
  return Values{HEDDLE_TRY(quantised(call, b, b.concat(parts, axis), 0, 1, b.dtype(call.in(2))))};
}

Result<NodeId> product(const Call& call, Builder& b, NodeId x, NodeId y) {
  const Shape &s = b.shape(x), &t = b.shape(y);
  if (s.size() < 2 || t.size() < 2 || s.back() != t[t.size() - 2] ||
      !broadcast_shapes({s.begin(), s.end() - 2}, {t.begin(), t.end() - 2}))
    return call.error("shapes {} and {} do not multiply", to_string(s), to_string(t));
  return b.matmul(x, y);
}

/// An operand of a product less its zero point, which is one value or one for each column.
Result<NodeId> centred(const Call& call, Builder& b, int value, int zero) {
  HEDDLE_TRY(want_int(call, b, value));
  HEDDLE_TRY(want_rank(call, b, value, 2, 8));
  const NodeId x = b.cast(call.in(value), DType::i32);
  if (!call.has(zero)) return x;
  HEDDLE_TRY(want_int(call, b, zero));
  const std::int64_t count = element_count(b.shape(call.in(zero)));
  if (count != 1 && count != b.shape(x).back())
    return call.error("input {} has {} zero points for {} columns", zero, count, b.shape(x).back());
  const NodeId z = b.reshape(call.in(zero), count == 1 ? Shape{} : Shape{count});
  return b.sub(x, b.cast(z, DType::i32));
}

/// y times a scale that is one value or one for each column; plus an optional bias of that shape.
Result<NodeId> scaled(const Call& call, Builder& b, NodeId y, NodeId scale, int bias) {
  const std::int64_t columns = b.shape(y).back(), count = element_count(b.shape(scale));
  if (count != 1 && count != columns) return call.error("{} scales for {} columns", count, columns);
  if (b.dtype(scale) != DType::f32) return call.error("a scale is {}", name_of(b.dtype(scale)));
  y = b.mul(b.cast(y, DType::f32), b.reshape(scale, count == 1 ? Shape{} : Shape{count}));
  if (!call.has(bias)) return y;
  HEDDLE_TRY(want_shape(call, b, bias, {columns}));
  HEDDLE_TRY(want_type(call, b, bias, DType::f32));
  return b.add(y, call.in(bias));
}

/// A, B, their scales, their zero points, bias.
Result<Values> matmul_integer_to_float(const Call& call, Builder& b) {
  HEDDLE_TRY(want_one(call, b, 2, true));
  const NodeId x = HEDDLE_TRY(centred(call, b, 0, 4)), y = HEDDLE_TRY(centred(call, b, 1, 5));
  const NodeId z = HEDDLE_TRY(product(call, b, x, y));
  HEDDLE_TRY(want_type(call, b, 3, DType::f32));
  const NodeId scale = b.mul(scalar(call, b, 2, DType::f32), call.in(3));
  return Values{HEDDLE_TRY(scaled(call, b, z, scale, 6))};
}

/// A in real numbers, quantised here to u8 over its range; B, its scale, zero point; bias.
Result<Values> dynamic_quantize_matmul(const Call& call, Builder& b) {
  HEDDLE_TRY(want_type(call, b, 0, DType::f32));
  HEDDLE_TRY(want_rank(call, b, 0, 2, 8));
  HEDDLE_TRY(want_type(call, b, 2, DType::f32));
  const NodeId x = call.in(0), zero = b.scalar(DType::f32, 0);
  const auto [scale, point] = dynamic_scale(b, x);
  NodeId q = b.add(b.map(ScalarFn::round, {b.div(x, scale)}), point);
  q = b.min(b.max(q, zero), b.scalar(DType::f32, 255));
  const NodeId centre = b.cast(b.sub(q, point), DType::i32);
  const NodeId z = HEDDLE_TRY(product(call, b, centre, HEDDLE_TRY(centred(call, b, 1, 3))));
  return Values{HEDDLE_TRY(scaled(call, b, z, b.mul(scale, call.in(2)), 4))};
}

/// alpha·op(A)·op(B) + C in i32, scaled; quantised where the output's scale is given. Inputs: A,
/// scale, zero, B, scale, zero, C, output scale, zero.
Result<Values> qgemm(const Call& call, Builder& b) {
  HEDDLE_TRY(want_rank(call, b, 0, 2, 2));
  HEDDLE_TRY(want_rank(call, b, 3, 2, 2));
  HEDDLE_TRY(want_one(call, b, 1, true));
  HEDDLE_TRY(want_one(call, b, 2, false));
  for (const int i : {4, 5})
    if (call.attribute_int("transB", 0) != 0 && element_count(b.shape(call.in(i))) != 1)
      return call.unsupported("one scale for each row of B");
  NodeId x = HEDDLE_TRY(centred(call, b, 0, 2)), y = HEDDLE_TRY(centred(call, b, 3, 5));
  if (call.attribute_int("transA", 0) != 0) x = b.transpose(x, {1, 0});
  if (call.attribute_int("transB", 0) != 0) y = b.transpose(y, {1, 0});
  NodeId z = HEDDLE_TRY(product(call, b, x, y));
  if (call.has(6)) {
    HEDDLE_TRY(want_type(call, b, 6, DType::i32));
    const auto fits = broadcast_shapes(b.shape(call.in(6)), b.shape(z));
    if (!fits || *fits != b.shape(z))
      return call.error("input 6 has shape {} for {}", to_string(b.shape(call.in(6))),
                        to_string(b.shape(z)));
    z = b.add(z, call.in(6));
  }
  HEDDLE_TRY(want_type(call, b, 4, DType::f32));
  const NodeId scale =
      b.mul(b.mul(call.in(4), scalar(call, b, 1, DType::f32)), call.attribute_float("alpha", 1));
  const NodeId real = HEDDLE_TRY(scaled(call, b, z, scale, -1));
  if (!call.has(7)) return Values{real};
  return Values{HEDDLE_TRY(quantised(call, b, real, 7, 8, b.dtype(call.in(0))))};
}

/// Ties are ONNX Runtime's, which adds the zero point before it rounds.
Result<Values> qlinear_average_pool(const Call& call, Builder& b) {
  HEDDLE_TRY(want_rank(call, b, 0, 3, 6));
  const bool last = call.attribute_int("channels_last", 0) != 0;
  const auto pool = [&](NodeId x) -> Result<NodeId> {
    auto attributes = call.attributes;
    attributes.erase("channels_last");
    const NodeId y = HEDDLE_TRY(
        expand_as(call, b, "AveragePool", {last ? channels_first(b, x) : x}, {}, attributes));
    return last ? channels_last(b, y) : y;
  };
  return qlinear_unary(call, b, pool, ZeroPoint::before);
}

/// What `activation` makes of y; its parameters are attributes `parameters` or activation_NAME.
Result<NodeId> activated(const Call& call, Builder& b, NodeId y) {
  const std::string name = call.attribute_string("activation", "");
  const auto parameter = [&](std::size_t i, const char* key, double otherwise) {
    const auto found = call.attributes.find("activation_params");
    const auto* list =
        found == call.attributes.end() ? nullptr : std::get_if<std::vector<double>>(&found->second);
    if (list != nullptr && i < list->size()) return (*list)[i];
    return call.attribute_float(std::string("activation_") + key, otherwise);
  };
  const auto bound = [&](double v) { return b.scalar(b.dtype(y), v); };
  if (name.empty()) return y;
  if (name == "Relu") return b.max(y, bound(0));
  if (name == "Tanh") return b.tanh(y);
  if (name == "Sigmoid") return b.sigmoid(y);
  if (name == "LeakyRelu") return leaky(b, y, parameter(0, "alpha", 0.01));
  if (name == "Clip")
    return b.min(b.max(y, bound(parameter(0, "min", -3.4e38))), bound(parameter(1, "max", 3.4e38)));
  if (name == "HardSigmoid")
    return b.min(
        b.max(b.add(b.mul(y, parameter(0, "alpha", 0.2)), parameter(1, "beta", 0.5)), bound(0)),
        bound(1));
  return call.unsupported("activation '{}'", name);
}

/// Convolution, bias, a sum with input 3, activation.
Result<Values> fused_conv(const Call& call, Builder& b) {
  HEDDLE_TRY(want_float(call, b, 0));
  HEDDLE_TRY(want_like(call, b, 1));
  const Builder::Conv geometry =
      HEDDLE_TRY(conv_geometry(call, b.shape(call.in(0)), b.shape(call.in(1))));
  NodeId y = b.conv(call.in(0), call.in(1), geometry);
  if (call.has(2)) {
    HEDDLE_TRY(want_channels(call, b, 2, at(b.shape(y), 1)));
    HEDDLE_TRY(want_like(call, b, 2));
    y = b.add(y, per_channel(b, call.in(2), b.rank(y)));
  }
  if (call.has(3)) {
    HEDDLE_TRY(want_shape(call, b, 3, b.shape(y)));
    HEDDLE_TRY(want_like(call, b, 3));
    y = b.add(y, call.in(3));
  }
  return Values{HEDDLE_TRY(activated(call, b, y))};
}

/// activation(alpha·op(A)·op(B) + beta·C)
Result<Values> fused_gemm(const Call& call, Builder& b) {
  Call plain = call;
  plain.op = "Gemm";
  plain.opset = 13;
  for (const char* key : {"activation", "activation_params", "activation_alpha", "activation_beta",
                          "activation_gamma"})
    plain.attributes.erase(key);
  const Values y = HEDDLE_TRY(expand(plain, b));
  if (!is_float(b.dtype(y[0]))) return call.error("input 0 is {}", name_of(b.dtype(y[0])));
  return Values{HEDDLE_TRY(activated(call, b, y[0]))};
}

constexpr OpDef kContribQuantizedOps[] = {
    {"com.microsoft::QLinearAdd", 1, 7, 8, qlinear_binary<ScalarFn::add>},
    {"com.microsoft::QLinearMul", 1, 7, 8, qlinear_binary<ScalarFn::mul>},
    {"com.microsoft::QLinearSigmoid", 1, 4, 5, qlinear_sigmoid},
    {"com.microsoft::QLinearLeakyRelu", 1, 4, 5, qlinear_leaky_relu},
    {"com.microsoft::QLinearSoftmax", 1, 4, 5, qlinear_softmax},
    {"com.microsoft::QLinearGlobalAveragePool", 1, 4, 5, qlinear_global_pool},
    {"com.microsoft::QLinearAveragePool", 1, 4, 5, qlinear_average_pool},
    {"com.microsoft::QLinearWhere", 1, 8, 9, qlinear_where},
    {"com.microsoft::QLinearReduceMean", 1, 4, 5, qlinear_reduce_mean},
    {"com.microsoft::QLinearConcat", 1, 5, -1, qlinear_concat},
    {"com.microsoft::QGemm", 1, 6, 9, qgemm},
    {"com.microsoft::MatMulIntegerToFloat", 1, 4, 7, matmul_integer_to_float},
    {"com.microsoft::DynamicQuantizeMatMul", 1, 3, 5, dynamic_quantize_matmul},
    {"com.microsoft::FusedConv", 1, 2, 4, fused_conv},
    {"com.microsoft::FusedGemm", 1, 2, 3, fused_gemm},
};

}  // namespace

std::span<const OpDef> contrib_quantized_ops() { return kContribQuantizedOps; }

}  // namespace heddle::ops

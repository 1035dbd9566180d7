#include <algorithm>

#include "ops/families.h"
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

/// saturate(round(y / scale) + zero) as `otherwise`, or the zero point's type.
Result<NodeId> quantised(const Call& call, Builder& b, NodeId y, int scale, int zero,
                         DType otherwise) {
  HEDDLE_TRY(want_one(call, b, scale, true));
  DType type = otherwise;
  y = b.map(ScalarFn::round, {b.div(y, scalar(call, b, scale, DType::f32))});
  if (call.has(zero)) {
    HEDDLE_TRY(want_one(call, b, zero, false));
    type = b.dtype(call.in(zero));
    y = b.add(y, scalar(call, b, zero, DType::f32));
  }
  if (type != DType::i8 && type != DType::u8)
    return call.unsupported("cannot quantise to {}", name_of(type));
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
Result<Values> qlinear_unary(const Call& call, Builder& b, F&& function) {
  const NodeId x = HEDDLE_TRY(real_of(call, b, 0, 1, 2));
  const NodeId y = HEDDLE_TRY(function(x));
  return Values{HEDDLE_TRY(quantised(call, b, y, 3, 4, b.dtype(call.in(0))))};
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
  const std::vector<int> all = axes_from(0, b.rank(x));
  const NodeId high = b.max(b.reduce_max(x, all, false), zero);
  const NodeId low = b.min(b.reduce(ir::Monoid::min, x, all, false), zero);
  const NodeId scale = b.div(b.sub(high, low), 255.0);
  const auto clipped = [&](NodeId v) { return b.min(b.max(v, zero), b.scalar(DType::f32, 255)); };
  const NodeId point = b.map(ScalarFn::round, {clipped(b.div(b.neg(low), scale))});
  const NodeId q = clipped(b.add(b.map(ScalarFn::round, {b.div(x, scale)}), point));
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

/// Numbers of 4 or 8 bits in bytes, from the low end of each, along a new last axis.
NodeId unpacked(Builder& b, NodeId bytes, std::int64_t bits) {
  const NodeId wide = b.cast(bytes, DType::i32);
  const int last = b.rank(wide);
  if (bits == 8) return b.unsqueeze(wide, {last});
  const NodeId low = b.map(ScalarFn::bit_and, {wide, b.scalar_int(DType::i32, 15)});
  const NodeId high = b.map(ScalarFn::shift_right, {wide, b.scalar_int(DType::i32, 4)});
  return b.concat({b.unsqueeze(low, {last}), b.unsqueeze(high, {last})}, last);
}

/// The call of another operator on these arguments.
Result<NodeId> expand_as(const Call& call, Builder& b, std::string op,
                         std::vector<std::optional<NodeId>> args, std::vector<Format> formats,
                         std::map<std::string, Attribute, std::less<>> attributes) {
  Call other = call;
  other.op = std::move(op);
  other.opset = 21;
  other.outputs = 1;
  other.args = std::move(args);
  other.formats = std::move(formats);
  other.attributes = std::move(attributes);
  return HEDDLE_TRY(expand(other, b))[0];
}

Result<Values> qlinear_average_pool(const Call& call, Builder& b) {
  HEDDLE_TRY(want_rank(call, b, 0, 3, 6));
  const int rank = b.rank(call.in(0));
  const bool last = call.attribute_int("channels_last", 0) != 0;
  std::vector<int> to_front{0, rank - 1}, to_back{0};
  for (int d = 1; d < rank - 1; ++d) to_front.push_back(d);
  for (int d = 2; d < rank; ++d) to_back.push_back(d);
  to_back.push_back(1);
  return qlinear_unary(call, b, [&](NodeId x) -> Result<NodeId> {
    auto attributes = call.attributes;
    attributes.erase("channels_last");
    const NodeId y = HEDDLE_TRY(
        expand_as(call, b, "AveragePool", {last ? b.transpose(x, to_front) : x}, {}, attributes));
    return last ? b.transpose(y, to_back) : y;
  });
}

/// Gather of data in blocks along quantize_axis with a scale each, as real numbers. Inputs: data (4
/// bits, or u8 that holds 8 or two times 4), indices, scales, zero points (like the data).
Result<Values> gather_block_quantized(const Call& call, Builder& b) {
  HEDDLE_TRY(want_float(call, b, 2));
  const Format format = call.format(0);
  const bool bytes = format == Format::plain && b.dtype(call.in(0)) == DType::u8;
  if (!bytes && format != Format::u4 && format != Format::i4)
    return call.unsupported("input 0 is {}, want u4, i4 or u8", to_string(b.type(call.in(0))));
  const std::int64_t bits = call.attribute_int("bits", 4);
  if (bits != 4 && (bits != 8 || !bytes)) return call.unsupported("{} bits, want 4 or 8", bits);
  const int rank = b.rank(call.in(0));
  const int axis = HEDDLE_TRY(call.axis("gather_axis", 0, rank));
  const int blocks = HEDDLE_TRY(call.axis("quantize_axis", 1, rank));
  const std::int64_t block = call.attribute_int("block_size", 128);
  if (block < 16 || block > kMaxTableElements || axis == blocks ||
      (bytes && (axis != 0 || blocks != rank - 1)))
    return call.error("gather_axis is {}, quantize_axis {}, block_size {}", axis, blocks, block);
  HEDDLE_TRY(want_rank(call, b, 2, rank, rank));
  if (call.has(3)) {
    HEDDLE_TRY(want_rank(call, b, 3, rank, rank));
    HEDDLE_TRY(want_type(call, b, 3, b.dtype(call.in(0))));
    if (call.format(3) != format) return call.error("input 3 is {}", name_of(call.format(3)));
  }
  const std::int64_t extent = at(b.shape(call.in(0)), blocks) * (bytes && bits == 4 ? 2 : 1),
                     count = (extent + block - 1) / block;
  std::optional<NodeId> parts[3];
  for (int i = 0; i < 3; ++i) {
    const int input = i == 0 ? 0 : i + 1;
    if (!call.has(input)) continue;
    if (at(b.shape(call.in(input)), axis) != at(b.shape(call.in(0)), axis))
      return call.error("input {} has shape {}", input, to_string(b.shape(call.in(input))));
    NodeId part =
        HEDDLE_TRY(expand_as(call, b, "Gather", {call.in(input), call.in(1)},
                             {call.format(input), Format::plain}, {{"axis", std::int64_t{axis}}}));
    if (bytes && i != 1) {  // two numbers to a byte; the last of odd zero points is nobody's
      Shape shape = b.shape(part);
      shape.back() *= 8 / bits;
      part = b.reshape(unpacked(b, part, bits), shape);
      if (i == 2) part = b.slice_axis(part, b.rank(part) - 1, 0, std::min(shape.back(), count));
    }
    parts[i] = part;
  }
  if (bytes && !parts[2])
    parts[2] = b.full({DType::i32, b.shape(*parts[1])}, static_cast<double>(1 << (bits - 1)));
  const int moved = blocks < axis ? blocks : blocks - 1 + b.rank(call.in(1));
  const Format zero = bytes ? Format::plain : format;
  return Values{HEDDLE_TRY(expand_as(call, b, "DequantizeLinear", {parts[0], parts[1], parts[2]},
                                     {zero, Format::plain, zero},
                                     {{"axis", std::int64_t{moved}}, {"block_size", block}}))};
}

/// A · Bᵀ where B [N, blocks, bytes] holds blocks of `bits`-bit numbers, from the low end of each
/// byte, with a scale each and a zero point of 2^(bits-1) (or given, packed alike).
Result<Values> matmul_nbits(const Call& call, Builder& b) {
  HEDDLE_TRY(want_float(call, b, 0));
  HEDDLE_TRY(want_type(call, b, 1, DType::u8));
  const std::int64_t k = call.attribute_int("K", 0), n = call.attribute_int("N", 0);
  const std::int64_t block = call.attribute_int("block_size", 32);
  const std::int64_t bits = call.attribute_int("bits", 4);
  if (bits != 4 && bits != 8) return call.unsupported("{} bits, want 4 or 8", bits);
  constexpr std::int64_t kMost = 1 << 20;
  if (k < 1 || n < 1 || k > kMost || n > kMost || block < 16 || block > 4096)
    return call.error("K is {}, N {}, block_size {}", k, n, block);
  if (call.has(4)) return call.unsupported("input 4 (g_idx) is given");
  const std::int64_t blocks = (k + block - 1) / block, per_byte = 8 / bits;
  HEDDLE_TRY(want_shape(call, b, 1, {n, blocks, block / per_byte}));
  if (b.rank(call.in(0)) < 2 || b.shape(call.in(0)).back() != k)
    return call.error("input 0 has shape {}, want {} columns", to_string(b.shape(call.in(0))), k);
  const DType real = compute_type(b.dtype(call.in(0)));
  HEDDLE_TRY(want_float(call, b, 2));
  if (element_count(b.shape(call.in(2))) != n * blocks)
    return call.error("input 2 has shape {}, want {} scales", to_string(b.shape(call.in(2))),
                      n * blocks);
  NodeId w = b.cast(b.reshape(unpacked(b, call.in(1), bits), {n, blocks, block}), real);
  if (call.has(3)) {
    const std::int64_t row = (blocks + per_byte - 1) / per_byte;
    HEDDLE_TRY(want_type(call, b, 3, DType::u8));
    if (element_count(b.shape(call.in(3))) != n * row)
      return call.error("input 3 has shape {}, want {} bytes", to_string(b.shape(call.in(3))),
                        n * row);
    const NodeId points =
        b.reshape(unpacked(b, b.reshape(call.in(3), {n, row}), bits), {n, row * per_byte});
    w = b.sub(w, b.reshape(b.cast(b.slice_axis(points, 1, 0, blocks), real), {n, blocks, 1}));
  } else {
    w = b.sub(w, static_cast<double>(std::int64_t{1} << (bits - 1)));
  }
  w = b.mul(w, b.cast(b.reshape(call.in(2), {n, blocks, 1}), real));
  w = b.slice_axis(b.reshape(w, {n, blocks * block}), 1, 0, k);
  NodeId y = b.matmul(b.cast(call.in(0), real), b.transpose(w, {1, 0}));
  if (call.has(5)) {
    HEDDLE_TRY(want_shape(call, b, 5, {n}));
    HEDDLE_TRY(want_float(call, b, 5));
    y = b.add(y, b.cast(call.in(5), real));
  }
  return Values{b.cast(y, b.dtype(call.in(0)))};
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

constexpr OpDef kOps[] = {
    {"com.microsoft::QLinearAdd", 1, 7, 8, qlinear_binary<ScalarFn::add>},
    {"com.microsoft::QLinearMul", 1, 7, 8, qlinear_binary<ScalarFn::mul>},
    {"com.microsoft::QLinearSigmoid", 1, 4, 5, qlinear_sigmoid},
    {"com.microsoft::QLinearLeakyRelu", 1, 4, 5, qlinear_leaky_relu},
    {"com.microsoft::QLinearSoftmax", 1, 4, 5, qlinear_softmax},
    {"com.microsoft::QLinearGlobalAveragePool", 1, 4, 5, qlinear_global_pool},
    {"com.microsoft::QLinearAveragePool", 1, 4, 5, qlinear_average_pool},
    {"com.microsoft::QLinearConcat", 1, 5, -1, qlinear_concat},
    {"com.microsoft::QGemm", 1, 6, 9, qgemm},
    {"com.microsoft::MatMulIntegerToFloat", 1, 4, 7, matmul_integer_to_float},
    {"com.microsoft::DynamicQuantizeMatMul", 1, 3, 5, dynamic_quantize_matmul},
    {"com.microsoft::MatMulNBits", 1, 3, 6, matmul_nbits},
    {"com.microsoft::GatherBlockQuantized", 1, 3, 4, gather_block_quantized, OpDef::Stored::knows},
    {"com.microsoft::FusedConv", 1, 2, 4, fused_conv},
    {"com.microsoft::FusedGemm", 1, 2, 3, fused_gemm},
};

}  // namespace

std::span<const OpDef> contrib_quantized_ops() { return kOps; }

}  // namespace heddle::ops

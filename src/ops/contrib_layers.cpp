#include <algorithm>
#include <cmath>

#include "ops/attention.h"
#include "ops/families.h"
#include "ops/window.h"

/// The layers of diffusion models, gated norms and position biases as ONNX Runtime fuses them
/// (com.microsoft).
namespace heddle::ops {
namespace {

using ir::ScalarFn;

NodeId silu(Builder& b, NodeId x) { return b.mul(x, b.sigmoid(x)); }

/// A vector over channels, which lie at dimension 1.
Result<NodeId> channel_vector(const Call& call, Builder& b, int i, NodeId x) {
  HEDDLE_TRY(want_float(call, b, i));
  HEDDLE_TRY(want_channels(call, b, i, b.shape(x)[1]));
  return per_channel(b, b.cast(call.in(i), b.dtype(x)), b.rank(x));
}

/// x [N, C, H, W] in f32, normalised over groups of channels, scaled and shifted by inputs 1 and 2,
/// activated; as the call wants its channels and type.
Result<NodeId> group_normalized(const Call& call, Builder& b, NodeId x, bool last) {
  const Shape in = b.shape(x);
  const std::int64_t groups = call.attribute_int("groups", 0);
  const std::int64_t activation = call.attribute_int("activation", 0);
  if (groups < 1 || in[1] % groups != 0)
    return call.error("{} channels do not make {} groups", in[1], groups);
  if (activation < 0 || activation > 1) return call.error("activation is {}", activation);
  if (element_count(in) == 0) return call.error("input 0 is empty");
  const NodeId flat = b.reshape(x, {in[0], groups, element_count(in) / in[0] / groups});
  NodeId y = b.reshape(b.normalize(flat, {2}, call.attribute_float("epsilon", 1e-5)), in);
  y = b.add(b.mul(y, HEDDLE_TRY(channel_vector(call, b, 1, y))),
            HEDDLE_TRY(channel_vector(call, b, 2, y)));
  if (activation == 1) y = silu(b, y);
  return b.cast(last ? channels_last(b, y) : y, b.dtype(call.in(0)));
}

/// Input i as [N, C, H, W] in f32 at least.
Result<NodeId> image(const Call& call, Builder& b, int i, bool last) {
  HEDDLE_TRY(want_float(call, b, i));
  HEDDLE_TRY(want_rank(call, b, i, 4, 4));
  const NodeId x = b.cast(call.in(i), compute_type(b.dtype(call.in(i))));
  return last ? channels_first(b, x) : x;
}

Result<Values> group_norm(const Call& call, Builder& b) {
  const bool last = call.attribute_int("channels_last", 1) != 0;
  const NodeId x = HEDDLE_TRY(image(call, b, 0, last));
  return Values{HEDDLE_TRY(group_normalized(call, b, x, last))};
}

/// Of X + skip + bias, which is the second output. skip: like X, [N, 1, 1, C] or [N, C].
Result<Values> skip_group_norm(const Call& call, Builder& b) {
  const bool last = call.attribute_int("channels_last", 1) != 0;
  NodeId x = HEDDLE_TRY(image(call, b, 0, last));
  const Shape in = b.shape(x);
  HEDDLE_TRY(want_type(call, b, 3, b.dtype(call.in(0))));
  NodeId skip = b.cast(call.in(3), b.dtype(x));
  if (b.rank(skip) == 4 && last)
    skip = channels_first(b, skip);
  else if (b.rank(skip) == 2)
    skip = b.unsqueeze(skip, {2, 3});
  if (b.shape(skip) != in && b.shape(skip) != Shape{in[0], in[1], 1, 1})
    return call.error("input 3 has shape {} for {}", to_string(b.shape(call.in(3))),
                      to_string(b.shape(call.in(0))));
  x = b.add(x, skip);
  if (call.has(4)) x = b.add(x, HEDDLE_TRY(channel_vector(call, b, 4, x)));
  const NodeId sum = b.cast(last ? channels_last(b, x) : x, b.dtype(call.in(0)));
  Values out{HEDDLE_TRY(group_normalized(call, b, x, last)), sum};
  out.resize(static_cast<std::size_t>(std::clamp(call.outputs, 1, 2)));
  return out;
}

/// X and a vector over its last dimension.
Status want_row(const Call& call, Builder& b, int i) {
  HEDDLE_TRY(want_float(call, b, 0));
  HEDDLE_TRY(want_rank(call, b, 0, 1, 64));
  HEDDLE_TRY(want_like(call, b, i));
  return want_shape(call, b, i, {b.shape(call.in(0)).back()});
}

/// X + bias + skip
Result<Values> bias_add(const Call& call, Builder& b) {
  HEDDLE_TRY(want_row(call, b, 1));
  HEDDLE_TRY(want_like(call, b, 2));
  HEDDLE_TRY(want_shape(call, b, 2, b.shape(call.in(0))));
  return Values{b.add(b.add(call.in(0), call.in(1)), call.in(2))};
}

/// The left half of X + bias times Gelu of the right half.
Result<Values> bias_split_gelu(const Call& call, Builder& b) {
  HEDDLE_TRY(want_row(call, b, 1));
  const NodeId x = b.add(call.in(0), call.in(1));
  const std::int64_t half = b.shape(x).back() / 2;
  const int axis = b.rank(x) - 1;
  if (b.shape(x).back() != 2 * half) return call.error("{} columns have no halves", 2 * half + 1);
  const NodeId gate = HEDDLE_TRY(
      expand_as(call, b, "com.microsoft::Gelu", {b.slice_axis(x, axis, half, half)}, {}, {}));
  return Values{b.mul(b.slice_axis(x, axis, 0, half), gate)};
}

/// FastGelu(X · W + bias)
Result<Values> gemm_fast_gelu(const Call& call, Builder& b) {
  HEDDLE_TRY(want_float(call, b, 0));
  const NodeId y = HEDDLE_TRY(
      expand_as(call, b, "com.microsoft::FusedMatMul", {call.in(0), call.in(1)}, {}, {}));
  std::vector<std::optional<NodeId>> args{y};
  if (call.has(2)) args.emplace_back(call.in(2));
  return Values{HEDDLE_TRY(expand_as(call, b, "com.microsoft::FastGelu", args, {}, {}))};
}

/// X + Y · gate, a number for each row.
Result<Values> gated_add(const Call& call, Builder& b) {
  HEDDLE_TRY(want_float(call, b, 0));
  HEDDLE_TRY(want_rank(call, b, 0, 1, 64));
  Shape rows = b.shape(call.in(0));
  HEDDLE_TRY(want_shape(call, b, 1, rows));
  rows.back() = 1;
  HEDDLE_TRY(want_shape(call, b, 2, rows));
  HEDDLE_TRY(want_like(call, b, 1));
  HEDDLE_TRY(want_like(call, b, 2));
  return Values{b.add(call.in(0), b.mul(call.in(1), call.in(2)))};
}

/// X / √(mean(X²) + ε) · scale · activation(gate), over each C = |scale| elements of a row.
Result<Values> gated_rms_norm(const Call& call, Builder& b) {
  HEDDLE_TRY(want_float(call, b, 0));
  HEDDLE_TRY(want_rank(call, b, 0, 1, 64));
  HEDDLE_TRY(want_rank(call, b, 1, 1, 1));
  HEDDLE_TRY(want_float(call, b, 1));
  const Shape in = b.shape(call.in(0));
  HEDDLE_TRY(want_shape(call, b, 2, in));
  HEDDLE_TRY(want_like(call, b, 2));
  const int kind = HEDDLE_TRY(choice(call, "activation", "silu", {"silu", "swish", "sigmoid"}));
  const std::int64_t width = b.shape(call.in(1))[0];
  if (width < 1 || in.back() % width != 0)
    return call.error("{} columns do not make groups of {}", in.back(), width);
  const DType real = compute_type(b.dtype(call.in(0)));
  Shape split = in;
  split.back() /= width;
  split.push_back(width);
  const NodeId x = b.reshape(b.cast(call.in(0), real), split), z = b.cast(call.in(2), real);
  const NodeId power = b.mean(b.mul(x, x), {static_cast<int>(in.size())});
  const NodeId size = b.sqrt(b.add(power, call.attribute_float("epsilon", 1e-5)));
  const NodeId y = b.reshape(b.mul(b.div(x, size), b.cast(call.in(1), real)), in);
  const NodeId gate = kind == 2 ? b.sigmoid(z) : silu(b, z);
  return Values{b.cast(b.mul(y, gate), b.dtype(call.in(0)))};
}

/// silu(alpha · X), or with input 1 for alpha.
Result<Values> scaled_silu(const Call& call, Builder& b) {
  HEDDLE_TRY(want_float(call, b, 0));
  const NodeId x = call.in(0);
  if (!call.has(1)) return Values{silu(b, b.mul(x, call.attribute_float("alpha", 1)))};
  HEDDLE_TRY(want_float(call, b, 1));
  if (element_count(b.shape(call.in(1))) != 1)
    return call.error("input 1 has shape {}, want one number", to_string(b.shape(call.in(1))));
  const DType real = compute_type(b.dtype(x));
  const NodeId scaled = b.mul(b.cast(x, real), b.cast(b.reshape(call.in(1), {}), real));
  return Values{silu(b, b.cast(scaled, b.dtype(x)))};
}

/// The bucket of each distance in T5 (Raffel et al. 2020): small ones exactly, others on a
/// logarithmic scale.
std::int64_t bucket_of(std::int64_t distance, std::int64_t buckets, std::int64_t most, bool both) {
  std::int64_t first = 0;
  if (both) {
    buckets /= 2;
    if (distance > 0) first = buckets;
    distance = std::abs(distance);
  } else {
    distance = std::max<std::int64_t>(0, -distance);
  }
  const std::int64_t exact = buckets / 2;
  if (distance < exact || exact == 0) return first + std::min(distance, buckets - 1);
  const float part = std::log(static_cast<float>(distance) / static_cast<float>(exact)) /
                     std::log(static_cast<float>(most) / static_cast<float>(exact));
  const auto more = static_cast<std::int64_t>(part * static_cast<float>(buckets - exact));
  return first + std::min(exact + more, buckets - 1);
}

/// A number for each head and distance between query and key: [1, heads, queries, keys]. The table
/// [buckets, heads] lies head by head.
Result<Values> relative_position_bias(const Call& call, Builder& b) {
  HEDDLE_TRY(want_float(call, b, 0));
  HEDDLE_TRY(want_rank(call, b, 0, 2, 2));
  const std::int64_t queries = HEDDLE_TRY(constant_int(call, 1));
  const std::int64_t keys = HEDDLE_TRY(constant_int(call, 2));
  const std::int64_t buckets = b.shape(call.in(0))[0], heads = b.shape(call.in(0))[1];
  const std::int64_t most = call.attribute_int("max_distance", 128);
  const bool both = call.attribute_int("is_bidirectional", 0) != 0;
  if (queries < 1 || keys < 1 || queries > (1 << 16) || keys > (1 << 16) ||
      queries * keys > kMaxTableElements || most < 1 || most > (1 << 20) || buckets < 2 ||
      most <= buckets / (both ? 4 : 2))
    return call.error("{} queries, {} keys, {} buckets to {}", queries, keys, buckets, most);
  std::vector<std::int64_t> at;
  for (std::int64_t q = 0; q < queries; ++q)
    for (std::int64_t k = 0; k < keys; ++k) at.push_back(bucket_of(k - q, buckets, most, both));
  const NodeId table = b.reshape(call.in(0), {heads, buckets});
  return Values{b.unsqueeze(b.take(table, constant_i64(b, at, {queries, keys}), 1), {0})};
}

/// rel_pos times a gate for each query and head (WavLM, Chen et al. 2022). Inputs: queries, their
/// bias, rel_pos, weight [d, D], bias [D], eco_a.
Result<Values> gated_relative_position_bias(const Call& call, Builder& b) {
  HEDDLE_TRY(want_row(call, b, 1));
  HEDDLE_TRY(want_rank(call, b, 0, 3, 3));
  if (call.has(6)) return call.unsupported("input 6 (token_offset) is given");
  const std::int64_t heads = call.attribute_int("num_heads", 0);
  const NodeId q = HEDDLE_TRY(split_heads(call, b, b.add(call.in(0), call.in(1)), heads));
  const Shape s = b.shape(q);
  for (int i = 2; i < 6; ++i) HEDDLE_TRY(want_like(call, b, i));
  HEDDLE_TRY(want_shape(call, b, 2, {1, heads, s[2], s[2]}));
  HEDDLE_TRY(want_shape(call, b, 5, {1, heads, 1, 1}));
  HEDDLE_TRY(want_rank(call, b, 3, 2, 2));
  const std::int64_t width = b.shape(call.in(3))[1];
  HEDDLE_TRY(want_shape(call, b, 3, {s[3], width}));
  HEDDLE_TRY(want_shape(call, b, 4, {width}));
  if (width < 2 || width % 2 != 0) return call.error("weights for {} columns, want pairs", width);
  const NodeId linear = b.add(b.matmul(q, call.in(3)), call.in(4));
  const NodeId sums =
      b.reduce_sum(b.reshape(linear, {s[0], heads, s[2], 2, width / 2}), {4}, false);
  const NodeId gates = b.sigmoid(sums);
  const NodeId u = b.slice_axis(gates, 3, 0, 1), r = b.slice_axis(gates, 3, 1, 1);
  const NodeId gate = b.add(b.mul(u, b.sub(b.mul(r, call.in(5)), 1.0)), 2.0);
  return Values{b.mul(gate, call.in(2))};
}

/// Conv or FusedConv of [N, spatial…, C], with weights as ever.
template <bool fused>
Result<Values> conv_last(const Call& call, Builder& b) {
  HEDDLE_TRY(want_float(call, b, 0));
  HEDDLE_TRY(want_rank(call, b, 0, 3, 6));
  auto args = call.args;
  args[0] = channels_first(b, call.in(0));
  if (call.has(3)) {
    HEDDLE_TRY(want_rank(call, b, 3, b.rank(call.in(0)), b.rank(call.in(0))));
    args[3] = channels_first(b, call.in(3));
  }
  const NodeId y = HEDDLE_TRY(expand_as(call, b, fused ? "com.microsoft::FusedConv" : "Conv", args,
                                        call.formats, call.attributes));
  return Values{channels_last(b, y)};
}

/// All slices of `size` elements along a dimension, every `step`, along a new last dimension.
Result<Values> unfold(const Call& call, Builder& b) {
  HEDDLE_TRY(want_rank(call, b, 0, 1, 32));
  const Shape in = b.shape(call.in(0));
  const int rank = static_cast<int>(in.size());
  const int axis = HEDDLE_TRY(call.axis("dim", -1, rank));
  const std::int64_t size = call.attribute_int("size", 0), step = call.attribute_int("step", 1);
  if (size < 1 || step < 1 || step > kMaxStep || size > at(in, axis))
    return call.error("slices of {} every {} of {}", size, step, at(in, axis));
  Shape out = in;
  out[static_cast<std::size_t>(axis)] = (at(in, axis) - size) / step + 1;
  out.push_back(size);
  out = HEDDLE_TRY(checked(call, out, b.dtype(call.in(0))));
  prim::Access access{dims(rank), {}};
  access.index[static_cast<std::size_t>(axis)] = dim(axis) * ir::Expr(step) + dim(rank);
  return Values{b.view(call.in(0), out, access)};
}

constexpr OpDef kContribLayerOps[] = {
    {"com.microsoft::GroupNorm", 1, 3, 3, group_norm},
    {"com.microsoft::SkipGroupNorm", 1, 4, 5, skip_group_norm},
    {"com.microsoft::BiasAdd", 1, 3, 3, bias_add},
    {"com.microsoft::BiasSplitGelu", 1, 2, 2, bias_split_gelu},
    {"com.microsoft::GemmFastGelu", 1, 2, 3, gemm_fast_gelu},
    {"com.microsoft::GatedAdd", 1, 3, 3, gated_add},
    {"com.microsoft::GatedRMSNorm", 1, 3, 3, gated_rms_norm},
    {"com.microsoft::ScaledSiLU", 1, 1, 2, scaled_silu},
    {"com.microsoft::RelativePositionBias", 1, 3, 3, relative_position_bias},
    {"com.microsoft::GatedRelativePositionBias", 1, 6, 7, gated_relative_position_bias},
    {"com.microsoft::NhwcConv", 1, 2, 3, conv_last<false>},
    {"com.microsoft::NhwcFusedConv", 1, 2, 4, conv_last<true>},
    {"com.microsoft::UnfoldTensor", 1, 1, 1, unfold},
};

}  // namespace

std::span<const OpDef> contrib_layer_ops() { return kContribLayerOps; }

}  // namespace heddle::ops

#include <algorithm>

#include "ops/families.h"
#include "ops/util.h"

/// Recurrences over a sequence that keep a state of fixed size, and the convolution before them.
namespace heddle::ops {
namespace {

using ir::ScalarFn;

/// [B, T, heads·d] → f32 [B, heads, T, d].
Result<NodeId> in_heads(const Call& call, Builder& b, int i, std::int64_t heads) {
  HEDDLE_TRY(want_rank(call, b, i, 3, 3));
  HEDDLE_TRY(want_float(call, b, i));
  const Shape in = b.shape(call.in(i));
  if (heads < 1 || in[2] % heads != 0)
    return call.error("input {} has shape {}, which does not split into {} heads", i, to_string(in),
                      heads);
  return b.transpose(
      b.reshape(b.cast(call.in(i), DType::f32), {in[0], in[1], heads, in[2] / heads}),
      {0, 2, 1, 3});
}

/// What the recurrence reads at each step; decay is the factor already.
struct Steps {
  NodeId q, k, v;                     ///< [B, heads, T, d], [B, kv, T, d], [B, kv, T, dv]
  std::optional<NodeId> decay, beta;  ///< [B, kv, T, d or 1], [B, kv or 1, T, 1]
  NodeId state;                       ///< [B, kv, d, dv]
};

/// One step: S = decay·S; v = beta·(v - Sᵀk) if there is a beta; S = S + k⊗v. Gives q·S for each of
/// the query heads, [B, heads, 1, dv].
NodeId advance(Builder& b, Steps& s, std::int64_t t) {
  const auto at = [&](NodeId x) { return b.slice_axis(x, 2, t, 1); };
  const auto column = [&](NodeId x) { return b.transpose(at(x), {0, 1, 3, 2}); };
  if (s.decay) s.state = b.mul(s.state, column(*s.decay));
  NodeId v = at(s.v);
  if (s.beta) v = b.mul(at(*s.beta), b.sub(v, b.matmul(at(s.k), s.state)));
  s.state = b.add(s.state, b.mul(column(s.k), v));
  Shape spread = b.shape(s.state);
  const std::int64_t times = b.shape(s.q)[1] / spread[1];
  spread[1] *= times;
  const NodeId read =
      times == 1
          ? s.state
          : b.view(s.state, spread, {{dim(0), ir::floor_div(dim(1), times), dim(2), dim(3)}, {}});
  return b.matmul(at(s.q), read);
}

/// Query, key, value, past state, decay (a logarithm), beta → output, present state. The steps are
/// unrolled.
Result<Values> linear_attention(const Call& call, Builder& b) {
  constexpr std::int64_t kMostSteps = 1024;
  const std::int64_t heads = call.attribute_int("q_num_heads", 0);
  const std::int64_t kv = call.attribute_int("kv_num_heads", 0);
  const int rule = HEDDLE_TRY(
      choice(call, "update_rule", "gated_delta", {"linear", "gated", "delta", "gated_delta"}));
  if (kv < 1 || heads < 1 || heads % kv != 0)
    return call.error("{} query heads on {} key heads", heads, kv);
  Steps s;
  s.q = HEDDLE_TRY(in_heads(call, b, 0, heads));
  s.k = HEDDLE_TRY(in_heads(call, b, 1, kv));
  s.v = HEDDLE_TRY(in_heads(call, b, 2, kv));
  const Shape q = b.shape(s.q), k = b.shape(s.k), v = b.shape(s.v);
  if (q[0] != k[0] || k[0] != v[0] || q[2] != k[2] || k[2] != v[2] || q[3] != k[3] || q[3] < 1)
    return call.error("query {}, key {}, value {} do not fit", to_string(q), to_string(k),
                      to_string(v));
  if (q[2] < 1 || q[2] > kMostSteps)
    return call.unsupported("{} steps, want 1 to {}", q[2], kMostSteps);
  const bool gated = rule == 1 || rule == 3, delta = rule >= 2;
  if (gated != call.has(4) || delta != call.has(5))
    return call.error("the update rule wants {} decay and {} beta", gated ? "a" : "no",
                      delta ? "a" : "no");
  if (gated) {
    const bool scalar = b.rank(call.in(4)) == 3 && b.shape(call.in(4))[2] == kv;
    s.decay = b.exp(HEDDLE_TRY(in_heads(call, b, 4, kv)));
    if (b.shape(*s.decay) != Shape{k[0], kv, k[2], scalar ? 1 : k[3]})
      return call.error("decay has shape {}", to_string(b.shape(call.in(4))));
  }
  if (delta) {
    const bool one = b.rank(call.in(5)) == 3 && b.shape(call.in(5))[2] == 1;
    s.beta = HEDDLE_TRY(in_heads(call, b, 5, one ? 1 : kv));
    if (b.shape(*s.beta) != Shape{k[0], one ? 1 : kv, k[2], 1})
      return call.error("beta has shape {}", to_string(b.shape(call.in(5))));
  }
  const Shape state{k[0], kv, k[3], v[3]};
  DType stored = b.dtype(call.in(0));
  if (call.has(3)) {
    HEDDLE_TRY(want_shape(call, b, 3, state));
    HEDDLE_TRY(want_float(call, b, 3));
    stored = b.dtype(call.in(3));
    s.state = b.cast(call.in(3), DType::f32);
  } else {
    s.state = b.full({DType::f32, state}, 0);
  }
  std::vector<NodeId> outputs;
  for (std::int64_t t = 0; t < q[2]; ++t) outputs.push_back(advance(b, s, t));
  double scale = call.attribute_float("scale", 0);
  if (scale == 0) scale = 1 / std::sqrt(static_cast<double>(q[3]));
  const NodeId all = b.mul(outputs.size() == 1 ? outputs[0] : b.concat(outputs, 2), scale);
  const NodeId y = b.reshape(b.transpose(all, {0, 2, 1, 3}), {q[0], q[2], heads * v[3]});
  return Values{b.cast(y, b.dtype(call.in(0))), b.cast(s.state, stored)};
}

/// Depthwise convolution that sees `past` (or zeros) before the input [B, C, L] and nothing after;
/// the last k - 1 positions are the state for the next call.
Result<Values> causal_conv(const Call& call, Builder& b) {
  HEDDLE_TRY(want_float(call, b, 0));
  HEDDLE_TRY(want_rank(call, b, 0, 3, 3));
  HEDDLE_TRY(want_rank(call, b, 1, 3, 3));
  const Shape in = b.shape(call.in(0)), w = b.shape(call.in(1));
  const DType type = b.dtype(call.in(0));
  HEDDLE_TRY(want_type(call, b, 1, type));
  if (w[0] != in[1] || w[1] != 1 || w[2] < 1 || in[1] < 1)
    return call.error("input {} and weight {} do not fit", to_string(in), to_string(w));
  const std::int64_t before = w[2] - 1;
  const int activation = HEDDLE_TRY(choice(call, "activation", "none", {"none", "silu", "swish"}));
  NodeId padded = call.in(0);
  if (call.has(3)) {
    HEDDLE_TRY(want_shape(call, b, 3, {in[0], in[1], before}));
    HEDDLE_TRY(want_type(call, b, 3, type));
    if (before > 0) padded = b.concat({call.in(3), padded}, 2);
  } else {
    padded = b.pad(padded, {0, 0, before}, {0, 0, 0}, 0);
  }
  Builder::Conv geometry{{1}, {1}, {0}, {0}, in[1]};
  NodeId y = b.conv(padded, call.in(1), geometry);
  if (call.has(2)) {
    HEDDLE_TRY(want_shape(call, b, 2, {in[1]}));
    HEDDLE_TRY(want_type(call, b, 2, type));
    y = b.add(y, b.reshape(call.in(2), {in[1], 1}));
  }
  if (activation != 0) {
    const NodeId wide = b.cast(y, DType::f32);
    y = b.cast(b.mul(wide, b.sigmoid(wide)), type);
  }
  return Values{y, b.slice_axis(padded, 2, in[2], before)};
}

/// The same with a window of states, which is not done, and other layouts of a convolution.
template <Result<Values> (*standard)(const Call&, Builder&)>
Result<Values> microsoft(const Call& call, Builder& b) {
  for (const auto& [key, plain] :
       {std::pair{"state_window", 0}, {"channels_last", 0}, {"dilation", 1}, {"ndim", 1}})
    if (const std::int64_t given = call.attribute_int(key, plain); given != plain)
      return call.unsupported("{} is {}", key, given);
  return standard(call, b);
}

constexpr OpDef kLinearAttentionOps[] = {
    {"com.microsoft::LinearAttention", 1, 3, 6, microsoft<linear_attention>},
    {"com.microsoft::CausalConvWithState", 1, 2, 4, microsoft<causal_conv>},
    {"LinearAttention", 27, 3, 6, linear_attention},
    {"CausalConvWithState", 27, 2, 4, causal_conv},
};

}  // namespace

std::span<const OpDef> linear_attention_ops() { return kLinearAttentionOps; }

}  // namespace heddle::ops

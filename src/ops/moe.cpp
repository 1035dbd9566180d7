#include <algorithm>
#include <limits>

#include "ops/families.h"
#include "ops/quantize.h"

/// Mixtures of experts (com.microsoft): each token goes through the k of E small networks that a
/// router prefers, and what they make is summed with the router's weights.
namespace heddle::ops {
namespace {

using ir::ScalarFn;

/// One linear layer of all experts: real weights [E, N, K], or `bits`-bit numbers in bytes
/// [E, N, K·bits/8] with scales [E, N, blocks] and zero points like them. Bias [E, N].
struct Layer {
  NodeId weights;
  std::optional<NodeId> bias, scales, zeros;
  std::int64_t bits = 0;
  std::int64_t outputs = 0, inputs = 0;
};

/// The layer of the experts at `which` [R] alone.
Layer of_experts(Builder& b, Layer layer, NodeId which) {
  layer.weights = b.take(layer.weights, which, 0);
  for (auto* part : {&layer.bias, &layer.scales, &layer.zeros})
    if (*part) *part = b.take(**part, which, 0);
  return layer;
}

/// Its weights as real numbers.
NodeId real_weights(Builder& b, const Layer& layer, DType real) {
  if (!layer.scales) return b.cast(layer.weights, real);
  const NodeId w = b.cast(unpacked(b, layer.weights, layer.bits), real);
  const Shape shape = b.shape(w), blocks = b.shape(*layer.scales);
  const Shape split{shape[0], shape[1], blocks[2], shape[2] / blocks[2]};
  const auto each = [&](NodeId v) {
    return b.reshape(b.cast(v, real), {shape[0], shape[1], blocks[2], 1});
  };
  const NodeId zero =
      layer.zeros ? each(*layer.zeros) : b.scalar(real, static_cast<double>(1 << (layer.bits - 1)));
  return b.reshape(b.mul(b.sub(b.reshape(w, split), zero), each(*layer.scales)), shape);
}

/// Where the parts of a layer are among the inputs; -1: it has none.
struct Ports {
  int weights, bias, scales = -1, zeros = -1;
};

/// Scales [E, N] or [E, N, blocks], as the latter.
Result<NodeId> scales_of(const Call& call, Builder& b, int i, const Layer& layer,
                         std::int64_t experts) {
  const std::int64_t block = call.attribute_int("block_size", 0);
  if (block != 0 && (block < 16 || layer.inputs % block != 0))
    return call.error("block_size is {} for {} columns", block, layer.inputs);
  if (!call.has(i)) return call.error("input {} is missing", i);
  HEDDLE_TRY(want_float(call, b, i));
  const std::int64_t blocks = block == 0 ? 1 : layer.inputs / block;
  if (block != 0 || b.rank(call.in(i)) != 2)
    HEDDLE_TRY(want_shape(call, b, i, {experts, layer.outputs, blocks}));
  else
    HEDDLE_TRY(want_shape(call, b, i, {experts, layer.outputs}));
  return b.reshape(call.in(i), {experts, layer.outputs, blocks});
}

/// Zero points in bytes: [E, N·bits/8], or [E, N, blocks·bits/8], as [E, N, blocks].
Result<NodeId> zeros_of(const Call& call, Builder& b, int i, const Layer& layer) {
  HEDDLE_TRY(want_type(call, b, i, DType::u8));
  const Shape blocks = b.shape(*layer.scales);
  const auto bytes = [&](std::int64_t count) { return (count * layer.bits + 7) / 8; };
  if (call.attribute_int("block_size", 0) == 0) {
    HEDDLE_TRY(want_shape(call, b, i, {blocks[0], bytes(blocks[1])}));
    return b.reshape(b.slice_axis(unpacked(b, call.in(i), layer.bits), 1, 0, blocks[1]), blocks);
  }
  HEDDLE_TRY(want_shape(call, b, i, {blocks[0], blocks[1], bytes(blocks[2])}));
  return b.slice_axis(unpacked(b, call.in(i), layer.bits), 2, 0, blocks[2]);
}

/// A layer with `inputs` columns; `bits` 0: of real numbers.
Result<Layer> layer_of(const Call& call, Builder& b, const Ports& at, std::int64_t experts,
                       std::int64_t inputs, std::int64_t bits) {
  if (!call.has(at.weights)) return call.error("input {} is missing", at.weights);
  HEDDLE_TRY(want_rank(call, b, at.weights, 3, 3));
  if (bits == 0)
    HEDDLE_TRY(want_type(call, b, at.weights, b.dtype(call.in(0))));
  else
    HEDDLE_TRY(want_type(call, b, at.weights, DType::u8));
  Layer layer{call.in(at.weights), {}, {}, {}, bits, b.shape(call.in(at.weights))[1], inputs};
  if (bits != 0 && inputs * bits % 8 != 0)
    return call.error("{} columns of {} bits do not fill bytes", inputs, bits);
  HEDDLE_TRY(want_shape(call, b, at.weights,
                        {experts, layer.outputs, bits == 0 ? inputs : inputs * bits / 8}));
  if (call.has(at.bias)) {
    HEDDLE_TRY(want_type(call, b, at.bias, b.dtype(call.in(0))));
    HEDDLE_TRY(want_shape(call, b, at.bias, {experts, layer.outputs}));
    layer.bias = call.in(at.bias);
  }
  if (bits == 0) return layer;
  layer.scales = HEDDLE_TRY(scales_of(call, b, at.scales, layer, experts));
  if (call.has(at.zeros)) layer.zeros = HEDDLE_TRY(zeros_of(call, b, at.zeros, layer));
  return layer;
}

struct Experts {
  Layer fc1, fc2;
  std::optional<Layer> fc3;
};

enum class Gating { none, interleaved, halves, fc3 };

/// What the experts make of h [R, N] of the first layer, and of what the third makes.
struct ExpertActivation {
  std::string name;
  Gating gating;
  double alpha, beta, limit;

  NodeId of(Builder& b, NodeId h, NodeId linear) const {
    if (name == "relu") h = b.max(h, b.scalar(b.dtype(h), 0));
    if (name == "silu") h = b.mul(h, b.sigmoid(h));
    if (name == "gelu") {  // by tanh, as ONNX Runtime's experts have it
      const NodeId inner =
          b.mul(b.add(h, b.mul(b.mul(b.mul(h, h), h), 0.044715)), 0.7978845608028654);
      h = b.mul(b.mul(h, 0.5), b.add(b.tanh(inner), 1.0));
    }
    return gating == Gating::fc3 && name != "swiglu" ? b.mul(h, linear) : h;
  }
  /// swiglu of both halves.
  NodeId gated(Builder& b, NodeId gate, NodeId linear) const {
    if (std::isfinite(limit)) {
      const NodeId most = b.scalar(b.dtype(gate), limit);
      gate = b.min(gate, most);
      linear = b.min(b.max(linear, b.neg(most)), most);
    }
    return b.mul(b.mul(gate, b.sigmoid(b.mul(gate, alpha))), b.add(linear, beta));
  }
  /// h [rows, experts, N] (and what the third layer makes) as [rows, experts, inner].
  NodeId apply(Builder& b, NodeId h, std::optional<NodeId> third) const {
    if (name != "swiglu") return of(b, h, third.value_or(h));
    if (gating == Gating::fc3) return gated(b, h, *third);
    const std::int64_t inner = b.shape(h)[2] / 2;
    const std::int64_t step = gating == Gating::interleaved ? 2 : 1;
    return gated(b, b.slice_axis(h, 2, 0, inner, step),
                 b.slice_axis(h, 2, step == 2 ? 1 : inner, inner, step));
  }
};

Result<ExpertActivation> activation_of(const Call& call, bool third) {
  static const std::vector<std::string> kNames{"relu", "gelu", "silu", "swiglu", "identity"};
  const int name = HEDDLE_TRY(choice(call, "activation_type", "relu", kNames));
  const std::int64_t fusion = call.attribute_int("swiglu_fusion", 0);
  if (fusion < 0 || fusion > 2) return call.error("swiglu_fusion is {}", fusion);
  Gating gating = third ? Gating::fc3 : Gating::none;
  if (!third && kNames[static_cast<std::size_t>(name)] == "swiglu") {
    if (fusion == 0) return call.error("swiglu_fusion is 0, and there are no weights of fc3");
    gating = fusion == 1 ? Gating::interleaved : Gating::halves;
  }
  return ExpertActivation{
      kNames[static_cast<std::size_t>(name)], gating, call.attribute_float("activation_alpha", 1),
      call.attribute_float("activation_beta", 0),
      call.attribute_float("swiglu_limit", std::numeric_limits<double>::infinity())};
}

/// Which experts each of T tokens goes to, and with which weights: [T, k] both.
struct Routes {
  NodeId experts, weights;
};
Result<Routes> routes_of(const Call& call, Builder& b, int weights, DType real) {
  const NodeId logits = b.cast(call.in(1), real);
  const std::int64_t k = call.attribute_int("k", 1);
  if (k < 1 || k > b.shape(logits)[1])
    return call.error("k is {}, want a number in [1, {}]", k, b.shape(logits)[1]);
  const NodeId chosen = b.sort_indices(logits, 1, true, k);
  NodeId share = b.softmax(logits, {1});
  if (weights >= 0 && call.has(weights)) {
    HEDDLE_TRY(want_type(call, b, weights, b.dtype(call.in(0))));
    HEDDLE_TRY(want_shape(call, b, weights, b.shape(logits)));
    share = b.cast(call.in(weights), real);
  }
  share = b.take_along(share, chosen, 1);
  if (call.attribute_int("normalize_routing_weights", 0) != 0) {
    const NodeId sum = b.reduce_sum(share, {1}), zero = b.scalar(real, 0);
    share = b.div(share, b.select(b.map(ScalarFn::equal, {sum, zero}), b.scalar(real, 1), sum));
  }
  return Routes{chosen, share};
}

NodeId with_bias(Builder& b, NodeId y, const Layer& layer, Shape shape) {
  return layer.bias ? b.add(y, b.reshape(b.cast(*layer.bias, b.dtype(y)), std::move(shape))) : y;
}

/// Few tokens x [T, H]: the weights of each route's expert are gathered, and no other is read.
NodeId by_route(Builder& b, NodeId x, const Experts& experts, const Routes& routes,
                const ExpertActivation& activation) {
  const DType real = b.dtype(x);
  const Shape picks = b.shape(routes.experts);
  const std::int64_t count = picks[0] * picks[1], hidden = b.shape(x)[1];
  const NodeId which = b.reshape(routes.experts, {count});
  const auto linear = [&](NodeId v, const Layer& of) {
    const Layer layer = of_experts(b, of, which);
    const NodeId y = b.matmul(v, b.transpose(real_weights(b, layer, real), {0, 2, 1}));
    return with_bias(b, y, layer, {count, 1, layer.outputs});
  };
  const NodeId each = b.broadcast(b.unsqueeze(x, {1}), {picks[0], picks[1], hidden});
  const NodeId rows = b.reshape(each, {count, 1, hidden});
  std::optional<NodeId> third;
  if (experts.fc3) third = linear(rows, *experts.fc3);
  const NodeId h = activation.apply(b, linear(rows, experts.fc1), third);
  const NodeId y = b.mul(linear(h, experts.fc2), b.reshape(routes.weights, {count, 1, 1}));
  return b.reduce_sum(b.reshape(y, {picks[0], picks[1], b.shape(y)[2]}), {1}, false);
}

/// Many tokens: one product with the first layers of all experts, one with their second layers
/// after what a token was not sent to is zero.
NodeId by_expert(Builder& b, NodeId x, const Experts& experts, const Routes& routes,
                 const ExpertActivation& activation) {
  const DType real = b.dtype(x);
  const std::int64_t tokens = b.shape(x)[0], count = b.shape(experts.fc1.weights)[0];
  const std::int64_t k = b.shape(routes.experts)[1];
  const NodeId is = b.map(ScalarFn::equal, {b.reshape(routes.experts, {tokens, k, 1}),
                                            b.iota({DType::i64, {tokens, k, count}}, 2)});
  const NodeId none = b.scalar(real, 0);
  const NodeId share = b.reduce_sum(b.select(is, b.reshape(routes.weights, {tokens, k, 1}), none),
                                    {1}, false);  // [T, E]
  const auto linear = [&](const Layer& layer) {
    const NodeId w = b.reshape(real_weights(b, layer, real), {count * layer.outputs, layer.inputs});
    const NodeId y = b.matmul(x, b.transpose(w, {1, 0}));
    return with_bias(b, b.reshape(y, {tokens, count, layer.outputs}), layer,
                     {count, layer.outputs});
  };
  std::optional<NodeId> third;
  if (experts.fc3) third = linear(*experts.fc3);
  NodeId h = activation.apply(b, linear(experts.fc1), third);
  const NodeId each = b.unsqueeze(share, {2});
  h = b.select(b.map(ScalarFn::equal, {each, none}), none, b.mul(h, each));
  const Layer& last = experts.fc2;
  const NodeId w = b.reshape(b.transpose(real_weights(b, last, real), {0, 2, 1}),
                             {count * last.inputs, last.outputs});
  const NodeId y = b.matmul(b.reshape(h, {tokens, count * last.inputs}), w);
  return last.bias ? b.add(y, b.matmul(share, b.cast(*last.bias, real))) : y;
}

Result<Values> mixture(const Call& call, Builder& b, const Ports& fc1, const Ports& fc2,
                       const Ports& fc3, int router_weights, bool packed) {
  HEDDLE_TRY(want_float(call, b, 0));
  HEDDLE_TRY(want_rank(call, b, 0, 2, 3));
  HEDDLE_TRY(want_type(call, b, 1, b.dtype(call.in(0))));
  HEDDLE_TRY(want_rank(call, b, 1, 2, 2));
  if (call.attribute_int("use_sparse_mixer", 0) != 0)
    return call.unsupported("use_sparse_mixer is 1");
  const Shape in = b.shape(call.in(0)), router = b.shape(call.in(1));
  const std::int64_t hidden = in.back(), tokens = in.size() == 3 ? in[0] * in[1] : in[0];
  if (router[0] != tokens || router[1] < 1 || hidden < 1 || tokens < 1)
    return call.error("input 1 has shape {} for {} tokens", to_string(router), tokens);
  const auto bits = [&](const char* key) {
    return packed ? call.attribute_int(key, call.attribute_int("expert_weight_bits", 4)) : 0;
  };
  const std::int64_t wide[] = {bits("fc1_expert_weight_bits"), bits("fc2_expert_weight_bits"),
                               bits("fc3_expert_weight_bits")};
  for (const std::int64_t w : wide)
    if (packed && w != 2 && w != 4 && w != 8)
      return call.unsupported("weights of {} bits, want 2, 4 or 8", w);
  const bool third = call.has(fc3.weights);
  const ExpertActivation activation = HEDDLE_TRY(activation_of(call, third));
  const Layer first = HEDDLE_TRY(layer_of(call, b, fc1, router[1], hidden, wide[0]));
  const bool fused =
      activation.gating == Gating::interleaved || activation.gating == Gating::halves;
  if (fused && first.outputs % 2 != 0)
    return call.error("input {} has {} rows, want pairs", fc1.weights, first.outputs);
  const std::int64_t inner = fused ? first.outputs / 2 : first.outputs;
  Experts experts{first, HEDDLE_TRY(layer_of(call, b, fc2, router[1], inner, wide[1])), {}};
  if (experts.fc2.outputs != hidden)
    return call.error("input {} has {} rows, want {}", fc2.weights, experts.fc2.outputs, hidden);
  if (third) {
    experts.fc3 = HEDDLE_TRY(layer_of(call, b, fc3, router[1], hidden, wide[2]));
    if (experts.fc3->outputs != inner)
      return call.error("input {} has {} rows, want {}", fc3.weights, experts.fc3->outputs, inner);
  }
  const DType type = b.dtype(call.in(0)), real = compute_type(type);
  const Routes routes = HEDDLE_TRY(routes_of(call, b, router_weights, real));
  const NodeId x = b.reshape(b.cast(call.in(0), real), {tokens, hidden});
  const std::int64_t count = tokens * b.shape(routes.experts)[1];
  const NodeId y = (count <= router[1] ? by_route : by_expert)(b, x, experts, routes, activation);
  return Values{b.cast(b.reshape(y, in), type)};
}

Result<Values> moe(const Call& call, Builder& b) {
  return mixture(call, b, {2, 3}, {4, 5}, {6, 7}, -1, false);
}

Result<Values> quantised_moe(const Call& call, Builder& b) {
  const std::string type = call.attribute_string("quant_type", "int");
  if (type != "int") return call.unsupported("quant_type '{}'", type);
  if (call.attribute_int("weights_prepacked", -1) > 0)
    return call.unsupported("weights_prepacked is 1");
  for (int i = 15; i < 21; ++i)
    if (call.has(i)) return call.unsupported("input {} is given", i);
  return mixture(call, b, {2, 4, 3, 11}, {5, 7, 6, 12}, {8, 10, 9, 13}, 14, true);
}

constexpr OpDef kMoeOps[] = {
    {"com.microsoft::MoE", 1, 3, 8, moe},
    {"com.microsoft::QMoE", 1, 4, 21, quantised_moe},
};

}  // namespace

std::span<const OpDef> moe_ops() { return kMoeOps; }

}  // namespace heddle::ops

#include <algorithm>

#include "ops/families.h"
#include "ops/util.h"
#include "ops/window.h"

/// The fused operators that ONNX Runtime's optimiser and exporters write (com.microsoft), taken
/// apart again: what to fuse is Heddle's own decision.
namespace heddle::ops {
namespace {

using ir::ScalarFn;

NodeId gelu_exact(Builder& b, NodeId x) {
  return b.mul(b.mul(x, 0.5), b.add(b.erf(b.mul(x, std::sqrt(0.5))), 1.0));
}
/// Half x (1 + tanh(√(2/π)(x + 0.044715 x³))), Hendrycks and Gimpel 2016.
NodeId gelu_tanh(Builder& b, NodeId x) {
  const NodeId cube = b.mul(b.mul(x, x), x);
  const NodeId inner = b.mul(b.add(x, b.mul(cube, 0.044715)), 0.7978845608028654);
  return b.mul(b.mul(x, 0.5), b.add(b.tanh(inner), 1.0));
}

/// Input i is a vector over the last dimension of input 0.
Status want_last(const Call& call, Builder& b, int i) {
  HEDDLE_TRY(want_rank(call, b, 0, 1, 64));
  HEDDLE_TRY(want_type(call, b, i, b.dtype(call.in(0))));
  return want_shape(call, b, i, {b.shape(call.in(0)).back()});
}

Result<Values> contrib_gelu(const Call& call, Builder& b) {
  HEDDLE_TRY(want_float(call, b, 0));
  return Values{gelu_exact(b, call.in(0))};
}
Result<Values> bias_gelu(const Call& call, Builder& b) {
  HEDDLE_TRY(want_float(call, b, 0));
  HEDDLE_TRY(want_last(call, b, 1));
  return Values{gelu_exact(b, b.add(call.in(0), call.in(1)))};
}
Result<Values> fast_gelu(const Call& call, Builder& b) {
  HEDDLE_TRY(want_float(call, b, 0));
  NodeId x = call.in(0);
  if (call.has(1)) {
    HEDDLE_TRY(want_last(call, b, 1));
    x = b.add(x, call.in(1));
  }
  return Values{gelu_tanh(b, x)};
}
Result<Values> quick_gelu(const Call& call, Builder& b) {
  HEDDLE_TRY(want_float(call, b, 0));
  const double alpha = call.attribute_float("alpha", 1.702);
  return Values{b.mul(call.in(0), b.sigmoid(b.mul(call.in(0), alpha)))};
}

/// x / √(mean(x²) + ε) over the axes, computed in f32 at least.
NodeId rms_normalize(Builder& b, NodeId x, const std::vector<int>& axes, double epsilon) {
  const DType type = b.dtype(x);
  const NodeId wide = b.cast(x, compute_type(type));
  const NodeId power = b.add(b.mean(b.mul(wide, wide), axes), epsilon);
  return b.cast(b.div(wide, b.sqrt(power)), type);
}

/// X, scale: no mean is subtracted.
Result<Values> simplified_layer_norm(const Call& call, Builder& b) {
  HEDDLE_TRY(want_float(call, b, 0));
  HEDDLE_TRY(want_rank(call, b, 0, 1, 64));
  const Shape in = b.shape(call.in(0));
  const int rank = static_cast<int>(in.size());
  const int axis = HEDDLE_TRY(call.axis("axis", -1, rank));
  const auto fits = broadcast_shapes(in, b.shape(call.in(1)));
  if (!fits || *fits != in) {
    return call.error("scale has shape {}, which does not broadcast to {}",
                      to_string(b.shape(call.in(1))), to_string(in));
  }
  const NodeId y =
      rms_normalize(b, call.in(0), axes_from(axis, rank), call.attribute_float("epsilon", 1e-5));
  return Values{b.mul(y, b.cast(call.in(1), b.dtype(y)))};
}

/// The mean of the last dimension (none: 0) and 1 / √(variance + ε), in f32.
Values statistics(Builder& b, NodeId x, bool centred, double epsilon) {
  const NodeId wide = b.cast(x, compute_type(b.dtype(x)));
  const std::vector<int> last{b.rank(x) - 1};
  const NodeId mean = b.mean(wide, last), away = centred ? b.sub(wide, mean) : wide;
  const NodeId spread = b.sqrt(b.add(b.mean(b.mul(away, away), last), epsilon));
  const NodeId inverse = b.div(b.full(b.type(spread), 1), spread);
  return {centred ? b.cast(mean, DType::f32) : b.full({DType::f32, b.shape(mean)}, 0),
          b.cast(inverse, DType::f32)};
}

/// LayerNorm(input + skip (+ bias)) · gamma (+ beta); mean, inverse deviation; the sum.
Result<Values> skip_norm(const Call& call, Builder& b, bool simplified) {
  HEDDLE_TRY(want_float(call, b, 0));
  HEDDLE_TRY(want_last(call, b, 2));
  const Shape in = b.shape(call.in(0)), skip = b.shape(call.in(1));
  HEDDLE_TRY(want_type(call, b, 1, b.dtype(call.in(0))));
  const auto fits = broadcast_shapes(in, skip);
  if (!fits || *fits != in) {
    return call.error("input 1 has shape {}, want {} or one that broadcasts to it", to_string(skip),
                      to_string(in));
  }
  const int beta = simplified ? -1 : 3, bias = simplified ? 3 : 4;
  NodeId sum = b.add(call.in(0), call.in(1));
  if (call.has(bias)) {
    HEDDLE_TRY(want_last(call, b, bias));
    sum = b.add(sum, call.in(bias));
  }
  const double epsilon = call.attribute_float("epsilon", 1e-12);
  const std::vector<int> last{b.rank(sum) - 1};
  NodeId y = simplified ? rms_normalize(b, sum, last, epsilon) : b.normalize(sum, last, epsilon);
  y = b.mul(y, call.in(2));
  if (beta > 0 && call.has(beta)) {
    HEDDLE_TRY(want_last(call, b, beta));
    y = b.add(y, call.in(beta));
  }
  Values out{y, sum, sum, sum};
  if (call.outputs > 1 && (call.output_used[1] || (call.outputs > 2 && call.output_used[2]))) {
    const Values of = statistics(b, sum, !simplified, epsilon);
    std::copy(of.begin(), of.end(), out.begin() + 1);
  }
  out.resize(static_cast<std::size_t>(std::clamp(call.outputs, 1, 4)));
  return out;
}
Result<Values> skip_layer_norm(const Call& call, Builder& b) { return skip_norm(call, b, false); }
Result<Values> skip_rms_norm(const Call& call, Builder& b) { return skip_norm(call, b, true); }

/// Sum of word, position and segment embeddings, normalised. Inputs: ids, segments, the three
/// tables, gamma, beta, mask, position ids.
Result<Values> embed_layer_norm(const Call& call, Builder& b) {
  HEDDLE_TRY(want_int(call, b, 0));
  HEDDLE_TRY(want_rank(call, b, 0, 2, 2));
  const Shape ids = b.shape(call.in(0));
  for (int i = 2; i < 7; ++i) {
    if (!call.has(i) && i != 4) return call.error("input {} is missing", i);
    if (call.has(i)) HEDDLE_TRY(want_rank(call, b, i, i < 5 ? 2 : 1, i < 5 ? 2 : 1));
    if (call.has(i)) HEDDLE_TRY(want_type(call, b, i, b.dtype(call.in(2))));
  }
  HEDDLE_TRY(want_float(call, b, 2));
  const std::int64_t hidden = b.shape(call.in(2))[1];
  for (int i = 3; i < 7; ++i) {
    if (call.has(i) && b.shape(call.in(i)).back() != hidden) {
      return call.error("input {} has shape {}, want {} columns", i, to_string(b.shape(call.in(i))),
                        hidden);
    }
  }
  if (element_count(b.shape(call.in(2))) == 0) return call.error("input 2 is empty");
  if (b.shape(call.in(3))[0] < ids[1]) {
    return call.error("input 3 has shape {}, want {} positions", to_string(b.shape(call.in(3))),
                      ids[1]);
  }
  NodeId sum = b.take(call.in(2), call.in(0), 0);
  if (call.has(8)) {
    HEDDLE_TRY(want_shape(call, b, 8, ids));
    HEDDLE_TRY(want_int(call, b, 8));
    sum = b.add(sum, b.take(call.in(3), call.in(8), 0));
  } else {
    sum = b.add(sum, b.slice_axis(call.in(3), 0, 0, ids[1]));
  }
  if (call.has(1) && call.has(4)) {
    HEDDLE_TRY(want_shape(call, b, 1, ids));
    HEDDLE_TRY(want_int(call, b, 1));
    if (b.shape(call.in(4))[0] < 1) return call.error("input 4 is empty");
    sum = b.add(sum, b.take(call.in(4), call.in(1), 0));
  }
  const NodeId y = b.normalize(sum, {2}, call.attribute_float("epsilon", 1e-12));
  const NodeId scaled = b.add(b.mul(y, call.in(5)), call.in(6));
  NodeId length = b.full({DType::i32, {ids[0]}}, 0);
  if (call.has(7)) {
    HEDDLE_TRY(want_shape(call, b, 7, ids));
    HEDDLE_TRY(want_int(call, b, 7));
    length = b.cast(b.reduce_sum(call.in(7), {1}, false), DType::i32);
  }
  Values out{scaled, length, sum};
  out.resize(static_cast<std::size_t>(std::clamp(call.outputs, 1, 3)));
  return out;
}

/// alpha · A·B with either transposed in its last two dimensions, after its first has been put
/// behind those of the batch (transBatch).
Result<Values> fused_matmul(const Call& call, Builder& b) {
  HEDDLE_TRY(want_float(call, b, 0));
  HEDDLE_TRY(want_type(call, b, 1, b.dtype(call.in(0))));
  const auto side = [&](int i, const char* key, const char* batch_key) {
    const NodeId x = call.in(i);
    std::vector<int> order = axes_from(0, b.rank(x));
    if (call.attribute_int(batch_key, 0) != 0)
      std::rotate(order.begin(), order.begin() + 1, order.end() - 1);
    if (call.attribute_int(key, 0) != 0)
      std::swap(order[order.size() - 1], order[order.size() - 2]);
    return order == axes_from(0, b.rank(x)) ? x : b.transpose(x, order);
  };
  HEDDLE_TRY(want_rank(call, b, 0, 2, 32));
  HEDDLE_TRY(want_rank(call, b, 1, 2, 32));
  const NodeId lhs = side(0, "transA", "transBatchA"), rhs = side(1, "transB", "transBatchB");
  const Shape l = b.shape(lhs), r = b.shape(rhs);
  const auto batch = broadcast_shapes({l.begin(), l.end() - 2}, {r.begin(), r.end() - 2});
  if (!batch || l.back() != r[r.size() - 2]) {
    return call.error("{} and {} do not multiply", to_string(l), to_string(r));
  }
  const NodeId y = b.matmul(lhs, rhs);
  const double alpha = call.attribute_float("alpha", 1);
  return Values{alpha == 1 ? y : b.mul(y, alpha)};
}

/// softmax(data + bias) over all dimensions from `axis`.
Result<Values> bias_softmax(const Call& call, Builder& b) {
  HEDDLE_TRY(want_float(call, b, 0));
  HEDDLE_TRY(want_type(call, b, 1, b.dtype(call.in(0))));
  const Shape in = b.shape(call.in(0));
  const int rank = static_cast<int>(in.size());
  const int axis = HEDDLE_TRY(call.axis("axis", 1, rank));
  const auto fits = broadcast_shapes(in, b.shape(call.in(1)));
  if (!fits || *fits != in)
    return call.error("input 1 has shape {}, which does not broadcast to {}",
                      to_string(b.shape(call.in(1))), to_string(in));
  return Values{b.softmax(b.add(call.in(0), call.in(1)), axes_from(axis, rank))};
}

/// Distinct elements of a vector in the order in which they come, where each went, their counts.
Result<Values> unique(const Call& call, Builder& b) {
  HEDDLE_TRY(want_rank(call, b, 0, 1, 1));
  Call plain = call;
  plain.op = "Unique";
  plain.opset = 11;
  plain.outputs = 4;
  plain.output_used.assign(4, true);
  plain.attributes = {{"sorted", std::int64_t{0}}};
  const Values all = HEDDLE_TRY(expand(plain, b));
  for (const Call::Bounded& bound : plain.bounded)  // output 1 is first places, and not wanted
    if (bound.output != 1)
      call.bounded.push_back({std::max(0, bound.output - 1), bound.axis, bound.extent});
  Values out{all[0], all[2], all[3]};
  out.resize(static_cast<std::size_t>(std::clamp(call.outputs, 1, 3)));
  return out;
}

/// The distance of each row of A from each of B.
Result<Values> cdist(const Call& call, Builder& b) {
  HEDDLE_TRY(want_float(call, b, 0));
  HEDDLE_TRY(want_type(call, b, 1, b.dtype(call.in(0))));
  HEDDLE_TRY(want_rank(call, b, 0, 2, 2));
  HEDDLE_TRY(want_rank(call, b, 1, 2, 2));
  if (b.shape(call.in(0))[1] != b.shape(call.in(1))[1])
    return call.error("{} and {} have rows of different lengths", to_string(b.shape(call.in(0))),
                      to_string(b.shape(call.in(1))));
  const std::string metric = call.attribute_string("metric", "sqeuclidean");
  const NodeId away = b.sub(b.unsqueeze(call.in(0), {1}), b.unsqueeze(call.in(1), {0}));
  const NodeId size = b.map(ScalarFn::abs, {away});
  if (metric == "cityblock") return Values{b.reduce_sum(size, {2}, false)};
  if (metric == "chebyshev") return Values{b.reduce_max(size, {2}, false)};
  const NodeId squares = b.reduce_sum(b.mul(away, away), {2}, false);
  if (metric == "sqeuclidean") return Values{squares};
  if (metric == "euclidean") return Values{b.sqrt(squares)};
  return call.unsupported("metric '{}'", metric);
}

constexpr OpDef kContribOps[] = {
    {"com.microsoft::Gelu", 1, 1, 1, contrib_gelu},
    {"com.microsoft::BiasGelu", 1, 2, 2, bias_gelu},
    {"com.microsoft::FastGelu", 1, 1, 2, fast_gelu},
    {"com.microsoft::QuickGelu", 1, 1, 1, quick_gelu},
    {"com.microsoft::SimplifiedLayerNormalization", 1, 2, 2, simplified_layer_norm},
    {"SimplifiedLayerNormalization", 1, 2, 2, simplified_layer_norm},
    {"RMSNormalization", 23, 2, 2, simplified_layer_norm},
    {"com.microsoft::SkipLayerNormalization", 1, 3, 5, skip_layer_norm},
    {"com.microsoft::SkipSimplifiedLayerNormalization", 1, 3, 4, skip_rms_norm},
    {"com.microsoft::EmbedLayerNormalization", 1, 1, 9, embed_layer_norm},
    {"com.microsoft::FusedMatMul", 1, 2, 2, fused_matmul},
    {"com.microsoft::TransposeMatMul", 1, 2, 2, fused_matmul},
    {"com.microsoft::BiasSoftmax", 1, 2, 2, bias_softmax},
    {"com.microsoft::Unique", 1, 1, 1, unique},
    {"com.microsoft::CDist", 1, 2, 2, cdist},
};

}  // namespace

std::span<const OpDef> contrib_ops() { return kContribOps; }

}  // namespace heddle::ops

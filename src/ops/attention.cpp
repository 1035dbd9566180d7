#include <algorithm>

#include "ops/attention.h"
#include "ops/families.h"

/// Attention in its several spellings, taken apart into contractions, masks and softmax.
namespace heddle::ops {

using ir::ScalarFn;

Result<NodeId> split_heads(const Call& call, Builder& b, NodeId x, std::int64_t heads) {
  const Shape in = b.shape(x);
  if (in.size() == 4) return x;
  if (in.size() != 3 || heads < 1 || in[2] % heads != 0) {
    return call.error("a value of shape {} does not split into {} heads", to_string(in), heads);
  }
  return b.transpose(b.reshape(x, {in[0], in[1], heads, in[2] / heads}), {0, 2, 1, 3});
}

NodeId join_heads(Builder& b, NodeId x) {
  const Shape in = b.shape(x);
  return b.reshape(b.transpose(x, {0, 2, 1, 3}), {in[0], in[2], in[1] * in[3]});
}

namespace {

/// Each of the kv heads serves heads/kv query heads in turn.
NodeId repeat_heads(Builder& b, NodeId x, std::int64_t heads) {
  Shape shape = b.shape(x);
  const std::int64_t times = heads / shape[1];
  if (times == 1) return x;
  shape[1] = heads;
  return b.view(x, shape, {{dim(0), ir::floor_div(dim(1), times), dim(2), dim(3)}, {}});
}

}  // namespace

Result<Attended> attend(const Call& call, Builder& b, Scores a) {
  const Shape q = b.shape(a.q), k = b.shape(a.k), v = b.shape(a.v);
  if (q[0] != k[0] || k[0] != v[0] || q[3] != k[3] || k[2] != v[2] || k[1] != v[1] || k[1] < 1 ||
      q[1] < 1 || q[1] % k[1] != 0 || k[2] < 1) {
    return call.error("query {}, key {}, value {} do not fit", to_string(q), to_string(k),
                      to_string(v));
  }
  a.k = repeat_heads(b, a.k, q[1]);
  a.v = repeat_heads(b, a.v, q[1]);
  const Shape space = HEDDLE_TRY(checked(call, {q[0], q[1], q[2], k[2]}, b.dtype(a.q)));
  const DType type = b.dtype(a.q);
  Attended out;
  out.raw = b.mul(b.matmul(a.q, b.transpose(a.k, {0, 1, 3, 2})), a.scale);
  out.capped = out.raw;
  if (a.softcap > 0) out.capped = b.mul(b.tanh(b.mul(out.raw, 1 / a.softcap)), a.softcap);
  out.biased = out.capped;
  if (a.bias) {
    const auto fits = broadcast_shapes(b.shape(*a.bias), space);
    if (!fits || *fits != space) {
      return call.error("mask of shape {} does not broadcast to {}", to_string(b.shape(*a.bias)),
                        to_string(space));
    }
    out.biased = b.add(out.biased, b.cast(*a.bias, type));
  }
  if (a.causal_offset >= 0) {
    const NodeId s = b.iota({DType::i64, {q[2], k[2]}}, 0);
    const NodeId t = b.iota({DType::i64, {q[2], k[2]}}, 1);
    const NodeId limit = b.add(s, b.scalar_int(DType::i64, a.causal_offset));
    const NodeId sees = b.map(ScalarFn::less_equal, {t, limit});
    out.biased =
        b.select(sees, out.biased, b.scalar(type, -std::numeric_limits<double>::infinity()));
  }
  out.weights = b.cast(b.softmax(b.cast(out.biased, a.softmax_type), {3}), type);
  out.y = b.matmul(out.weights, a.v);
  return out;
}

NodeId additive(Builder& b, NodeId mask, DType type, double hidden) {
  if (b.dtype(mask) != DType::b1) return mask;
  return b.select(mask, b.scalar(type, 0), b.scalar(type, hidden));
}

NodeId rotate(Builder& b, NodeId x, NodeId c, NodeId s, bool interleaved) {
  const Shape in = b.shape(x);
  const std::int64_t half = b.shape(c).back(), rotated = 2 * half;
  const auto part = [&](std::int64_t which) {
    Shape start(4, 0), size = in, step(4, 1);
    start[3] = interleaved ? which : which * half;
    size[3] = half;
    step[3] = interleaved ? 2 : 1;
    return b.slice(x, start, size, step);
  };
  const NodeId x0 = part(0), x1 = part(1);
  const NodeId y0 = b.sub(b.mul(x0, c), b.mul(x1, s)), y1 = b.add(b.mul(x0, s), b.mul(x1, c));
  Shape shape = in;
  shape[3] = rotated;
  NodeId y = interleaved ? b.reshape(b.stack({y0, y1}, 4), shape) : b.concat({y0, y1}, 3);
  if (rotated < in[3]) {
    y = b.concat({y, b.slice_axis(x, 3, rotated, in[3] - rotated)}, 3);
  }
  return y;
}

namespace {

/// ai.onnx Attention: Q, K, V, mask, past key, past value → Y, present key, present value, scores.
Result<Values> attention(const Call& call, Builder& b) {
  for (int i = 0; i < 3; ++i) {
    HEDDLE_TRY(want_float(call, b, i));
    HEDDLE_TRY(want_rank(call, b, i, 3, 4));
    HEDDLE_TRY(want_type(call, b, i, b.dtype(call.in(0))));
  }
  const bool flat = b.rank(call.in(0)) == 3;
  const std::int64_t heads = call.attribute_int("q_num_heads", 0);
  const std::int64_t kv_heads = call.attribute_int("kv_num_heads", heads);
  Scores a;
  a.q = HEDDLE_TRY(split_heads(call, b, call.in(0), heads));
  a.k = HEDDLE_TRY(split_heads(call, b, call.in(1), kv_heads));
  a.v = HEDDLE_TRY(split_heads(call, b, call.in(2), kv_heads));
  std::int64_t past = 0;
  for (int i = 4; i < 6; ++i) {
    if (!call.has(i)) continue;
    NodeId& value = i == 4 ? a.k : a.v;
    HEDDLE_TRY(want_rank(call, b, i, 4, 4));
    HEDDLE_TRY(want_type(call, b, i, b.dtype(call.in(0))));
    Shape wanted = b.shape(value);
    past = wanted[2] = b.shape(call.in(i))[2];
    HEDDLE_TRY(want_shape(call, b, i, wanted));
    if (past > 0) value = b.concat({call.in(i), value}, 2);
  }
  const NodeId present_k = a.k, present_v = a.v;
  const std::int64_t depth = b.shape(a.q)[3];
  if (depth < 1) return call.error("query has shape {}", to_string(b.shape(a.q)));
  a.scale = call.attribute_float("scale", 1 / std::sqrt(static_cast<double>(depth)));
  a.softcap = call.attribute_float("softcap", 0);
  if (call.attribute_int("is_causal", 0) != 0) a.causal_offset = past;
  const DType type = b.dtype(a.q);
  a.softmax_type = HEDDLE_TRY(attribute_dtype(call, "softmax_precision", compute_type(type)));
  if (!is_float(a.softmax_type)) return call.error("softmax_precision is no floating type");
  const double hidden = -std::numeric_limits<double>::infinity();
  if (call.has(3)) {
    HEDDLE_TRY(want_rank(call, b, 3, 1, 4));
    NodeId mask = additive(b, call.in(3), type, hidden);
    const Shape shape = b.shape(mask);
    if (const std::int64_t missing = b.shape(a.k)[2] - shape.back();
        missing > 0 && shape.back() > 1) {
      Shape none(shape.size(), 0), after = none;
      after.back() = missing;
      mask = b.pad(mask, none, after, hidden);
    }
    a.bias = mask;
  }
  if (call.has(6)) {  // keys from that position on are padding
    const Shape k = b.shape(a.k);
    HEDDLE_TRY(want_shape(call, b, 6, {k[0]}));
    HEDDLE_TRY(want_int(call, b, 6));
    const NodeId length = b.reshape(b.cast(call.in(6), DType::i64), {k[0], 1, 1, 1});
    const NodeId position = b.iota({DType::i64, {k[0], 1, 1, k[2]}}, 3);
    const NodeId seen = b.map(ScalarFn::less, {position, length});
    const NodeId padding = additive(b, seen, type, hidden);
    if (a.bias && !broadcast_shapes(b.shape(*a.bias), b.shape(padding)))
      return call.error("mask of shape {} does not fit", to_string(b.shape(*a.bias)));
    a.bias = a.bias ? b.add(b.cast(*a.bias, type), padding) : padding;
  }
  const Attended r = HEDDLE_TRY(attend(call, b, a));
  const std::int64_t mode = call.attribute_int("qk_matmul_output_mode", 0);
  const NodeId scores[] = {r.raw, r.capped, r.biased, r.weights};
  if (mode < 0 || mode > 3) return call.error("qk_matmul_output_mode is {}, want 0 to 3", mode);
  Values out{flat ? join_heads(b, r.y) : r.y, present_k, present_v, scores[mode]};
  out.resize(static_cast<std::size_t>(std::clamp(call.outputs, 1, 4)));
  return out;
}

struct Rotary {
  int cos = 1, sin = 2, positions = 3;
  bool offset_allowed = false;  ///< a single position is the first of consecutive ones
};
Result<Values> rotary(const Call& call, Builder& b, Rotary where) {
  HEDDLE_TRY(want_float(call, b, 0));
  HEDDLE_TRY(want_rank(call, b, 0, 3, 4));
  std::int64_t heads = call.attribute_int("num_heads", 0);
  const std::int64_t cut = call.attribute_int("rotary_embedding_dim", 0);
  const Shape in = b.shape(call.in(0));
  Shape cache = b.shape(call.in(where.cos));
  if (heads == 0 && in.size() == 3 && !cache.empty() && cache.back() > 0 && cut == 0) {
    heads = in[2] / (2 * cache.back());
  }
  const NodeId x = HEDDLE_TRY(split_heads(call, b, call.in(0), heads));
  const Shape space = b.shape(x);
  const std::int64_t half = (cut > 0 ? cut : space[3]) / 2;
  HEDDLE_TRY(want_type(call, b, where.cos, b.dtype(x)));
  HEDDLE_TRY(want_type(call, b, where.sin, b.dtype(x)));
  HEDDLE_TRY(want_shape(call, b, where.sin, cache));
  if (cut < 0 || half < 1 || 2 * half > space[3] || cache.empty() || cache.back() != half ||
      element_count(cache) == 0) {
    return call.error("cache of shape {} does not fit input of shape {}", to_string(cache),
                      to_string(in));
  }
  NodeId c = call.in(where.cos), s = call.in(where.sin);
  if (call.has(where.positions)) {
    HEDDLE_TRY(want_int(call, b, where.positions));
    if (cache.size() != 2) return call.error("cache has shape {}, want rank 2", to_string(cache));
    NodeId p = b.cast(call.in(where.positions), DType::i64);
    if (where.offset_allowed && element_count(b.shape(p)) == 1) {
      p = b.add(b.reshape(p, {1, 1}), b.iota({DType::i64, {1, space[2]}}, 1));
    } else if (b.shape(p) != Shape{space[0], space[2]}) {
      return call.error("positions have shape {}, want [{},{}]", to_string(b.shape(p)), space[0],
                        space[2]);
    }
    c = b.take(c, p, 0);
    s = b.take(s, p, 0);
    cache = b.shape(c);
  }
  if (cache.size() != 3 || cache[1] != space[2] || (cache[0] != space[0] && cache[0] != 1)) {
    return call.error("cache has shape {}, want [{},{},{}]", to_string(cache), space[0], space[2],
                      half);
  }
  const bool interleaved = call.attribute_int("interleaved", 0) != 0;
  const NodeId y = rotate(b, x, b.unsqueeze(c, {1}), b.unsqueeze(s, {1}), interleaved);
  return Values{in.size() == 3 ? join_heads(b, y) : y};
}
Result<Values> rotary_embedding(const Call& call, Builder& b) { return rotary(call, b, {}); }
Result<Values> microsoft_rotary(const Call& call, Builder& b) {
  return rotary(call, b, {2, 3, 1, true});
}

/// Which of three streams of positions each of the `half` angles takes: in sections one after
/// another, or every third, as far as a section goes.
Result<std::vector<std::int64_t>> streams_of(const Call& call, std::int64_t half) {
  const auto sections = call.attribute_ints("mrope_section", {});
  const auto length = [&](std::size_t i) { return sections[i]; };
  if (sections.size() != 3 || *std::ranges::min_element(sections) < 0 ||
      *std::ranges::max_element(sections) > half || length(0) + length(1) + length(2) != half)
    return call.error("mrope_section is {}, want three numbers that sum to {}", to_string(sections),
                      half);
  std::vector<std::int64_t> stream;
  if (call.attribute_int("mrope_layout", 0) == 0) {
    for (std::size_t i = 0; i < 3; ++i)
      stream.insert(stream.end(), static_cast<std::size_t>(length(i)),
                    static_cast<std::int64_t>(i));
    return stream;
  }
  stream.assign(static_cast<std::size_t>(half), 0);
  for (std::int64_t k = 0; k < half; ++k)
    for (const std::int64_t i : {1, 2})
      if (k % 3 == i && k < 3 * length(static_cast<std::size_t>(i)))
        stream[static_cast<std::size_t>(k)] = i;
  return stream;
}

/// Rotary embedding by positions in time, height and width: input, positions [3, B, S], caches.
Result<Values> multimodal_rotary(const Call& call, Builder& b) {
  HEDDLE_TRY(want_int(call, b, 1));
  HEDDLE_TRY(want_rank(call, b, 1, 3, 3));
  HEDDLE_TRY(want_rank(call, b, 2, 2, 2));
  HEDDLE_TRY(want_shape(call, b, 3, b.shape(call.in(2))));
  const Shape positions = b.shape(call.in(1)), cache = b.shape(call.in(2));
  if (positions[0] != 3 || element_count(cache) == 0)
    return call.error("positions have shape {}, want [3,*,*]", to_string(positions));
  if (call.attribute_int("is_packed_batching", 0) != 0 || call.attribute_float("scale", 1) != 1)
    return call.unsupported("is_packed_batching or scale is given");
  const auto stream = HEDDLE_TRY(streams_of(call, cache[1]));
  const NodeId index = b.cast(call.in(1), DType::i64);
  // [B, S, half] of [3, B, S, half], a stream for each angle.
  const auto angles = [&](NodeId table) {
    const NodeId all = b.transpose(b.take(table, index, 0), {1, 2, 0, 3});
    const Shape out{positions[1], positions[2], 1, cache[1]};
    const NodeId which = b.broadcast(constant_i64(b, stream, {1, 1, 1, cache[1]}), out);
    return b.squeeze(b.take_along(all, which, 2), {2});
  };
  Call plain = call;
  plain.args = {call.in(0), angles(call.in(2)), angles(call.in(3))};
  return rotary(plain, b, {});
}

constexpr OpDef kAttentionOps[] = {
    {"Attention", 23, 3, 7, attention},
    {"RotaryEmbedding", 23, 3, 4, rotary_embedding},
    {"com.microsoft::MRotaryEmbedding", 1, 4, 4, multimodal_rotary},
    {"com.microsoft::RotaryEmbedding", 1, 4, 4, microsoft_rotary},
};

}  // namespace

std::span<const OpDef> attention_ops() { return kAttentionOps; }

}  // namespace heddle::ops

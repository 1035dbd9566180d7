#include <algorithm>

#include "ops/families.h"
#include "ops/util.h"

/// Attention in its several spellings, taken apart into contractions, masks and softmax.
namespace heddle::ops {
namespace {

using ir::ScalarFn;

/// [B, S, heads·d] → [B, heads, S, d]; rank 4 stays.
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

/// Each of the kv heads serves heads/kv query heads in turn.
NodeId repeat_heads(Builder& b, NodeId x, std::int64_t heads) {
  Shape shape = b.shape(x);
  const std::int64_t times = heads / shape[1];
  if (times == 1) return x;
  shape[1] = heads;
  return b.view(x, shape, {{dim(0), ir::floor_div(dim(1), times), dim(2), dim(3)}, {}});
}

struct Scores {
  NodeId q, k, v;  ///< [B, heads, S, d], [B, kv, T, d], [B, kv, T, dv]
  double scale = 1;
  std::int64_t causal_offset = -1;  ///< query s sees keys up to s + offset; -1: all
  double softcap = 0;
  std::optional<NodeId> bias;  ///< added to the scores, broadcasts to [B, heads, S, T]
  DType softmax_type = DType::f32;
};
struct Attended {
  NodeId y, raw, biased, capped, weights;
};

Result<Attended> attend(const Call& call, Builder& b, Scores a) {
  const Shape q = b.shape(a.q), k = b.shape(a.k), v = b.shape(a.v);
  if (q[0] != k[0] || k[0] != v[0] || q[3] != k[3] || k[2] != v[2] || k[1] != v[1] || k[1] < 1 ||
      q[1] % k[1] != 0 || k[2] < 1) {
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

/// 0 where a boolean mask holds, -inf elsewhere; other masks are added as they are.
NodeId additive(Builder& b, NodeId mask, DType type, double hidden) {
  if (b.dtype(mask) != DType::b1) return mask;
  return b.select(mask, b.scalar(type, 0), b.scalar(type, hidden));
}

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

/// com.microsoft's key mask, input i: 1 where a key counts [B, keys]; or each batch's end [B]; or
/// ends, then starts [2B]. As numbers to add, [B, 1, 1, keys].
Result<NodeId> key_mask(const Call& call, Builder& b, int i, std::int64_t batch, std::int64_t keys,
                        DType type) {
  HEDDLE_TRY(want_int(call, b, i));
  const Shape given = b.shape(call.in(i));
  const Shape space{batch, 1, 1, keys};
  NodeId seen = call.in(i);
  if (given == Shape{batch} || given == Shape{2 * batch}) {
    const NodeId at = b.iota({DType::i64, space}, 3);
    const auto border = [&](std::int64_t from) {
      const NodeId part = b.slice_axis(b.cast(call.in(i), DType::i64), 0, from, batch);
      return b.broadcast(b.reshape(part, {batch, 1, 1, 1}), space);
    };
    seen = b.map(ScalarFn::less, {at, border(0)});
    if (given != Shape{batch})
      seen = b.map(ScalarFn::logical_and, {seen, b.map(ScalarFn::less_equal, {border(batch), at})});
  } else {
    if (given != Shape{batch, keys})
      return call.error("input {} has shape {}, want [{},{}], [{}] or [{}]", i, to_string(given),
                        batch, keys, batch, 2 * batch);
    seen = b.reshape(compare(b, ScalarFn::not_equal, seen, 0), space);
  }
  return additive(b, seen, type, call.attribute_float("mask_filter_value", -10000));
}

Status add_mask(const Call& call, Builder& b, Scores& a, NodeId mask, DType type) {
  if (a.bias && (!broadcast_shapes(b.shape(*a.bias), b.shape(mask)) || b.dtype(*a.bias) != type))
    return call.error("attention bias does not fit");
  a.bias = a.bias ? b.add(*a.bias, mask) : mask;
  return Ok{};
}

/// Puts the keys or values of input i, [B, heads, past, d], in front of the fresh ones.
Result<NodeId> after_past(const Call& call, Builder& b, int i, NodeId past, NodeId fresh) {
  Shape wanted = b.shape(fresh);
  const Shape given = b.shape(past);
  if (given.size() == 4) wanted[2] = given[2];
  if (given != wanted || b.dtype(past) != b.dtype(fresh))
    return call.error("input {}: the past is {}, want {}", i, to_string(b.type(past)),
                      to_string(TensorType{b.dtype(fresh), wanted}));
  return given[2] == 0 ? fresh : b.concat({past, fresh}, 2);
}

/// com.microsoft Attention: one projection of the input to query, key and value.
Result<Values> fused_attention(const Call& call, Builder& b) {
  HEDDLE_TRY(want_float(call, b, 0));
  HEDDLE_TRY(want_rank(call, b, 0, 3, 3));
  HEDDLE_TRY(want_rank(call, b, 1, 2, 2));
  HEDDLE_TRY(want_type(call, b, 1, b.dtype(call.in(0))));
  if (call.has(6)) return call.unsupported("past keys and values in a shared buffer");
  if (call.has_attribute("qkv_hidden_sizes")) return call.unsupported("qkv_hidden_sizes");
  const Shape in = b.shape(call.in(0)), w = b.shape(call.in(1));
  const std::int64_t heads = call.attribute_int("num_heads", 0), width = w[1] / 3;
  if (w[0] != in[2] || w[1] % 3 != 0 || heads < 1 || width < heads || width % heads != 0) {
    return call.error("input {} and weights {} do not make {} heads", to_string(in), to_string(w),
                      heads);
  }
  NodeId all = b.matmul(call.in(0), call.in(1));
  if (call.has(2)) {
    HEDDLE_TRY(want_shape(call, b, 2, {w[1]}));
    HEDDLE_TRY(want_type(call, b, 2, b.dtype(all)));
    all = b.add(all, call.in(2));
  }
  Scores a;
  NodeId* parts[] = {&a.q, &a.k, &a.v};
  for (int i = 0; i < 3; ++i) {
    const NodeId part = b.slice_axis(all, 2, i * width, width);
    *parts[i] = HEDDLE_TRY(split_heads(call, b, part, heads));
  }
  const DType type = b.dtype(all);
  a.scale = call.attribute_float("scale", 1 / std::sqrt(static_cast<double>(width / heads)));
  a.softmax_type = compute_type(type);
  if (call.has(4)) {  // [2, B, heads, past, d]
    HEDDLE_TRY(want_rank(call, b, 4, 5, 5));
    for (int i = 0; i < 2; ++i) {
      NodeId& fresh = i == 0 ? a.k : a.v;
      if (b.shape(call.in(4))[0] != 2) return call.error("input 4 is no pair");
      const NodeId past = b.squeeze(b.slice_axis(call.in(4), 0, i, 1), {0});
      fresh = HEDDLE_TRY(after_past(call, b, 4, past, fresh));
    }
  }
  const std::int64_t keys = b.shape(a.k)[2];
  if (call.attribute_int("unidirectional", 0) != 0) a.causal_offset = keys - in[1];
  if (call.has(5)) a.bias = call.in(5);
  if (call.has(3)) {
    const NodeId mask = HEDDLE_TRY(key_mask(call, b, 3, in[0], keys, type));
    HEDDLE_TRY(add_mask(call, b, a, mask, type));
  }
  Values out{join_heads(b, HEDDLE_TRY(attend(call, b, a)).y)};
  if (call.outputs > 1) out.push_back(b.stack({a.k, a.v}, 0));
  return out;
}

/// com.microsoft MultiHeadAttention: query, key, value, bias, key padding mask, attention bias.
Result<Values> multi_head_attention(const Call& call, Builder& b) {
  for (int i = 0; i < 3; ++i) {
    if (!call.has(i)) return call.unsupported("packed query, key and value");
    HEDDLE_TRY(want_float(call, b, i));
    HEDDLE_TRY(want_rank(call, b, i, 3, 4));
    HEDDLE_TRY(want_type(call, b, i, b.dtype(call.in(0))));
  }
  HEDDLE_TRY(want_rank(call, b, 0, 3, 3));
  const std::int64_t heads = call.attribute_int("num_heads", 0);
  NodeId parts[] = {call.in(0), call.in(1), call.in(2)};
  if (call.has(3)) {
    HEDDLE_TRY(want_rank(call, b, 3, 1, 1));
    HEDDLE_TRY(want_type(call, b, 3, b.dtype(call.in(0))));
    std::int64_t start = 0;
    for (NodeId& part : parts) {
      const std::int64_t width = b.shape(part).back();
      if (b.rank(part) != 3 || start + width > b.shape(call.in(3))[0]) {
        return call.error("bias has shape {}, which does not fit", to_string(b.shape(call.in(3))));
      }
      part = b.add(part, b.slice_axis(call.in(3), 0, start, width));
      start += width;
    }
  }
  Scores a;
  a.q = HEDDLE_TRY(split_heads(call, b, parts[0], heads));
  a.k = HEDDLE_TRY(split_heads(call, b, parts[1], heads));
  a.v = HEDDLE_TRY(split_heads(call, b, parts[2], heads));
  const DType type = b.dtype(a.q);
  const std::int64_t depth = b.shape(a.q)[3];
  if (depth < 1) return call.error("query has shape {}", to_string(b.shape(a.q)));
  a.scale = call.attribute_float("scale", 0);
  if (a.scale == 0) a.scale = 1 / std::sqrt(static_cast<double>(depth));
  a.softmax_type = compute_type(type);
  if (call.has(6)) a.k = HEDDLE_TRY(after_past(call, b, 6, call.in(6), a.k));
  if (call.has(7)) a.v = HEDDLE_TRY(after_past(call, b, 7, call.in(7), a.v));
  const std::int64_t keys = b.shape(a.k)[2], batch = b.shape(a.k)[0];
  if (call.attribute_int("unidirectional", 0) != 0) a.causal_offset = keys - b.shape(a.q)[2];
  if (call.has(5)) a.bias = call.in(5);
  if (call.has(4)) {
    const NodeId mask = HEDDLE_TRY(key_mask(call, b, 4, batch, keys, type));
    HEDDLE_TRY(add_mask(call, b, a, mask, type));
  }
  Values out{join_heads(b, HEDDLE_TRY(attend(call, b, a)).y), a.k, a.v};
  out.resize(static_cast<std::size_t>(std::clamp(call.outputs, 1, 3)));
  return out;
}

/// Rotates pairs of x [B, heads, S, d]: (x0, x1) → (x0 c - x1 s, x0 s + x1 c), c and s [B|1, 1, S,
/// d'/2]; pairs are neighbours when interleaved, else d'/2 apart.
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

/// com.microsoft GroupQueryAttention: what its inputs are, and where each batch's tokens start.
struct GroupQuery {
  NodeId q, k, v;          ///< [B, heads, S, d], [B, kv, S, d]
  NodeId past_tokens;      ///< i64[B, 1, 1, 1]: before the first of the query
  std::int64_t total = 0;  ///< positions of the present keys
};

/// Query, key and value, which may be packed into input 0, in heads.
Status split_group_query(const Call& call, Builder& b, std::int64_t heads, std::int64_t kv_heads,
                         GroupQuery& g) {
  HEDDLE_TRY(want_float(call, b, 0));
  HEDDLE_TRY(want_rank(call, b, 0, 3, 3));
  NodeId parts[] = {call.in(0), call.in(0), call.in(0)};
  if (call.has(1) != call.has(2)) return call.error("key and value are not given together");
  if (call.has(1)) {
    for (int i = 1; i < 3; ++i) {
      HEDDLE_TRY(want_rank(call, b, i, 3, 3));
      HEDDLE_TRY(want_type(call, b, i, b.dtype(call.in(0))));
      parts[i] = call.in(i);
    }
  } else {
    const std::int64_t width = b.shape(call.in(0))[2], all = heads + 2 * kv_heads;
    if (width % all != 0) return call.error("{} columns do not make {} heads", width, all);
    const std::int64_t d = width / all;
    parts[0] = b.slice_axis(call.in(0), 2, 0, heads * d);
    parts[1] = b.slice_axis(call.in(0), 2, heads * d, kv_heads * d);
    parts[2] = b.slice_axis(call.in(0), 2, (heads + kv_heads) * d, kv_heads * d);
  }
  g.q = HEDDLE_TRY(split_heads(call, b, parts[0], heads));
  g.k = HEDDLE_TRY(split_heads(call, b, parts[1], kv_heads));
  g.v = HEDDLE_TRY(split_heads(call, b, parts[2], kv_heads));
  const Shape q = b.shape(g.q), k = b.shape(g.k);
  if (k != Shape{q[0], kv_heads, q[2], q[3]} || b.shape(g.v) != k || q[2] < 1 || q[3] < 1)
    return call.error("query {}, key {} and value {} do not fit", to_string(q), to_string(k),
                      to_string(b.shape(g.v)));
  return Ok{};
}

/// The first tokens of the cache, then the new ones: [B, kv, total, d].
Result<NodeId> present_of(const Call& call, Builder& b, int past, NodeId fresh,
                          const GroupQuery& g) {
  const Shape in = b.shape(fresh);
  const Shape out = HEDDLE_TRY(checked(call, {in[0], in[1], g.total, in[3]}, b.dtype(fresh)));
  const NodeId at = b.iota({DType::i64, out}, 2);
  const NodeId before = b.broadcast(g.past_tokens, out), since = b.sub(at, before);
  const auto along = [&](NodeId source, NodeId index) {
    prim::Gather gather{{2}, {dim(0), dim(1), ir::Expr(0), dim(3)}};
    return b.gather(source, {index}, std::move(gather), out);
  };
  const NodeId zero = b.full({b.dtype(fresh), out}, 0);
  const NodeId in_new = b.map(ScalarFn::less, {since, b.scalar_int(DType::i64, in[2])});
  const NodeId rest = b.select(in_new, along(fresh, since), zero);
  if (!call.has(past) || b.shape(call.in(past))[2] == 0) return rest;
  Shape wanted = in;
  wanted[2] = b.shape(call.in(past))[2];
  HEDDLE_TRY(want_shape(call, b, past, wanted));
  HEDDLE_TRY(want_type(call, b, past, b.dtype(fresh)));
  return b.select(b.map(ScalarFn::less, {at, before}), along(call.in(past), at), rest);
}

/// Rotates x by each token's position.
Result<NodeId> rotated_tokens(const Call& call, Builder& b, NodeId x, const GroupQuery& g) {
  HEDDLE_TRY(want_rank(call, b, 7, 2, 2));
  HEDDLE_TRY(want_shape(call, b, 8, b.shape(call.in(7))));
  const Shape in = b.shape(x), cache = b.shape(call.in(7));
  for (int i = 7; i < 9; ++i) HEDDLE_TRY(want_type(call, b, i, b.dtype(x)));
  if (cache[0] < 1 || cache[1] < 1 || 2 * cache[1] > in[3])
    return call.error("cache of shape {} does not fit heads of {}", to_string(cache), in[3]);
  NodeId at = b.add(b.reshape(g.past_tokens, {in[0], 1}), b.iota({DType::i64, {1, in[2]}}, 1));
  if (call.has(9)) {
    HEDDLE_TRY(want_int(call, b, 9));
    HEDDLE_TRY(want_shape(call, b, 9, {in[0], in[2]}));
    at = b.cast(call.in(9), DType::i64);
  }
  const auto of = [&](int i) { return b.unsqueeze(b.take(call.in(i), at, 0), {1}); };
  return rotate(b, x, of(7), of(8), call.attribute_int("rotary_interleaved", 0) != 0);
}

/// Inputs: query, key, value, past key, past value, seqlens_k (tokens of each batch, less one),
/// total_sequence_length, cos and sin caches, position ids, attention bias.
Result<Values> group_query_attention(const Call& call, Builder& b) {
  const std::int64_t heads = call.attribute_int("num_heads", 0);
  const std::int64_t kv_heads = call.attribute_int("kv_num_heads", 0);
  if (heads < 1 || kv_heads < 1 || heads % kv_heads != 0 || heads > 1 << 16)
    return call.error("{} heads over {} of keys", heads, kv_heads);
  if (call.has(11) || call.attribute_int("smooth_softmax", 0) != 0)
    return call.unsupported("sinks beside the keys (smooth_softmax, head_sink)");
  for (const char* key : {"k_quant_type", "v_quant_type"})
    if (call.attribute_string(key, "NONE") != "NONE") return call.unsupported("a quantised cache");
  for (int i = 5; i < 7; ++i)
    if (!call.has(i)) return call.error("input {} is missing", i);
  GroupQuery g;
  HEDDLE_TRY(split_group_query(call, b, heads, kv_heads, g));
  const Shape q = b.shape(g.q);
  HEDDLE_TRY(want_int(call, b, 5));
  if (element_count(b.shape(call.in(5))) != q[0])
    return call.error("seqlens_k has shape {}, want [{}]", to_string(b.shape(call.in(5))), q[0]);
  const auto total = HEDDLE_TRY(call.constant_ints(6));
  if (total.size() != 1 || total[0] < q[2])
    return call.error("total_sequence_length is no number of at least {}", q[2]);
  g.total = total[0];
  for (int i = 3; i < 5; ++i) {
    if (call.has(i)) HEDDLE_TRY(want_rank(call, b, i, 4, 4));
    if (call.has(i)) g.total = std::max(g.total, b.shape(call.in(i))[2]);
  }
  const NodeId tokens = b.reshape(b.cast(call.in(5), DType::i64), {q[0], 1, 1, 1});
  g.past_tokens = total[0] == q[2]  // the prompt
                      ? b.full({DType::i64, {q[0], 1, 1, 1}}, 0)
                      : b.add(tokens, b.scalar_int(DType::i64, 1 - q[2]));
  if (call.attribute_int("do_rotary", 0) != 0) {
    if (!call.has(7) || !call.has(8)) return call.error("do_rotary without caches");
    g.q = HEDDLE_TRY(rotated_tokens(call, b, g.q, g));
    g.k = HEDDLE_TRY(rotated_tokens(call, b, g.k, g));
  }
  Scores a;
  a.q = g.q;
  a.k = HEDDLE_TRY(present_of(call, b, 3, g.k, g));
  a.v = HEDDLE_TRY(present_of(call, b, 4, g.v, g));
  const DType type = b.dtype(g.q);
  a.scale = call.attribute_float("scale", 0);
  if (a.scale == 0) a.scale = 1 / std::sqrt(static_cast<double>(q[3]));
  a.softcap = call.attribute_float("softcap", 0);
  a.softmax_type = compute_type(type);
  const Shape space = HEDDLE_TRY(checked(call, {q[0], 1, q[2], g.total}, DType::i64));
  const NodeId key = b.iota({DType::i64, space}, 3);
  const NodeId own = b.add(b.iota({DType::i64, space}, 2), g.past_tokens);
  NodeId sees = b.map(ScalarFn::less_equal, {key, own});
  if (const std::int64_t window = call.attribute_int("local_window_size", -1); window > 0)
    sees =
        b.map(ScalarFn::logical_and,
              {sees, b.map(ScalarFn::less, {own, b.add(key, b.scalar_int(DType::i64, window))})});
  NodeId bias = additive(b, sees, type, -std::numeric_limits<double>::infinity());
  if (call.has(10)) {
    HEDDLE_TRY(want_type(call, b, 10, type));
    const auto fits = broadcast_shapes(b.shape(call.in(10)), space);
    if (!fits) return call.error("attention bias does not fit");
    bias = b.add(bias, call.in(10));
  }
  a.bias = bias;
  const NodeId present_k = a.k, present_v = a.v;
  Values out{join_heads(b, HEDDLE_TRY(attend(call, b, a)).y), present_k, present_v};
  if (call.outputs > 3) return call.unsupported("output 3 (scores)");
  out.resize(static_cast<std::size_t>(std::clamp(call.outputs, 1, 3)));
  return out;
}

constexpr OpDef kAttentionOps[] = {
    {"Attention", 23, 3, 7, attention},
    {"RotaryEmbedding", 23, 3, 4, rotary_embedding},
    {"com.microsoft::Attention", 1, 2, 7, fused_attention},
    {"com.microsoft::MultiHeadAttention", 1, 1, 10, multi_head_attention},
    {"com.microsoft::GroupQueryAttention", 1, 1, 14, group_query_attention},
    {"com.microsoft::RotaryEmbedding", 1, 4, 4, microsoft_rotary},
};

}  // namespace

std::span<const OpDef> attention_ops() { return kAttentionOps; }

}  // namespace heddle::ops

#include <algorithm>
#include <cmath>

#include "ops/attention.h"
#include "ops/families.h"

/// com.microsoft's attention: of one projection, of integers, of several heads, of groups.
namespace heddle::ops {
namespace {

using ir::ScalarFn;

/// com.microsoft's key mask, input i, for scores [B, 1, S, keys]: 1 where a key counts [B, keys] or
/// [B, S, keys]; or each batch's end [B]; or ends, then starts [2B]. As numbers to add, [B, 1, 1|S,
/// keys].
Result<NodeId> key_mask(const Call& call, Builder& b, int i, const Shape& scores, DType type) {
  HEDDLE_TRY(want_int(call, b, i));
  const Shape given = b.shape(call.in(i));
  const std::int64_t batch = scores[0], keys = scores[3];
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
  } else if (given == Shape{batch, scores[2], keys}) {
    seen = b.reshape(compare(b, ScalarFn::not_equal, seen, 0), scores);
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

/// Columns of query, key and value in a projection.
using Widths = std::vector<std::int64_t>;

/// What com.microsoft's Attention and QAttention want of input [B, S, n] and weights [n, columns].
Result<Widths> want_projection(const Call& call, Builder& b) {
  HEDDLE_TRY(want_rank(call, b, 0, 3, 3));
  HEDDLE_TRY(want_rank(call, b, 1, 2, 2));
  const Shape in = b.shape(call.in(0)), w = b.shape(call.in(1));
  const std::int64_t heads = call.attribute_int("num_heads", 0);
  Widths widths = call.attribute_ints("qkv_hidden_sizes", {});
  if (widths.empty() && w[1] % 3 == 0) widths.assign(3, w[1] / 3);
  bool fits = w[0] == in[2] && heads >= 1 && widths.size() == 3 && widths[0] == widths[1];
  std::int64_t rest = w[1];
  for (const std::int64_t width : widths) {
    fits = fits && width >= heads && width % heads == 0 && width <= rest;
    rest -= fits ? width : 0;
  }
  if (!fits || rest != 0)
    return call.error("input {} and weights {} do not make {} heads of {} columns", to_string(in),
                      to_string(w), heads, to_string(widths));
  if (call.has(2)) HEDDLE_TRY(want_shape(call, b, 2, {w[1]}));
  return widths;
}

/// Attention of a projection [B, S, columns] to query, key and value; the inputs of these numbers
/// are the mask, the past (both may be absent) and a bias of the scores (-1: there is none).
Result<Values> attend_projection(const Call& call, Builder& b, NodeId all, const Widths& widths,
                                 int mask_input, int past_input, int bias_input) {
  const Shape in = b.shape(all);
  const std::int64_t heads = call.attribute_int("num_heads", 0);
  if (widths[2] != widths[1] && (call.has(past_input) || call.outputs > 1))
    return call.unsupported("keys and values of different widths in one cache");
  Scores a;
  NodeId* parts[] = {&a.q, &a.k, &a.v};
  std::int64_t from = 0;
  for (std::size_t i = 0; i < 3; from += widths[i++]) {
    const NodeId part = b.slice_axis(all, 2, from, widths[i]);
    *parts[i] = HEDDLE_TRY(split_heads(call, b, part, heads));
  }
  const DType type = b.dtype(all);
  a.scale = call.attribute_float("scale", 1 / std::sqrt(static_cast<double>(widths[0] / heads)));
  a.softmax_type = compute_type(type);
  if (call.has(past_input)) {  // [2, B, heads, past, d]
    HEDDLE_TRY(want_rank(call, b, past_input, 5, 5));
    for (int i = 0; i < 2; ++i) {
      NodeId& fresh = i == 0 ? a.k : a.v;
      if (b.shape(call.in(past_input))[0] != 2)
        return call.error("input {} is no pair", past_input);
      const NodeId past = b.squeeze(b.slice_axis(call.in(past_input), 0, i, 1), {0});
      fresh = HEDDLE_TRY(after_past(call, b, past_input, past, fresh));
    }
  }
  const std::int64_t keys = b.shape(a.k)[2];
  if (call.attribute_int("unidirectional", 0) != 0) a.causal_offset = keys - in[1];
  if (bias_input >= 0 && call.has(bias_input)) a.bias = call.in(bias_input);
  if (call.has(mask_input)) {
    const NodeId mask = HEDDLE_TRY(key_mask(call, b, mask_input, {in[0], 1, in[1], keys}, type));
    HEDDLE_TRY(add_mask(call, b, a, mask, type));
  }
  Values out{join_heads(b, HEDDLE_TRY(attend(call, b, a)).y)};
  if (call.outputs > 1) out.push_back(b.stack({a.k, a.v}, 0));
  return out;
}

/// com.microsoft Attention: one projection of the input to query, key and value.
Result<Values> fused_attention(const Call& call, Builder& b) {
  HEDDLE_TRY(want_float(call, b, 0));
  const Widths widths = HEDDLE_TRY(want_projection(call, b));
  HEDDLE_TRY(want_type(call, b, 1, b.dtype(call.in(0))));
  if (call.has(6)) return call.unsupported("past keys and values in a shared buffer");
  NodeId all = b.matmul(call.in(0), call.in(1));
  if (call.has(2)) {
    HEDDLE_TRY(want_type(call, b, 2, b.dtype(all)));
    all = b.add(all, call.in(2));
  }
  return attend_projection(call, b, all, widths, 3, 4, 5);
}

/// com.microsoft QAttention: the same of integers. Inputs: input, weights, bias, their scales,
/// mask, their zero points, past.
Result<Values> quantised_attention(const Call& call, Builder& b) {
  const Widths widths = HEDDLE_TRY(want_projection(call, b));
  for (const char* key : {"do_rotary", "past_present_share_buffer"})
    if (call.attribute_int(key, 0) != 0) return call.unsupported("{} is not supported", key);
  Call product = call;
  product.op = "com.microsoft::MatMulIntegerToFloat";
  product.outputs = 1;
  product.attributes.clear();
  product.args.clear();
  for (const int i : {0, 1, 3, 4, 6, 7, 2})
    product.args.push_back(call.has(i) ? call.args[static_cast<std::size_t>(i)] : std::nullopt);
  product.formats.clear();
  return attend_projection(call, b, HEDDLE_TRY(expand(product, b))[0], widths, 5, 8, -1);
}

/// Query, key and value of a call that packs the last two, [B, T, heads, 2, d] in input 1, or all
/// three, [B, S, heads, 3, d] in input 0: as [B, S, heads·d] each. Other calls as they are.
Result<Call> without_packing(const Call& call, Builder& b) {
  if (call.has(2)) return call;
  const int first = call.has(1) ? 1 : 0, count = 3 - first;
  HEDDLE_TRY(want_rank(call, b, first, 5, 5));
  const Shape s = b.shape(call.in(first));
  if (s[3] != count || s[2] != call.attribute_int("num_heads", 0))
    return call.error("input {} has shape {}, want [*,*,{},{},*]", first, to_string(s),
                      call.attribute_int("num_heads", 0), count);
  Call plain = call;
  plain.args.resize(std::max<std::size_t>(3, plain.args.size()));
  for (int i = 0; i < count; ++i)
    plain.args[static_cast<std::size_t>(first + i)] =
        b.reshape(b.slice_axis(call.in(first), 3, i, 1), {s[0], s[1], s[2] * s[4]});
  return plain;
}

/// com.microsoft MultiHeadAttention: query, key, value, bias, key padding mask, attention bias.
Result<Values> multi_head_attention(const Call& packed, Builder& b) {
  const Call call = HEDDLE_TRY(without_packing(packed, b));
  for (int i = 0; i < 3; ++i) {
    if (!call.has(i)) return call.error("input {} is missing", i);
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
    const NodeId mask = HEDDLE_TRY(key_mask(call, b, 4, {batch, 1, b.shape(a.q)[2], keys}, type));
    HEDDLE_TRY(add_mask(call, b, a, mask, type));
  }
  Values out{join_heads(b, HEDDLE_TRY(attend(call, b, a)).y), a.k, a.v};
  out.resize(static_cast<std::size_t>(std::clamp(call.outputs, 1, 3)));
  return out;
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

constexpr OpDef kMicrosoftAttentionOps[] = {
    {"com.microsoft::Attention", 1, 2, 7, fused_attention},
    {"com.microsoft::QAttention", 1, 5, 9, quantised_attention},
    {"com.microsoft::MultiHeadAttention", 1, 1, 10, multi_head_attention},
    {"com.microsoft::GroupQueryAttention", 1, 1, 14, group_query_attention},
};

}  // namespace

std::span<const OpDef> microsoft_attention_ops() { return kMicrosoftAttentionOps; }

}  // namespace heddle::ops

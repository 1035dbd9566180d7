#pragma once
// Attentions of every kind, for the tests of all layers.
#include <limits>

#include "lower/contract/test_util.h"

namespace heddle::lower {

struct AttentionShape {
  std::int64_t batch = 2, heads = 3, queries = 37, keys = 41, depth = 24, columns = 16;
};

struct AttentionCase {
  const char* name;
  void (*build)(Case&);
};

/// softmax(change(scale·q·kᵀ))·v, one matrix for each batch and head.
template <class Change>
void attend(Case& c, DType type, AttentionShape s, Change&& change) {
  const NodeId q = c.input({s.batch, s.heads, s.queries, s.depth}, type);
  const NodeId k = c.input({s.batch, s.heads, s.keys, s.depth}, type);
  const NodeId v = c.input({s.batch, s.heads, s.keys, s.columns}, type);
  const NodeId scores = c.b.mul(c.b.matmul(q, c.b.transpose(k, {0, 1, 3, 2})), 0.4);
  c.output(c.b.matmul(c.b.softmax(change(scores), {3}), v));
}

inline NodeId causal(Case& c, NodeId scores, std::int64_t offset) {
  const Shape shape = c.g[scores].type.shape;  // nodes added move it
  const NodeId row = c.b.iota({DType::i64, {shape[2], shape[3]}}, 0);
  const NodeId key = c.b.iota({DType::i64, {shape[2], shape[3]}}, 1);
  const NodeId sees =
      c.b.map(ScalarFn::less_equal, {key, c.b.add(row, c.b.scalar_int(DType::i64, offset))});
  return c.b.select(sees, scores,
                    c.b.scalar(c.g[scores].type.dtype, -std::numeric_limits<double>::infinity()));
}

template <DType type>
void plain_attention(Case& c) {
  attend(c, type, {}, [](NodeId s) { return s; });
}
template <DType type>
void wide_attention(Case& c) {
  attend(c, type, {2, 1, 77, 103, 40, 64}, [&](NodeId s) {
    return c.b.add(s, c.input({2, 1, 77, 103}, type));
  });
}
template <DType type>
void causal_attention(Case& c) {
  attend(c, type, {1, 2, 150, 150, 16, 32}, [&](NodeId s) { return causal(c, s, 0); });
}
template <DType type>
void offset_attention(Case& c) {
  attend(c, type, {1, 2, 70, 133, 64, 64}, [&](NodeId s) { return causal(c, s, 63); });
}
/// Terms, keys and columns that are no whole words or vectors.
template <DType type>
void uneven_attention(Case& c) {
  attend(c, type, {1, 2, 33, 45, 21, 20}, [](NodeId s) { return s; });
}
/// As exporters write it: the least number is added to what is hidden.
template <DType type>
void causal_sum_attention(Case& c) {
  attend(c, type, {2, 2, 70, 133, 8, 16}, [&](NodeId s) {
    Tensor mask({type, {1, 1, 70, 133}});
    for (std::int64_t i = 0; i < mask.count(); ++i)
      mask.set(i, i % 133 > i / 133 + 5 ? -3.38e38 : static_cast<double>(i % 7));
    return c.b.add(s, c.b.constant(mask));
  });
}
/// The same, of a mask that is computed, or a view of one number (Trilu's).
template <DType type>
void causal_computed_attention(Case& c) {
  attend(c, type, {1, 2, 150, 150, 16, 32}, [&](NodeId s) {
    return c.b.add(s, causal(c, c.b.full({type, {1, 1, 150, 150}}, 0), 0));
  });
}
template <DType type>
void causal_view_attention(Case& c) {
  attend(c, type, {1, 2, 90, 150, 16, 32}, [&](NodeId s) {
    const NodeId hidden = c.b.scalar(type, -std::numeric_limits<double>::infinity());
    const ir::Expr above = ir::Expr(ir::Var{3}) - ir::Expr(ir::Var{2});
    return c.b.add(s, c.b.view(hidden, c.g[s].type.shape, {{}, {{above, 3, 150}}}));
  });
}
/// Two finite masks may hide all of a row; positions of 8 bits begin again at 256.
template <DType type>
void two_masks_attention(Case& c) {
  attend(c, type, {1, 2, 40, 40, 8, 32}, [&](NodeId s) {
    Tensor mask({type, {1, 1, 40, 40}}), padding({type, {1, 1, 1, 40}});
    for (std::int64_t i = 0; i < mask.count(); ++i) mask.set(i, i % 40 > i / 40 ? -3.0e38 : 0);
    for (std::int64_t i = 0; i < 40; ++i) padding.set(i, i < 7 ? -3.0e38 : 0);
    return c.b.add(c.b.add(s, c.b.constant(mask)), c.b.constant(padding));
  });
}
/// The same where both choose one literal: the first 30 rows see nothing.
template <DType type>
void one_literal_attention(Case& c) {
  attend(c, type, {1, 2, 40, 40, 8, 32}, [&](NodeId s) {
    const NodeId hidden = c.b.scalar(type, -3.0e38);
    const NodeId row = c.b.iota({DType::i64, {40, 40}}, 0),
                 key = c.b.iota({DType::i64, {40, 40}}, 1);
    const NodeId early = c.b.map(ScalarFn::less_equal, {key, row});
    const NodeId late = c.b.map(ScalarFn::less, {c.b.scalar_int(DType::i64, 29), key});
    return c.b.select(early, c.b.select(late, s, hidden), hidden);
  });
}
template <DType type>
void narrow_attention(Case& c) {
  attend(c, type, {1, 1, 20, 300, 4, 32}, [&](NodeId s) {
    const auto position = [&](int axis) {
      return c.b.cast(c.b.iota({DType::i64, {20, 300}}, axis), DType::u8);
    };
    const NodeId row = position(0), sees = c.b.map(ScalarFn::less_equal, {position(1), row});
    return c.b.select(sees, s, c.b.scalar(type, -std::numeric_limits<double>::infinity()));
  });
}
/// The first row sees nothing, and weighs all keys alike.
template <DType type>
void blind_attention(Case& c) {
  attend(c, type, {1, 2, 40, 40, 8, 16}, [&](NodeId s) {
    Tensor mask({type, {1, 1, 40, 40}});
    for (std::int64_t i = 0; i < mask.count(); ++i) mask.set(i, i % 40 >= i / 40 ? -3.38e38 : 0);
    return c.b.add(s, c.b.constant(mask));
  });
}
/// A mask over keys that hides whole steps from some rows at first, and a bias.
template <DType type>
void masked_attention(Case& c) {
  const double hidden = -std::numeric_limits<double>::infinity();
  attend(c, type, {2, 1, 17, 200, 8, 40}, [&](NodeId s) {
    const NodeId key = c.b.iota({DType::i64, {2, 1, 1, 200}}, 3);
    const NodeId late = c.b.map(ScalarFn::less, {c.b.scalar_int(DType::i64, 130), key});
    const NodeId mask = c.b.select(late, c.b.scalar(type, 0), c.b.scalar(type, hidden));
    return c.b.add(c.b.add(s, c.input({1, 1, 17, 200}, type)), mask);
  });
}
/// As models write it: heads are slices of a projection's columns.
template <DType type>
void packed_attention(Case& c) {
  const std::int64_t n = 50, heads = 3, d = 32;
  const NodeId qkv = c.input({1, n, 3 * heads * d}, type);
  const auto part = [&](std::int64_t which) {
    const NodeId x = c.b.slice_axis(qkv, 2, which * heads * d, heads * d);
    return c.b.transpose(c.b.reshape(x, {1, n, heads, d}), {0, 2, 1, 3});
  };
  const NodeId s = c.b.matmul(part(0), c.b.transpose(part(1), {0, 1, 3, 2}));
  c.output(c.b.matmul(c.b.softmax(c.b.mul(s, 0.2), {3}), part(2)));
}
/// Two heads of queries for each of keys and values; keys lie along their positions; soft cap.
template <DType type>
void grouped_attention(Case& c) {
  const NodeId q = c.input({1, 4, 33, 16}, type), k = c.input({1, 2, 16, 56}, type);
  const NodeId v = c.input({1, 2, 56, 24}, type);
  const auto repeat = [&](NodeId x) {
    Shape shape = c.g[x].type.shape;
    shape[1] = 4;
    const auto at = [](int i) { return ir::Expr(ir::Var{i}); };
    return c.b.view(x, shape, {{at(0), ir::floor_div(at(1), 2), at(2), at(3)}, {}});
  };
  const NodeId s = c.b.matmul(q, repeat(k));
  c.output(c.b.matmul(c.b.softmax(c.b.mul(c.b.tanh(c.b.mul(s, 0.1)), 5), {3}), repeat(v)));
}
/// Without batch; lengths that no tile divides; a division instead of a reciprocal.
template <DType type>
void odd_attention(Case& c) {
  const NodeId q = c.input({9, 5}, type), k = c.input({67, 5}, type), v = c.input({67, 3}, type);
  const NodeId s = c.b.matmul(q, c.b.transpose(k, {1, 0}));
  const NodeId e = c.b.exp(c.b.sub(s, c.b.reduce(ir::Monoid::max, s, {1}, true)));
  c.output(c.b.matmul(c.b.div(e, c.b.reduce_sum(e, {1})), v));
}

inline const AttentionCase kAttentions[] = {
    {"plain f32", plain_attention<DType::f32>},
    {"plain bf16", plain_attention<DType::bf16>},
    {"plain f16", plain_attention<DType::f16>},
    {"causal f32", causal_attention<DType::f32>},
    {"causal bf16", causal_attention<DType::bf16>},
    {"offset f32", offset_attention<DType::f32>},
    {"offset f16", offset_attention<DType::f16>},
    {"offset bf16", offset_attention<DType::bf16>},
    {"uneven f32", uneven_attention<DType::f32>},
    {"uneven bf16", uneven_attention<DType::bf16>},
    {"wide f32", wide_attention<DType::f32>},
    {"wide bf16", wide_attention<DType::bf16>},
    {"causal sum f32", causal_sum_attention<DType::f32>},
    {"causal sum bf16", causal_sum_attention<DType::bf16>},
    {"causal computed f32", causal_computed_attention<DType::f32>},
    {"causal view f32", causal_view_attention<DType::f32>},
    {"two masks f32", two_masks_attention<DType::f32>},
    {"two masks bf16", two_masks_attention<DType::bf16>},
    {"one literal f32", one_literal_attention<DType::f32>},
    {"one literal bf16", one_literal_attention<DType::bf16>},
    {"narrow f32", narrow_attention<DType::f32>},
    {"blind f32", blind_attention<DType::f32>},
    {"masked f32", masked_attention<DType::f32>},
    {"masked bf16", masked_attention<DType::bf16>},
    {"packed f32", packed_attention<DType::f32>},
    {"packed bf16", packed_attention<DType::bf16>},
    {"grouped f32", grouped_attention<DType::f32>},
    {"grouped f16", grouped_attention<DType::f16>},
    {"odd f32", odd_attention<DType::f32>},
    {"odd bf16", odd_attention<DType::bf16>},
};

}  // namespace heddle::lower

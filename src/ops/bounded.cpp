#include "ops/bounded.h"

#include <algorithm>

namespace heddle::ops {

using ir::Monoid;
using ir::ScalarFn;

namespace {

NodeId scatter_to(Builder& b, NodeId into, NodeId values, NodeId positions,
                  prim::Scatter::Combine combine = prim::Scatter::Combine::assign) {
  return b.scatter(into, values, {positions}, prim::Scatter{{0}, {ir::Expr(0)}, combine});
}
NodeId zeros(Builder& b, std::int64_t n) { return b.full({DType::i64, {n}}, 0); }

}  // namespace

Compacted compacted(Builder& b, NodeId mask) {
  const std::int64_t n = b.shape(mask)[0];
  const NodeId ones = b.cast(mask, DType::i64);
  const NodeId before = b.scan(Monoid::sum, ones, 0, true, false);
  // What is not kept is sent outside, where updates are dropped.
  const NodeId to = b.select(mask, before, b.scalar_int(DType::i64, n));
  return {scatter_to(b, zeros(b, n), b.iota({DType::i64, {n}}, 0), to),
          b.reduce_sum(ones, {0}, false)};
}

/// [rank, elements]: coordinates of the elements that are not zero.
Result<Values> bounded_non_zero(const Call& call, Builder& b) {
  const Shape shape = b.shape(call.in(0));
  const std::int64_t n = element_count(shape);
  if (n == 0 || shape.empty()) return call.unsupported("input 0 has shape {}", to_string(shape));
  HEDDLE_TRY(checked(call, {static_cast<std::int64_t>(shape.size()), n}, DType::i64));
  const NodeId flat = b.reshape(call.in(0), {n});
  const NodeId mask = b.map(ScalarFn::not_equal, {flat, b.scalar(b.dtype(flat), 0)});
  const Compacted kept = compacted(b, mask);
  std::vector<NodeId> rows;
  std::int64_t inner = n;
  for (const std::int64_t extent : shape) {
    inner /= extent;
    const NodeId coordinate = b.map(
        ScalarFn::fmod,
        {b.div(kept.positions, b.scalar_int(DType::i64, inner)), b.scalar_int(DType::i64, extent)});
    rows.push_back(b.unsqueeze(coordinate, {0}));
  }
  call.bounded.push_back({0, 1, kept.count});
  return Values{rows.size() == 1 ? rows[0] : b.concat(rows, 0)};
}

Result<Values> bounded_compress(const Call& call, Builder& b) {
  HEDDLE_TRY(want_type(call, b, 1, DType::b1));
  HEDDLE_TRY(want_rank(call, b, 1, 1, 1));
  NodeId x = call.in(0);
  int axis = 0;
  if (call.has_attribute("axis"))
    axis = HEDDLE_TRY(call.axis("axis", 0, b.rank(x)));
  else
    x = b.reshape(x, {element_count(b.shape(x))});
  const std::int64_t n = b.shape(call.in(1))[0];
  if (n > at(b.shape(x), axis))
    return call.error("condition has {} elements, input 0 shape {}", n, to_string(b.shape(x)));
  if (n == 0 || element_count(b.shape(x)) == 0) return Values{b.slice_axis(x, axis, 0, 0)};
  const Compacted kept = compacted(b, call.in(1));
  call.bounded.push_back({0, axis, kept.count});
  return Values{b.take(x, kept.positions, axis)};
}

namespace {

/// Rows [n, inner] in ascending order, by their first column, then the next …; stable.
NodeId sorted_order(Builder& b, NodeId rows) {
  const Shape s = b.shape(rows);
  NodeId order = b.iota({DType::i64, {s[0]}}, 0);
  for (std::int64_t c = s[1]; c-- > 0;) {
    const NodeId column = b.reshape(b.slice_axis(rows, 1, c, 1), {s[0]});
    const NodeId by = b.sort_indices(b.take(column, order, 0), 0, false, s[0]);
    order = b.take(order, by, 0);
  }
  return order;
}

/// Whether each row differs from the one before; NaN equals NaN.
NodeId starts_group(Builder& b, NodeId rows) {
  const Shape s = b.shape(rows);
  const NodeId first = b.full({DType::b1, {1}}, 1);
  if (s[0] == 1) return first;
  const NodeId here = b.slice_axis(rows, 0, 1, s[0] - 1), last = b.slice_axis(rows, 0, 0, s[0] - 1);
  NodeId differs = b.map(ScalarFn::not_equal, {here, last});
  if (is_float(b.dtype(rows))) {
    const NodeId both = b.map(ScalarFn::logical_and,
                              {b.map(ScalarFn::isnan, {here}), b.map(ScalarFn::isnan, {last})});
    differs = b.map(ScalarFn::logical_and, {differs, b.map(ScalarFn::logical_not, {both})});
  }
  return b.concat({first, b.reduce(Monoid::any, differs, {1}, false)}, 0);
}

}  // namespace

/// Sorts, and keeps the first of each group of equals.
Result<Values> bounded_unique(const Call& call, Builder& b) {
  constexpr std::int64_t kMostColumns = 64;
  NodeId x = call.in(0);
  int axis = 0;
  if (call.has_attribute("axis"))
    axis = HEDDLE_TRY(call.axis("axis", 0, b.rank(x)));
  else
    x = b.reshape(x, {element_count(b.shape(x))});
  const Shape shape = b.shape(x);
  const std::int64_t n = at(shape, axis);
  if (n == 0) {  // no slices: none of them are distinct
    const NodeId none = b.constant(Tensor({DType::i64, {0}}));
    Values all{x, none, none, none};
    all.resize(static_cast<std::size_t>(std::clamp(call.outputs, 1, 4)));
    return all;
  }
  if (element_count(shape) == 0) return call.unsupported("slices of input 0 are empty");
  const std::int64_t inner = element_count(shape) / n;
  if (inner > kMostColumns)
    return call.unsupported("slices of {} elements, want at most {}", inner, kMostColumns);
  std::vector<int> front{axis};
  for (int d = 0; d < b.rank(x); ++d)
    if (d != axis) front.push_back(d);
  const NodeId rows = b.reshape(b.transpose(x, front), {n, inner});
  const NodeId order = sorted_order(b, rows);
  const NodeId fresh = starts_group(b, b.take(rows, order, 0));
  const NodeId one = b.scalar_int(DType::i64, 1), beyond = b.scalar_int(DType::i64, n);
  const NodeId group = b.sub(b.scan(Monoid::sum, b.cast(fresh, DType::i64), 0, false, false), one);
  const NodeId count = b.reduce_sum(b.cast(fresh, DType::i64), {0}, false);
  // By group: the first place in x (the sort is stable) and how many there are.
  NodeId first = scatter_to(b, b.broadcast(beyond, {n}), order, b.select(fresh, group, beyond));
  NodeId counts =
      scatter_to(b, zeros(b, n), b.broadcast(one, {n}), group, prim::Scatter::Combine::add);
  NodeId inverse = scatter_to(b, zeros(b, n), group, order);
  if (call.attribute_int("sorted", 1) == 0) {  // groups by their first place
    const NodeId by = b.sort_indices(first, 0, false, n);
    const NodeId moved = scatter_to(b, zeros(b, n), b.iota({DType::i64, {n}}, 0), by);
    first = b.take(first, by, 0);
    counts = b.take(counts, by, 0);
    inverse = b.take(moved, inverse, 0);
  }
  first = b.min(first, b.scalar_int(DType::i64, n - 1));
  for (const int i : {1, 3}) call.bounded.push_back({i, 0, count});
  call.bounded.push_back({0, axis, count});
  Values all{b.take(x, first, axis), first, inverse, counts};
  all.resize(static_cast<std::size_t>(std::clamp(call.outputs, 1, 4)));
  return all;
}

namespace {

/// Boxes [B, N, 4] as low and high corners and areas, each [B, 1, N].
struct Boxes {
  NodeId y1, x1, y2, x2, area;
};
Boxes corners(Builder& b, NodeId boxes, bool centred) {
  const Shape s = b.shape(boxes);
  const auto column = [&](std::int64_t c) {
    return b.reshape(b.slice_axis(boxes, 2, c, 1), {s[0], 1, s[1]});
  };
  Boxes out;
  if (centred) {  // x, y, width, height
    const NodeId w = b.mul(column(2), 0.5), h = b.mul(column(3), 0.5);
    out = {b.sub(column(1), h), b.sub(column(0), w), b.add(column(1), h), b.add(column(0), w), {}};
  } else {
    out = {b.min(column(0), column(2)),
           b.min(column(1), column(3)),
           b.max(column(0), column(2)),
           b.max(column(1), column(3)),
           {}};
  }
  const NodeId zero = b.scalar(b.dtype(boxes), 0);
  out.area = b.mul(b.max(b.sub(out.y2, out.y1), zero), b.max(b.sub(out.x2, out.x1), zero));
  return out;
}

/// Whether each box overlaps the one at `chosen` [B, C, 1] by more than the threshold: [B, C, N].
NodeId overlapping(Builder& b, const Boxes& boxes, NodeId chosen, NodeId threshold,
                   const Shape& space) {
  const auto all = [&](NodeId v) { return b.broadcast(v, space); };
  const auto one = [&](NodeId v) { return b.take_along(all(v), chosen, 2); };
  const NodeId zero = b.scalar(b.dtype(boxes.area), 0);
  const NodeId h = b.sub(b.min(all(boxes.y2), one(boxes.y2)), b.max(all(boxes.y1), one(boxes.y1)));
  const NodeId w = b.sub(b.min(all(boxes.x2), one(boxes.x2)), b.max(all(boxes.x1), one(boxes.x1)));
  const NodeId shared = b.mul(b.max(h, zero), b.max(w, zero));
  const NodeId both = b.sub(b.add(all(boxes.area), one(boxes.area)), shared);
  const NodeId ratio = b.select(b.map(ScalarFn::greater, {both, zero}), b.div(shared, both), zero);
  return b.map(ScalarFn::greater, {ratio, threshold});
}

}  // namespace

/// Keeps the best box, strikes out those that overlap it, and again, for all batches and classes at
/// once; [B·C·most, 3] of (batch, class, box).
Result<Values> bounded_non_max_suppression(const Call& call, Builder& b) {
  constexpr std::int64_t kMostRounds = 256;
  const double infinity = std::numeric_limits<double>::infinity();
  HEDDLE_TRY(want_type(call, b, 0, DType::f32));
  HEDDLE_TRY(want_type(call, b, 1, DType::f32));
  HEDDLE_TRY(want_rank(call, b, 1, 3, 3));
  const Shape s = b.shape(call.in(1));
  HEDDLE_TRY(want_shape(call, b, 0, {s[0], s[2], 4}));
  std::int64_t most = 0;
  if (call.has(2)) most = std::min(HEDDLE_TRY(constant_int(call, 2)), s[2]);
  if (element_count(s) == 0 || most < 1) return Values{b.constant(Tensor({DType::i64, {0, 3}}))};
  if (most > kMostRounds)
    return call.unsupported("{} boxes of a class, want at most {}", most, kMostRounds);
  const auto number = [&](int i, double otherwise) -> Result<NodeId> {
    if (!call.has(i)) return b.scalar(DType::f32, otherwise);
    HEDDLE_TRY(want_type(call, b, i, DType::f32));
    if (element_count(b.shape(call.in(i))) != 1) return call.error("input {} is no number", i);
    return b.reshape(call.in(i), {});
  };
  const NodeId threshold = HEDDLE_TRY(number(3, 0));
  const NodeId lowest = HEDDLE_TRY(number(4, -infinity));
  const Boxes boxes = corners(b, call.in(0), call.attribute_int("center_point_box", 0) != 0);
  const NodeId out = b.scalar(DType::f32, -infinity);
  NodeId scores = call.in(1);
  scores = b.select(b.map(ScalarFn::greater, {scores, lowest}), scores, out);
  const NodeId position = b.iota({DType::i64, s}, 2);
  std::vector<NodeId> chosen, valid;
  for (std::int64_t round = 0; round < most; ++round) {
    const NodeId best = b.reduce(Monoid::argmax, scores, {2});
    chosen.push_back(best);
    valid.push_back(b.map(ScalarFn::greater, {b.take_along(scores, best, 2), out}));
    const NodeId gone = b.map(ScalarFn::logical_or, {overlapping(b, boxes, best, threshold, s),
                                                     b.map(ScalarFn::equal, {position, best})});
    scores = b.select(gone, out, scores);
  }
  const std::int64_t n = s[0] * s[1] * most;
  const auto joined = [&](const std::vector<NodeId>& parts) {
    return b.reshape(parts.size() == 1 ? parts[0] : b.concat(parts, 2), {n});
  };
  const Compacted kept = compacted(b, joined(valid));
  const NodeId row = b.div(kept.positions, b.scalar_int(DType::i64, most));
  const NodeId classes = b.scalar_int(DType::i64, s[1]);
  const NodeId columns[] = {b.div(row, classes), b.map(ScalarFn::fmod, {row, classes}),
                            b.take(joined(chosen), kept.positions, 0)};
  std::vector<NodeId> parts;
  for (const NodeId c : columns) parts.push_back(b.reshape(c, {n, 1}));
  call.bounded.push_back({0, 0, kept.count});
  return Values{b.concat(parts, 1)};
}

}  // namespace heddle::ops

#include <algorithm>
#include <map>
#include <numeric>

#include "ops/bounded.h"
#include "ops/families.h"
#include "support/text_id.h"

/// Operators whose result's shape depends on values: evaluated here when the values are constants
/// (as they are in exported shape arithmetic), bounded otherwise.
namespace heddle::ops {
namespace {

/// Whether input i is a constant that is small enough to be worked on here.
bool known(const Call& call, int i) {
  const Tensor* t = call.has(i) ? call.graph->constant_of(call.in(i)) : nullptr;
  return t != nullptr && t->count() <= kMaxTableElements;
}

/// Coordinates of the elements that are not zero: [rank, found].
Result<Values> non_zero(const Call& call, Builder& b) {
  const Shape& in = b.shape(call.in(0));
  if (element_count(in) == 0)
    return Values{constant_i64(b, {}, {static_cast<std::int64_t>(in.size()), 0})};
  if (!known(call, 0)) return bounded_non_zero(call, b);
  const Tensor* t = HEDDLE_TRY(call.constant_tensor(0));
  std::vector<std::int64_t> found;
  for (std::int64_t i = 0; i < t->count(); ++i) {
    if (t->at(i) != 0) found.push_back(i);
  }
  std::vector<std::int64_t> out;
  std::int64_t inner = t->count();
  for (const std::int64_t extent : t->shape()) {
    inner = extent == 0 ? 0 : inner / extent;
    for (const std::int64_t i : found) out.push_back(i / inner % extent);
  }
  return Values{constant_i64(
      b, out,
      {static_cast<std::int64_t>(t->shape().size()), static_cast<std::int64_t>(found.size())})};
}

/// long double holds every 64-bit integer and every double exactly.
using Slice = std::vector<long double>;

struct Distinct {
  std::vector<std::int64_t> first, inverse, counts;
};
Distinct distinct_rows(const std::vector<Slice>& rows, bool sorted) {
  std::map<Slice, std::int64_t> position;  // of each row among the distinct ones
  Distinct d;
  std::vector<std::map<Slice, std::int64_t>::iterator> order;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto [it, fresh] = position.try_emplace(rows[i], static_cast<std::int64_t>(i));
    if (fresh) order.push_back(it);
  }
  if (sorted) {
    order.clear();
    for (auto it = position.begin(); it != position.end(); ++it) order.push_back(it);
  }
  for (const auto& it : order) {
    d.first.push_back(it->second);
    it->second = static_cast<std::int64_t>(d.first.size()) - 1;
  }
  d.counts.assign(d.first.size(), 0);
  for (const Slice& row : rows) {
    const std::int64_t k = position.at(row);
    d.inverse.push_back(k);
    ++d.counts[static_cast<std::size_t>(k)];
  }
  return d;
}

/// The slices of t, seen as of this shape, along an axis. A NaN has no place in an order: all of
/// them count as one largest value.
std::vector<Slice> slices_of(const Tensor& t, const Shape& shape, int axis) {
  const std::int64_t extent = at(shape, axis);
  const std::int64_t inner =
      checked_product(shape, axis + 1, static_cast<int>(shape.size())).value_or(0);
  std::vector<Slice> rows(static_cast<std::size_t>(extent));
  for (std::int64_t i = 0; i < t.count(); ++i) {
    const long double v = is_float(t.dtype()) ? static_cast<long double>(t.at(i))
                                              : static_cast<long double>(t.int_at(i));
    rows[static_cast<std::size_t>(i / inner % extent)].push_back(
        std::isnan(v) ? std::numeric_limits<long double>::max() : v);
  }
  return rows;
}

/// Distinct elements, or distinct slices along `axis`; with first positions, inverse and counts.
Result<Values> onnx_unique(const Call& call, Builder& b) {
  if (!known(call, 0)) return bounded_unique(call, b);
  const Tensor* t = HEDDLE_TRY(call.constant_tensor(0));
  NodeId x = call.in(0);
  Shape shape = t->shape();
  int axis = 0;
  if (call.has_attribute("axis")) {
    axis = HEDDLE_TRY(call.axis("axis", 0, static_cast<int>(shape.size())));
  } else {
    shape = {t->count()};
    x = b.reshape(x, shape);
  }
  const std::vector<Slice> rows = slices_of(*t, shape, axis);
  const Distinct d = distinct_rows(rows, call.attribute_int("sorted", 1) != 0);
  Shape out = shape;
  out[static_cast<std::size_t>(axis)] = static_cast<std::int64_t>(d.first.size());
  const NodeId y = element_count(out) == 0 ? b.full({b.dtype(x), out}, 0)
                                           : b.take(x, constant_i64(b, d.first), axis);
  Values all{y, constant_i64(b, d.first), constant_i64(b, d.inverse), constant_i64(b, d.counts)};
  all.resize(static_cast<std::size_t>(std::clamp(call.outputs, 1, 4)));
  return all;
}

/// For each string its place among the distinct ones in order.
Result<Tensor> places_of_texts(const Call& call, const Tensor& t) {
  std::map<std::string, std::int64_t> places;
  std::vector<std::string> texts;
  for (std::int64_t i = 0; i < t.count(); ++i) {
    auto text = text_of(t.int_at(i));
    if (!text) return call.error("element {} stands for no known string", i);
    places[*text] = 0;
    texts.push_back(*std::move(text));
  }
  std::int64_t next = 0;
  for (auto& [text, place] : places) place = next++;
  Tensor out({DType::i64, t.shape()});
  for (std::int64_t i = 0; i < t.count(); ++i)
    out.set_int(i, places.at(texts[static_cast<std::size_t>(i)]));
  return out;
}

Tensor tensor_i64(const std::vector<std::int64_t>& values, Shape shape) {
  Tensor out({DType::i64, std::move(shape)});
  for (std::size_t i = 0; i < values.size(); ++i)
    out.set_int(static_cast<std::int64_t>(i), values[i]);
  return out;
}
Tensor tensor_i64(const std::vector<std::int64_t>& values) {
  return tensor_i64(values, {static_cast<std::int64_t>(values.size())});
}

/// Unique of strings, and of slices that are too long for kernels.
Result<std::vector<HostValue>> host_unique(const Call& call, std::span<const Tensor> args) {
  const Tensor& x = args[0];
  const Format format = call.format(0);
  if (format != Format::plain && format != Format::text)
    return call.unsupported("input 0 is {}", name_of(format));
  Shape shape = x.shape();
  int axis = 0;
  if (call.has_attribute("axis"))
    axis = HEDDLE_TRY(call.axis("axis", 0, static_cast<int>(shape.size())));
  else
    shape = {x.count()};
  const Tensor keys = format == Format::text ? HEDDLE_TRY(places_of_texts(call, x)) : x;
  const Distinct d =
      distinct_rows(slices_of(keys, shape, axis), call.attribute_int("sorted", 1) != 0);
  const std::int64_t extent = at(shape, axis), kept = static_cast<std::int64_t>(d.first.size());
  const std::int64_t inner =
      checked_product(shape, axis + 1, static_cast<int>(shape.size())).value_or(0);
  shape[static_cast<std::size_t>(axis)] = kept;
  Tensor y({x.dtype(), shape});
  for (std::int64_t i = 0; i < y.count(); ++i) {
    const std::int64_t slice = d.first[static_cast<std::size_t>(i / inner % kept)];
    const std::int64_t from = (i / inner / kept * extent + slice) * inner + i % inner;
    if (is_float(x.dtype()))
      y.set(i, x.at(from));
    else
      y.set_int(i, x.int_at(from));
  }
  return std::vector<HostValue>{{y, format},
                                {tensor_i64(d.first), Format::plain},
                                {tensor_i64(d.inverse), Format::plain},
                                {tensor_i64(d.counts), Format::plain}};
}

struct Box {
  double y1, x1, y2, x2;
  double area() const { return std::max(0.0, y2 - y1) * std::max(0.0, x2 - x1); }
};
Box read_box(const Tensor& boxes, std::int64_t at, bool centred) {
  const double v[] = {boxes.at(at), boxes.at(at + 1), boxes.at(at + 2), boxes.at(at + 3)};
  if (centred) return {v[1] - v[3] / 2, v[0] - v[2] / 2, v[1] + v[3] / 2, v[0] + v[2] / 2};
  return {std::min(v[0], v[2]), std::min(v[1], v[3]), std::max(v[0], v[2]), std::max(v[1], v[3])};
}
double overlap(const Box& p, const Box& q) {
  const Box common{std::max(p.y1, q.y1), std::max(p.x1, q.x1), std::min(p.y2, q.y2),
                   std::min(p.x2, q.x2)};
  const double shared = common.area(), all = p.area() + q.area() - shared;
  return all > 0 ? shared / all : 0;
}

struct Suppression {
  std::int64_t most = 0;
  double threshold = 0, lowest = -std::numeric_limits<double>::infinity();
  bool centred = false;
};
/// Greedily keeps the best-scored boxes that overlap no kept one by more than a threshold:
/// (batch, class, box) of each.
std::vector<std::int64_t> kept_boxes(const Tensor& boxes, const Tensor& scores,
                                     const Suppression& how) {
  const Shape s = scores.shape();
  std::vector<std::int64_t> out;
  for (std::int64_t row = 0; row < s[0] * s[1] && how.most > 0; ++row) {
    const std::int64_t batch = row / s[1];
    std::vector<std::int64_t> order;
    for (std::int64_t i = 0; i < s[2]; ++i)
      if (scores.at(row * s[2] + i) > how.lowest) order.push_back(i);
    std::stable_sort(order.begin(), order.end(), [&](std::int64_t p, std::int64_t q) {
      return scores.at(row * s[2] + p) > scores.at(row * s[2] + q);
    });
    std::vector<Box> kept;
    for (const std::int64_t i : order) {
      if (static_cast<std::int64_t>(kept.size()) >= how.most) break;
      const Box box = read_box(boxes, (batch * s[2] + i) * 4, how.centred);
      if (std::any_of(kept.begin(), kept.end(),
                      [&](const Box& k) { return overlap(k, box) > how.threshold; }))
        continue;
      kept.push_back(box);
      out.insert(out.end(), {batch, row % s[1], i});
    }
  }
  return out;
}

/// Its three last arguments; what is absent is empty.
Result<Suppression> suppression(const Call& call, std::span<const Tensor> args) {
  Suppression how;
  const auto given = [&](std::size_t i) {
    return args.size() > i && call.has(static_cast<int>(i));
  };
  for (std::size_t i = 2; i < 5; ++i)
    if (given(i) && args[i].count() != 1)
      return call.error("input {} holds {} values, want 1", i, args[i].count());
  if (given(2)) how.most = args[2].int_at(0);
  if (given(3)) how.threshold = args[3].at(0);
  if (given(4)) how.lowest = args[4].at(0);
  how.centred = call.attribute_int("center_point_box", 0) != 0;
  const Shape &boxes = args[0].shape(), &scores = args[1].shape();
  if (scores.size() != 3 || boxes != Shape{scores[0], scores[2], 4})
    return call.error("boxes have shape {} and scores {}, want [B,N,4] and [B,C,N]",
                      to_string(boxes), to_string(scores));
  return how;
}

/// [kept, 3].
Result<Values> non_max_suppression(const Call& call, Builder& b) {
  const auto fixed = [&](int i) { return !call.has(i) || known(call, i); };
  if (!fixed(0) || !fixed(1) || !fixed(3) || !fixed(4)) return bounded_non_max_suppression(call, b);
  std::vector<Tensor> args;
  for (int i = 0; i < 5; ++i)
    args.push_back(call.has(i) ? *HEDDLE_TRY(call.constant_tensor(i)) : Tensor());
  const Suppression how = HEDDLE_TRY(suppression(call, args));
  if (args[1].shape()[2] > 8192)
    return call.unsupported("{} boxes, want at most 8192", args[1].shape()[2]);
  const std::vector<std::int64_t> out = kept_boxes(args[0], args[1], how);
  return Values{constant_i64(b, out, {static_cast<std::int64_t>(out.size() / 3), 3})};
}

/// Where there are too many rounds for kernels.
Result<std::vector<HostValue>> host_suppression(const Call& call, std::span<const Tensor> args) {
  const Suppression how = HEDDLE_TRY(suppression(call, args));
  const std::vector<std::int64_t> out = kept_boxes(args[0], args[1], how);
  const auto kept = static_cast<std::int64_t>(out.size() / 3);
  return std::vector<HostValue>{{tensor_i64(out, {kept, 3}), Format::plain}};
}

constexpr OpDef kKnownOps[] = {
    {"NonZero", 9, 1, 1, non_zero},
    {"Unique", 11, 1, 1, onnx_unique, OpDef::Stored::refuses, host_unique},
    {"NonMaxSuppression", 10, 2, 5, non_max_suppression, OpDef::Stored::refuses, host_suppression},
};

}  // namespace

std::span<const OpDef> known_ops() { return kKnownOps; }

}  // namespace heddle::ops

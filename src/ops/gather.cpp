#include <algorithm>

#include "ops/bounded.h"
#include "ops/families.h"

/// Reads and writes at positions that are data.
namespace heddle::ops {
namespace {

using Combine = prim::Scatter::Combine;

/// The start and step of constant indices that are evenly spaced: such a Gather is a slice.
struct Progression {
  std::int64_t start = 0, step = 1, count = 0;
};
Result<std::optional<Progression>> even_indices(const Call& call, const Tensor& indices,
                                                std::int64_t extent) {
  std::optional<Progression> p = Progression{0, 1, indices.count()};
  std::int64_t last = 0;
  for (std::int64_t i = 0; i < indices.count(); ++i) {
    std::int64_t at = indices.int_at(i);
    if (at < -extent || at >= extent) {
      return call.error("index {} is outside the axis, whose extent is {}", at, extent);
    }
    if (at < 0) at += extent;
    if (i == 0 && p) p->start = at;
    if (i == 1 && p) p->step = at - last;
    if (i > 0 && p && (at - last != p->step || p->step == 0)) p.reset();
    last = at;
  }
  return p;
}

Result<Values> gather(const Call& call, Builder& b) {
  HEDDLE_TRY(want_rank(call, b, 0, 1, 64));
  HEDDLE_TRY(want_int(call, b, 1));
  const Shape in = b.shape(call.in(0)), index = b.shape(call.in(1));
  const int axis = HEDDLE_TRY(call.axis("axis", 0, static_cast<int>(in.size())));
  Shape out(in.begin(), in.begin() + axis);
  out.insert(out.end(), index.begin(), index.end());
  out.insert(out.end(), in.begin() + axis + 1, in.end());
  out = HEDDLE_TRY(checked(call, out, b.dtype(call.in(0))));
  if (element_count(out) == 0) return Values{b.full({b.dtype(call.in(0)), out}, 0)};
  if (at(in, axis) == 0) return call.error("axis {} of input 0 is empty", axis);
  if (const Tensor* known = call.graph->constant_of(call.in(1))) {
    const auto even = HEDDLE_TRY(even_indices(call, *known, at(in, axis)));
    if (even) {
      const NodeId part = b.slice_axis(call.in(0), axis, even->start, even->count, even->step);
      return Values{b.reshape(part, out)};
    }
  }
  return Values{b.take(call.in(0), call.in(1), axis)};
}

/// Indices and data of equal rank, indices no larger than data except along the axis.
Status want_aligned(const Call& call, Builder& b, int axis) {
  HEDDLE_TRY(want_int(call, b, 1));
  const Shape in = b.shape(call.in(0)), index = b.shape(call.in(1));
  bool fits = in.size() == index.size();
  for (int d = 0; fits && d < static_cast<int>(in.size()); ++d) {
    fits = d == axis ? at(in, d) > 0 || at(index, d) == 0 : at(index, d) <= at(in, d);
  }
  if (fits) return Ok{};
  return call.error("indices have shape {}, which does not fit data of shape {} along axis {}",
                    to_string(index), to_string(in), axis);
}

Result<Values> gather_elements(const Call& call, Builder& b) {
  HEDDLE_TRY(want_rank(call, b, 0, 1, 64));
  const int axis = HEDDLE_TRY(call.axis("axis", 0, b.rank(call.in(0))));
  HEDDLE_TRY(want_aligned(call, b, axis));
  const Shape out = b.shape(call.in(1));
  if (element_count(out) == 0) return Values{b.full({b.dtype(call.in(0)), out}, 0)};
  return Values{b.take_along(call.in(0), call.in(1), axis)};
}

/// The columns of an index matrix [..., m], each wrapped for its data dimension and broadcast over
/// `space`, the shape of what they address.
std::vector<NodeId> columns(Builder& b, NodeId indices, const Shape& data, int first,
                            const Shape& space) {
  Shape aligned = b.shape(indices);
  const std::int64_t m = aligned.back();
  const int last = static_cast<int>(aligned.size()) - 1;
  aligned.pop_back();
  aligned.resize(space.size(), 1);
  std::vector<NodeId> out;
  for (std::int64_t j = 0; j < m; ++j) {
    const NodeId column = b.reshape(b.slice_axis(indices, last, j, 1), aligned);
    const NodeId wrapped = wrap_indices(b, column, at(data, first + static_cast<int>(j)));
    out.push_back(b.broadcast(wrapped, space));
  }
  return out;
}

Result<Values> gather_nd(const Call& call, Builder& b) {
  HEDDLE_TRY(want_rank(call, b, 0, 1, 32));
  HEDDLE_TRY(want_rank(call, b, 1, 1, 32));
  HEDDLE_TRY(want_int(call, b, 1));
  const Shape in = b.shape(call.in(0)), index = b.shape(call.in(1));
  const int rank = static_cast<int>(in.size()), q = static_cast<int>(index.size());
  const std::int64_t batch = call.attribute_int("batch_dims", 0);
  const std::int64_t m = index.back();
  if (batch < 0 || batch >= std::min(rank, q) || m < 1 || batch + m > rank ||
      !std::equal(in.begin(), in.begin() + batch, index.begin())) {
    return call.error("indices {} with batch_dims {} do not address data {}", to_string(index),
                      batch, to_string(in));
  }
  const int first = static_cast<int>(batch), addressed = first + static_cast<int>(m);
  Shape out(index.begin(), index.end() - 1);
  out.insert(out.end(), in.begin() + addressed, in.end());
  out = HEDDLE_TRY(checked(call, out, b.dtype(call.in(0))));
  if (element_count(out) == 0) return Values{b.full({b.dtype(call.in(0)), out}, 0)};
  if (element_count(in) == 0) return call.error("data {} is empty", to_string(in));
  prim::Gather g;
  for (int k = 0; k < rank; ++k) {
    const bool by_index = k >= first && k < addressed;
    if (by_index) g.axes.push_back(k);
    g.base.push_back(by_index ? ir::Expr(0) : k < first ? dim(k) : dim(q - 1 + k - addressed));
  }
  return Values{b.gather(call.in(0), columns(b, call.in(1), in, first, out), g, out)};
}

Result<Combine> combine_of(const Call& call) {
  const int i = HEDDLE_TRY(choice(call, "reduction", "none", {"none", "add", "mul", "max", "min"}));
  constexpr Combine kinds[] = {Combine::assign, Combine::add, Combine::mul, Combine::max,
                               Combine::min};
  return kinds[i];
}

Result<Values> scatter_elements(const Call& call, Builder& b) {
  HEDDLE_TRY(want_rank(call, b, 0, 1, 64));
  const Shape in = b.shape(call.in(0));
  const int axis = HEDDLE_TRY(call.axis("axis", 0, static_cast<int>(in.size())));
  HEDDLE_TRY(want_aligned(call, b, axis));
  HEDDLE_TRY(want_shape(call, b, 2, b.shape(call.in(1))));
  HEDDLE_TRY(want_type(call, b, 2, b.dtype(call.in(0))));
  if (element_count(b.shape(call.in(1))) == 0) return Values{call.in(0)};
  prim::Scatter s{{axis}, dims(static_cast<int>(in.size())), HEDDLE_TRY(combine_of(call))};
  s.base[static_cast<std::size_t>(axis)] = ir::Expr(0);
  const NodeId index = wrap_indices(b, call.in(1), at(in, axis));
  return Values{b.scatter(call.in(0), call.in(2), {index}, s)};
}

Result<Values> scatter_nd(const Call& call, Builder& b) {
  HEDDLE_TRY(want_rank(call, b, 0, 1, 32));
  HEDDLE_TRY(want_rank(call, b, 1, 1, 32));
  HEDDLE_TRY(want_int(call, b, 1));
  HEDDLE_TRY(want_type(call, b, 2, b.dtype(call.in(0))));
  const Shape in = b.shape(call.in(0)), index = b.shape(call.in(1));
  const int rank = static_cast<int>(in.size()), q = static_cast<int>(index.size());
  const std::int64_t m = index.back();
  if (m < 1 || m > rank) {
    return call.error("indices {} do not address data {}", to_string(index), to_string(in));
  }
  const int addressed = static_cast<int>(m);
  Shape space(index.begin(), index.end() - 1);
  space.insert(space.end(), in.begin() + addressed, in.end());
  HEDDLE_TRY(want_shape(call, b, 2, space));
  prim::Scatter s{{}, {}, HEDDLE_TRY(combine_of(call))};
  if (element_count(space) == 0 || element_count(in) == 0) return Values{call.in(0)};
  for (int k = 0; k < rank; ++k) {
    if (k < addressed) s.axes.push_back(k);
    s.base.push_back(k < addressed ? ir::Expr(0) : dim(q - 1 + k - addressed));
  }
  return Values{b.scatter(call.in(0), call.in(2), columns(b, call.in(1), in, 0, space), s)};
}

/// A constant condition decides the shape.
Result<Values> compress(const Call& call, Builder& b) {
  if (call.graph->constant_of(call.in(1)) == nullptr) return bounded_compress(call, b);
  const Tensor* condition = HEDDLE_TRY(call.constant_tensor(1));
  NodeId x = call.in(0);
  int axis = 0;
  if (call.has_attribute("axis")) {
    axis = HEDDLE_TRY(call.axis("axis", 0, b.rank(x)));
  } else {
    x = b.reshape(x, {element_count(b.shape(x))});
  }
  if (condition->shape().size() != 1 || condition->count() > at(b.shape(x), axis)) {
    return call.error("condition has shape {}, want at most {} elements",
                      to_string(condition->shape()), at(b.shape(x), axis));
  }
  std::vector<std::int64_t> kept;
  for (std::int64_t i = 0; i < condition->count(); ++i) {
    if (condition->at(i) != 0) kept.push_back(i);
  }
  Shape out = b.shape(x);
  out[static_cast<std::size_t>(axis)] = static_cast<std::int64_t>(kept.size());
  if (element_count(out) == 0) return Values{b.full({b.dtype(x), out}, 0)};
  return Values{b.take(x, constant_i64(b, kept), axis)};
}

/// Writes update into a cache along `axis`, from position write_indices[n] of batch n on; circular
/// positions wrap, linear ones must fit.
Result<Values> tensor_scatter(const Call& call, Builder& b) {
  HEDDLE_TRY(want_rank(call, b, 0, 2, 32));
  HEDDLE_TRY(want_type(call, b, 1, b.dtype(call.in(0))));
  const Shape in = b.shape(call.in(0)), update = b.shape(call.in(1));
  const int rank = static_cast<int>(in.size());
  const int axis = HEDDLE_TRY(call.axis("axis", -2, rank));
  const int circular = HEDDLE_TRY(choice(call, "mode", "linear", {"linear", "circular"}));
  Shape want = in;
  if (update.size() == in.size()) want[static_cast<std::size_t>(axis)] = at(update, axis);
  if (axis == 0 || update != want || at(update, axis) > at(in, axis)) {
    return call.error("update of shape {} does not fit a cache of shape {} along axis {}",
                      to_string(update), to_string(in), axis);
  }
  if (element_count(update) == 0) return Values{call.in(0)};
  NodeId position = b.iota({DType::i64, update}, axis);
  if (call.has(2)) {
    HEDDLE_TRY(want_int(call, b, 2));
    HEDDLE_TRY(want_shape(call, b, 2, {in[0]}));
    Shape column(in.size(), 1);
    column[0] = in[0];
    position = b.add(position, b.reshape(b.cast(call.in(2), DType::i64), column));
  }
  if (circular != 0) {
    position = b.map(ir::ScalarFn::floor_mod, {position, b.scalar_int(DType::i64, at(in, axis))});
  }
  prim::Scatter s{{axis}, dims(rank), Combine::assign};
  s.base[static_cast<std::size_t>(axis)] = ir::Expr(0);
  return Values{b.scatter(call.in(0), call.in(1), {position}, s)};
}

using enum OpDef::Stored;
constexpr OpDef kGatherOps[] = {
    {"Gather", 1, 2, 2, gather, moves},
    {"GatherElements", 11, 2, 2, gather_elements, moves},
    {"GatherND", 11, 2, 2, gather_nd, moves},
    {"com.microsoft::GatherND", 1, 2, 2, gather_nd, moves},
    {"Scatter", 9, 3, 3, scatter_elements},
    {"ScatterElements", 11, 3, 3, scatter_elements},
    {"ScatterND", 11, 3, 3, scatter_nd},
    {"Compress", 9, 2, 2, compress, moves},
    {"TensorScatter", 24, 2, 3, tensor_scatter},
};

}  // namespace

std::span<const OpDef> gather_ops() { return kGatherOps; }

}  // namespace heddle::ops

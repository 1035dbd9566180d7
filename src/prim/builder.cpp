// Leaves, elementwise functions, reductions and the data-dependent nodes.
#include "prim/builder.h"

#include <algorithm>
#include <cmath>

#include "prim/access.h"
#include "prim/types.h"

namespace heddle::prim {

using ir::Expr;
using ir::ScalarFn;
using ir::Var;

namespace {

std::string types_text(const Builder& b, const std::vector<NodeId>& args) {
  std::string text;
  for (const NodeId a : args) text += (text.empty() ? "" : ", ") + to_string(b.type(a));
  return text;
}

Shape broadcast_shape(const Builder& b, const std::vector<NodeId>& args) {
  std::size_t rank = 0;
  for (const NodeId a : args) rank = std::max(rank, b.shape(a).size());
  Shape out(rank, 1);
  for (const NodeId a : args) {
    const Shape& s = b.shape(a);
    for (std::size_t k = 0; k < s.size(); ++k) {
      std::int64_t& extent = out[rank - s.size() + k];
      HEDDLE_CHECK(extent == 1 || s[k] == 1 || extent == s[k], "cannot broadcast {}",
                   types_text(b, args));
      if (s[k] != 1) extent = s[k];
    }
  }
  return out;
}

std::vector<int> all_axes_sorted(std::vector<int> axes, int rank) {
  std::sort(axes.begin(), axes.end());
  axes.erase(std::unique(axes.begin(), axes.end()), axes.end());
  HEDDLE_CHECK(axes.empty() || (axes.front() >= 0 && axes.back() < rank),
               "axes outside a value of rank {}", rank);
  return axes;
}

}  // namespace

NodeId Builder::scalar(DType type, double value) {
  Tensor t(TensorType{type, {}});
  t.set(0, value);
  return constant(t);
}

NodeId Builder::scalar_int(DType type, std::int64_t value) {
  Tensor t(TensorType{type, {}});
  t.set_int(0, value);
  return constant(t);
}

NodeId Builder::full(TensorType type, double value) {
  return broadcast(scalar(type.dtype, value), std::move(type.shape));
}

NodeId Builder::iota(TensorType type, int axis) {
  return graph_.add(Iota{axis}, {}, std::move(type));
}

NodeId Builder::random(TensorType type, Random::Kind kind, std::uint64_t seed) {
  return graph_.add(Random{kind, seed}, {}, std::move(type));
}

NodeId Builder::map(ScalarFn fn, std::vector<NodeId> args) {
  HEDDLE_CHECK(static_cast<int>(args.size()) == ir::info(fn).arity && fn != ScalarFn::cast,
               "{} takes {} arguments, got {}", ir::info(fn).name, ir::info(fn).arity, args.size());
  std::vector<DType> types;
  for (const NodeId a : args) types.push_back(dtype(a));
  const auto result = result_type(fn, types);
  HEDDLE_CHECK(result, "{} of {}", ir::info(fn).name, types_text(*this, args));
  Shape out = broadcast_shape(*this, args);
  for (NodeId& a : args) a = broadcast(a, out);
  return graph_.add(Map{fn}, std::move(args), {*result, std::move(out)});
}

NodeId Builder::cast(NodeId x, DType to) {
  if (dtype(x) == to) return x;
  return graph_.add(Map{ScalarFn::cast}, {x}, {to, shape(x)});
}

NodeId Builder::bitcast(NodeId x, DType to) {
  if (dtype(x) == to) return x;
  HEDDLE_CHECK(ir::can_bitcast(dtype(x), to), "bitcast of {} to {}", name_of(dtype(x)),
               name_of(to));
  return graph_.add(Map{ScalarFn::bitcast}, {x}, {to, shape(x)});
}

NodeId Builder::select(NodeId condition, NodeId a, NodeId b) {
  return map(ScalarFn::select, {condition, a, b});
}

NodeId Builder::relu(NodeId x) { return max(x, scalar(dtype(x), 0)); }

NodeId Builder::sigmoid(NodeId x) { return map(ScalarFn::recip, {add(exp(neg(x)), 1.0)}); }

NodeId Builder::reduce(ir::Monoid fn, NodeId x, std::vector<int> axes, bool keep) {
  axes = all_axes_sorted(std::move(axes), rank(x));
  const bool positional = fn == ir::Monoid::argmax || fn == ir::Monoid::argmin;
  HEDDLE_CHECK(!positional || axes.size() == 1, "{} over {} axes", name_of(fn), axes.size());
  if (axes.empty()) return x;
  Shape out;
  for (int k = 0; k < rank(x); ++k)
    if (!std::binary_search(axes.begin(), axes.end(), k))
      out.push_back(shape(x)[static_cast<std::size_t>(k)]);
  const DType type = positional ? DType::i64 : dtype(x);
  const NodeId reduced = graph_.add(Reduce{fn, axes}, {x}, {type, std::move(out)});
  return keep ? unsqueeze(reduced, axes) : reduced;
}

NodeId Builder::mean(NodeId x, std::vector<int> axes, bool keep) {
  axes = all_axes_sorted(std::move(axes), rank(x));
  const DType type = dtype(x);
  std::int64_t count = 1;
  for (const int a : axes) count *= shape(x)[static_cast<std::size_t>(a)];
  // The sum of a tensor of halves can exceed what a half holds; the mean does not.
  const NodeId sum = reduce_sum(cast(x, compute_type(type)), axes, keep);
  if (!is_float(type)) return div(sum, scalar_int(type, count));
  return cast(div(sum, static_cast<double>(count)), type);
}

NodeId Builder::normalize(NodeId x, std::vector<int> axes, double epsilon) {
  const DType type = dtype(x);
  const NodeId wide = cast(x, compute_type(type));
  const NodeId centered = sub(wide, mean(wide, axes));
  const NodeId variance = mean(mul(centered, centered), axes);
  // One reciprocal per row instead of one division per element.
  const NodeId inverse = map(ScalarFn::recip, {sqrt(add(variance, epsilon))});
  return cast(mul(centered, inverse), type);
}

NodeId Builder::softmax(NodeId x, std::vector<int> axes) {
  const DType type = dtype(x);
  const NodeId wide = cast(x, compute_type(type));
  // The largest exponent is 0, so exp stays finite and the sum is at least 1.
  const NodeId e = exp(sub(wide, reduce_max(wide, axes)));
  return cast(mul(e, map(ScalarFn::recip, {reduce_sum(e, axes)})), type);
}

NodeId Builder::gather(NodeId data, std::vector<NodeId> indices, Gather g, Shape out) {
  HEDDLE_CHECK(g.axes.size() == indices.size() && g.base.size() == shape(data).size(),
               "gather of {} with {} axes and {} indices", to_string(type(data)), g.axes.size(),
               indices.size());
  std::vector<NodeId> args = {data};
  for (const NodeId i : indices) {
    HEDDLE_CHECK(shape(i) == out && is_int(dtype(i)), "gather index of type {}, want integers {}",
                 to_string(type(i)), to_string(out));
    args.push_back(i);
  }
  const ir::Ranges ranges = ir::ranges_of(out);
  for (Expr& e : g.base) e = ir::simplify(e, ranges);
  return graph_.add(std::move(g), std::move(args), {dtype(data), std::move(out)});
}

namespace {
/// Negative positions count from the end.
NodeId wrap_index(Builder& b, NodeId index, std::int64_t extent) {
  if (is_unsigned_int(b.dtype(index))) return index;
  const DType t = b.dtype(index);
  const NodeId negative = b.map(ScalarFn::less, {index, b.scalar_int(t, 0)});
  return b.select(negative, b.add(index, b.scalar_int(t, extent)), index);
}
}  // namespace

NodeId Builder::take(NodeId data, NodeId indices, int axis) {
  const auto at = static_cast<std::size_t>(axis);
  const Shape from = shape(data), picks = shape(indices);
  HEDDLE_CHECK(axis >= 0 && at < from.size(), "take along axis {} of {}", axis, to_string(from));
  Shape out(from.begin(), from.begin() + axis);
  out.insert(out.end(), picks.begin(), picks.end());
  out.insert(out.end(), from.begin() + axis + 1, from.end());
  Gather g{{axis}, {}};
  for (std::size_t k = 0; k < from.size(); ++k) {
    const std::size_t var = k < at ? k : k + picks.size() - 1;
    g.base.push_back(k == at ? Expr(0) : Expr(Var{static_cast<std::int32_t>(var)}));
  }
  Access place;
  for (std::size_t k = 0; k < picks.size(); ++k)
    place.index.push_back(Var{static_cast<std::int32_t>(at + k)});
  const NodeId index = view(wrap_index(*this, indices, from[at]), out, place);
  return gather(data, {index}, std::move(g), std::move(out));
}

NodeId Builder::take_along(NodeId data, NodeId indices, int axis) {
  const auto at = static_cast<std::size_t>(axis);
  const Shape out = shape(indices);
  HEDDLE_CHECK(out.size() == shape(data).size() && at < out.size(), "take {} along axis {} of {}",
               to_string(type(indices)), axis, to_string(type(data)));
  Gather g{{axis}, {}};
  for (std::size_t k = 0; k < out.size(); ++k)
    g.base.push_back(k == at ? Expr(0) : Expr(Var{static_cast<std::int32_t>(k)}));
  return gather(data, {wrap_index(*this, indices, shape(data)[at])}, std::move(g), out);
}

NodeId Builder::scatter(NodeId data, NodeId updates, std::vector<NodeId> indices, Scatter s) {
  HEDDLE_CHECK(s.axes.size() == indices.size() && s.base.size() == shape(data).size() &&
                   dtype(updates) == dtype(data),
               "scatter of {} into {}", to_string(type(updates)), to_string(type(data)));
  std::vector<NodeId> args = {data, updates};
  for (const NodeId i : indices) {
    HEDDLE_CHECK(shape(i) == shape(updates) && is_int(dtype(i)),
                 "scatter index of type {}, want integers {}", to_string(type(i)),
                 to_string(shape(updates)));
    args.push_back(i);
  }
  const ir::Ranges ranges = ir::ranges_of(shape(updates));
  for (Expr& e : s.base) e = ir::simplify(e, ranges);
  const TensorType result = type(data);
  return graph_.add(std::move(s), std::move(args), result);
}

NodeId Builder::scan(ir::Monoid fn, NodeId x, int axis, bool exclusive, bool reverse) {
  HEDDLE_CHECK(axis >= 0 && axis < rank(x), "scan along axis {} of {}", axis, to_string(type(x)));
  const TensorType result = type(x);
  return graph_.add(Scan{fn, axis, exclusive, reverse}, {x}, result);
}

NodeId Builder::all_reduce(NodeId x) {
  int channel = 0;
  for (std::int32_t i = 0; i < graph_.size(); ++i)
    if (const auto* other = std::get_if<AllReduce>(&graph_[NodeId{i}].op))
      channel = std::max(channel, other->channel + 1);
  const TensorType result = type(x);
  return graph_.add(AllReduce{channel}, {x}, result);
}

NodeId Builder::sort_indices(NodeId x, int axis, bool descending, std::int64_t count) {
  HEDDLE_CHECK(axis >= 0 && axis < rank(x) && count >= 0 &&
                   count <= shape(x)[static_cast<std::size_t>(axis)],
               "first {} of axis {} of {}", count, axis, to_string(type(x)));
  TensorType result{DType::i64, shape(x)};
  result.shape[static_cast<std::size_t>(axis)] = count;
  return graph_.add(Sort{axis, descending, count}, {x}, std::move(result));
}

}  // namespace heddle::prim

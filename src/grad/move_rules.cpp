// Derivatives of data movement and contractions: reads become writes, which are turned into reads
// again wherever the access can be solved.
#include <numeric>

#include "grad/rules.h"
#include "grad/solve.h"
#include "prim/access.h"

namespace heddle::grad {
namespace {

using ir::Expr;
using ir::ScalarFn;
using ir::Var;
using prim::Access;
using prim::var;

std::vector<int> axes_from(std::size_t first, std::size_t count) {
  std::vector<int> axes(count);
  std::iota(axes.begin(), axes.end(), static_cast<int>(first));
  return axes;
}

/// Zeros to which `values` are added, in the type that sums are computed in.
NodeId scatter_sum(Builder& b, Shape into, NodeId values, std::vector<NodeId> indices,
                   prim::Scatter how) {
  const DType own = b.dtype(values), wide = compute_type(own);
  const NodeId sum = b.scatter(b.full({wide, std::move(into)}, 0), b.cast(values, wide),
                               std::move(indices), std::move(how));
  return b.cast(sum, own);
}

/// Σ over the points at which `a` reads each element of a value of shape `source` of `values`
/// (of shape `points`).
NodeId gather_back(Builder& b, NodeId values, const Access& a, Shape source) {
  const Shape points = b.shape(values);
  if (const auto s = solve(a, points, source)) {
    Shape shape = source;
    shape.insert(shape.end(), s->free.begin(), s->free.end());
    const NodeId seen = b.view(values, shape, {s->variables, s->conditions}, 0);
    if (s->free.empty()) return seen;
    return b.reduce_sum(seen, axes_from(source.size(), s->free.size()), false);
  }
  // Positions outside are clamped; what is written there is 0. Sums are as wide as a reduction's.
  prim::Scatter scatter{{}, {}, prim::Scatter::Combine::add};
  for (std::size_t k = 0; k < source.size(); ++k)
    scatter.base.push_back(ir::max(ir::min(a.index[k], source[k] - 1), 0));
  const NodeId inside = b.view(values, points, {prim::identity_access(points).index, a.inside}, 0);
  return scatter_sum(b, source, inside, {}, std::move(scatter));
}

/// The adjoint where piece k of a view is what is read, else 0.
NodeId part_of(Context& c, const prim::View& op, std::size_t k) {
  if (k == 0) return c.adjoint;  // its own conditions are applied by gather_back
  const Shape& shape = c.n.type.shape;
  prim::View masked;
  std::vector<NodeId> args;
  const NodeId zero = c.b.full(c.n.type, 0);
  const Access here = prim::identity_access(shape);
  for (std::size_t before = 0; before < k; ++before) {
    masked.pieces.push_back({here.index, op.pieces[before].inside});
    args.push_back(zero);
  }
  masked.pieces.push_back(here);
  args.push_back(c.adjoint);
  return c.g.add(std::move(masked), std::move(args), c.n.type);
}

/// The adjoint of one operand of a contraction: the contraction of the adjoint with the other.
std::optional<NodeId> operand(Context& c, const prim::Contract& op, std::size_t side) {
  const Access& mine = side == 0 ? op.lhs : op.rhs;
  const Access& others = side == 0 ? op.rhs : op.lhs;
  Shape points = c.n.type.shape;
  points.insert(points.end(), op.reduced.begin(), op.reduced.end());
  const Shape source = c.b.shape(c.n.args[side]);
  const auto s = solve(mine, points, source);
  if (!s) return std::nullopt;
  const std::size_t rank = c.n.type.shape.size();
  Access from{{s->variables.begin(), s->variables.begin() + static_cast<std::ptrdiff_t>(rank)},
              s->conditions};
  // The other operand is in bounds at the points that exist only, so it has their conditions too.
  Access other = prim::substitute(others, s->variables);
  other.inside.insert(other.inside.end(), s->conditions.begin(), s->conditions.end());
  const NodeId lhs = side == 0 ? c.adjoint : c.n.args[0];
  const NodeId rhs = side == 0 ? c.n.args[1] : c.adjoint;
  // The order of the operands is kept, so that the layouts that suit the forward pass suit this.
  return c.b.contract(lhs, rhs, source, s->free, side == 0 ? from : other, side == 0 ? other : from,
                      c.b.dtype(c.n.args[side]));
}

/// The same where the access cannot be solved: all products, then a sum by position.
NodeId operand_by_products(Context& c, const prim::Contract& op, std::size_t side) {
  const Access& mine = side == 0 ? op.lhs : op.rhs;
  const Access& others = side == 0 ? op.rhs : op.lhs;
  Shape points = c.n.type.shape;
  const std::size_t rank = points.size();
  points.insert(points.end(), op.reduced.begin(), op.reduced.end());
  Access spread;
  for (std::size_t k = 0; k < rank; ++k) spread.index.push_back(var(k));
  const NodeId adjoint = c.b.view(c.adjoint, points, std::move(spread));
  const NodeId other = c.b.view(c.n.args[1 - side], points, others, 0);
  return gather_back(c.b, c.b.mul(adjoint, other), mine, c.b.shape(c.n.args[side]));
}

/// An index expression over the positions of `shape`, as data.
NodeId data_of(Builder& b, const Expr& e, Shape shape) {
  const ir::IndexNode& n = e.node();
  const TensorType type{DType::i64, shape};
  const auto constant = [&](std::int64_t v) {
    return b.broadcast(b.scalar_int(DType::i64, v), shape);
  };
  using Kind = ir::IndexNode::Kind;
  switch (n.kind) {
    case Kind::var:
      return b.iota(type, n.var.index);
    case Kind::sum: {
      NodeId sum = constant(n.constant);
      for (const auto& t : n.terms)
        sum = b.add(sum, b.mul(data_of(b, t.atom, shape), constant(t.coefficient)));
      return sum;
    }
    case Kind::mod:
      return b.map(ScalarFn::floor_mod, {data_of(b, n.args[0], shape), constant(n.constant)});
    case Kind::div: {
      const NodeId x = data_of(b, n.args[0], shape), d = constant(n.constant);
      return b.div(b.sub(x, b.map(ScalarFn::floor_mod, {x, d})), d);
    }
    case Kind::min:
      return b.min(data_of(b, n.args[0], shape), data_of(b, n.args[1], shape));
    case Kind::max:
      return b.max(data_of(b, n.args[0], shape), data_of(b, n.args[1], shape));
  }
  HEDDLE_CHECK(false, "index expression of unknown kind");
}

/// Coordinate base + index, clamped to the dimension, as the only index of its axis.
NodeId clamped(Builder& b, NodeId index, const Expr& base, std::int64_t extent) {
  const Shape shape = b.shape(index);
  const auto constant = [&](std::int64_t v) { return b.scalar_int(DType::i64, v); };
  NodeId at = b.cast(index, DType::i64);
  if (!base.is_constant(0)) at = b.add(at, data_of(b, base, shape));
  return b.max(b.min(at, constant(extent - 1)), constant(0));
}

/// True (b1) for the updates of a scatter that are not dropped.
std::optional<NodeId> kept_updates(Context& c, const prim::Scatter& op) {
  std::optional<NodeId> all;
  const Shape& into = c.n.type.shape;
  for (std::size_t j = 0; j < op.axes.size(); ++j) {
    const auto axis = static_cast<std::size_t>(op.axes[j]);
    const NodeId index = c.n.args[2 + j];
    NodeId at = c.b.cast(index, DType::i64);
    if (!op.base[axis].is_constant(0))
      at = c.b.add(at, data_of(c.b, op.base[axis], c.b.shape(index)));
    const NodeId low = c.b.map(ScalarFn::greater_equal, {at, c.b.scalar_int(DType::i64, 0)});
    const NodeId high = c.b.map(ScalarFn::less, {at, c.b.scalar_int(DType::i64, into[axis])});
    const NodeId both = c.b.map(ScalarFn::logical_and, {low, high});
    all = all ? c.b.map(ScalarFn::logical_and, {*all, both}) : both;
  }
  return all;
}

std::vector<NodeId> indices_of(const prim::Node& n, std::size_t first) {
  return {n.args.begin() + static_cast<std::ptrdiff_t>(first), n.args.end()};
}

}  // namespace

Status differentiate(Context& c, const prim::View& op) {
  for (std::size_t k = 0; k < op.pieces.size(); ++k)
    if (c.wanted(k))
      c.add(k, gather_back(c.b, part_of(c, op, k), op.pieces[k], c.b.shape(c.n.args[k])));
  return Ok{};
}

Status differentiate(Context& c, const prim::Contract& op) {
  for (std::size_t side = 0; side < 2; ++side) {
    if (!c.wanted(side)) continue;
    const auto fast = operand(c, op, side);
    c.add(side, fast ? *fast : operand_by_products(c, op, side));
  }
  return Ok{};
}

namespace {

/// Rows of a table that are picked by numbers: table[c(o)] with c[axis] = numbers[o0, …], the
/// first dimensions of the result.
struct Rows {
  NodeId numbers;
  std::size_t axis;
};
std::optional<Rows> rows_of(const Context& c, const prim::Gather& op) {
  const prim::Node& index = c.g[c.n.args[1]];
  const auto* view = std::get_if<prim::View>(&index.op);
  if (op.axes.size() != 1 || !view || view->pieces.size() != 1 || !view->pieces[0].inside.empty())
    return std::nullopt;
  const auto axis = static_cast<std::size_t>(op.axes[0]);
  const std::size_t rank = c.b.shape(index.args[0]).size();
  if (!op.base[axis].is_constant(0)) return std::nullopt;
  for (std::size_t k = 0; k < rank; ++k) {
    if (view->pieces[0].index[k] != var(k)) return std::nullopt;
    for (const Expr& e : op.base)
      if (ir::depends_on(e, ir::Var{static_cast<std::int32_t>(k)})) return std::nullopt;
  }
  return Rows{index.args[0], axis};
}

/// The gradient of a table of which few rows are read: sums for these rows alone, and for each row
/// of the table where its sum is. What reads the gradient (an update) then reads no table of zeros.
std::optional<NodeId> sums_of_few_rows(const Context& c, const prim::Gather& op) {
  constexpr std::int64_t kFew = 4, kLargeBytes = 1 << 20;
  Builder b = c.b;
  const auto rows = rows_of(c, op);
  const TensorType table = b.type(c.n.args[0]);
  if (!rows || element_count(table.shape) * size_of(table.dtype) < kLargeBytes) return std::nullopt;
  const Shape read = b.shape(rows->numbers);
  const std::int64_t count = element_count(read), extent = table.shape[rows->axis];
  if (count == 0 || extent < kFew * count) return std::nullopt;
  const NodeId row = clamped(b, rows->numbers, 0, extent);
  std::vector<Expr> at;
  for (std::size_t k = 0; k < read.size(); ++k) at.push_back(var(k));
  const NodeId none = b.broadcast(b.scalar_int(DType::i64, -1), {extent});
  // Of several readers of a row the last one has its sum.
  const NodeId place = b.scatter(none, data_of(b, prim::flat_index(at, read), read), {row},
                                 {{0}, {0}, prim::Scatter::Combine::assign});
  const NodeId own = b.gather(place, {row}, {{0}, {0}}, read);
  prim::Scatter scatter{op.axes, op.base, prim::Scatter::Combine::add};
  Shape sums = table.shape;
  sums[rows->axis] = count;
  const Shape points = b.shape(c.adjoint);
  const NodeId sum = scatter_sum(b, sums, c.adjoint, {b.view(own, points, {at, {}})}, scatter);
  const NodeId of_row = b.view(place, table.shape, {{var(rows->axis)}, {}});
  const NodeId zero = b.scalar_int(DType::i64, 0);
  prim::Gather gather{op.axes, {}};
  for (std::size_t k = 0; k < table.shape.size(); ++k)
    gather.base.push_back(k == rows->axis ? Expr(0) : var(k));
  const NodeId found = b.gather(sum, {b.max(of_row, zero)}, gather, table.shape);
  return b.select(b.map(ScalarFn::greater_equal, {of_row, zero}), found, b.full(table, 0));
}

}  // namespace

Status differentiate(Context& c, const prim::Gather& op) {
  if (const auto few = sums_of_few_rows(c, op)) {
    c.add(0, *few);
    return Ok{};
  }
  const Shape source = c.b.shape(c.n.args[0]);
  prim::Scatter scatter{op.axes, op.base, prim::Scatter::Combine::add};
  std::vector<NodeId> indices;
  for (std::size_t j = 0; j < op.axes.size(); ++j) {
    const auto axis = static_cast<std::size_t>(op.axes[j]);
    // A gather clamps what a scatter would drop.
    indices.push_back(clamped(c.b, c.n.args[1 + j], op.base[axis], source[axis]));
    scatter.base[axis] = 0;
  }
  c.add(0, scatter_sum(c.b, source, c.adjoint, std::move(indices), std::move(scatter)));
  return Ok{};
}

Status differentiate(Context& c, const prim::Scatter& op) {
  using Combine = prim::Scatter::Combine;
  if (op.combine != Combine::add && op.combine != Combine::assign)
    return unsupported("a scatter that multiplies or compares has no derivative here");
  const auto indices = indices_of(c.n, 2);
  const Shape updates = c.b.shape(c.n.args[1]);
  const prim::Gather back{op.axes, op.base};
  if (op.combine == Combine::add) {
    c.add(0, c.adjoint);
  } else if (c.wanted(0)) {
    const NodeId zeros = c.b.full(c.b.type(c.n.args[1]), 0);
    c.add(0, c.b.scatter(c.adjoint, zeros, indices, op));
  }
  if (!c.wanted(1)) return Ok{};
  NodeId d = c.b.gather(c.adjoint, indices, back, updates);
  auto keep = kept_updates(c, op);
  if (op.combine == Combine::assign) {
    // Of several updates of one element the last one is what is seen.
    std::vector<Expr> at;
    for (std::size_t k = 0; k < updates.size(); ++k) at.push_back(var(k));
    const NodeId number = data_of(c.b, prim::flat_index(at, updates), updates);
    const TensorType numbers{DType::i64, c.n.type.shape};
    const NodeId none = c.b.broadcast(c.b.scalar_int(DType::i64, -1), numbers.shape);
    const NodeId winner =
        c.b.gather(c.b.scatter(none, number, indices, op), indices, back, updates);
    const NodeId won = c.b.map(ScalarFn::equal, {winner, number});
    keep = keep ? c.b.map(ScalarFn::logical_and, {*keep, won}) : won;
  }
  if (keep) d = c.b.select(*keep, d, c.b.full(c.b.type(d), 0));
  c.add(1, d);
  return Ok{};
}

}  // namespace heddle::grad

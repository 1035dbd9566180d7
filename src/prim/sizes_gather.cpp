// Positions that depend on the size: they are computed while running.
#include <algorithm>
#include <limits>
#include <set>

#include "prim/access.h"
#include "prim/sizes_merge.h"

namespace heddle::prim {

using ir::Condition;
using ir::Expr;
using ir::IndexNode;
using ir::ScalarFn;
using ir::Var;

namespace {

/// `out` with extent 1 along what the expressions do not depend on: what they say is computed once
/// for all positions there.
Shape used_shape(const std::vector<Expr>& exprs, const Shape& out) {
  std::vector<Var> used;
  for (const Expr& e : exprs) ir::collect_variables(e, used);
  Shape shape(out.size(), 1);
  for (const Var v : used)
    shape[static_cast<std::size_t>(v.index)] = out[static_cast<std::size_t>(v.index)];
  return shape;
}

/// Along one axis, by an index.
Gather picking(int axis, std::size_t rank) {
  Gather gather{{axis}, {}};
  for (std::size_t k = 0; k < rank; ++k)
    gather.base.push_back(static_cast<int>(k) == axis ? Expr(0)
                                                      : Expr(Var{static_cast<std::int32_t>(k)}));
  return gather;
}

}  // namespace

/// The elements that a part reads, anything where it is not inside. Coordinates that depend on the
/// size become a position in the dimensions that they are of, seen as one.
Result<NodeId> SizeMerger::read_piece(const Nodes& nodes, const Nodes& arg,
                                      const std::vector<const Access*>& accesses) {
  const Shape& out = largest(nodes).type.shape;
  const ir::Ranges ranges = ir::ranges_of(out);
  const Shape shape_there = b_.shape(merged(arg));
  Gather gather;
  Shape source;
  std::vector<NodeId> indices;
  bool joins = false;  // the next such coordinate, with the one before
  for (std::size_t k = 0; k < shape_there.size(); ++k) {
    const Expr& l = accesses[largest_]->index[k];
    bool same = true;
    std::vector<Expr> exprs;
    for (std::size_t c = 0; c < cases_.size(); ++c) {
      exprs.push_back(accesses[c]->index[k]);
      same &= same_expr(c, l, exprs.back(), shape(c, nodes));
    }
    const auto range = ir::bounds(l, ranges);
    if (same && range && range->low >= 0 && range->high < shape_there[k]) {
      gather.base.push_back(l);
      source.push_back(shape_there[k]);
      joins = false;
      continue;
    }
    if (same) exprs.assign(exprs.size(), l);
    const Shape used = used_shape(exprs, out);
    const NodeId index = HEDDLE_TRY(position(nodes, exprs, used));
    if (joins) {
      const NodeId rows = b_.mul(indices.back(), b_.scalar_int(DType::i32, shape_there[k]));
      indices.back() = b_.add(rows, index);
      source.back() *= shape_there[k];
      continue;
    }
    gather.axes.push_back(static_cast<int>(source.size()));
    gather.base.push_back(0);
    source.push_back(shape_there[k]);
    indices.push_back(index);
    joins = true;
  }
  if (indices.empty()) return b_.view(merged(arg), out, Access{std::move(gather.base), {}});
  const Picked first{b_.reshape(merged(arg), source), gather.axes[0], indices[0]};
  return gathered(first, std::move(gather), indices, out);
}

/// Takes note of a value whose elements are those of another one, moved along one axis.
NodeId SizeMerger::gathered(const Picked& picked, Gather gather, const std::vector<NodeId>& indices,
                            const Shape& out) {
  const Shape& along = b_.shape(picked.index);
  bool moved =
      gather.axes.size() == 1 && gather.base.size() == out.size() && along.size() == out.size();
  for (std::size_t k = 0; moved && k < out.size(); ++k) {
    const Expr& base = gather.base[k];
    const bool same = base.variable() == Var{static_cast<std::int32_t>(k)} ||
                      (out[k] == 1 && base.is_constant(0));
    moved = static_cast<int>(k) == picked.axis || (same && along[k] == 1);
  }
  std::vector<NodeId> wide;
  for (const NodeId index : indices) wide.push_back(b_.broadcast(index, out));
  const NodeId made = b_.gather(picked.source, std::move(wide), std::move(gather), out);
  if (moved) picked_.emplace(made, picked);
  return made;
}

/// The axis along which the parts follow one another, whatever their sizes, if one of them was
/// picked along it: not each part is read at each position then, nor picked twice.
std::optional<int> SizeMerger::gathered_concat(
    const std::vector<std::vector<const Access*>>& pieces, const std::vector<Shape>& variables,
    const std::vector<Nodes>& args) const {
  std::optional<int> axis;
  for (const Nodes& arg : args)
    if (const auto found = picked_.find(merged(arg)); found != picked_.end())
      axis = found->second.axis;
  if (!axis || args.size() < 2) return std::nullopt;
  const auto k = static_cast<std::size_t>(*axis);
  for (std::size_t c = 0; c < cases_.size(); ++c) {
    std::int64_t offset = 0;
    for (std::size_t p = 0; p < pieces.size(); ++p) {
      const Access& access = *pieces[p][c];
      if (access.index.size() != variables[c].size()) return std::nullopt;
      const std::int64_t end = offset + shape(c, args[p])[k];
      for (std::size_t j = 0; j < access.index.size(); ++j) {
        const Expr at = Expr(Var{static_cast<std::int32_t>(j)}) - (j == k ? offset : 0);
        const ir::Ranges ranges = ir::ranges_of(variables[c]);
        if (ir::simplify(access.index[j], ranges) != ir::simplify(at, ranges)) return std::nullopt;
      }
      for (const Condition& inside : access.inside)
        if (inside.expr.variable() != Var{*axis} || inside.low > offset || inside.high != end)
          return std::nullopt;
      if (access.inside.empty() && p + 1 < pieces.size()) return std::nullopt;
      offset = end;
    }
    if (offset != variables[c][k]) return std::nullopt;
  }
  return axis;
}

/// The parts with their padding one after another, and where in them each position is.
NodeId SizeMerger::merge_concat(const std::vector<Nodes>& args, int axis, const Shape& out) {
  const auto k = static_cast<std::size_t>(axis);
  const auto along = [&](std::int64_t extent) {
    Shape shape(out.size(), 1);
    shape[k] = extent;
    return TensorType{DType::i32, std::move(shape)};
  };
  const auto moved = [&](NodeId index, std::vector<std::int64_t> by) {
    return b_.add(index, number(by));
  };
  const NodeId position = b_.iota(along(out[k]), axis);
  std::vector<NodeId> sources, places;
  NodeId index = position;
  std::vector<std::int64_t> from(cases_.size(), 0);
  std::int64_t padded = 0, start = 0;  // where the part begins, by extents of parts and of sources
  for (std::size_t p = 0; p < args.size(); ++p) {
    const NodeId part = merged(args[p]);
    const std::int64_t extent = b_.shape(part)[k];
    if (p > 0) {
      std::vector<std::int64_t> by;
      for (const std::int64_t begins : from) by.push_back(padded - begins);
      index = b_.select(b_.map(ScalarFn::less, {position, number(from)}), index,
                        moved(position, std::move(by)));
    }
    const auto found = picked_.find(part);
    const bool picked = found != picked_.end() && found->second.axis == axis;
    sources.push_back(picked ? found->second.source : part);
    places.push_back(moved(picked ? found->second.index : b_.iota(along(extent), axis),
                           std::vector<std::int64_t>(cases_.size(), start)));
    for (std::size_t c = 0; c < cases_.size(); ++c) from[c] += shape(c, args[p])[k];
    padded += extent;
    start += b_.shape(sources.back())[k];
  }
  const NodeId place =
      b_.gather(b_.concat(places, axis), {index}, picking(axis, out.size()), b_.shape(index));
  return gathered({b_.concat(sources, axis), axis, place}, picking(axis, out.size()), {place}, out);
}

/// Numbers of each position along the one dimension that they depend on, of each size; null where
/// they depend on several, or are too many.
std::optional<NodeId> SizeMerger::table(
    DType type, const Shape& used,
    const std::function<std::int64_t(std::size_t c, const std::vector<std::int64_t>&)>& at) {
  constexpr std::int64_t kMost = 1 << 13, kMostInAll = 1 << 22;
  const std::int64_t count = element_count(used);
  const auto along = std::ranges::find_if(used, [](std::int64_t e) { return e > 1; });
  if (count > kMost || count * static_cast<std::int64_t>(cases_.size()) > kMostInAll ||
      (along != used.end() && *along != count))
    return std::nullopt;
  std::vector<std::int64_t> variables(used.size(), 0);
  std::vector<Tensor> values;
  for (std::size_t c = 0; c < cases_.size(); ++c) {
    values.emplace_back(TensorType{type, used});
    for (std::int64_t p = 0; p < count; ++p) {
      if (along != used.end()) variables[static_cast<std::size_t>(along - used.begin())] = p;
      values.back().set_int(p, at(c, variables));
    }
  }
  return given(std::move(values));
}

/// The expressions as they are computed; where they are not alike, from a table.
Result<NodeId> SizeMerger::position(const Nodes& nodes, const std::vector<Expr>& exprs,
                                    const Shape& used) {
  Result<NodeId> computed_once = computed(nodes, exprs, used);
  if (computed_once) return computed_once;
  const auto told = table(DType::i32, used, [&](std::size_t c, const auto& variables) {
    const std::int64_t value = ir::evaluate(exprs[c], variables);
    return std::clamp<std::int64_t>(value, INT32_MIN, INT32_MAX);
  });
  return told ? Result<NodeId>(*told) : computed_once;
}

/// The same where sizes differ in how many conditions there are, each on one dimension.
Result<std::optional<NodeId>> SizeMerger::inside_by_tables(
    const Nodes& nodes, const std::vector<const Access*>& accesses) {
  const Shape& out = largest(nodes).type.shape;
  std::optional<NodeId> all;
  for (std::size_t k = 0; k < out.size(); ++k) {
    const Var own{static_cast<std::int32_t>(k)};
    bool any = false;
    for (std::size_t c = 0; c < cases_.size(); ++c)
      for (const Condition& condition : accesses[c]->inside) {
        std::vector<Var> variables;
        ir::collect_variables(condition.expr, variables);
        if (variables.size() != 1)
          return misfit(nodes, c, "where it reads takes another form there");
        any |= variables[0] == own;
      }
    if (!any) continue;
    Shape used(out.size(), 1);
    used[k] = out[k];
    const auto holds = table(DType::b1, used, [&](std::size_t c, const auto& variables) {
      return std::ranges::all_of(accesses[c]->inside, [&](const Condition& condition) {
        if (!ir::depends_on(condition.expr, own)) return true;
        const std::int64_t value = ir::evaluate(condition.expr, variables);
        return condition.low <= value && value < condition.high;
      });
    });
    if (!holds) return misfit(nodes, largest_, "where it reads is too much to tell by a table");
    all = all ? b_.map(ScalarFn::logical_and, {b_.broadcast(*all, out), b_.broadcast(*holds, out)})
              : *holds;
  }
  if (all) all = b_.broadcast(*all, out);
  return all;
}

/// Where a part is inside; nullopt: everywhere.
Result<std::optional<NodeId>> SizeMerger::inside_of(const Nodes& nodes,
                                                    const std::vector<const Access*>& accesses) {
  const std::size_t count = accesses[largest_]->inside.size();
  if (std::ranges::any_of(accesses, [&](const Access* a) { return a->inside.size() != count; }))
    return inside_by_tables(nodes, accesses);
  std::optional<NodeId> all;
  const Shape& out = largest(nodes).type.shape;
  for (std::size_t i = 0; i < count; ++i) {
    std::vector<Expr> exprs;
    std::vector<std::int64_t> lows, highs;
    for (const Access* a : accesses) {
      exprs.push_back(a->inside[i].expr);
      lows.push_back(a->inside[i].low);
      highs.push_back(a->inside[i].high);
    }
    const Shape used = used_shape(exprs, out);
    const NodeId value = HEDDLE_TRY(position(nodes, exprs, used));
    const NodeId holds =
        b_.map(ScalarFn::logical_and, {b_.map(ScalarFn::greater_equal, {value, number(lows)}),
                                       b_.map(ScalarFn::less, {value, number(highs)})});
    all = all ? b_.map(ScalarFn::logical_and, {*all, holds}) : holds;
  }
  if (all) all = b_.broadcast(*all, out);
  return all;
}

namespace {

using Terms = std::vector<IndexNode::Term>;

/// The same terms as `all`, those that are not there with coefficient 0 (an axis of extent 1 has no
/// term of its own); nullopt if there are others.
std::optional<Terms> aligned(const Terms& terms, const Terms& all) {
  if (terms.size() == all.size()) return terms;
  Terms out;
  std::size_t next = 0;
  for (const IndexNode::Term& term : all) {
    const bool there = next < terms.size() &&
                       terms[next].atom.node().kind == term.atom.node().kind &&
                       terms[next].atom.variable() == term.atom.variable();
    out.push_back(there ? terms[next++] : IndexNode::Term{0, term.atom});
  }
  if (next < terms.size()) return std::nullopt;
  return out;
}

}  // namespace

Result<NodeId> SizeMerger::computed_sum(const Nodes& nodes, const std::vector<Expr>& exprs,
                                        const Shape& shape) {
  std::vector<Terms> terms;
  std::vector<std::int64_t> constants;
  std::size_t most = 0;
  for (const Expr& expr : exprs) {
    const IndexNode& n = expr.node();
    const bool sum = n.kind == IndexNode::Kind::sum;
    constants.push_back(sum ? n.constant : 0);
    terms.push_back(sum ? n.terms : Terms{{1, expr}});
    if (terms.back().size() > terms[most].size()) most = terms.size() - 1;
  }
  const Terms all = terms[most];
  for (std::size_t c = 0; c < exprs.size(); ++c) {
    auto same = aligned(terms[c], all);
    if (!same) return misfit(nodes, c, "what it reads takes another form there");
    terms[c] = *std::move(same);
  }
  NodeId total = number(constants);
  for (std::size_t t = 0; t < all.size(); ++t) {
    std::vector<Expr> atoms;
    std::vector<std::int64_t> coefficients;
    for (const auto& list : terms) {
      atoms.push_back(list[t].atom);
      coefficients.push_back(list[t].coefficient);
    }
    const NodeId atom = HEDDLE_TRY(computed(nodes, std::move(atoms), shape));
    const bool one = !varies(coefficients) && coefficients[0] == 1;
    const NodeId term = one ? atom : b_.mul(atom, number(coefficients));
    const bool zero = t == 0 && !varies(constants) && constants[0] == 0;
    total = zero ? term : b_.add(total, term);
  }
  return total;
}

Result<NodeId> SizeMerger::computed(const Nodes& nodes, std::vector<Expr> exprs,
                                    const Shape& shape) {
  using Kind = IndexNode::Kind;
  if (element_count(shape) > (std::int64_t{1} << 30))
    return misfit(nodes, largest_, "its positions do not fit into 32 bits");
  std::set<Kind> kinds;
  for (const Expr& e : exprs) kinds.insert(e.node().kind);
  if (kinds.contains(Kind::sum)) return computed_sum(nodes, exprs, shape);
  if (kinds.size() > 1) return computed_quotient(nodes, exprs, shape);
  const Kind kind = *kinds.begin();
  if (kind == Kind::var) {
    const Var var = *exprs[largest_].variable();
    for (std::size_t c = 0; c < exprs.size(); ++c)
      if (exprs[c].variable() != var)
        return misfit(nodes, c, "what it reads takes another form there");
    return b_.iota({DType::i32, shape}, var.index);
  }
  if (kind == Kind::div || kind == Kind::mod) return computed_quotient(nodes, exprs, shape);
  std::vector<NodeId> args;
  for (std::size_t a = 0; a < exprs[largest_].node().args.size(); ++a) {
    std::vector<Expr> parts;
    for (const Expr& e : exprs) parts.push_back(e.node().args[a]);
    args.push_back(HEDDLE_TRY(computed(nodes, std::move(parts), shape)));
  }
  return kind == Kind::min ? b_.min(args[0], args[1]) : b_.max(args[0], args[1]);
}

/// Quotients, or remainders, of which some may have been simplified: x is x div 1, and x mod more
/// than it can be.
Result<NodeId> SizeMerger::computed_quotient(const Nodes& nodes, const std::vector<Expr>& exprs,
                                             const Shape& shape) {
  using Kind = IndexNode::Kind;
  const Kind largest = exprs[largest_].node().kind;
  const auto is = [](Kind kind) { return [kind](const Expr& e) { return e.node().kind == kind; }; };
  const auto other = std::ranges::find_if_not(exprs, is(largest)) - exprs.begin();
  const bool div = std::ranges::any_of(exprs, is(Kind::div));
  if (div == std::ranges::any_of(exprs, is(Kind::mod)))
    return misfit(nodes, static_cast<std::size_t>(other), "what it reads takes another form there");
  const Kind kind = div ? Kind::div : Kind::mod;
  std::vector<Expr> parts;
  std::vector<std::int64_t> divisors;
  bool natural = true;
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  for (std::size_t c = 0; c < exprs.size(); ++c) {
    const bool whole = exprs[c].node().kind != kind;
    parts.push_back(whole ? exprs[c] : exprs[c].node().args[0]);
    divisors.push_back(!whole ? exprs[c].node().constant : div ? 1 : kMost);
    const auto range = ir::bounds(parts.back(), ir::ranges_of(shape));
    const bool positive = range && range->low >= 0;
    if (whole && !div && !positive)
      return misfit(nodes, c, "what it reads takes another form there");
    natural &= positive;
  }
  const NodeId value = HEDDLE_TRY(computed(nodes, std::move(parts), shape));
  const NodeId divisor = number(divisors);
  if (natural) {
    // In f64, whose division has vectors, unlike that of integers. Half more than the value is far
    // enough from whole quotients, also where it is multiplied by a reciprocal instead.
    const NodeId half = b_.add(b_.cast(value, DType::f64), b_.scalar(DType::f64, 0.5));
    const NodeId quotient = b_.cast(b_.div(half, b_.cast(divisor, DType::f64)), DType::i32);
    return div ? quotient : b_.sub(value, b_.mul(quotient, divisor));
  }
  const NodeId rest = b_.map(ScalarFn::floor_mod, {value, divisor});
  return div ? b_.div(b_.sub(value, rest), divisor) : rest;
}

}  // namespace heddle::prim

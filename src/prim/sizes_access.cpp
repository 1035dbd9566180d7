// Views, contractions, gathers and scatters for several sizes: what reads beyond the end of a
// dimension, and index expressions whose numbers depend on the size.
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

bool SizeMerger::same_expr(std::size_t c, const Expr& l, const Expr& e,
                           const Shape& variables) const {
  if (c == largest_ || l == e) return true;
  const ir::Ranges ranges = ir::ranges_of(variables);
  return ir::simplify(l, ranges) == ir::simplify(e, ranges);
}

namespace {

/// The coordinate for which the condition says no more than that it is inside its extent.
std::optional<std::size_t> bounded_coordinate(const Condition& condition, const Access& access,
                                              const Shape& extents, const ir::Ranges& ranges) {
  for (std::size_t k = 0; k < extents.size(); ++k) {
    const auto inside = ir::simplify({Condition{access.index[k], 0, extents[k]}}, ranges);
    if (!inside || inside->size() != 1) continue;
    const Condition& own = inside->front();
    if (own.expr == condition.expr && own.low >= condition.low && own.high <= condition.high)
      return k;
  }
  return std::nullopt;
}

}  // namespace

/// Reads of `arg` by one access per case, over `variables` per case. In case c the element is read
/// where its conditions hold; every coordinate is then below the extent that dimension has there.
/// The largest case's access reads the same elements if it has the same coordinates and conditions;
/// a condition that only keeps a coordinate inside its dimension may differ, if padding along that
/// dimension is replaced by what is read outside: those dimensions are the result, nullopt means
/// that the accesses differ in more.
std::optional<std::vector<int>> SizeMerger::masked_dims(const std::vector<const Access*>& accesses,
                                                        const std::vector<Shape>& variables,
                                                        const Nodes& arg,
                                                        std::size_t& misfit) const {
  std::vector<int> dims;
  const Access& l = *accesses[largest_];
  for (std::size_t c = 0; c < cases_.size(); ++c) {
    misfit = c;
    if (*accesses[c] == l) continue;
    const auto theirs = simplified(*accesses[c], variables[c]);
    const auto ours = simplified(l, variables[c]);
    if (!theirs || !ours || theirs->index != ours->index) return std::nullopt;
    const Shape& extents = shape(c, arg);
    const ir::Ranges ranges = ir::ranges_of(variables[c]);
    for (const Condition& mine : ours->inside)
      if (std::find(theirs->inside.begin(), theirs->inside.end(), mine) == theirs->inside.end() &&
          !bounded_coordinate(mine, *ours, extents, ranges))
        return std::nullopt;
    for (const Condition& other : theirs->inside) {
      if (std::find(ours->inside.begin(), ours->inside.end(), other) != ours->inside.end())
        continue;
      const auto k = bounded_coordinate(other, *theirs, extents, ranges);
      if (!k) return std::nullopt;
      dims.push_back(static_cast<int>(*k));
    }
  }
  std::sort(dims.begin(), dims.end());
  dims.erase(std::unique(dims.begin(), dims.end()), dims.end());
  return dims;
}

Result<NodeId> SizeMerger::merge_view(const Nodes& nodes, const Form& form) {
  std::vector<View> views;
  for (std::size_t c = 0; c < cases_.size(); ++c)
    views.push_back(form.steps[c] ? std::get<View>(at(c, nodes).op)
                                  : View{{identity_access(shape(c, nodes))}, 0});
  const std::size_t pieces = views[largest_].pieces.size();
  std::optional<double> fill;
  for (std::size_t c = 0; c < cases_.size(); ++c) {
    if (views[c].pieces.size() != pieces)
      return misfit(nodes, c, "the number of its parts depends on the size");
    if (std::all_of(views[c].pieces.begin(), views[c].pieces.end(),
                    [](const Access& a) { return a.inside.empty(); }))
      continue;  // nothing is filled in
    if (fill && *fill != views[c].fill) return misfit(nodes, c, "its fill depends on the size");
    fill = views[c].fill;
  }
  std::vector<std::vector<const Access*>> accesses(pieces);
  for (std::size_t p = 0; p < pieces; ++p)
    for (const View& view : views) accesses[p].push_back(&view.pieces[p]);
  return merge_pieces(nodes, form, accesses, fill.value_or(0));
}

Result<NodeId> SizeMerger::merge_pieces(const Nodes& nodes, const Form& form,
                                        const std::vector<std::vector<const Access*>>& pieces,
                                        double fill) {
  const TensorType& type = largest(nodes).type;
  std::vector<Shape> variables;
  for (std::size_t c = 0; c < cases_.size(); ++c) variables.push_back(shape(c, nodes));
  const auto filler = [&] {
    return is_float(type.dtype) ? b_.scalar(type.dtype, fill)
                                : b_.scalar_int(type.dtype, static_cast<std::int64_t>(fill));
  };
  View view{{}, fill};
  std::vector<NodeId> args;
  for (std::size_t p = 0; p < pieces.size(); ++p) {
    std::size_t c = 0;
    const auto dims = masked_dims(pieces[p], variables, form.args[p], c);
    // With several parts, what is not inside one belongs to the next.
    if (!dims || (pieces.size() > 1 && !dims->empty())) break;
    view.pieces.push_back(*pieces[p][largest_]);
    args.push_back(dims->empty() ? merged(form.args[p])
                   : fill == 0   ? zeroed(form.args[p], *dims)
                                 : masked(form.args[p], *dims, filler()));
  }
  if (args.size() == pieces.size()) {
    if (args.size() == 1) return b_.view(args[0], type.shape, view.pieces[0], fill);
    return out_.graph.add(std::move(view), std::move(args), type);
  }
  NodeId result = b_.broadcast(filler(), type.shape);
  for (std::size_t p = pieces.size(); p-- > 0;) {
    const NodeId part = HEDDLE_TRY(read_piece(nodes, form.args[p], pieces[p]));
    const auto inside = HEDDLE_TRY(inside_of(nodes, pieces[p]));
    result = inside ? b_.select(*inside, part, result) : part;
  }
  return result;
}

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

}  // namespace

/// The elements that a part reads, anything where it is not inside.
Result<NodeId> SizeMerger::read_piece(const Nodes& nodes, const Nodes& arg,
                                      const std::vector<const Access*>& accesses) {
  const Shape& out = largest(nodes).type.shape;
  const ir::Ranges ranges = ir::ranges_of(out);
  const NodeId source = merged(arg);
  Gather gather;
  std::vector<NodeId> indices;
  for (std::size_t k = 0; k < b_.shape(source).size(); ++k) {
    const Expr& l = accesses[largest_]->index[k];
    bool same = true;
    std::vector<Expr> exprs;
    for (std::size_t c = 0; c < cases_.size(); ++c) {
      exprs.push_back(accesses[c]->index[k]);
      same &= same_expr(c, l, exprs.back(), shape(c, nodes));
    }
    const auto range = ir::bounds(l, ranges);
    if (same && range && range->low >= 0 && range->high < b_.shape(source)[k]) {
      gather.base.push_back(l);
      continue;
    }
    if (same) exprs.assign(exprs.size(), l);
    const Shape used = used_shape(exprs, out);
    const NodeId index = HEDDLE_TRY(computed(nodes, std::move(exprs), used));
    gather.axes.push_back(static_cast<int>(k));
    gather.base.push_back(0);
    indices.push_back(b_.broadcast(index, out));
  }
  if (!indices.empty()) return b_.gather(source, std::move(indices), std::move(gather), out);
  return b_.view(source, out, Access{std::move(gather.base), {}});
}

/// Where a part is inside; nullopt: everywhere.
Result<std::optional<NodeId>> SizeMerger::inside_of(const Nodes& nodes,
                                                    const std::vector<const Access*>& accesses) {
  const std::size_t count = accesses[largest_]->inside.size();
  for (std::size_t c = 0; c < cases_.size(); ++c)
    if (accesses[c]->inside.size() != count)
      return misfit(nodes, c, "where it reads takes another form there");
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
    const NodeId value = HEDDLE_TRY(computed(nodes, std::move(exprs), used));
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
    // f64 holds the quotient of two i32 exactly enough to be cut, and unlike that of integers its
    // division has vectors.
    const NodeId quotient =
        b_.cast(b_.div(b_.cast(value, DType::f64), b_.cast(divisor, DType::f64)), DType::i32);
    return div ? quotient : b_.sub(value, b_.mul(quotient, divisor));
  }
  const NodeId rest = b_.map(ScalarFn::floor_mod, {value, divisor});
  return div ? b_.div(b_.sub(value, rest), divisor) : rest;
}

Result<NodeId> SizeMerger::merge_kind(const Nodes& nodes, const Form& form, const Contract& op) {
  const std::size_t rank = largest(nodes).type.shape.size();
  std::vector<Shape> variables;
  for (std::size_t c = 0; c < cases_.size(); ++c) {
    variables.push_back(shape(c, nodes));
    const Shape& reduced = std::get<Contract>(at(c, nodes).op).reduced;
    if (reduced.size() != op.reduced.size())
      return misfit(nodes, c, "what it sums over depends on the size");
    variables.back().insert(variables.back().end(), reduced.begin(), reduced.end());
  }
  std::vector<bool> covered(op.reduced.size(), false);
  std::vector<NodeId> args;
  for (const bool left : {true, false}) {
    const Nodes& arg = form.args[left ? 0 : 1];
    std::vector<const Access*> accesses;
    for (std::size_t c = 0; c < cases_.size(); ++c) {
      const Contract& other = std::get<Contract>(at(c, nodes).op);
      accesses.push_back(left ? &other.lhs : &other.rhs);
    }
    std::size_t misfitting = 0;
    auto dims = masked_dims(accesses, variables, arg, misfitting);
    if (!dims) return misfit(nodes, misfitting, "what it reads takes another form there");
    const Access& l = *accesses[largest_];
    for (std::size_t k = 0; k < l.index.size(); ++k)
      for (std::size_t r = 0; r < op.reduced.size(); ++r) {
        const Var var{static_cast<std::int32_t>(rank + r)};
        if (!ir::depends_on(l.index[k], var)) continue;
        dims->push_back(static_cast<int>(k));
        bool whole = l.index[k].variable() == var;
        for (std::size_t c = 0; c < cases_.size(); ++c)
          whole &= shape(c, arg)[k] == variables[c][rank + r];
        if (whole) covered[r] = true;
      }
    args.push_back(zeroed(arg, *dims));
  }
  for (std::size_t r = 0; r < op.reduced.size(); ++r)
    for (std::size_t c = 0; c < cases_.size(); ++c)
      if (!covered[r] && variables[c][rank + r] != op.reduced[r])
        return misfit(nodes, c, "what it sums over is no dimension of an operand");
  return out_.graph.add(op, std::move(args), largest(nodes).type);
}

/// Positions from data stay inside the extent that the dimension has in each case.
Result<NodeId> SizeMerger::merge_kind(const Nodes& nodes, const Form& form, const Gather& op) {
  Gather gather = op;
  std::vector<NodeId> indices;
  for (std::size_t i = 0; i < op.axes.size(); ++i) {
    const std::vector<std::int64_t> all =
        extents(form.args[0], static_cast<std::size_t>(op.axes[i]));
    NodeId index = merged(form.args[i + 1]);
    if (varies(all)) {
      const NodeId last = b_.sub(number(all), b_.scalar_int(DType::i32, 1));
      index = b_.min(index, b_.cast(last, b_.dtype(index)));
    }
    indices.push_back(index);
  }
  for (std::size_t c = 0; c < cases_.size(); ++c) {
    const Gather& other = std::get<Gather>(at(c, nodes).op);
    if (other.axes != op.axes) return misfit(nodes, c, "its axes depend on the size");
    for (std::size_t k = 0; k < op.base.size(); ++k)
      if (!same_expr(c, op.base[k], other.base[k], shape(c, nodes)))
        return misfit(nodes, c, "what it reads takes another form there");
  }
  return b_.gather(merged(form.args[0]), std::move(indices), std::move(gather),
                   largest(nodes).type.shape);
}

/// Updates that are padding are dropped, as those are whose position is outside.
Result<NodeId> SizeMerger::merge_kind(const Nodes& nodes, const Form& form, const Scatter& op) {
  const Nodes& updates = form.args[1];
  for (std::size_t c = 0; c < cases_.size(); ++c) {
    const Scatter& other = std::get<Scatter>(at(c, nodes).op);
    if (other.axes != op.axes || other.combine != op.combine)
      return misfit(nodes, c, "its parameters depend on the size");
    for (std::size_t k = 0; k < op.base.size(); ++k)
      if (!same_expr(c, op.base[k], other.base[k], shape(c, updates)))
        return misfit(nodes, c, "what it writes takes another form there");
  }
  std::vector<int> dims;
  for (std::size_t d = 0; d < largest(updates).type.shape.size(); ++d)
    if (varies(updates, d)) dims.push_back(static_cast<int>(d));
  std::vector<NodeId> indices;
  for (std::size_t i = 0; i < op.axes.size(); ++i) indices.push_back(merged(form.args[i + 2]));
  if (!dims.empty() && indices.empty())
    return misfit(nodes, largest_, "it writes an unknown number of elements");
  if (!dims.empty())
    indices[0] = masked(indices[0], updates, dims, b_.scalar_int(b_.dtype(indices[0]), -1));
  return b_.scatter(merged(form.args[0]), merged(updates), std::move(indices), op);
}

}  // namespace heddle::prim

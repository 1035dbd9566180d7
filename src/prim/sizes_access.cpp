// Views, contractions, gathers and scatters for several sizes: what reads beyond the end of a
// dimension.
#include <algorithm>

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
  if (const auto axis = gathered_concat(pieces, variables, form.args))
    return merge_concat(form.args, *axis, type.shape);
  NodeId result = b_.broadcast(filler(), type.shape);
  for (std::size_t p = pieces.size(); p-- > 0;) {
    const NodeId part = HEDDLE_TRY(read_piece(nodes, form.args[p], pieces[p]));
    const auto inside = HEDDLE_TRY(inside_of(nodes, pieces[p]));
    result = inside ? b_.select(*inside, part, result) : part;
  }
  return result;
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

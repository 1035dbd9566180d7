// Alternatives of windows: extremes one axis after another, and products whose few columns are
// filled up with neighbouring positions.
#include <algorithm>
#include <cmath>
#include <set>

#include "prim/access.h"
#include "prim/alternatives.h"
#include "prim/builder.h"
#include "prim/fold.h"

namespace heddle::prim {
namespace {

using ir::Expr;
using ir::Var;

Var var_of(std::size_t i) { return Var{static_cast<std::int32_t>(i)}; }

std::set<std::int32_t> used_in(const Expr& e) {
  std::vector<Var> vars;
  ir::collect_variables(e, vars);
  std::set<std::int32_t> out;
  for (const Var v : vars) out.insert(v.index);
  return out;
}

/// A window's axis that can be reduced after all others: with the dimension that it slides along it
/// makes up one coordinate and some conditions, and nothing else reads either.
struct Slide {
  std::size_t tap, along, coordinate;
};
std::optional<Slide> slide_of(const Access& a, std::size_t tap, const std::vector<int>& taps) {
  std::optional<Slide> found;
  for (std::size_t c = 0; c < a.index.size(); ++c) {
    const auto vars = used_in(a.index[c]);
    if (!vars.contains(static_cast<std::int32_t>(tap))) continue;
    if (found || vars.size() != 2) return std::nullopt;
    const auto along =
        *vars.begin() == static_cast<std::int32_t>(tap) ? *vars.rbegin() : *vars.begin();
    if (std::ranges::find(taps, along) != taps.end()) return std::nullopt;
    found = Slide{tap, static_cast<std::size_t>(along), c};
  }
  if (!found) return std::nullopt;
  const std::set<std::int32_t> own{static_cast<std::int32_t>(found->tap),
                                   static_cast<std::int32_t>(found->along)};
  for (std::size_t c = 0; c < a.index.size(); ++c)
    if (c != found->coordinate && ir::depends_on(a.index[c], var_of(found->along)))
      return std::nullopt;
  for (const ir::Condition& x : a.inside) {
    const auto vars = used_in(x.expr);
    const bool some = std::ranges::any_of(own, [&](auto v) { return vars.contains(v); });
    if (some && !std::ranges::includes(own, vars)) return std::nullopt;
  }
  return found;
}

/// The extreme over windows as that over all axes but one, for every position of the source, and
/// then over that one.
NodeId extreme_by_axes(Builder& b, const Node& n, const Reduce& r, const Node& windows,
                       const Access& a, const Slide& s) {
  const double fill = std::get<View>(windows.op).fill;
  const auto concerns = [&](const ir::Condition& x) {
    return ir::depends_on(x.expr, var_of(s.tap)) || ir::depends_on(x.expr, var_of(s.along));
  };
  const std::int64_t extent = b.shape(windows.args[0])[s.coordinate];
  // Without the tap, which is after the dimensions of the result; others move up.
  Shape shape = windows.type.shape;
  shape[s.along] = extent;
  shape.erase(shape.begin() + static_cast<std::ptrdiff_t>(s.tap));
  std::vector<Expr> to = identity_variables(windows.type.shape.size());
  for (std::size_t v = s.tap; v < to.size(); ++v) to[v] = v == s.tap ? Expr(0) : var(v - 1);
  Access first = a;
  first.index[s.coordinate] = var(s.along);
  std::erase_if(first.inside, concerns);
  std::vector<int> axes;
  for (const int axis : r.axes)
    if (axis != static_cast<int>(s.tap))
      axes.push_back(axis > static_cast<int>(s.tap) ? axis - 1 : axis);
  const NodeId rows =
      b.reduce(r.fn, b.view(windows.args[0], shape, substitute(first, to), fill), axes, false);

  Shape slid = n.type.shape;
  slid.push_back(windows.type.shape[s.tap]);
  std::vector<Expr> back(windows.type.shape.size(), Expr(0));
  std::size_t next = 0;
  for (std::size_t v = 0; v < back.size(); ++v) {
    if (v == s.tap)
      back[v] = var(n.type.shape.size());
    else if (std::ranges::find(r.axes, static_cast<int>(v)) == r.axes.end())
      back[v] = var(next++);
  }
  Access second{identity_variables(n.type.shape.size()), {}};
  Access sliding{{a.index[s.coordinate]}, a.inside};
  std::erase_if(sliding.inside, [&](const auto& x) { return !concerns(x); });
  sliding = substitute(sliding, back);
  second.index[static_cast<std::size_t>(back[s.along].variable()->index)] = sliding.index[0];
  second.inside = std::move(sliding.inside);
  return b.reduce(r.fn, b.view(rows, slid, second, fill), {static_cast<int>(n.type.shape.size())},
                  false);
}

/// A product with a constant of few columns, over windows: x slides along what `tap` does, by
/// `step` for each of it.
struct FewColumns {
  std::size_t constant;               ///< side of the constant operand
  std::size_t column, x, tap;         ///< variables
  std::size_t column_axis, tap_axis;  ///< of the constant operand
  std::int64_t step;
};

/// The axis of the operand that is the variable alone, if nothing else in the access depends on it;
/// of a variable of one value any axis of one element.
std::optional<std::size_t> axis_of(const Access& a, const Shape& operand, std::size_t v,
                                   std::int64_t extent) {
  std::optional<std::size_t> axis;
  if (extent == 1) {
    const auto one = std::ranges::find(operand, 1);
    if (one != operand.end()) axis = static_cast<std::size_t>(one - operand.begin());
    return axis;
  }
  for (std::size_t c = 0; c < a.index.size(); ++c) {
    if (!ir::depends_on(a.index[c], var_of(v))) continue;
    if (axis || a.index[c] != var(v)) return std::nullopt;
    axis = c;
  }
  return axis;
}

/// Whether x and tap are in the expression as step·x + tap, or not at all.
bool slides(const Expr& e, Var x, Var tap, std::int64_t step) {
  if (!ir::depends_on(e, x) && !ir::depends_on(e, tap)) return true;
  return ir::coefficient_of(e, tap) == 1 && ir::coefficient_of(e, x) == step;
}

/// Whether results other than the columns have constants of their own (a convolution in groups).
bool has_groups(const Access& constant, std::size_t rank, std::size_t column) {
  for (std::size_t v = 0; v < rank; ++v)
    if (v != column && depends_on(constant, var_of(v))) return true;
  return false;
}

/// The dimension that slides along what `tap` does, everywhere in the data's access, and its step.
std::optional<std::pair<std::size_t, std::int64_t>> sliding_along(const Access& data,
                                                                  std::size_t rank,
                                                                  std::size_t tap) {
  const auto at = std::ranges::find_if(
      data.index, [&](const Expr& e) { return ir::depends_on(e, var_of(tap)); });
  for (std::size_t x = 0; at != data.index.end() && x < rank; ++x) {
    const auto step = ir::coefficient_of(*at, var_of(x));
    const auto fits = [&](const Expr& e) { return slides(e, var_of(x), var_of(tap), *step); };
    if (step && *step >= 1 && std::ranges::all_of(data.index, fits) &&
        std::ranges::all_of(data.inside, fits, &ir::Condition::expr))
      return std::pair{x, *step};
  }
  return std::nullopt;
}

std::optional<FewColumns> few_columns(const Graph& g, const Node& n, const Contract& k) {
  const std::size_t rank = n.type.shape.size();
  for (const std::size_t side : {0, 1}) {
    const Access &mine = side == 0 ? k.lhs : k.rhs, &other = side == 0 ? k.rhs : k.lhs;
    if (g.constant_of(n.args[side]) == nullptr || !mine.inside.empty()) continue;
    const Shape& operand = g[n.args[side]].type.shape;
    for (std::size_t column = 0; column < rank; ++column) {
      const auto column_axis = axis_of(mine, operand, column, n.type.shape[column]);
      if (!column_axis || depends_on(other, var_of(column)) || has_groups(mine, rank, column))
        continue;
      for (std::size_t tap = rank; tap < rank + k.reduced.size(); ++tap) {
        if (k.reduced[tap - rank] < 2) continue;
        const auto tap_axis = axis_of(mine, operand, tap, k.reduced[tap - rank]);
        const auto slide = tap_axis ? sliding_along(other, rank, tap) : std::nullopt;
        if (slide)
          return FewColumns{side,         column,    slide->first, tap,
                            *column_axis, *tap_axis, slide->second};
      }
    }
  }
  return std::nullopt;
}

/// The share of multiply-adds of 16 lanes that count, with `block` positions side by side.
double lanes_used(std::int64_t columns, std::int64_t taps, std::int64_t step, std::int64_t block) {
  constexpr double kLanes = 16;
  const double lanes = static_cast<double>(columns * block);
  return lanes / (std::ceil(lanes / kLanes) * kLanes) * static_cast<double>(taps) /
         static_cast<double>(taps + step * (block - 1));
}

/// Columns (j, n) for the positions block·x + j: each reads the taps that its position does, of the
/// others zeros.
std::optional<NodeId> positions_as_columns(Graph& g, Builder& b, const Node& n, const Contract& k,
                                           const FewColumns& f, std::int64_t block) {
  const std::size_t rank = n.type.shape.size();
  const std::int64_t columns = n.type.shape[f.column], taps = k.reduced[f.tap - rank];
  Contract next = k;
  Shape out = n.type.shape;
  out[f.x] /= block;
  out[f.column] *= block;
  next.reduced[f.tap - rank] = taps + f.step * (block - 1);
  std::vector<Expr> to = identity_variables(rank + k.reduced.size());
  to[f.x] = to[f.x] * Expr(block);
  Access& data = f.constant == 0 ? next.rhs : next.lhs;
  data = substitute(data, to);
  Access& filter = f.constant == 0 ? next.lhs : next.rhs;
  filter.index[f.column_axis] = var(f.column);

  const NodeId weights = n.args[f.constant];
  Shape wide = b.shape(weights);
  Access from{identity_variables(wide.size()), {}};
  const Expr column = var(f.column_axis);
  const Expr tap = var(f.tap_axis) - ir::floor_div(column, columns) * Expr(f.step);
  wide[f.column_axis] *= block;
  wide[f.tap_axis] = next.reduced[f.tap - rank];
  from.index[f.column_axis] = ir::floor_mod(column, columns);
  from.index[f.tap_axis] = tap;
  from.inside.push_back({tap, 0, taps});
  const auto constant = evaluate_constant(g, b.view(weights, wide, from));
  if (!constant) return std::nullopt;
  std::vector<NodeId> args = n.args;
  args[f.constant] = b.constant(*constant);
  const NodeId product = g.add(std::move(next), std::move(args), {n.type.dtype, out});

  Access back{identity_variables(rank), {}};
  back.index[f.x] = ir::floor_div(var(f.x), block);
  back.index[f.column] = ir::floor_mod(var(f.x), block) * Expr(columns) + var(f.column);
  return b.view(product, n.type.shape, std::move(back));
}

}  // namespace

/// A convolution of few output channels leaves most lanes of its vectors empty. Neighbouring
/// positions fill them, at the price of products with zeros.
std::vector<Alternative> positions_as_columns(Graph& g) {
  constexpr double kGain = 1.4;
  constexpr std::int64_t kLanes = 16, kLeastWork = 1 << 20;
  std::vector<Alternative> found;
  Builder b(g);
  for (const NodeId id : live_nodes(g)) {
    const Node n = g[id];
    const auto* contract = std::get_if<Contract>(&n.op);
    if (contract == nullptr || (!is_float(n.type.dtype) && n.type.dtype != DType::i32)) continue;
    const Contract k = *contract;
    if (element_count(n.type.shape) * element_count(k.reduced) < kLeastWork) continue;
    const auto f = few_columns(g, n, k);
    if (!f) continue;
    const std::int64_t columns = n.type.shape[f->column], extent = n.type.shape[f->x],
                       taps = k.reduced[f->tap - n.type.shape.size()];
    std::int64_t best = 1;
    for (std::int64_t block = 2; columns * block <= 2 * kLanes && block <= extent; ++block)
      if (extent % block == 0 &&
          lanes_used(columns, taps, f->step, block) > lanes_used(columns, taps, f->step, best))
        best = block;
    if (lanes_used(columns, taps, f->step, best) < kGain * lanes_used(columns, taps, f->step, 1))
      continue;
    g.set_origin(g.origin_id(id));
    const auto equal = positions_as_columns(g, b, n, k, *f, best);
    if (!equal) continue;
    g.add_origins(*equal, g.origins_of(id));
    g.add_origins(g[*equal].args[0], g.origins_of(id));
    found.push_back({id, *equal, {}});
  }
  return found;
}

/// Extremes only: sums would be rounded in another order.
std::vector<Alternative> separable_extremes(Graph& g) {
  std::vector<Alternative> found;
  Builder b(g);
  for (const NodeId id : live_nodes(g)) {
    const Node n = g[id];
    const auto* r = std::get_if<Reduce>(&n.op);
    if (r == nullptr || (r->fn != ir::Monoid::max && r->fn != ir::Monoid::min)) continue;
    const Node windows = g[n.args[0]];
    const auto* view = std::get_if<View>(&windows.op);
    if (view == nullptr || view->pieces.size() != 1 || r->axes.size() < 2) continue;
    const Access a = view->pieces[0];
    for (const int axis : r->axes) {
      const auto tap = static_cast<std::size_t>(axis);
      const auto slide = slide_of(a, tap, r->axes);
      if (!slide) continue;
      double others = 1;
      for (const int x : r->axes)
        if (x != axis)
          others *= static_cast<double>(windows.type.shape[static_cast<std::size_t>(x)]);
      const auto taps = static_cast<double>(windows.type.shape[tap]);
      const double grown = static_cast<double>(b.shape(windows.args[0])[slide->coordinate]) /
                           static_cast<double>(windows.type.shape[slide->along]);
      if (taps * others < 2 * (others * grown + taps)) continue;
      g.set_origin(g.origin_id(id));
      const NodeId equal = extreme_by_axes(b, n, *r, windows, a, *slide);
      g.add_origins(equal, g.origins_of(id));
      found.push_back({id, equal, {}});
      break;
    }
  }
  return found;
}

}  // namespace heddle::prim

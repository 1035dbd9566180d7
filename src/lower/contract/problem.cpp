#include "lower/contract/problem.h"

#include <algorithm>
#include <set>

#include "kernel/halves.h"
#include "lower/contract/invert.h"

namespace heddle::lower::contract {
namespace {

using ir::Expr;
using ir::IndexNode;
using ir::Var;
using prim::Access;

bool depends(const Access& a, Var v) {
  for (const Expr& e : a.index)
    if (ir::depends_on(e, v)) return true;
  for (const ir::Condition& c : a.inside)
    if (ir::depends_on(c.expr, v)) return true;
  return false;
}

Access rewritten(const Access& a, const std::vector<Expr>& values, const ir::Ranges& ranges) {
  Access out;
  for (const Expr& e : a.index)
    out.index.push_back(ir::simplify(ir::substitute(e, values), ranges));
  for (const ir::Condition& c : a.inside) {
    ir::Condition next{ir::substitute(c.expr, values), c.low, c.high};
    out.inside.push_back(next);
  }
  // A condition that can never hold makes every term zero; keep it as it is then.
  if (auto simple = ir::simplify(out.inside, ranges)) out.inside = *simple;
  return out;
}

/// Divisors q for which v/q or v%q appears.
void divisors(const Expr& e, Var v, std::set<std::int64_t>& out) {
  const IndexNode& node = e.node();
  for (const IndexNode::Term& t : node.terms) divisors(t.atom, v, out);
  for (const Expr& arg : node.args) divisors(arg, v, out);
  const bool cut = node.kind == IndexNode::Kind::div || node.kind == IndexNode::Kind::mod;
  if (cut && node.args[0].variable() == v) out.insert(node.constant);
}

/// How an output dimension that both operands read should be split: (d / q, d % q), if one operand
/// then reads the quotient only.
std::optional<std::int64_t> split_of(const Access& a, const Access& b, Var v, std::int64_t extent) {
  std::set<std::int64_t> found;
  for (const Expr& e : a.index) divisors(e, v, found);
  for (const Expr& e : b.index) divisors(e, v, found);
  for (std::int64_t q : found)
    if (q > 1 && q < extent && extent % q == 0) return q;
  return std::nullopt;
}

struct Builder {
  Problem p;
  Access lhs, rhs;
  bool splits = true;

  void start(const prim::Node& node, const prim::Contract& c) {
    std::vector<std::int64_t> extents = node.type.shape;
    const std::size_t rank = extents.size();
    extents.insert(extents.end(), c.reduced.begin(), c.reduced.end());
    std::vector<Expr> values;
    std::int32_t next = 0;
    for (std::size_t i = 0; i < extents.size(); ++i) {
      const std::int32_t index = static_cast<std::int32_t>(i);
      std::optional<std::int64_t> q;
      if (splits && i < rank && depends(c.lhs, Var{index}) && depends(c.rhs, Var{index}))
        q = split_of(c.lhs, c.rhs, Var{index}, extents[i]);
      Expr value(0);
      if (q) {
        const Var outer{next++}, inner{next++};
        p.axes.push_back({outer, extents[i] / *q, Role::m});
        p.axes.push_back({inner, *q, Role::m});
        value = Expr(outer) * Expr(*q) + Expr(inner);
      } else {
        const Var var{next++};
        p.axes.push_back({var, extents[i], i < rank ? Role::m : Role::k});
        value = Expr(var);
      }
      values.push_back(value);
    }
    drop_units(values);
    const ir::Ranges ranges = p.ranges();
    p.out.assign(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(rank));
    lhs = rewritten(c.lhs, values, ranges);
    rhs = rewritten(c.rhs, values, ranges);
  }

  void drop_units(std::vector<Expr>& values) {
    std::vector<Axis> kept;
    for (const Axis& axis : p.axes) {
      if (axis.extent != 1) {
        kept.push_back(axis);
        continue;
      }
      for (Expr& e : values)
        e = ir::substitute(
            e, [&](Var v) { return v == axis.var ? std::optional<Expr>(Expr(0)) : std::nullopt; });
    }
    p.axes = std::move(kept);
  }

  void assign_roles(const Access& a, const Access& b) {
    for (Axis& axis : p.axes) {
      if (axis.role == Role::k) continue;
      const bool in_a = depends(a, axis.var), in_b = depends(b, axis.var);
      axis.role = in_a && in_b ? Role::batch : in_b ? Role::n : Role::m;
    }
  }
};

/// The constant operand is packed at compile time, so it is the vector side; otherwise the operand
/// that owns the last output dimension is.
bool should_swap(const prim::Graph& g, const prim::Node& node, const Problem& p,
                 bool constant_columns) {
  const bool lhs_constant = g.constant_of(node.args[0]) != nullptr;
  const bool rhs_constant = g.constant_of(node.args[1]) != nullptr;
  const std::int64_t m = p.count(Role::m), n = p.count(Role::n);
  if (n == 1 && m > 1 && !constant_columns) return true;
  if (m == 1 && n > 1 && !constant_columns) return false;
  if (lhs_constant != rhs_constant) return lhs_constant;
  for (std::size_t i = p.axes.size(); i-- > 0;) {
    if (p.axes[i].role == Role::n) return false;
    if (p.axes[i].role == Role::m) return true;
  }
  return false;
}

}  // namespace

std::vector<Axis> Problem::of(Role role) const {
  std::vector<Axis> out;
  for (const Axis& axis : axes)
    if (axis.role == role) out.push_back(axis);
  return out;
}

std::int64_t Problem::count(Role role) const {
  std::int64_t count = 1;
  for (const Axis& axis : axes)
    if (axis.role == role) count *= axis.extent;
  return count;
}

bool Problem::along_rows(const EpilogueSum& sum) const {
  return sum.over_n && count(Role::n) > 1 && (!sum.over_m || count(Role::m) == 1);
}

ir::Ranges Problem::ranges() const {
  ir::Ranges out;
  for (const Axis& axis : axes) {
    const auto at = static_cast<std::size_t>(axis.var.index);
    if (out.size() <= at) out.resize(at + 1);
    out[at] = ir::Interval{0, axis.extent - 1};
  }
  return out;
}

namespace {

Problem analysed(const prim::Graph& g, NodeId contract, bool constant_columns, bool splits) {
  const prim::Node& node = g[contract];
  const auto& c = std::get<prim::Contract>(node.op);
  Builder builder;
  builder.splits = splits;
  builder.start(node, c);
  builder.assign_roles(builder.lhs, builder.rhs);
  Problem& p = builder.p;
  p.contract = contract;
  p.type = compute_type(node.type.dtype);
  p.a = node.args[0];
  p.b = node.args[1];
  p.a_access = builder.lhs;
  p.b_access = builder.rhs;
  if (should_swap(g, node, p, constant_columns)) {
    std::swap(p.a, p.b);
    std::swap(p.a_access, p.b_access);
    builder.assign_roles(p.a_access, p.b_access);
  }
  return std::move(p);
}

}  // namespace

Problem analyse(const prim::Graph& g, NodeId contract, bool constant_columns) {
  return analysed(g, contract, constant_columns, true);
}

Problem analyse_channels(const prim::Graph& g, NodeId contract) {
  Problem p = analysed(g, contract, false, false);
  const std::vector<Axis> groups = p.of(Role::batch), filters = p.of(Role::n);
  if (groups.size() != 1 || filters.size() != 1 || !g.constant_of(p.b)) return p;
  const Axis group = groups[0], filter = filters[0];
  std::erase_if(p.axes, [&](const Axis& a) { return a.var == group.var; });
  for (Axis& a : p.axes)
    if (a.var == filter.var) a = {a.var, group.extent * filter.extent, Role::batch};
  std::vector<Expr> values;
  const std::size_t all = p.out.size() + std::get<prim::Contract>(g[contract].op).reduced.size();
  for (std::size_t i = 0; i < all; ++i) values.emplace_back(Var{static_cast<std::int32_t>(i)});
  const auto value = [&](Var v) -> Expr& { return values[static_cast<std::size_t>(v.index)]; };
  value(group.var) = ir::floor_div(Expr(filter.var), filter.extent);
  value(filter.var) = ir::floor_mod(Expr(filter.var), filter.extent);
  const ir::Ranges ranges = p.ranges();
  p.a_access = rewritten(p.a_access, values, ranges);
  p.b_access = rewritten(p.b_access, values, ranges);
  for (Expr& e : p.out) e = ir::simplify(ir::substitute(e, values), ranges);
  return p;
}

namespace {

/// Dimensions of the result that share a coordinate with a longer reduction: taps of a filter whose
/// gradient this is.
std::vector<Axis> taps_of(const Problem& p, const Access& a) {
  std::vector<Axis> taps;
  for (const Axis& tap : p.axes) {
    if (tap.role == Role::k) continue;
    for (const Expr& e : a.index)
      for (const Axis& k : p.of(Role::k))
        if (ir::depends_on(e, tap.var) && ir::depends_on(e, k.var) && tap.extent < k.extent)
          taps.push_back(tap);
  }
  return taps;
}

}  // namespace

bool has_padded_columns(const prim::Graph& g, const Problem& p) {
  return std::min(p.count(Role::m), p.count(Role::n)) == 1 && !g.constant_of(p.b) &&
         !p.b_access.inside.empty();
}

void choose_sides(const prim::Graph& g, Problem& p) {
  constexpr std::int64_t kLong = 4096;
  const auto plain = [&](NodeId id) {
    return g[id].type.dtype == DType::f32 && !g.constant_of(id);
  };
  if (!plain(p.a) || !plain(p.b)) return;
  const bool taps = taps_of(p, p.b_access).size() == 2 && p.count(Role::k) >= kLong;
  const bool image = p.of(Role::n).size() >= 3 && p.of(Role::m).size() == 1 &&
                     p.count(Role::batch) == 1 && taps_of(p, p.b_access).empty();
  if (!taps && !image) return;
  if (!taps_of(p, p.a_access).empty()) return;
  std::swap(p.a, p.b);
  std::swap(p.a_access, p.b_access);
  for (Axis& axis : p.axes)
    if (axis.role == Role::m || axis.role == Role::n)
      axis.role = axis.role == Role::m ? Role::n : Role::m;
}

namespace {

/// e / n, if n divides e whatever its variables are.
std::optional<Expr> divided(const Expr& e, int n) {
  if (const auto c = e.constant()) return *c % n == 0 ? std::optional<Expr>(*c / n) : std::nullopt;
  const IndexNode& node = e.node();
  if (node.kind != IndexNode::Kind::sum || node.constant % n != 0) return std::nullopt;
  Expr out(node.constant / n);
  for (const IndexNode::Term& t : node.terms) {
    if (t.coefficient % n != 0) return std::nullopt;
    out = out + t.atom * Expr(t.coefficient / n);
  }
  return out;
}

/// The one dimension in which an operand moves along `v`, element by element from one of each n.
std::optional<int> parts_along(const Access& a, Var v, int n) {
  std::optional<int> dim;
  for (std::size_t d = 0; d < a.index.size(); ++d) {
    if (!ir::depends_on(a.index[d], v)) continue;
    if (dim || ir::coefficient_of(a.index[d], v) != 1) return std::nullopt;
    if (!divided(a.index[d] - Expr(v), n)) return std::nullopt;
    dim = static_cast<int>(d);
  }
  for (const ir::Condition& c : a.inside)
    if (ir::depends_on(c.expr, v) &&
        (c.expr.variable() != v || !dim || a.index[static_cast<std::size_t>(*dim)] != c.expr))
      return std::nullopt;
  return dim;
}

/// Lets the dimension count parts; conditions on it become those of each part.
PartsOf divide(Access& a, Var v, int count) {
  PartsOf parts{*parts_along(a, v, count), count, {}};
  Expr& e = a.index[static_cast<std::size_t>(parts.dim)];
  e = *divided(e - Expr(v), count) + Expr(v);
  for (const ir::Condition& c : a.inside)
    if (c.expr.variable() == v)
      parts.inside = {std::max(c.low, parts.inside ? parts.inside->low : c.low),
                      std::min(c.high - 1, parts.inside ? parts.inside->high : c.high - 1)};
  std::erase_if(a.inside, [&](const ir::Condition& c) { return c.expr.variable() == v; });
  return parts;
}

/// Whether the reduction's last group may have fewer: where both operands' coordinates are its own,
/// those beyond the extent are no elements, which count as zeros.
bool may_be_ragged(const Problem& p, const Axis& axis, int count) {
  constexpr std::int64_t kGroups = 8;  // which one that is not full costs little
  const auto plain = [&](const Access& a) {
    const auto dim = parts_along(a, axis.var, count);
    return dim && a.index[static_cast<std::size_t>(*dim)] == Expr(axis.var);
  };
  return axis.extent >= kGroups * count && plain(p.a_access) && plain(p.b_access);
}

/// Lets the longest reduction that allows it count so many at a time.
bool join(const prim::Graph& g, int count, Problem& p) {
  Axis* best = nullptr;
  for (Axis& axis : p.axes)
    if (axis.role == Role::k && (axis.extent % count == 0 || may_be_ragged(p, axis, count)) &&
        (!best || axis.extent > best->extent) && parts_along(p.a_access, axis.var, count) &&
        parts_along(p.b_access, axis.var, count))
      best = &axis;
  if (!best) return false;
  if (best->extent % count != 0) {
    const ir::Condition is_term{Expr(best->var), 0, best->extent};
    p.a_access.inside.push_back(is_term);
    // Zeros of a leave out what b has there, if it can be read and is a number.
    const auto dim = static_cast<std::size_t>(*parts_along(p.b_access, best->var, count));
    const std::int64_t whole = (best->extent + count - 1) / count * count;
    if (p.type != DType::i32 || g[p.b].type.shape[dim] < whole)
      p.b_access.inside.push_back(is_term);
  }
  p.parts = {divide(p.a_access, best->var, count), divide(p.b_access, best->var, count), count,
             g[p.a].type.dtype != DType::u8};
  best->extent = (best->extent + count - 1) / count;
  return true;
}

}  // namespace

void join_reductions(const prim::Graph& g, const Target& target, Problem& p) {
  const DType a = g[p.a].type.dtype, b = g[p.b].type.dtype;
  const auto narrow = [](DType t) { return t == DType::i16 || t == DType::i8 || t == DType::u8; };
  const bool halves = target.bf16_pairs && a == DType::bf16 && b == DType::bf16;
  if (p.type == DType::f32 ? !halves : p.type != DType::i32 || !narrow(a) || !narrow(b)) return;
  const bool bytes = (a == DType::u8 && b == DType::i8) || (a == DType::i8 && b == DType::u8);
  if (target.quads && bytes && join(g, 4, p)) return;
  join(g, 2, p);
}

void join_bytes(const prim::Graph& g, Problem& p) {
  const auto byte = [&](NodeId id) {
    return g[id].type.dtype == DType::i8 || g[id].type.dtype == DType::u8;
  };
  if (p.type == DType::i32 && byte(p.a) && byte(p.b)) join(g, 4, p);
}

kernel::Value Problem::product(kernel::Value x, kernel::Value y) const {
  if (parts && type == DType::f32) return kernel::product_of_halves(x, y);
  if (parts && parts->count == 4 && parts->a_signed) std::swap(x, y);
  const ir::ScalarFn multiply = !parts              ? ir::ScalarFn::mul
                                : parts->count == 4 ? ir::ScalarFn::dot4
                                                    : ir::ScalarFn::dot2;
  return kernel::apply(multiply, {std::move(x), std::move(y)}, type);
}

std::optional<EpilogueSum> epilogue_sum(const prim::Graph& g, const std::vector<Image>& images,
                                        const Problem& problem, NodeId node) {
  const auto* reduce = std::get_if<prim::Reduce>(&g[node].op);
  if (!reduce) return std::nullopt;
  const NodeId arg = g[node].args[0];
  const auto image =
      std::find_if(images.begin(), images.end(), [&](const Image& x) { return x.node == arg; });
  if (image == images.end()) return std::nullopt;
  EpilogueSum sum{node, arg, reduce->fn, image->index, {}, true, true, {}};
  std::vector<Expr> gone;
  for (std::size_t d = 0; d < image->index.size(); ++d) {
    const bool reduced = std::find(reduce->axes.begin(), reduce->axes.end(), static_cast<int>(d)) !=
                         reduce->axes.end();
    (reduced ? gone : sum.index).push_back(image->index[d]);
  }
  const auto along = [](const std::vector<Expr>& list, Var v) {
    return std::any_of(list.begin(), list.end(),
                       [&](const Expr& e) { return ir::depends_on(e, v); });
  };
  bool m = false, n = false;  // some are reduced
  for (const Axis& axis : problem.axes) {
    const bool reduced = along(gone, axis.var), kept = along(sum.index, axis.var);
    if (reduced && kept) return std::nullopt;
    if (axis.role == Role::batch && reduced) sum.over_batch.push_back(axis.var);
    if (axis.role == Role::m) m |= reduced, sum.over_m &= !kept;
    if (axis.role == Role::n) n |= reduced, sum.over_n &= !kept;
  }
  const bool whole = (sum.over_m || !m) && (sum.over_n || !n);
  return whole && (sum.over_m || sum.over_n) ? std::optional(sum) : std::nullopt;
}

bool has_sum(const prim::Graph& g, const Problem& problem, const EpilogueSum& sum,
             const Target& target) {
  const DType from = g[sum.arg].type.dtype, to = g[sum.node].type.dtype;
  if (!target.is_gpu()) {
    const bool wide = from == DType::f32 || from == DType::f64;
    if (sum.fn != ir::Monoid::sum || !wide || to != from || problem.count(Role::batch) > 1)
      return false;
    const bool all = problem.count(Role::m) > 1 && problem.count(Role::n) > 1;
    return problem.along_rows(sum) ? problem.of(Role::k).size() == 1
                                   : sum.over_m && !(all && sum.over_n);
  }
  const bool known = sum.fn == ir::Monoid::sum || sum.fn == ir::Monoid::prod ||
                     sum.fn == ir::Monoid::max || sum.fn == ir::Monoid::min;
  return known && is_float(from) && is_float(to);
}

std::optional<std::vector<Image>> images(const prim::Graph& g, const Cluster& c,
                                         const Problem& problem) {
  std::vector<Image> out{{problem.contract, problem.out}};
  const ir::Ranges ranges = problem.ranges();
  const auto image_of = [&](NodeId id) -> const Image* {
    for (const Image& image : out)
      if (image.node == id) return &image;
    return nullptr;
  };
  for (NodeId id : c.nodes) {
    const prim::Node& node = g[id];
    if (epilogue_sum(g, out, problem, id)) continue;
    std::optional<std::vector<Expr>> index;
    for (NodeId arg : node.args) {
      const Image* source = image_of(arg);
      if (!source) continue;
      std::vector<Expr> here;
      if (std::holds_alternative<prim::Map>(node.op)) {
        here = source->index;
      } else if (const auto* view = std::get_if<prim::View>(&node.op)) {
        if (view->pieces.size() != 1 || !view->pieces[0].inside.empty()) return std::nullopt;
        auto inverse =
            invert(view->pieces[0].index, node.type.shape, g[arg].type.shape, source->index);
        if (!inverse) return std::nullopt;
        here = *inverse;
      } else {
        return std::nullopt;
      }
      for (Expr& e : here) e = ir::simplify(e, ranges);
      if (index && *index != here) return std::nullopt;
      index = here;
    }
    if (index) out.push_back({id, *index});
  }
  return out;
}

}  // namespace heddle::lower::contract

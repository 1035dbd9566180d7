// Rows over Reduce.
#include <algorithm>

#include "prim/access.h"
#include "prim/rewrite.h"
#include "prim/rule_examples.h"

namespace heddle::prim {
namespace {

using ir::Expr;
using ir::Monoid;
using ir::ScalarFn;
using ir::Var;
using Rewritten = std::optional<NodeId>;

bool positional(Monoid m) { return m == Monoid::argmax || m == Monoid::argmin; }
bool has(const std::vector<int>& axes, std::size_t k) {
  return std::binary_search(axes.begin(), axes.end(), static_cast<int>(k));
}

Rewritten reduce_unit_axes(RewriteContext& c, const Node& n) {
  const auto* r = std::get_if<Reduce>(&n.op);
  if (r == nullptr) return std::nullopt;
  const Shape& from = c.b.shape(n.args[0]);
  std::vector<int> unit, rest;
  for (const int a : r->axes) (from[static_cast<std::size_t>(a)] == 1 ? unit : rest).push_back(a);
  if (unit.empty()) return std::nullopt;
  if (positional(r->fn)) return c.b.full(n.type, 0);
  const Monoid fn = r->fn;
  for (int& a : rest)
    a -= static_cast<int>(std::count_if(unit.begin(), unit.end(), [&](int u) { return u < a; }));
  return c.b.reduce(fn, c.b.squeeze(n.args[0], unit), rest, false);
}

Rewritten reduce_of_reduce(RewriteContext& c, const Node& n) {
  const auto* outer = std::get_if<Reduce>(&n.op);
  if (outer == nullptr || positional(outer->fn)) return std::nullopt;
  const Node inner = c.g[n.args[0]];
  const auto* r = std::get_if<Reduce>(&inner.op);
  if (r == nullptr || r->fn != outer->fn || !c.used_once(n.args[0])) return std::nullopt;
  std::vector<int> axes = r->axes;
  int kept = 0;
  for (std::size_t k = 0; k < c.b.shape(inner.args[0]).size(); ++k)
    if (!has(r->axes, k) && has(outer->axes, static_cast<std::size_t>(kept++)))
      axes.push_back(static_cast<int>(k));
  return c.b.reduce(outer->fn, inner.args[0], axes, false);
}

/// Reduction of a value that repeats along some reduced axes.
Rewritten reduce_of_broadcast(RewriteContext& c, const Node& n) {
  const auto* r = std::get_if<Reduce>(&n.op);
  if (r == nullptr || positional(r->fn) || r->fn == Monoid::prod) return std::nullopt;
  const Access* access = plain_view(c.g, n.args[0]);
  if (access == nullptr) return std::nullopt;
  const Shape from = c.b.shape(n.args[0]);
  std::vector<int> repeated, rest;
  std::int64_t times = 1;
  for (const int a : r->axes) {
    const std::int64_t extent = from[static_cast<std::size_t>(a)];
    const bool varies = depends_on(*access, Var{a});
    (varies || extent <= 1 ? rest : repeated).push_back(a);
    if (!varies && extent > 1) times *= extent;
  }
  if (repeated.empty()) return std::nullopt;
  Shape small;
  std::vector<Expr> to_small(from.size(), Expr(0));
  for (std::size_t k = 0; k < from.size(); ++k) {
    if (std::count(repeated.begin(), repeated.end(), static_cast<int>(k)) != 0) continue;
    to_small[k] = Var{static_cast<std::int32_t>(small.size())};
    small.push_back(from[k]);
  }
  for (int& a : rest)
    a -= static_cast<int>(
        std::count_if(repeated.begin(), repeated.end(), [&](int u) { return u < a; }));
  const Monoid fn = r->fn;
  const NodeId once = c.b.view(c.g[n.args[0]].args[0], small, substitute(*access, to_small));
  const NodeId reduced = c.b.reduce(fn, once, rest, false);
  if (fn != Monoid::sum) return reduced;
  return is_float(n.type.dtype) ? c.b.mul(reduced, static_cast<double>(times))
                                : c.b.mul(reduced, c.b.scalar_int(n.type.dtype, times));
}

/// A view that only permutes dimensions or regroups neighbours: each source element appears once.
bool is_bijection(const Access& a, const Shape& from, const Shape& to) {
  if (element_count(from) != element_count(to)) return false;
  if (regroups(a, from, to)) return true;
  std::vector<char> seen(to.size(), 0);
  for (std::size_t k = 0; k < from.size(); ++k) {
    const auto v = a.index[k].variable();
    if (!v && from[k] != 1) return false;
    if (v && std::exchange(seen[static_cast<std::size_t>(v->index)], char{1})) return false;
  }
  return true;
}

/// reduce(view(x)) → view(reduce(x)) where the view permutes or regroups and does not mix reduced
/// with kept dimensions.
Rewritten view_below_reduce(RewriteContext& c, const Node& n) {
  const auto* r = std::get_if<Reduce>(&n.op);
  if (r == nullptr) return std::nullopt;
  const Access* access = plain_view(c.g, n.args[0]);
  if (access == nullptr) return std::nullopt;
  const NodeId x = c.g[n.args[0]].args[0];
  const Shape from = c.b.shape(x), to = c.b.shape(n.args[0]);
  if (element_count(to) == 0 || !is_bijection(*access, from, to)) return std::nullopt;
  std::vector<int> axes;
  std::vector<Expr> to_out(to.size(), Expr(0));
  std::int32_t next = 0;
  for (std::size_t k = 0; k < to.size(); ++k)
    if (!has(r->axes, k)) to_out[k] = Var{next++};
  Access spread;
  std::int64_t reduced_from = 1, reduced_to = 1;
  for (const int a : r->axes) reduced_to *= to[static_cast<std::size_t>(a)];
  for (std::size_t k = 0; k < from.size(); ++k) {
    std::vector<Var> vars;
    ir::collect_variables(access->index[k], vars);
    const auto reduced =
        static_cast<std::size_t>(std::count_if(vars.begin(), vars.end(), [&](Var v) {
          return has(r->axes, static_cast<std::size_t>(v.index));
        }));
    if (reduced != 0 && reduced != vars.size()) return std::nullopt;
    if (reduced != 0) {
      axes.push_back(static_cast<int>(k));
      reduced_from *= from[k];
    } else {
      spread.index.push_back(ir::substitute(access->index[k], to_out));
    }
  }
  // Positions count along one axis, so regrouping it would change them.
  if (axes.empty() || reduced_from != reduced_to || (positional(r->fn) && axes.size() != 1))
    return std::nullopt;
  if (positional(r->fn) && !access->index[static_cast<std::size_t>(axes[0])].variable())
    return std::nullopt;
  const NodeId reduced = c.b.reduce(r->fn, x, axes, false);
  return c.b.view(reduced, n.type.shape, std::move(spread));
}

/// Groups of channels, each with all its positions: first the positions of each channel.
Rewritten reduce_of_groups(RewriteContext& c, const Node& n) {
  const auto* r = std::get_if<Reduce>(&n.op);
  if (r == nullptr || positional(r->fn) || r->axes.size() != 1) return std::nullopt;
  const Access* access = plain_view(c.g, n.args[0]);
  if (access == nullptr) return std::nullopt;
  const NodeId x = c.g[n.args[0]].args[0];
  const Shape from = c.b.shape(x);
  Shape to = c.b.shape(n.args[0]);
  // Sums in 16 bits would be rounded once more.
  if (element_count(to) == 0 || size_of(n.type.dtype) < 4 ||
      r->axes[0] + 1 != static_cast<int>(to.size()) || !crosses_groups(*access, from, to))
    return std::nullopt;
  std::vector<int> positions;
  std::int64_t left = to.back();
  for (std::size_t k = from.size(); k-- > 0 && from[k] < left && left % from[k] == 0;) {
    left /= from[k];
    positions.insert(positions.begin(), static_cast<int>(k));
  }
  if (positions.empty()) return std::nullopt;
  to.back() = left;
  const Monoid fn = r->fn;
  const NodeId channels = c.b.reshape(c.b.reduce(fn, x, positions, false), to);
  return c.b.reduce(fn, channels, {static_cast<int>(to.size()) - 1}, false);
}

/// `id` without the axes that are reduced, if it repeats along all of them.
std::optional<NodeId> repeated_along(RewriteContext& c, NodeId id, const std::vector<int>& axes) {
  const Access* access = plain_view(c.g, id);
  if (access == nullptr) return std::nullopt;
  const Shape from = c.b.shape(id);
  if (element_count(from) == 0) return std::nullopt;  // it shows nothing that could be kept
  Shape kept;
  std::vector<Expr> to_kept(from.size(), Expr(0));
  for (std::size_t k = 0; k < from.size(); ++k) {
    if (!has(axes, k)) {
      to_kept[k] = Var{static_cast<std::int32_t>(kept.size())};
      kept.push_back(from[k]);
    } else if (depends_on(*access, Var{static_cast<std::int32_t>(k)})) {
      return std::nullopt;
    }
  }
  return c.b.view(c.g[id].args[0], kept, substitute(*access, to_kept));
}

/// The sum of a float of 32 bits or more: halves would overflow where they did not before.
const Reduce* wide_sum(const Node& n) {
  const auto* r = std::get_if<Reduce>(&n.op);
  const bool wide = n.type.dtype == DType::f32 || n.type.dtype == DType::f64;
  return r != nullptr && r->fn == Monoid::sum && wide ? r : nullptr;
}

Rewritten sum_of_scaled(RewriteContext& c, const Node& n) {
  const Reduce* r = wide_sum(n);
  if (r == nullptr) return std::nullopt;
  const std::vector<int> axes = r->axes;
  const Node x = c.g[n.args[0]];
  if (is_map(x, ScalarFn::neg)) return c.b.neg(c.b.reduce_sum(x.args[0], axes, false));
  if (!is_map(x, ScalarFn::mul)) return std::nullopt;
  for (std::size_t i : {1, 0})
    if (const auto factor = repeated_along(c, x.args[i], axes))
      return c.b.mul(c.b.reduce_sum(x.args[1 - i], axes, false), *factor);
  return std::nullopt;
}

/// True if `id` counts along `axis`.
bool counts_along(const RewriteContext& c, NodeId id, int axis) {
  const auto* iota = std::get_if<Iota>(&c.g[id].op);
  return iota != nullptr && iota->axis == axis;
}

/// Σ_k (target == k ? x : 0), where target and x do not change with k.
Rewritten sum_of_one_hot(RewriteContext& c, const Node& n) {
  const Reduce* r = wide_sum(n);
  if (r == nullptr || r->axes.size() != 1) return std::nullopt;
  const std::vector<int> axes = r->axes;
  const Node select = c.g[n.args[0]];
  if (!is_map(select, ScalarFn::select) || splat_value(c.g, select.args[2]) != 0.0)
    return std::nullopt;
  const Node hit = c.g[select.args[0]];
  if (!is_map(hit, ScalarFn::equal)) return std::nullopt;
  for (std::size_t i : {0, 1}) {
    if (!counts_along(c, hit.args[1 - i], axes[0])) continue;
    const auto target = repeated_along(c, hit.args[i], axes);
    const auto value = repeated_along(c, select.args[1], axes);
    if (!target || !value) continue;
    const DType t = c.b.dtype(*target);
    if (is_float(t)) return std::nullopt;
    const auto number = [&](std::int64_t k) {
      return c.b.broadcast(c.b.scalar_int(t, k), n.type.shape);
    };
    const std::int64_t extent = c.b.shape(n.args[0])[static_cast<std::size_t>(axes[0])];
    const NodeId inside =
        c.b.map(ScalarFn::logical_and, {c.b.map(ScalarFn::less, {number(-1), *target}),
                                        c.b.map(ScalarFn::less, {*target, number(extent)})});
    return c.b.select(inside, *value, c.b.full(n.type, 0));
  }
  return std::nullopt;
}

constexpr RewriteRule kReduceRules[] = {
    {"reduce-unit-axes", "reduce over extents of 1 -> view", reduce_unit_axes,
     [](Builder& b) {
       return b.reduce_sum(x_of(b, {3, 1, 4}), {1, 2});
     }},
    {"reduce-of-reduce", "reduce(reduce(x)) -> reduce over all their axes", reduce_of_reduce,
     [](Builder& b) {
       return b.reduce_sum(b.reduce_sum(x_of(b, {3, 2, 4}), {1}, false), {1}, false);
     }},
    {"reduce-of-broadcast", "sum(broadcast(x)) -> sum(x) * repeats, max(broadcast(x)) -> max(x)",
     reduce_of_broadcast,
     [](Builder& b) {
       return b.reduce_sum(b.broadcast(x_of(b, {4, 1, 3}), {4, 5, 3}), {1, 2});
     }},
    {"view-below-reduce", "reduce(view(x)) -> view(reduce(x))  for permutations and regrouping",
     view_below_reduce,
     [](Builder& b) {
       return b.reduce_max(b.reshape(x_of(b, {2, 3, 4, 5}), {2, 3, 20}), {2});
     }},
    {"reduce-of-groups", "reduce(groups(x)) -> reduce(groups(reduce(x)))", reduce_of_groups,
     [](Builder& b) {
       return b.reduce_sum(b.reshape(x_of(b, {1, 6, 4, 5}), {1, 3, 40}), {2}, false);
     }},
    {"sum-of-scaled",
     "sum(x * broadcast(y)) -> sum(x) * y, sum(-x) -> -sum(x) (where sum(x) overflows, 0 * inf is "
     "NaN)",
     sum_of_scaled,
     [](Builder& b) {
       const NodeId y = b.graph().add_input("y", {DType::f32, {3, 1}});
       return b.reduce_sum(b.mul(x_of(b, {3, 4}), b.broadcast(y, {3, 4})), {1}, false);
     }},
    {"sum-of-one-hot", "sum_k(t == k ? x : 0) -> x  where t is one of the positions",
     sum_of_one_hot,
     [](Builder& b) {
       const NodeId t = b.graph().add_input("t", {DType::i64, {3, 1}});
       const TensorType all{DType::f32, {3, 4}};
       const NodeId hit =
           b.map(ScalarFn::equal, {b.broadcast(t, all.shape), b.iota({DType::i64, all.shape}, 1)});
       const NodeId y = b.graph().add_input("y", {DType::f32, {3, 1}});
       return b.reduce_sum(b.select(hit, b.broadcast(y, all.shape), b.full(all, 0)), {1}, false);
     }},
};

}  // namespace

std::span<const RewriteRule> reduce_rules() { return kReduceRules; }

}  // namespace heddle::prim

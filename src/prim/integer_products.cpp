#include "prim/integer_products.h"

#include <algorithm>

#include "prim/access.h"
#include "prim/fold.h"

namespace heddle::prim {

using ir::Expr;
using ir::Var;

namespace {

/// So many that a last group of fewer costs little.
constexpr std::int64_t kManyTerms = 32;

bool steps_along(const Access& a, Var v) {
  int dims = 0;
  for (const Expr& e : a.index)
    if (ir::depends_on(e, v)) dims += ir::coefficient_of(e, v) == 1 ? 1 : 2;
  for (const ir::Condition& condition : a.inside)
    if (ir::depends_on(condition.expr, v)) return false;
  return dims == 1;
}

}  // namespace

std::optional<std::size_t> whole_dimension(const Access& a, const Shape& shape, Var v,
                                           std::int64_t extent) {
  std::optional<std::size_t> whole;
  for (std::size_t d = 0; d < a.index.size(); ++d)
    if (a.index[d].variable() == v && shape[d] == extent) whole = d;
  return steps_along(a, v) ? whole : std::nullopt;
}

ProductExtents extents_of(const Contract& k, const Shape& out, const Shape& lhs, const Shape& rhs) {
  ProductExtents e;
  for (std::size_t i = 0; i < out.size(); ++i) {
    const Var v{static_cast<std::int32_t>(i)};
    const bool l = depends_on(k.lhs, v), r = depends_on(k.rhs, v);
    (l && r ? e.both : l ? e.lhs : e.rhs) *= out[i];
  }
  for (std::size_t i = 0; i < k.reduced.size(); ++i) {
    const Var v{static_cast<std::int32_t>(out.size() + i)};
    e.reduced *= k.reduced[i];
    const bool steps = steps_along(k.lhs, v) && steps_along(k.rhs, v);
    const bool whole = whole_dimension(k.lhs, lhs, v, k.reduced[i]) &&
                       whole_dimension(k.rhs, rhs, v, k.reduced[i]);
    e.pairs |= k.reduced[i] % 2 == 0 && steps;
    e.quads |= k.reduced[i] % 4 == 0 && steps;
    if (k.reduced[i] % 4 != 0 && k.reduced[i] >= kManyTerms && whole &&
        (!e.many || k.reduced[*e.many] < k.reduced[i]))
      e.many = i;
    if (k.reduced[i] % 4 == 3 && whole) e.short_of_four = i;
  }
  if (e.pairs || e.reduced < 16) e.short_of_four = {};
  e.pairs |= e.short_of_four.has_value();
  e.quads |= e.short_of_four.has_value();
  return e;
}

bool worth_pairs(const ProductExtents& e) {
  if (!e.pairs || e.reduced < 8 || std::max(e.lhs, e.rhs) < 8) return false;
  return std::min(e.lhs, e.rhs) > 1 || e.both == 1;
}

bool is_depthwise(const Contract& k, const ProductExtents& e) {
  constexpr std::int64_t kChannels = 16, kTaps = 128;
  return e.both >= kChannels && std::min(e.lhs, e.rhs) == 1 && std::max(e.lhs, e.rhs) > 1 &&
         std::ranges::count_if(k.reduced, [](std::int64_t n) { return n > 1; }) == 2 &&
         e.reduced <= kTaps;
}

bool in_order_of_loops(RewriteContext& c, NodeId& rhs, Contract& k, const Shape& out) {
  if (!c.constant(rhs) || !k.rhs.inside.empty()) return false;
  Shape shape;
  Access read, laid;
  std::vector<Expr> values;
  for (std::size_t i = 0; i < out.size() + k.reduced.size(); ++i) {
    const Var v{static_cast<std::int32_t>(i)};
    values.push_back(Expr(0));
    if (!depends_on(k.rhs, v)) continue;
    values.back() = Expr(Var{static_cast<std::int32_t>(shape.size())});
    read.index.push_back(Expr(v));
    shape.push_back(i < out.size() ? out[i] : k.reduced[i - out.size()]);
  }
  if (element_count(shape) != element_count(c.b.shape(rhs))) return false;
  for (const Expr& e : k.rhs.index) laid.index.push_back(ir::substitute(e, values));
  const auto value = evaluate_constant(c.g, c.b.view(rhs, shape, laid));
  if (!value) return false;
  rhs = c.b.constant(*value);
  k.rhs = read;
  return true;
}

bool one_reduction(RewriteContext& c, NodeId& rhs, Contract& k, const Shape& out) {
  const auto var = [&](std::size_t i) { return Var{static_cast<std::int32_t>(out.size() + i)}; };
  const auto follow = [&](std::size_t inner, std::size_t outer) {
    const auto of_them = [&](const Expr& e) {
      return ir::depends_on(e, var(inner)) || ir::depends_on(e, var(outer));
    };
    const bool tested = std::ranges::any_of(
        k.lhs.inside, [&](const ir::Condition& condition) { return of_them(condition.expr); });
    return !tested && std::ranges::count_if(k.lhs.index, of_them) == 1 &&
           std::ranges::all_of(k.lhs.index, [&](const Expr& e) {
             return !of_them(e) || (ir::coefficient_of(e, var(inner)) == 1 &&
                                    ir::coefficient_of(e, var(outer)) == k.reduced[inner]);
           });
  };
  for (std::size_t i = 0; i < k.reduced.size(); ++i)
    for (std::size_t j = 0; j < k.reduced.size(); ++j) {
      if (i == j || k.reduced[i] == 1 || k.reduced[j] == 1 || !follow(i, j)) continue;
      std::vector<Expr> left, right;  // the old variables over the new ones
      for (std::size_t v = 0; v < out.size() + k.reduced.size(); ++v)
        left.emplace_back(Var{static_cast<std::int32_t>(v > out.size() + j ? v - 1 : v)});
      right = left;
      const Expr both = left[out.size() + i];
      left[out.size() + j] = 0;
      right[out.size() + i] = ir::floor_mod(both, k.reduced[i]);
      right[out.size() + j] = ir::floor_div(both, k.reduced[i]);
      Contract joined = k;
      joined.reduced[i] *= k.reduced[j];
      joined.reduced.erase(joined.reduced.begin() + static_cast<std::ptrdiff_t>(j));
      for (Expr& e : joined.lhs.index) e = ir::substitute(e, left);
      for (ir::Condition& condition : joined.lhs.inside)
        condition.expr = ir::substitute(condition.expr, left);
      for (Expr& e : joined.rhs.index) e = ir::substitute(e, right);
      if (!in_order_of_loops(c, rhs, joined, out)) return false;
      k = joined;
      return true;
    }
  return false;
}

}  // namespace heddle::prim

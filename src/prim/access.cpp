#include "prim/access.h"

#include <algorithm>

namespace heddle::prim {

using ir::Expr;
using ir::Var;

Shape variables_of(const Node& n, const Contract& k) {
  Shape all = n.type.shape;
  all.insert(all.end(), k.reduced.begin(), k.reduced.end());
  return all;
}

std::vector<Expr> identity_variables(std::size_t count) {
  std::vector<Expr> out;
  for (std::size_t i = 0; i < count; ++i) out.push_back(var(i));
  return out;
}

Access identity_access(const Shape& shape) {
  Access a;
  for (std::size_t k = 0; k < shape.size(); ++k)
    a.index.push_back(shape[k] == 1 ? Expr(0) : var(k));
  return a;
}

std::optional<Access> simplified(const Access& a, const Shape& variables) {
  const ir::Ranges ranges = ir::ranges_of(variables);
  auto inside = ir::simplify(a.inside, ranges);
  if (!inside) return std::nullopt;
  Access result;
  for (const Expr& e : a.index) result.index.push_back(ir::simplify(e, ranges));
  result.inside = *std::move(inside);
  return result;
}

Access compose(const Access& outer, const Access& inner) {
  Access result = substitute(inner, outer.index);
  result.inside.insert(result.inside.begin(), outer.inside.begin(), outer.inside.end());
  return result;
}

bool shown_in_bounds(const Access& a, const Shape& variables, const Shape& shape) {
  const ir::Ranges ranges = ir::ranges_of(variables);
  for (std::size_t k = 0; k < shape.size(); ++k) {
    const auto b = ir::bounds_where(a.index[k], a.inside, ranges);
    if (!b || (b->low <= b->high && (b->low < 0 || b->high >= shape[k]))) return false;
  }
  return true;
}

bool in_bounds(const Access& a, const Shape& variables, const Shape& shape,
               std::int64_t max_points) {
  if (shown_in_bounds(a, variables, shape)) return true;
  std::int64_t points = 1;
  for (const std::int64_t e : variables) {
    if (e <= 0) return true;
    if (points > max_points / e) return false;
    points *= e;
  }
  std::vector<std::int64_t> at(variables.size(), 0);
  for (std::int64_t p = 0; p < points; ++p) {
    std::int64_t rest = p;
    for (std::size_t v = variables.size(); v-- > 0; rest /= variables[v])
      at[v] = rest % variables[v];
    const bool inside = std::all_of(a.inside.begin(), a.inside.end(), [&](const auto& c) {
      const std::int64_t value = ir::evaluate(c.expr, at);
      return c.low <= value && value < c.high;
    });
    for (std::size_t k = 0; inside && k < shape.size(); ++k) {
      const std::int64_t value = ir::evaluate(a.index[k], at);
      if (value < 0 || value >= shape[k]) return false;
    }
  }
  return true;
}

Expr flat_index(const std::vector<Expr>& index, const Shape& shape) {
  const Shape strides = row_major_strides(shape);
  Expr flat = 0;
  for (std::size_t k = 0; k < index.size(); ++k) flat = flat + index[k] * strides[k];
  return flat;
}

std::vector<Expr> unflatten(const Expr& flat, const Shape& shape) {
  const Shape strides = row_major_strides(shape);
  std::vector<Expr> index;
  for (std::size_t k = 0; k < shape.size(); ++k) {
    const Expr q = ir::floor_div(flat, std::max<std::int64_t>(strides[k], 1));
    index.push_back(k == 0 ? q : ir::floor_mod(q, std::max<std::int64_t>(shape[k], 1)));
  }
  return index;
}

namespace {
bool is_affine(const Expr& e) {
  const auto& n = e.node();
  if (n.kind == ir::IndexNode::Kind::var) return true;
  return n.kind == ir::IndexNode::Kind::sum &&
         std::all_of(n.terms.begin(), n.terms.end(),
                     [](const auto& t) { return t.atom.node().kind == ir::IndexNode::Kind::var; });
}
}  // namespace

bool is_affine(const Access& a) {
  return std::all_of(a.index.begin(), a.index.end(), [](const Expr& e) { return is_affine(e); }) &&
         std::all_of(a.inside.begin(), a.inside.end(),
                     [](const auto& c) { return is_affine(c.expr); });
}

std::int64_t size_of(const Access& a) {
  std::int64_t size = 0;
  for (const Expr& e : a.index) size += ir::node_count(e);
  for (const auto& c : a.inside) size += ir::node_count(c.expr);
  return size;
}

bool regroups(const Access& a, const Shape& from, const Shape& to) {
  if (!a.inside.empty() || element_count(from) != element_count(to)) return false;
  const ir::Ranges ranges = ir::ranges_of(to);
  return ir::simplify(flat_index(a.index, from), ranges) ==
         ir::simplify(flat_index(identity_variables(to.size()), to), ranges);
}

bool crosses_groups(const Access& a, const Shape& from, const Shape& to) {
  std::vector<int> uses(to.size(), 0);
  std::vector<std::vector<ir::Var>> variables(a.index.size());
  for (std::size_t k = 0; k < a.index.size(); ++k) {
    ir::collect_variables(a.index[k], variables[k]);
    for (const ir::Var v : variables[k]) ++uses[static_cast<std::size_t>(v.index)];
  }
  std::size_t last = from.size();
  while (last > 0 && from[last - 1] == 1) --last;
  bool crosses = false;
  for (std::size_t k = 0; k < variables.size(); ++k)
    for (const ir::Var v : variables[k])
      crosses |= uses[static_cast<std::size_t>(v.index)] > 1 &&
                 (variables[k].size() > 1 || k + 1 == last);
  return crosses && regroups(a, from, to);
}

bool depends_on(const Access& a, Var var) {
  return std::any_of(a.index.begin(), a.index.end(),
                     [&](const Expr& e) { return ir::depends_on(e, var); }) ||
         std::any_of(a.inside.begin(), a.inside.end(),
                     [&](const auto& c) { return ir::depends_on(c.expr, var); });
}

Access substitute(const Access& a, const std::vector<Expr>& values) {
  Access result;
  for (const Expr& e : a.index) result.index.push_back(ir::substitute(e, values));
  for (const auto& c : a.inside)
    result.inside.push_back({ir::substitute(c.expr, values), c.low, c.high});
  return result;
}

}  // namespace heddle::prim

#include "lower/contract/box.h"

#include <algorithm>
#include <numeric>

namespace heddle::lower::contract {
namespace {

using ir::Expr;
using ir::IndexNode;
using ir::Var;

const Axis* axis_of(const std::vector<Axis>& axes, const Expr& e) {
  const auto v = e.variable();
  for (const Axis& axis : axes)
    if (v && axis.var == *v) return &axis;
  return nullptr;
}

bool depends_on_any(const Expr& e, const std::vector<Axis>& axes) {
  return std::any_of(axes.begin(), axes.end(),
                     [&](const Axis& axis) { return ir::depends_on(e, axis.var); });
}

/// The first affine form of `axes` inside an expression: its coefficients without common factor.
std::vector<IndexNode::Term> form_in(const Expr& e, const std::vector<Axis>& axes) {
  const IndexNode& node = e.node();
  if (axis_of(axes, e)) return {{1, e}};
  if (node.kind == IndexNode::Kind::sum) {
    std::vector<IndexNode::Term> form;
    std::int64_t common = 0;
    for (const IndexNode::Term& t : node.terms) {
      if (!axis_of(axes, t.atom)) continue;
      form.push_back(t);
      common = std::gcd(common, t.coefficient);
    }
    for (IndexNode::Term& t : form) t.coefficient /= common;
    if (!form.empty()) return form;
    for (const IndexNode::Term& t : node.terms)
      if (auto found = form_in(t.atom, axes); !found.empty()) return found;
  }
  for (const Expr& arg : node.args)
    if (auto found = form_in(arg, axes); !found.empty()) return found;
  return {};
}

/// A dimension with the axis that is eliminated in favour of u.
struct Candidate {
  Box::Dim dim;
  std::optional<Var> pivot;
  Expr pivot_value;

  Expr in_u(const Expr& e) const {
    if (!pivot) return e;
    return ir::substitute(
        e, [&](Var v) { return v == *pivot ? std::optional<Expr>(pivot_value) : std::nullopt; });
  }
};

std::optional<Candidate> candidate(const Expr& index, const std::vector<Axis>& inner,
                                   const ir::Ranges& ranges, kernel::Kernel& k) {
  Candidate c{{k.new_var(), index, 0, 0, {0, 0}, {}}, std::nullopt, 0};
  const auto form = form_in(index, inner);
  Expr whole(0), first(0);
  for (const IndexNode::Term& t : form) {
    whole = whole + t.atom * Expr(t.coefficient);
    if (axis_of(inner, t.atom)->role != Role::k) first = first + t.atom * Expr(t.coefficient);
  }
  const auto span = ir::bounds(whole, ranges);
  if (!span) return std::nullopt;
  c.dim.low = first + Expr(span->low);
  c.dim.local = whole - Expr(span->low);
  c.dim.inside = *span;
  for (const IndexNode::Term& t : form) {
    if (t.coefficient != 1 && t.coefficient != -1) continue;
    c.pivot = *t.atom.variable();
    const Expr rest = whole - t.atom * Expr(t.coefficient);
    c.pivot_value = (Expr(c.dim.u) - rest) * Expr(t.coefficient);
    break;
  }
  c.dim.index = c.in_u(index);
  if (depends_on_any(c.dim.index, inner)) return std::nullopt;
  return c;
}

/// Gives a condition to the dimension whose u decides it.
bool attach(const ir::Condition& condition, std::vector<Candidate>& dims,
            const std::vector<Axis>& inner) {
  for (Candidate& c : dims) {
    const Expr e = c.in_u(condition.expr);
    if (!c.pivot || depends_on_any(e, inner) || !ir::depends_on(e, c.dim.u)) continue;
    const auto step = ir::coefficient_of(e, c.dim.u);
    const auto rest = step ? (e - Expr(c.dim.u) * Expr(*step)).constant() : std::nullopt;
    if (rest && (*step == 1 || *step == -1)) {
      const std::int64_t a = (condition.low - *rest) * *step,
                         b = (condition.high - 1 - *rest) * *step;
      c.dim.inside.low = std::max(c.dim.inside.low, std::min(a, b));
      c.dim.inside.high = std::min(c.dim.inside.high, std::max(a, b));
    } else {
      c.dim.more.push_back({e, condition.low, condition.high});
    }
    return true;
  }
  return false;
}

}  // namespace

std::optional<Box> box_of(const Problem& p, const std::vector<Axis>& inner, kernel::Kernel& k) {
  std::vector<Candidate> dims;
  for (const Expr& e : p.a_access.index) {
    auto c = candidate(e, inner, p.ranges(), k);
    if (!c) return std::nullopt;
    dims.push_back(std::move(*c));
  }
  for (const ir::Condition& condition : p.a_access.inside)
    if (!attach(condition, dims, inner)) return std::nullopt;
  Box box;
  for (Candidate& c : dims) {
    if (c.dim.inside.low > c.dim.inside.high) return std::nullopt;  // nothing but zeros
    box.dims.push_back(std::move(c.dim));
  }
  return box;
}

double share_inside(const Product& p) {
  if (!p.box || !p.row) return 1;
  const auto at_first = [](const Expr& e) {
    return ir::substitute(e, [](ir::Var) { return std::optional<Expr>(0); }).constant();
  };
  double share = 1;
  for (const Box::Dim& dim : p.box->dims) {
    const auto first = at_first(dim.low + dim.local);
    const auto row = ir::coefficient_of(dim.local, p.row->var);
    for (const KLoop& loop : p.k) {
      if (loop.axes.size() != 1) continue;
      const Axis& axis = loop.axes[0];
      const auto tap = ir::coefficient_of(dim.local, axis.var);
      if (!first || !row || *row == 0 || tap.value_or(0) == 0) continue;
      std::int64_t inside = 0;
      for (std::int64_t r = 0; r < p.row->extent; ++r)
        for (std::int64_t t = 0; t < axis.extent; ++t) {
          const std::int64_t u = *first + r * *row + t * *tap;
          inside += u >= dim.inside.low && u <= dim.inside.high;
        }
      share *= static_cast<double>(inside) / static_cast<double>(p.row->extent * axis.extent);
    }
  }
  return share;
}

}  // namespace heddle::lower::contract

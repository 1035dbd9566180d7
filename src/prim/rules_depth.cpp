// Rows over space to depth: slices that take turns become one view, and windows of such a view are
// windows of what it is made of, with as many more taps.
#include <algorithm>

#include "prim/access.h"
#include "prim/fold.h"
#include "prim/rewrite.h"
#include "prim/rule_examples.h"

namespace heddle::prim {
namespace {

using ir::Expr;
using ir::Var;
using Rewritten = std::optional<NodeId>;

/// (t / below) % count of the number t of a piece.
struct Digit {
  std::int64_t below = 1, count = 1;
};

/// The digit of t that offsets[t] is, of all t; count 1 where all are 0.
std::optional<Digit> digit_of(const std::vector<std::int64_t>& offsets) {
  const auto pieces = static_cast<std::int64_t>(offsets.size());
  const std::int64_t count = *std::ranges::max_element(offsets) + 1;
  for (std::int64_t below = 1; below * count <= pieces; ++below) {
    if (pieces % (below * count) != 0) continue;
    bool same = true;
    for (std::int64_t t = 0; t < pieces && same; ++t)
      same = offsets[static_cast<std::size_t>(t)] == t / below % count;
    if (same) return Digit{below, count};
  }
  return std::nullopt;
}

/// Whether e is a variable in steps of `count`, from the first on.
bool steps_by(const Expr& e, std::int64_t count) {
  std::vector<Var> vars;
  ir::collect_variables(e, vars);
  return vars.size() == 1 && e == Expr(vars[0]) * Expr(count);
}

/// The dimension of which all pieces hold equal parts, one behind the other.
std::optional<Var> joined_dimension(const View& v, const Shape& shape) {
  const auto pieces = static_cast<std::int64_t>(v.pieces.size());
  const auto& first = v.pieces[0].inside;
  const auto d = first.size() == 1 ? first[0].expr.variable() : std::nullopt;
  if (!d) return std::nullopt;
  const std::int64_t extent = shape[static_cast<std::size_t>(d->index)], part = extent / pieces;
  if (extent % pieces != 0) return std::nullopt;
  for (std::int64_t k = 0; k < pieces; ++k) {
    const std::vector<ir::Condition> want{{Expr(*d), k * part, (k + 1) * part}};
    if (v.pieces[static_cast<std::size_t>(k)].inside != want) return std::nullopt;
  }
  return d;
}

/// Slices of a picture that lie between each other, one behind the other (focus layers): one view,
/// by the digits of the joined dimension. Many channels stay as they are: convolutions of them are
/// better multiplied as they are written.
Rewritten slices_to_depth(RewriteContext& c, const Node& n) {
  const auto* v = std::get_if<View>(&n.op);
  if (v == nullptr || v->pieces.size() < 2 ||
      !std::ranges::all_of(n.args, [&](NodeId x) { return x == n.args[0]; }))
    return std::nullopt;
  const auto d = joined_dimension(*v, n.type.shape);
  if (!d || !wide_float(n.type.dtype)) return std::nullopt;
  const auto at = static_cast<std::size_t>(d->index);
  const std::int64_t part = n.type.shape[at] / static_cast<std::int64_t>(v->pieces.size());
  if (part == 0 || part >= kFewChannels) return std::nullopt;
  std::vector<Expr> to = identity_variables(n.type.shape.size());
  Access whole;
  bool any = false;
  for (std::size_t i = 0; i < v->pieces[0].index.size(); ++i) {
    const Expr first = v->pieces[0].index[i];
    std::vector<std::int64_t> offsets;
    for (std::size_t k = 0; k < v->pieces.size(); ++k) {
      to[at] = Expr(*d) + Expr(static_cast<std::int64_t>(k) * part);
      const auto offset = (ir::substitute(v->pieces[k].index[i], to) - first).constant();
      if (!offset || *offset < 0) return std::nullopt;
      offsets.push_back(*offset);
    }
    const auto digit = digit_of(offsets);
    if (!digit || (digit->count > 1 && !steps_by(first, digit->count))) return std::nullopt;
    any |= digit->count > 1;
    to[at] = ir::floor_mod(Expr(*d), part);
    whole.index.push_back(
        ir::substitute(first, to) +
        ir::floor_mod(ir::floor_div(Expr(*d), part * digit->below), digit->count));
  }
  if (!any) return std::nullopt;
  return c.b.view(n.args[0], n.type.shape, std::move(whole));
}

/// How an operand is read where two taps of it are one: `fine` goes through `count` places between
/// those of `coarse`, and the joined one, in coarse's place, through all. nullopt if they are no
/// such taps of any coordinate.
std::optional<Access> with_joined_taps(const Access& a, Var coarse, Var fine, std::int64_t count,
                                       std::size_t variables) {
  std::vector<Expr> to = identity_variables(variables);
  to[static_cast<std::size_t>(coarse.index)] = Expr(0);
  to[static_cast<std::size_t>(fine.index)] = Expr(coarse);
  Access out;
  bool any = false;
  // Both, none, or those of `coarse` alone, of which conditions can be told apart.
  const auto joined = [&](const Expr& e) -> std::optional<Expr> {
    const auto large = ir::coefficient_of(e, coarse), small = ir::coefficient_of(e, fine);
    if (!large || !small || *large != *small * count) return std::nullopt;
    return ir::substitute(e, to);
  };
  for (const Expr& e : a.index) {
    const auto one = joined(e);
    if (!one) return std::nullopt;
    any |= ir::depends_on(*one, coarse);
    out.index.push_back(*one);
  }
  for (const ir::Condition& x : a.inside) {
    if (const auto one = joined(x.expr)) {
      out.inside.push_back({*one, x.low, x.high});
      continue;
    }
    // low <= e < high of whole steps holds for all places up to the next.
    if (ir::coefficient_of(x.expr, coarse) != 1 || ir::depends_on(x.expr, fine))
      return std::nullopt;
    const auto one = joined(x.expr * Expr(count) + Expr(fine));
    if (!one) return std::nullopt;
    out.inside.push_back({*one, x.low * count, x.high * count});
  }
  return any ? std::optional(std::move(out)) : std::nullopt;
}

/// A constant operand as it is read, of the variables that it is read by.
struct Read {
  NodeId value;
  Access access;
};

/// `constant` where `coarse` goes through what it and `fine` went through before.
std::optional<Read> read_by_joined(RewriteContext& c, NodeId constant, const Access& a, Var coarse,
                                   Var fine, std::int64_t count, const Shape& variables) {
  const Tensor* written = c.g.constant_of(constant);
  if (written == nullptr || !wide_float(written->dtype()) || !a.inside.empty())
    return std::nullopt;  // what is narrow goes in parts
  std::vector<Expr> to = identity_variables(variables.size());
  to[static_cast<std::size_t>(coarse.index)] = ir::floor_div(Expr(coarse), count);
  to[static_cast<std::size_t>(fine.index)] = ir::floor_mod(Expr(coarse), count);
  const Access joined = substitute(a, to);
  std::vector<Expr> place(variables.size(), Expr(0));
  Shape shape;
  Read out;
  for (std::size_t i = 0; i < variables.size(); ++i) {
    const Var v{static_cast<std::int32_t>(i)};
    if (!depends_on(joined, v)) continue;
    place[i] = var(shape.size());
    shape.push_back(variables[i] * (v == coarse ? count : 1));
    out.access.index.push_back(Expr(v));
  }
  if (element_count(shape) > element_count(c.b.shape(constant))) return std::nullopt;
  const auto value = evaluate_constant(c.g, c.b.view(constant, shape, substitute(joined, place)));
  if (!value) return std::nullopt;
  out.value = c.b.constant(*value);
  return out;
}

/// Σ_a Σ_b x[s*(i + a) + b] * w[a, b] for all b < s is Σ_t x[s*i + t] * w[t].
Rewritten contract_joined_taps(RewriteContext& c, const Node& n) {
  const auto* k = std::get_if<Contract>(&n.op);
  if (k == nullptr) return std::nullopt;
  const Shape variables = variables_of(n, *k);
  const std::size_t rank = n.type.shape.size();
  for (const bool left : {false, true})  // which side is constant
    for (std::size_t i = 0; i < k->reduced.size(); ++i)
      for (std::size_t j = 0; j < k->reduced.size(); ++j) {
        const Var coarse{static_cast<std::int32_t>(rank + i)},
            fine{static_cast<std::int32_t>(rank + j)};
        if (i == j || k->reduced[i] == 1 || k->reduced[j] == 1) continue;
        const std::int64_t count = k->reduced[j];
        const auto taps =
            with_joined_taps(left ? k->rhs : k->lhs, coarse, fine, count, variables.size());
        if (!taps) continue;
        const auto constant = read_by_joined(c, n.args[left ? 0 : 1], left ? k->lhs : k->rhs,
                                             coarse, fine, count, variables);
        if (!constant) continue;
        Shape reduced = k->reduced;
        reduced[i] *= count;
        reduced[j] = 1;
        const NodeId x = n.args[left ? 1 : 0];
        return left ? c.b.contract(constant->value, x, n.type.shape, reduced, constant->access,
                                   *taps, n.type.dtype)
                    : c.b.contract(x, constant->value, n.type.shape, reduced, *taps,
                                   constant->access, n.type.dtype);
      }
  return std::nullopt;
}

constexpr RewriteRule kDepthRules[] = {
    {"slices-to-depth", "concat(x[0::2], x[1::2]) -> one view, by the digits of its dimension",
     slices_to_depth,
     [](Builder& b) {
       const NodeId x = x_of(b, {3, 4, 6});
       View v;
       for (std::int64_t k = 0; k < 4; ++k)
         v.pieces.push_back({{var(0) - Expr(3 * k), var(1) * Expr(2) + Expr(k % 2),
                              var(2) * Expr(2) + Expr(k / 2)},
                             {{var(0), 3 * k, 3 * (k + 1)}}});
       return b.graph().add(std::move(v), {x, x, x, x}, {DType::f32, {12, 2, 3}});
     }},
    {"contract-joined-taps",
     "sum over a, b of x[s*(i + a) + b]*w[a, b] -> over t of x[s*i + t]*w[t]", contract_joined_taps,
     [](Builder& b) {
       const Expr at = (Expr(Var{1}) + Expr(Var{2}) - Expr(1)) * Expr(2) + Expr(Var{3});
       return b.contract(x_of(b, {3, 8}), weight(b, {3, 2}), {3, 4}, {3, 2},
                         {{Var{0}, at}, {{Expr(Var{1}) + Expr(Var{2}), 1, 5}}},
                         {{Var{2}, Var{3}}, {}}, DType::f32);
     }},
};

}  // namespace

std::span<const RewriteRule> depth_rules() { return kDepthRules; }

}  // namespace heddle::prim

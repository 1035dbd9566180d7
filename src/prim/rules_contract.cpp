// Rows over Contract: views go into its accesses, scales through it and into constant operands.
#include <algorithm>

#include "prim/access.h"
#include "prim/fold.h"
#include "prim/rewrite.h"
#include "prim/rule_examples.h"

namespace heddle::prim {
namespace {

using ir::Expr;
using ir::IndexNode;
using ir::ScalarFn;
using ir::Var;
using Rewritten = std::optional<NodeId>;

const Map* map_of(const Graph& g, NodeId id) { return std::get_if<Map>(&g[id].op); }
bool is_scaling(const Map* m) {
  return m != nullptr && (m->fn == ScalarFn::mul || m->fn == ScalarFn::div);
}

Rewritten contract_unit_axes(RewriteContext& c, const Node& n) {
  const auto* k = std::get_if<Contract>(&n.op);
  if (k == nullptr || std::find(k->reduced.begin(), k->reduced.end(), 1) == k->reduced.end())
    return std::nullopt;
  const std::size_t rank = n.type.shape.size();
  std::vector<Expr> to;
  for (std::size_t v = 0; v < rank; ++v) to.push_back(Var{static_cast<std::int32_t>(v)});
  Contract small;
  for (const std::int64_t e : k->reduced) {
    to.push_back(e == 1 ? Expr(0)
                        : Expr(Var{static_cast<std::int32_t>(rank + small.reduced.size())}));
    if (e != 1) small.reduced.push_back(e);
  }
  return c.b.contract(n.args[0], n.args[1], n.type.shape, small.reduced, substitute(k->lhs, to),
                      substitute(k->rhs, to), n.type.dtype);
}

/// A broadcast number as an operand is written out, so that contractions see plain matrices.
Rewritten contract_of_splat(RewriteContext& c, const Node& n) {
  if (!std::holds_alternative<Contract>(n.op)) return std::nullopt;
  for (std::size_t side = 0; side < 2; ++side) {
    if (splat(c.g, n.args[side]) == nullptr || c.g.constant_of(n.args[side]) != nullptr) continue;
    const auto dense = evaluate_constant(c.g, n.args[side]);
    if (!dense) continue;
    std::vector<NodeId> args = n.args;
    args[side] = c.b.constant(*dense);
    return c.g.add(n.op, std::move(args), n.type);
  }
  return std::nullopt;
}

/// How many values a digit of a variable has (itself, and quotients and remainders that divide the
/// number of values); nullopt for other expressions.
std::optional<std::int64_t> values_of_digit(const Expr& e, const Shape& variables) {
  if (const auto v = e.variable()) return variables[static_cast<std::size_t>(v->index)];
  const IndexNode& n = e.node();
  if (n.kind != IndexNode::Kind::div && n.kind != IndexNode::Kind::mod) return std::nullopt;
  const auto values = values_of_digit(n.args[0], variables);
  if (!values || *values % n.constant != 0) return std::nullopt;
  return n.kind == IndexNode::Kind::mod ? n.constant : *values / n.constant;
}

/// Which digits of a variable do not count as kinks, as contract-split-axis makes variables of
/// them: none, one quotient or remainder, or any.
enum class Digits : std::uint8_t { none, one, all };

/// Nodes that are not affine.
std::int64_t kinks(const Expr& e, const Shape& variables, Digits splittable) {
  const IndexNode& n = e.node();
  const bool division = n.kind == IndexNode::Kind::div || n.kind == IndexNode::Kind::mod;
  const bool splits =
      splittable == Digits::all || (splittable == Digits::one && division && n.args[0].variable());
  if (splits && values_of_digit(e, variables)) return 0;
  std::int64_t count = division || n.kind == IndexNode::Kind::min || n.kind == IndexNode::Kind::max;
  for (const auto& t : n.terms) count += kinks(t.atom, variables, splittable);
  for (const Expr& a : n.args) count += kinks(a, variables, splittable);
  return count;
}
std::int64_t kinks(const Access& a, const Shape& variables, Digits splittable = Digits::none) {
  std::int64_t count = 0;
  for (const Expr& e : a.index) count += kinks(e, variables, splittable);
  for (const auto& c : a.inside) count += kinks(c.expr, variables, splittable);
  return count;
}

/// Whether no remainder of a variable, as channels are of space to depth, has many values.
bool of_few_channels(const Access& a) {
  return std::ranges::none_of(a.index, [](const Expr& e) {
    const IndexNode& n = e.node();
    return n.kind == IndexNode::Kind::mod && n.args[0].variable() && n.constant >= kFewChannels;
  });
}

Rewritten contract_of_view(RewriteContext& c, const Node& n) {
  const auto* k = std::get_if<Contract>(&n.op);
  if (k == nullptr) return std::nullopt;
  const Shape variables = variables_of(n, *k);
  for (int side = 0; side < 2; ++side) {
    const auto at = static_cast<std::size_t>(side);
    const auto* v = std::get_if<View>(&c.g[n.args[at]].op);
    if (v == nullptr || v->pieces.size() != 1) continue;
    if (!v->pieces[0].inside.empty() && v->fill != 0) continue;
    if (splat(c.g, n.args[at]) != nullptr) continue;
    const NodeId source = c.g[n.args[at]].args[0];
    const Access& direct = side == 0 ? k->lhs : k->rhs;
    const auto a = simplified(compose(direct, v->pieces[0]), variables);
    if (!a || size_of(*a) > kMaxAccessSize || !shown_in_bounds(*a, variables, c.b.shape(source)))
      continue;
    // Reflected or resampled operands are better laid out once than computed per product.
    const Digits split =
        wide_float(c.b.dtype(source)) && of_few_channels(*a) ? Digits::all : Digits::one;
    if (kinks(*a, variables, split) > kinks(direct, variables)) continue;
    Contract next = *k;
    (side == 0 ? next.lhs : next.rhs) = *a;
    std::vector<NodeId> args = n.args;
    args[at] = source;
    return c.g.add(std::move(next), std::move(args), n.type);
  }
  return std::nullopt;
}

/// The divisors by which `v` itself is divided somewhere in e.
void divisors_of(const Expr& e, Var v, std::vector<std::int64_t>& out) {
  const IndexNode& n = e.node();
  const bool division = n.kind == IndexNode::Kind::div || n.kind == IndexNode::Kind::mod;
  if (division && n.args[0].variable() == v) out.push_back(n.constant);
  for (const auto& t : n.terms) divisors_of(t.atom, v, out);
  for (const Expr& a : n.args) divisors_of(a, v, out);
}

/// The contraction with variable v (of extent e) written as v1·s + v0; nullopt if that does not
/// make its accesses straighter.
std::optional<Contract> split_variable(RewriteContext& c, const Node& n, const Contract& k,
                                       std::size_t v, std::int64_t s, Shape& out) {
  Shape variables = variables_of(n, k);
  const std::int64_t before = kinks(k.lhs, variables) + kinks(k.rhs, variables);
  std::vector<Expr> to;
  for (std::size_t i = 0; i < variables.size(); ++i)
    to.push_back(Var{static_cast<std::int32_t>(i > v ? i + 1 : i)});
  const auto at = static_cast<std::int32_t>(v);
  to[v] = Expr(Var{at}) * s + Expr(Var{at + 1});
  variables[v] /= s;
  variables.insert(variables.begin() + at + 1, s);
  const std::size_t rank = n.type.shape.size() + (v < n.type.shape.size() ? 1 : 0);
  const auto lhs = simplified(substitute(k.lhs, to), variables);
  const auto rhs = simplified(substitute(k.rhs, to), variables);
  if (!lhs || !rhs || kinks(*lhs, variables) + kinks(*rhs, variables) >= before ||
      !shown_in_bounds(*lhs, variables, c.b.shape(n.args[0])) ||
      !shown_in_bounds(*rhs, variables, c.b.shape(n.args[1])))
    return std::nullopt;
  const auto first_reduced = variables.begin() + static_cast<std::ptrdiff_t>(rank);
  out.assign(variables.begin(), first_reduced);
  return Contract{{first_reduced, variables.end()}, *lhs, *rhs};
}

/// A variable that is divided somewhere becomes two; an output variable is joined again by a view,
/// which goes on to the readers.
Rewritten contract_split_axis(RewriteContext& c, const Node& n) {
  const auto* k = std::get_if<Contract>(&n.op);
  if (k == nullptr) return std::nullopt;
  const Shape variables = variables_of(n, *k);
  for (std::size_t v = 0; v < variables.size(); ++v) {
    std::vector<std::int64_t> divisors;
    for (const Access* a : {&k->lhs, &k->rhs})
      for (const Expr& e : a->index) divisors_of(e, Var{static_cast<std::int32_t>(v)}, divisors);
    for (const std::int64_t s : divisors) {
      if (s <= 1 || variables[v] % s != 0 || variables[v] == s) continue;
      Shape out;
      auto next = split_variable(c, n, *k, v, s, out);
      if (!next) continue;
      return c.b.reshape(c.g.add(*std::move(next), n.args, {n.type.dtype, out}), n.type.shape);
    }
  }
  return std::nullopt;
}

/// Infinite before the sum over terms is not what it is after it.
bool divides_by_zero(const RewriteContext& c, ScalarFn fn, NodeId factor) {
  if (fn != ScalarFn::div) return false;
  const Access* view = plain_view(c.g, factor);
  const Tensor* values = c.g.constant_of(view != nullptr ? c.g[factor].args[0] : factor);
  for (std::int64_t i = 0; values != nullptr && i < values->count(); ++i)
    if (values->at(i) == 0) return true;
  return false;
}

/// (x·s) @ y → (x @ y)·s, also with / and neg: the operand can then be read where it lies.
Rewritten scale_after_contract(RewriteContext& c, const Node& n) {
  const auto* k = std::get_if<Contract>(&n.op);
  if (k == nullptr || !is_float(n.type.dtype)) return std::nullopt;
  for (std::size_t side = 0; side < 2; ++side) {
    const Map* m = map_of(c.g, n.args[side]);
    if (m == nullptr || !c.used_once(n.args[side]) || c.constant(n.args[side])) continue;
    const Node scaled = c.g[n.args[side]];
    if (m->fn != ScalarFn::neg && (!is_scaling(m) || splat(c.g, scaled.args[1]) == nullptr ||
                                   divides_by_zero(c, m->fn, scaled.args[1])))
      continue;
    // Integers that are cast afterwards, or halves, would be rounded elsewhere.
    if (scaled.type.dtype != n.type.dtype) continue;
    std::vector<NodeId> args = n.args;
    args[side] = scaled.args[0];
    const ScalarFn fn = m->fn;
    const NodeId bare = c.g.add(*k, args, n.type);
    if (fn == ScalarFn::neg) return c.b.neg(bare);
    return c.b.map(fn, {bare, c.b.constant(splat(c.g, scaled.args[1])->reshaped({}))});
  }
  return std::nullopt;
}

/// How a factor over a contraction's output can be multiplied into a constant operand instead.
struct Fold {
  std::size_t side;
  Access factor;  ///< of the factor's source, over the operand's dimensions
};

/// Every output variable on which the factor depends must be a coordinate of the operand.
std::optional<Fold> fold_into(RewriteContext& c, NodeId contract, NodeId factor) {
  const auto* k = std::get_if<Contract>(&c.g[contract].op);
  if (k == nullptr || !c.used_once(contract) || !c.constant(factor)) return std::nullopt;
  if (!is_float(c.b.dtype(contract))) return std::nullopt;
  const Access* access = plain_view(c.g, factor);
  const Access identity = identity_access(c.b.shape(factor));
  const Access& over_out = access != nullptr ? *access : identity;
  for (std::size_t side = 0; side < 2; ++side) {
    const NodeId operand = c.g[contract].args[side];
    if (!c.constant(operand) || c.b.dtype(operand) != c.b.dtype(contract)) continue;
    const std::vector<Expr>& index = (side == 0 ? k->lhs : k->rhs).index;
    std::vector<Expr> to(c.b.shape(contract).size(), Expr(0));
    bool reachable = true;
    for (std::size_t v = 0; v < to.size() && reachable; ++v) {
      const Var var{static_cast<std::int32_t>(v)};
      if (!depends_on(over_out, var)) continue;
      const auto found = std::find(index.begin(), index.end(), Expr(var));
      reachable = found != index.end();
      if (reachable) to[v] = Var{static_cast<std::int32_t>(found - index.begin())};
    }
    if (!reachable) continue;
    Access over_operand = substitute(over_out, to);
    const Shape& source = c.b.shape(access != nullptr ? c.g[factor].args[0] : factor);
    if (!shown_in_bounds(over_operand, c.b.shape(operand), source)) continue;
    return Fold{side, std::move(over_operand)};
  }
  return std::nullopt;
}

Rewritten scale_into_constant(RewriteContext& c, const Node& n) {
  const auto* m = std::get_if<Map>(&n.op);
  if (!is_scaling(m) || divides_by_zero(c, m->fn, n.args[1])) return std::nullopt;
  const auto fold = fold_into(c, n.args[0], n.args[1]);
  if (!fold) return std::nullopt;
  const Node contract = c.g[n.args[0]];
  const NodeId factor = plain_view(c.g, n.args[1]) != nullptr ? c.g[n.args[1]].args[0] : n.args[1];
  std::vector<NodeId> args = contract.args;
  NodeId& operand = args[fold->side];
  const NodeId spread = c.b.view(factor, c.b.shape(operand), fold->factor);
  operand = c.b.map(m->fn, {operand, spread});
  return c.g.add(contract.op, std::move(args), contract.type);
}

/// (x @ w + p)·q → (x @ w)·q + p·q, where q can then go into w.
Rewritten scale_before_bias(RewriteContext& c, const Node& n) {
  const auto* m = std::get_if<Map>(&n.op);
  if (!is_scaling(m) || !c.constant(n.args[1]) || !c.used_once(n.args[0]) ||
      divides_by_zero(c, m->fn, n.args[1]))
    return std::nullopt;
  const Node sum = c.g[n.args[0]];
  const Map* s = std::get_if<Map>(&sum.op);
  if (s == nullptr || (s->fn != ScalarFn::add && s->fn != ScalarFn::sub)) return std::nullopt;
  if (!c.constant(sum.args[1]) || !fold_into(c, sum.args[0], n.args[1])) return std::nullopt;
  const NodeId product = c.b.map(m->fn, {sum.args[0], n.args[1]});
  return c.b.map(s->fn, {product, c.b.map(m->fn, {sum.args[1], n.args[1]})});
}

/// low <= d + offset - step·r < high for a reduction r and a dimension d of the result: for each d
/// only `count` neighbouring r can hold.
struct FewTerms {
  std::size_t dim;
  std::int64_t step, offset, low, count;
};
std::optional<FewTerms> few_terms(const ir::Condition& condition, Var r, const Shape& shape) {
  const auto along = ir::coefficient_of(condition.expr, r);
  if (!along || *along == 0) return std::nullopt;
  const bool negative = *along > 0;
  const Expr e = negative ? Expr(0) - condition.expr : condition.expr;
  const std::int64_t step = std::abs(*along);
  const std::int64_t low = negative ? 1 - condition.high : condition.low;
  const std::int64_t high = negative ? 1 - condition.low : condition.high;
  const Expr rest = e + Expr(r) * Expr(step);
  std::vector<Var> vars;
  ir::collect_variables(rest, vars);
  if (vars.size() != 1 || static_cast<std::size_t>(vars[0].index) >= shape.size())
    return std::nullopt;
  const auto dim = static_cast<std::size_t>(vars[0].index);
  const auto offset = (rest - Expr(vars[0])).constant();
  const bool phases = step > 1 && shape[dim] % step == 0 && shape[dim] != step;
  if (!offset || !(step == 1 || phases) || high <= low) return std::nullopt;
  return FewTerms{dim, step, *offset, low, (high - 1 - low) / step + 1};
}

/// With d = step·q + p, r = q + ⌊(p + offset - low) / step⌋ - t for 0 <= t < count.
Rewritten contract_few_terms(RewriteContext& c, const Node& n) {
  const auto* k = std::get_if<Contract>(&n.op);
  if (k == nullptr) return std::nullopt;
  const std::size_t rank = n.type.shape.size();
  const auto var = [](std::size_t i) { return Expr(Var{static_cast<std::int32_t>(i)}); };
  for (std::size_t j = 0; j < k->reduced.size(); ++j) {
    std::optional<FewTerms> few;
    for (const Access* a : {&k->lhs, &k->rhs})
      for (const ir::Condition& condition : a->inside)
        if (!few)
          few = few_terms(condition, Var{static_cast<std::int32_t>(rank + j)}, n.type.shape);
    if (!few || 2 * few->count > k->reduced[j]) continue;
    const std::size_t d = few->dim;
    const std::size_t more = few->step > 1 ? 1 : 0;  // dimensions
    const Expr p = more == 1 ? var(d + 1) : Expr(0);
    std::vector<Expr> to;
    for (std::size_t v = 0; v < rank + k->reduced.size(); ++v)
      to.push_back(var(v > d ? v + more : v));
    to[d] = var(d) * Expr(few->step) + p;
    to[rank + j] =
        var(d) + ir::floor_div(p + Expr(few->offset - few->low), few->step) - var(rank + more + j);
    Shape shape = n.type.shape, reduced = k->reduced;
    shape[d] /= few->step;
    shape.insert(shape.begin() + static_cast<std::ptrdiff_t>(d) + 1, more, few->step);
    Access lhs = substitute(k->lhs, to), rhs = substitute(k->rhs, to);
    for (Access* a : {&lhs, &rhs}) a->inside.push_back({to[rank + j], 0, reduced[j]});
    reduced[j] = few->count;
    return c.b.reshape(c.b.contract(n.args[0], n.args[1], shape, reduced, std::move(lhs),
                                    std::move(rhs), n.type.dtype),
                       n.type.shape);
  }
  return std::nullopt;
}

/// Values of a reduction at which a condition on where a window lies can hold for some positions;
/// all of them if unknown, or if it is of the reduction alone: a fourth channel of nothing but
/// zeros is there so that products of four bytes are one instruction.
ir::Interval can_hold(const ir::Condition& condition, Var r, const Shape& variables) {
  const ir::Interval all{0, variables[static_cast<std::size_t>(r.index)] - 1};
  const auto step = ir::coefficient_of(condition.expr, r);
  if (!step || *step == 0) return all;
  const Expr position = condition.expr - Expr(r) * Expr(*step);
  const auto rest = ir::bounds(position, ir::ranges_of(variables));
  if (!rest || position.constant()) return all;
  // low <= step·r + rest < high.
  const std::int64_t from = condition.low - rest->high, to = condition.high - 1 - rest->low;
  const auto up = [](std::int64_t a, std::int64_t b) { return a / b + (a % b > 0 ? 1 : 0); };
  const auto down = [&](std::int64_t a, std::int64_t b) { return -up(-a, b); };
  const std::int64_t size = std::abs(*step);
  const std::int64_t first = *step > 0 ? up(from, size) : up(-to, size);
  const std::int64_t last = *step > 0 ? down(to, size) : down(-from, size);
  return {std::max(all.low, first), std::min(all.high, last)};
}

/// Taps of a filter that lie in the padding wherever it stands: those of a wide dilation.
Rewritten contract_without_padding(RewriteContext& c, const Node& n) {
  const auto* k = std::get_if<Contract>(&n.op);
  if (k == nullptr || element_count(n.type.shape) == 0) return std::nullopt;
  const Shape variables = variables_of(n, *k);
  for (std::size_t j = 0; j < k->reduced.size(); ++j) {
    const Var r{static_cast<std::int32_t>(n.type.shape.size() + j)};
    ir::Interval range{0, k->reduced[j] - 1};
    for (const Access* a : {&k->lhs, &k->rhs})
      for (const ir::Condition& condition : a->inside) {
        const ir::Interval here = can_hold(condition, r, variables);
        range = {std::max(range.low, here.low), std::min(range.high, here.high)};
      }
    const std::int64_t count = range.high - range.low + 1;
    if (count < 1 || count == k->reduced[j]) continue;
    std::vector<Expr> to = identity_variables(variables.size());
    to[static_cast<std::size_t>(r.index)] = Expr(r) + Expr(range.low);
    Shape reduced = k->reduced, fewer = variables;
    reduced[j] = fewer[static_cast<std::size_t>(r.index)] = count;
    const auto lhs = simplified(substitute(k->lhs, to), fewer);
    const auto rhs = simplified(substitute(k->rhs, to), fewer);
    if (!lhs || !rhs) continue;
    return c.b.contract(n.args[0], n.args[1], n.type.shape, reduced, *lhs, *rhs, n.type.dtype);
  }
  return std::nullopt;
}

/// A permutation that takes another dimension to the end: the product makes it so at once. Only of
/// values that are computed: a constant operand decides the vectors, wherever the result goes.
Rewritten transpose_of_contract(RewriteContext& c, const Node& n) {
  const auto* view = std::get_if<View>(&n.op);
  if (view == nullptr || view->pieces.size() != 1 || !view->pieces[0].inside.empty() ||
      n.args.size() != 1 || !c.used_once(n.args[0]))
    return std::nullopt;
  const Node product = c.g[n.args[0]];
  const auto* k = std::get_if<Contract>(&product.op);
  const std::size_t rank = n.type.shape.size();
  if (k == nullptr || product.type.shape.size() != rank || rank < 2) return std::nullopt;
  if (c.constant(product.args[0]) || c.constant(product.args[1])) return std::nullopt;
  std::vector<Expr> to;
  std::vector<char> seen(rank, 0);
  for (std::size_t d = 0; d < rank; ++d) {
    const auto v = view->pieces[0].index[d].variable();
    if (!v || static_cast<std::size_t>(v->index) >= rank ||
        std::exchange(seen[static_cast<std::size_t>(v->index)], char{1}) ||
        n.type.shape[static_cast<std::size_t>(v->index)] != product.type.shape[d])
      return std::nullopt;
    to.push_back(*v);
  }
  if (to.back() == Expr(Var{static_cast<std::int32_t>(rank) - 1})) return std::nullopt;
  for (std::size_t r = 0; r < k->reduced.size(); ++r)
    to.push_back(Var{static_cast<std::int32_t>(rank + r)});
  return c.b.contract(product.args[0], product.args[1], n.type.shape, k->reduced,
                      substitute(k->lhs, to), substitute(k->rhs, to), n.type.dtype);
}

constexpr RewriteRule kContractRules[] = {
    {"contract-unit-axes", "reductions of extent 1 are dropped", contract_unit_axes,
     [](Builder& b) {
       return b.conv(x_of(b, {1, 3, 4, 4}), weight(b, {2, 3, 1, 1}),
                     {{1, 1}, {1, 1}, {0, 0}, {0, 0}, 1});
     }},
    {"contract-of-splat", "contract(x, broadcast number) -> contract(x, constant)",
     contract_of_splat,
     [](Builder& b) {
       return b.matmul(x_of(b, {3, 4}), b.full({DType::f32, {4, 2}}, 0.5));
     }},
    {"contract-of-view", "contract(view(x), y) -> contract(x, y)  if outside is 0",
     contract_of_view,
     [](Builder& b) {
       const NodeId x = b.pad(x_of(b, {1, 3, 4, 4}), {0, 0, 1, 1}, {0, 0, 1, 1}, 0);
       return b.conv(x, weight(b, {2, 3, 3, 3}), {{1, 1}, {1, 1}, {0, 0}, {0, 0}, 1});
     }},
    {"contract-split-axis", "a divided variable v -> v1*s + v0", contract_split_axis,
     [](Builder& b) {
       const Expr r = Var{2};
       return b.contract(x_of(b, {3, 4, 5}), weight(b, {20, 6}), {3, 6}, {20},
                         {{Var{0}, ir::floor_div(r, 5), ir::floor_mod(r, 5)}, {}},
                         {{r, Var{1}}, {}}, DType::f32);
     }},
    {"contract-few-terms", "sum over r where low <= d - s*r < high -> over those r alone",
     contract_few_terms,
     [](Builder& b) {
       const Expr at = Expr(Var{1}) - Expr(Var{2}) * Expr(2) + Expr(1);
       return b.contract(x_of(b, {3, 8}), weight(b, {3}), {3, 16}, {8}, {{Var{0}, Var{2}}, {}},
                         {{at}, {{at, 0, 3}}}, DType::f32);
     }},
    {"contract-without-padding", "taps that see padding only are dropped", contract_without_padding,
     [](Builder& b) {
       return b.conv(x_of(b, {1, 3, 4, 4}), weight(b, {2, 3, 3, 3}),
                     {{1, 1}, {5, 5}, {5, 5}, {5, 5}, 1});
     }},
    {"transpose-of-contract", "transpose(x @ y) -> the product with its dimensions exchanged",
     transpose_of_contract,
     [](Builder& b) {
       const NodeId y = b.graph().add_input("y", {DType::f32, {4, 2}});
       return b.transpose(b.matmul(x_of(b, {3, 4}), y), {1, 0});
     }},
    {"scale-after-contract", "(x*s) @ y -> (x @ y)*s  for one number s", scale_after_contract,
     [](Builder& b) {
       return b.matmul(b.mul(x_of(b, {3, 4}), 0.3), weight(b, {4, 2}));
     }},
    {"scale-before-bias", "(x @ w + p)*q -> (x @ w)*q + p*q  where q goes into w",
     scale_before_bias,
     [](Builder& b) {
       const NodeId y = b.add(b.matmul(x_of(b, {3, 4}), weight(b, {4, 2})), weight(b, {2}));
       return b.mul(y, weight(b, {1, 2}));
     }},
    {"scale-into-constant", "(x @ w)*q -> x @ (w*q)  for constants w, q", scale_into_constant,
     [](Builder& b) {
       return b.div(b.matmul(x_of(b, {3, 4}), weight(b, {4, 2})), b.add(weight(b, {2}), 4.0));
     }},
};

}  // namespace

std::span<const RewriteRule> contract_rules() { return kContractRules; }

}  // namespace heddle::prim

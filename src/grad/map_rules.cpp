// Derivatives of the scalar functions: one row each.
#include <array>
#include <numbers>

#include "grad/rules.h"
#include "prim/rewrite.h"

namespace heddle::grad {
namespace {

using ir::ScalarFn;

/// What a row computes with: arguments, result y and its adjoint d.
struct Values {
  Context& c;
  Builder& b;
  NodeId y, d;
  NodeId x(std::size_t k = 0) const { return c.n.args[k]; }
  /// Argument k's derivative is `partial`, a factor of the adjoint.
  void add(NodeId partial, std::size_t k = 0) const {
    if (c.wanted(k)) c.add(k, b.mul(d, partial));
  }
  NodeId recip(NodeId v) const { return b.map(ScalarFn::recip, {v}); }
  NodeId rsqrt(NodeId v) const { return b.map(ScalarFn::rsqrt, {v}); }
  /// 1 ± v².
  NodeId one_plus_square(NodeId v) const { return b.add(b.mul(v, v), 1); }
  NodeId one_minus_square(NodeId v) const { return b.sub(one(v), b.mul(v, v)); }
  NodeId one(NodeId like) const { return b.full(b.type(like), 1); }
  NodeId zero(NodeId like) const { return b.full(b.type(like), 0); }
  NodeId compare(ScalarFn fn, NodeId l, NodeId r) const { return b.map(fn, {l, r}); }
};

/// Of 1/(1 + e^t), a sigmoid, straight to t: y² would meet an infinite e^t where y is 0.
void reciprocal(const Values& v) {
  const prim::Node sum = v.c.g[v.x()];
  if (v.c.may_go_through && prim::is_map(sum, ScalarFn::add))
    for (std::size_t k = 0; k < 2; ++k)
      if (const prim::Node power = v.c.g[sum.args[k]];
          prim::is_map(power, ScalarFn::exp) && prim::splat_value(v.c.g, sum.args[1 - k]) == 1.0)
        return v.c.add_through(power.args[0], v.b.mul(v.d, v.b.sub(v.b.mul(v.y, v.y), v.y)));
  v.add(v.b.neg(v.b.mul(v.y, v.y)));
}

/// max and min: to the argument that is the result; half each where they are equal, but nothing to
/// the argument that equals a constant (relu and clip are flat there).
void extreme(const Values& v, ScalarFn beats) {
  const bool constant = prim::splat(v.c.g, v.x(0)) || prim::splat(v.c.g, v.x(1));
  for (std::size_t k = 0; k < 2; ++k) {
    if (!v.c.wanted(k)) continue;
    const NodeId mine = v.x(k), other = v.x(1 - k), nothing = v.zero(v.d);
    const NodeId at_tie =
        constant ? nothing
                 : v.b.select(v.compare(ScalarFn::equal, mine, other), v.b.mul(v.d, 0.5), nothing);
    v.c.add(k, v.b.select(v.compare(beats, mine, other), v.d, at_tie));
  }
}

/// Σx², of which a norm is the root.
bool is_sum_of_squares(const prim::Graph& g, NodeId id) {
  const prim::Node& sum = g[prim::behind_views(g, id)];
  const auto* reduce = std::get_if<prim::Reduce>(&sum.op);
  if (!reduce || reduce->fn != ir::Monoid::sum) return false;
  const prim::Node& square = g[prim::behind_views(g, sum.args[0])];
  return prim::is_map(square, ScalarFn::mul) && square.args[0] == square.args[1];
}

/// A norm of 0 is flat there, as PyTorch's is: 1/0 would meet x = 0.
void root(const Values& v) {
  const NodeId partial = v.b.mul(v.recip(v.y), 0.5);
  if (!is_sum_of_squares(v.c.g, v.x())) return v.add(partial);
  const NodeId zero = v.zero(v.y);
  v.add(v.b.select(v.compare(ScalarFn::equal, v.y, zero), zero, partial));
}

void power(const Values& v) {
  const NodeId base = v.x(0), exponent = v.x(1);
  if (v.c.wanted(0)) {
    // A zero exponent gives a constant, also at base 0 where base^-1 is infinite.
    const NodeId slope = v.b.mul(exponent, v.b.map(ScalarFn::pow, {base, v.b.sub(exponent, 1)}));
    v.add(v.b.select(v.compare(ScalarFn::equal, exponent, v.zero(exponent)), v.zero(slope), slope));
  }
  if (v.c.wanted(1)) {
    // 0^e is flat in e; log would make it 0 · -inf.
    const NodeId positive = v.compare(ScalarFn::greater, base, v.zero(base));
    const NodeId safe = v.b.select(positive, base, v.one(base));
    v.add(v.b.select(positive, v.b.mul(v.y, v.b.log(safe)), v.zero(v.y)), 1);
  }
}

void remainder(const Values& v, ScalarFn round) {
  v.c.add(0, v.d);
  if (v.c.wanted(1)) v.add(v.b.neg(v.b.map(round, {v.b.div(v.x(0), v.x(1))})), 1);
}

void arc_tangent(const Values& v) {  // atan2(y, x)
  const NodeId scale = v.recip(v.b.add(v.b.mul(v.x(0), v.x(0)), v.b.mul(v.x(1), v.x(1))));
  if (v.c.wanted(0)) v.add(v.b.mul(v.x(1), scale), 0);
  if (v.c.wanted(1)) v.add(v.b.neg(v.b.mul(v.x(0), scale)), 1);
}

void select(const Values& v) {
  const NodeId nothing = v.zero(v.d);
  if (v.c.wanted(1)) v.c.add(1, v.b.select(v.x(0), v.d, nothing));
  if (v.c.wanted(2)) v.c.add(2, v.b.select(v.x(0), nothing, v.d));
}

struct Row {
  ScalarFn fn;
  void (*rule)(const Values& v);
};

const Row kRows[] = {
    {ScalarFn::neg, [](const Values& v) { v.c.add(0, v.b.neg(v.d)); }},
    {ScalarFn::abs, [](const Values& v) { v.add(v.b.map(ScalarFn::sign, {v.x()})); }},
    {ScalarFn::exp, [](const Values& v) { v.add(v.y); }},
    {ScalarFn::log, [](const Values& v) { v.add(v.recip(v.x())); }},
    {ScalarFn::sqrt, root},
    {ScalarFn::rsqrt,
     [](const Values& v) { v.add(v.b.mul(v.b.mul(v.y, v.b.mul(v.y, v.y)), -0.5)); }},
    {ScalarFn::recip, reciprocal},
    {ScalarFn::sin, [](const Values& v) { v.add(v.b.map(ScalarFn::cos, {v.x()})); }},
    {ScalarFn::cos, [](const Values& v) { v.add(v.b.neg(v.b.map(ScalarFn::sin, {v.x()}))); }},
    {ScalarFn::tan, [](const Values& v) { v.add(v.one_plus_square(v.y)); }},
    {ScalarFn::asin, [](const Values& v) { v.add(v.rsqrt(v.one_minus_square(v.x()))); }},
    {ScalarFn::acos, [](const Values& v) { v.add(v.b.neg(v.rsqrt(v.one_minus_square(v.x())))); }},
    {ScalarFn::atan, [](const Values& v) { v.add(v.recip(v.one_plus_square(v.x()))); }},
    {ScalarFn::sinh, [](const Values& v) { v.add(v.b.map(ScalarFn::cosh, {v.x()})); }},
    {ScalarFn::cosh, [](const Values& v) { v.add(v.b.map(ScalarFn::sinh, {v.x()})); }},
    {ScalarFn::tanh, [](const Values& v) { v.add(v.one_minus_square(v.y)); }},
    {ScalarFn::asinh, [](const Values& v) { v.add(v.rsqrt(v.one_plus_square(v.x()))); }},
    {ScalarFn::acosh, [](const Values& v) { v.add(v.rsqrt(v.b.sub(v.b.mul(v.x(), v.x()), 1))); }},
    {ScalarFn::atanh, [](const Values& v) { v.add(v.recip(v.one_minus_square(v.x()))); }},
    {ScalarFn::erf,
     [](const Values& v) {
       v.add(v.b.mul(v.b.exp(v.b.neg(v.b.mul(v.x(), v.x()))), 2 * std::numbers::inv_sqrtpi));
     }},
    {ScalarFn::cast, [](const Values& v) { v.c.add(0, v.b.cast(v.d, v.b.dtype(v.x()))); }},
    {ScalarFn::round_f16, [](const Values& v) { v.c.add(0, v.d); }},
    {ScalarFn::round_bf16, [](const Values& v) { v.c.add(0, v.d); }},
    {ScalarFn::add,
     [](const Values& v) {
       v.c.add(0, v.d);
       v.c.add(1, v.d);
     }},
    {ScalarFn::sub,
     [](const Values& v) {
       v.c.add(0, v.d);
       if (v.c.wanted(1)) v.c.add(1, v.b.neg(v.d));
     }},
    {ScalarFn::mul,
     [](const Values& v) {
       if (softmax(v.c)) return;
       v.add(v.x(1), 0);
       v.add(v.x(0), 1);
     }},
    {ScalarFn::div,
     [](const Values& v) {
       if (softmax(v.c)) return;
       const NodeId over = v.b.div(v.d, v.x(1));
       v.c.add(0, over);
       if (v.c.wanted(1)) v.c.add(1, v.b.neg(v.b.mul(over, v.y)));
     }},
    {ScalarFn::fmod, [](const Values& v) { remainder(v, ScalarFn::trunc); }},
    {ScalarFn::floor_mod, [](const Values& v) { remainder(v, ScalarFn::floor); }},
    {ScalarFn::pow, power},
    {ScalarFn::min, [](const Values& v) { extreme(v, ScalarFn::less); }},
    {ScalarFn::max, [](const Values& v) { extreme(v, ScalarFn::greater); }},
    {ScalarFn::atan2, arc_tangent},
    {ScalarFn::select, select},
};

/// Flat wherever they are smooth.
constexpr ScalarFn kSteps[] = {ScalarFn::floor, ScalarFn::ceil, ScalarFn::round, ScalarFn::trunc,
                               ScalarFn::sign};

}  // namespace

Status differentiate(Context& c, const prim::Map& op) {
  for (ScalarFn step : kSteps)
    if (op.fn == step) return Ok{};
  for (const Row& row : kRows)
    if (row.fn == op.fn) {
      row.rule({c, c.b, c.id, c.adjoint});
      return Ok{};
    }
  return unsupported("{} has no derivative", ir::info(op.fn).name);
}

}  // namespace heddle::grad

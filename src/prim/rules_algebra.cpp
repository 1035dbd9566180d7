// Rows over Map: arithmetic that is exact, or differs by no more than one rounding.
#include <cmath>

#include "prim/interpret.h"
#include "prim/rewrite.h"
#include "prim/rule_examples.h"

namespace heddle::prim {
namespace {

using ir::ScalarFn;
using Rewritten = std::optional<NodeId>;

bool is_splat(const RewriteContext& c, NodeId id, double value) {
  return splat_value(c.g, id) == value;
}
/// Argument of a node that is a Map of fn, or nullopt.
std::optional<NodeId> under(const RewriteContext& c, NodeId id, ScalarFn fn) {
  return is_map(c.g[id], fn) ? std::optional(c.g[id].args[0]) : std::nullopt;
}
/// f32 and f64: halves are rounded where they are stored, so constants in them lose too much.

Rewritten add_zero(RewriteContext& c, const Node& n) {
  if (is_map(n, ScalarFn::add) && is_splat(c, n.args[0], 0)) return n.args[1];
  const bool sum = is_map(n, ScalarFn::add) || is_map(n, ScalarFn::sub);
  if (sum && is_splat(c, n.args[1], 0)) return n.args[0];
  return std::nullopt;
}

Rewritten mul_one(RewriteContext& c, const Node& n) {
  if (is_map(n, ScalarFn::mul) && is_splat(c, n.args[0], 1)) return n.args[1];
  const bool product = is_map(n, ScalarFn::mul) || is_map(n, ScalarFn::div);
  if (product && is_splat(c, n.args[1], 1)) return n.args[0];
  return std::nullopt;
}

Rewritten logical_constant(RewriteContext& c, const Node& n) {
  const bool conjunction = is_map(n, ScalarFn::logical_and);
  if (!conjunction && !is_map(n, ScalarFn::logical_or)) return std::nullopt;
  for (std::size_t i = 0; i < 2; ++i)
    if (const auto known = splat_value(c.g, n.args[i]))
      return (*known != 0) == conjunction ? n.args[1 - i] : n.args[i];
  return std::nullopt;
}

Rewritten double_negation(RewriteContext& c, const Node& n) {
  for (const ScalarFn fn : {ScalarFn::neg, ScalarFn::logical_not, ScalarFn::bit_not})
    if (is_map(n, fn))
      if (auto x = under(c, n.args[0], fn)) return x;
  return std::nullopt;
}

Rewritten add_negated(RewriteContext& c, const Node& n) {
  if (!is_map(n, ScalarFn::add) && !is_map(n, ScalarFn::sub)) return std::nullopt;
  if (auto y = under(c, n.args[1], ScalarFn::neg))
    return is_map(n, ScalarFn::add) ? c.b.sub(n.args[0], *y) : c.b.add(n.args[0], *y);
  if (auto x = under(c, n.args[0], ScalarFn::neg); x && is_map(n, ScalarFn::add))
    return c.b.sub(n.args[1], *x);
  return std::nullopt;
}

/// True if every value of `from` is a value of `to`.
bool holds_all(DType to, DType from) {
  if (to == from || from == DType::b1) return true;
  const auto bits = [](DType t) { return static_cast<int>(8 * size_of(t)); };
  if (is_float(from) && is_float(to)) return bits(to) > bits(from);
  if (is_float(from) || to == DType::b1) return false;
  if (is_float(to)) {
    const int mantissa = to == DType::f64 ? 53 : to == DType::f32 ? 24 : to == DType::f16 ? 11 : 8;
    return bits(from) - (is_signed_int(from) ? 1 : 0) <= mantissa;
  }
  if (is_unsigned_int(to)) return is_unsigned_int(from) && bits(to) >= bits(from);
  return is_unsigned_int(from) ? bits(to) > bits(from) : bits(to) >= bits(from);
}

Rewritten cast_of_cast(RewriteContext& c, const Node& n) {
  if (!is_map(n, ScalarFn::cast)) return std::nullopt;
  if (c.b.dtype(n.args[0]) == n.type.dtype) return n.args[0];
  const auto x = under(c, n.args[0], ScalarFn::cast);
  if (!x || !holds_all(c.b.dtype(n.args[0]), c.b.dtype(*x))) return std::nullopt;
  return c.b.cast(*x, n.type.dtype);
}

Rewritten same_arguments(RewriteContext& c, const Node& n) {
  const auto* m = std::get_if<Map>(&n.op);
  if (m == nullptr) return std::nullopt;
  const bool idempotent = m->fn == ScalarFn::max || m->fn == ScalarFn::min ||
                          m->fn == ScalarFn::logical_and || m->fn == ScalarFn::logical_or;
  if (idempotent && n.args[0] == n.args[1]) return n.args[0];
  if (m->fn != ScalarFn::select) return std::nullopt;
  if (n.args[1] == n.args[2]) return n.args[1];
  if (const auto condition = splat_value(c.g, n.args[0])) return n.args[*condition != 0 ? 1 : 2];
  return std::nullopt;
}

Rewritten nested_bound(RewriteContext& c, const Node& n) {
  for (const ScalarFn fn : {ScalarFn::max, ScalarFn::min}) {
    if (!is_map(n, fn) || !is_map(c.g[n.args[0]], fn)) continue;
    const Node inner = c.g[n.args[0]];
    if (splat(c.g, n.args[1]) == nullptr || splat(c.g, inner.args[1]) == nullptr) continue;
    return c.b.map(fn, {inner.args[0], c.b.map(fn, {inner.args[1], n.args[1]})});
  }
  return std::nullopt;
}

Rewritten constant_power(RewriteContext& c, const Node& n) {
  if (!is_map(n, ScalarFn::pow)) return std::nullopt;
  const auto e = splat_value(c.g, n.args[1]);
  const NodeId x = n.args[0];
  if (!e) return std::nullopt;
  if (*e == 1) return x;
  if (*e == 2) return c.b.mul(x, x);
  if (*e == 3) return c.b.mul(c.b.mul(x, x), x);
  if (!is_float(n.type.dtype)) return std::nullopt;
  if (*e == 0.5) return c.b.sqrt(x);
  if (*e == -1) return c.b.map(ScalarFn::recip, {x});
  if (*e == -0.5) return c.b.map(ScalarFn::recip, {c.b.sqrt(x)});
  return std::nullopt;
}

Rewritten div_by_power_of_two(RewriteContext& c, const Node& n) {
  if (!is_map(n, ScalarFn::div) || !is_float(n.type.dtype)) return std::nullopt;
  const auto d = splat_value(c.g, n.args[1]);
  int exponent = 0;
  // Within 2^±14 the reciprocal is a normal number of every floating type.
  if (!d || std::fabs(std::frexp(*d, &exponent)) != 0.5 || std::abs(exponent) > 14)
    return std::nullopt;
  return c.b.mul(n.args[0], 1 / *d);
}

/// One rounding more of the argument moves a smooth, bounded function by no more than its own
/// error.
Rewritten smooth_of_quotient(RewriteContext& c, const Node& n) {
  if (!is_map(n, ScalarFn::erf) && !is_map(n, ScalarFn::tanh)) return std::nullopt;
  const Node inner = c.g[n.args[0]];
  if (!is_map(inner, ScalarFn::div) || !wide_float(n.type.dtype)) return std::nullopt;
  const auto d = splat_value(c.g, inner.args[1]);
  if (!d || !(std::fabs(*d) > 1e-30 && std::fabs(*d) < 1e30)) return std::nullopt;
  return c.b.map(std::get<Map>(n.op).fn, {c.b.mul(inner.args[0], 1 / *d)});
}

/// What softplus(x) = max(x, 0) + log(1 + exp(-|x|)) is made of, as ops/activations.cpp writes it.
struct Softplus {
  NodeId positive, exp;  ///< x > 0, exp(-|x|)
};
std::optional<Softplus> softplus_of(const RewriteContext& c, NodeId linear, NodeId tail) {
  const Node bound = c.g[linear];
  const auto sum = under(c, tail, ScalarFn::log);
  if (!sum || !is_map(bound, ScalarFn::select) || !is_map(c.g[*sum], ScalarFn::add))
    return std::nullopt;
  const NodeId x = bound.args[1], exp = c.g[*sum].args[0];
  const auto inner = under(c, exp, ScalarFn::exp);
  if (!inner || !is_map(c.g[*inner], ScalarFn::select) || !is_splat(c, c.g[*sum].args[1], 1) ||
      !is_splat(c, bound.args[2], 0))
    return std::nullopt;
  const Node below = c.g[*inner], positive = c.g[bound.args[0]];
  const bool same = below.args[0] == bound.args[0] && below.args[2] == x &&
                    under(c, below.args[1], ScalarFn::neg) == x &&
                    is_map(positive, ScalarFn::greater) && positive.args[0] == x &&
                    is_splat(c, positive.args[1], 0);
  return same ? std::optional(Softplus{bound.args[0], exp}) : std::nullopt;
}

/// With a = exp(-|x|), tanh(softplus(x)) is (1 + 2a) / (1 + 2a + 2a²) above 0 and
/// a(a + 2) / (a(a + 2) + 2) below: no logarithm, no exponential more.
Rewritten tanh_of_softplus(RewriteContext& c, const Node& n) {
  if (!is_map(n, ScalarFn::tanh) || !is_float(n.type.dtype)) return std::nullopt;
  const Node sum = c.g[n.args[0]];
  if (!is_map(sum, ScalarFn::add)) return std::nullopt;
  auto parts = softplus_of(c, sum.args[0], sum.args[1]);
  if (!parts) parts = softplus_of(c, sum.args[1], sum.args[0]);
  if (!parts) return std::nullopt;
  const NodeId a = parts->exp, twice = c.b.add(a, a);
  const NodeId top =
      c.b.select(parts->positive, c.b.add(twice, 1.0), c.b.add(c.b.mul(a, a), twice));
  const NodeId rest = c.b.select(parts->positive, c.b.mul(twice, a), c.b.full(n.type, 2));
  return c.b.div(top, c.b.add(top, rest));
}

Rewritten div_by_broadcast(RewriteContext& c, const Node& n) {
  if (!is_map(n, ScalarFn::div) || !wide_float(n.type.dtype)) return std::nullopt;
  const Access* a = plain_view(c.g, n.args[1]);
  if (a == nullptr || splat(c.g, n.args[1]) != nullptr) return std::nullopt;
  const NodeId y = c.g[n.args[1]].args[0];
  if (element_count(c.b.shape(y)) * 8 > element_count(n.type.shape)) return std::nullopt;
  const Access access = *a;
  const NodeId inverse = c.b.map(ScalarFn::recip, {y});
  return c.b.mul(n.args[0], c.b.view(inverse, n.type.shape, access));
}

Rewritten scale_of_scale(RewriteContext& c, const Node& n) {
  if (!is_map(n, ScalarFn::mul) || !is_map(c.g[n.args[0]], ScalarFn::mul)) return std::nullopt;
  const Node inner = c.g[n.args[0]];
  const auto a = splat_value(c.g, inner.args[1]), b = splat_value(c.g, n.args[1]);
  if (!a || !b || !wide_float(n.type.dtype)) return std::nullopt;
  const double product = std::fabs(*a * *b);
  if (!(product > 1e-30 && product < 1e30)) return std::nullopt;
  return c.b.mul(inner.args[0], *a * *b);
}

/// a*x + a*y → a*(x + y), where both products serve nothing else. Constant factors stay: other rows
/// move them into constants.
Rewritten common_factor(RewriteContext& c, const Node& n) {
  const bool sum = is_map(n, ScalarFn::add);
  if ((!sum && !is_map(n, ScalarFn::sub)) || !wide_float(n.type.dtype)) return std::nullopt;
  const Node x = c.g[n.args[0]], y = c.g[n.args[1]];
  if (n.args[0] == n.args[1] || !is_map(x, ScalarFn::mul) || !is_map(y, ScalarFn::mul))
    return std::nullopt;
  if (!c.used_once(n.args[0]) || !c.used_once(n.args[1])) return std::nullopt;
  for (std::size_t i : {0, 1})
    for (std::size_t j : {0, 1})
      if (x.args[i] == y.args[j] && !c.constant(x.args[i])) {
        const NodeId a = x.args[1 - i], b = y.args[1 - j];
        return c.b.mul(x.args[i], sum ? c.b.add(a, b) : c.b.sub(a, b));
      }
  return std::nullopt;
}

/// Constants and broadcasts of them go right, so that other rows look in one place.
Rewritten constant_right(RewriteContext& c, const Node& n) {
  const auto* m = std::get_if<Map>(&n.op);
  if (m == nullptr) return std::nullopt;
  const bool commutes = m->fn == ScalarFn::add || m->fn == ScalarFn::mul ||
                        m->fn == ScalarFn::min || m->fn == ScalarFn::max;
  if (!commutes || !c.constant(n.args[0]) || c.constant(n.args[1])) return std::nullopt;
  return c.b.map(m->fn, {n.args[1], n.args[0]});
}

Rewritten map_of_splats(RewriteContext& c, const Node& n) {
  const auto* m = std::get_if<Map>(&n.op);
  if (m == nullptr) return std::nullopt;
  for (const NodeId a : n.args)
    if (splat(c.g, a) == nullptr) return std::nullopt;
  std::vector<NodeId> scalars;
  std::vector<Tensor> values;
  for (const NodeId a : n.args) {
    const Tensor t = splat(c.g, a)->reshaped({});
    scalars.push_back(c.b.constant(t));
    values.push_back(to_reference(t));
  }
  const NodeId scalar = c.g.add(*m, scalars, {n.type.dtype, {}});
  const Tensor value = from_reference(evaluate_node(c.g, scalar, values), n.type.dtype);
  return c.b.broadcast(c.b.constant(value), n.type.shape);
}

/// Both depend on constants only and their sum does not take more room than the larger.
bool add_up(RewriteContext& c, NodeId a, NodeId b) {
  if (!c.constant(a) || !c.constant(b)) return false;
  if (splat(c.g, a) != nullptr || splat(c.g, b) != nullptr) return true;
  const Access *va = plain_view(c.g, a), *vb = plain_view(c.g, b);
  return va != nullptr && vb != nullptr ? *va == *vb : va == nullptr && vb == nullptr;
}

/// (x ± p) ± q → x + (±p ± q).
Rewritten bias_of_bias(RewriteContext& c, const Node& n) {
  const bool minus = is_map(n, ScalarFn::sub);
  if ((!minus && !is_map(n, ScalarFn::add)) || !wide_float(n.type.dtype)) return std::nullopt;
  const Node inner = c.g[n.args[0]];
  const bool inner_minus = is_map(inner, ScalarFn::sub);
  if (!inner_minus && !is_map(inner, ScalarFn::add)) return std::nullopt;
  const NodeId p = inner.args[1], q = n.args[1];
  if (c.constant(inner.args[0]) || !add_up(c, p, q)) return std::nullopt;
  if (inner_minus)
    return minus ? c.b.sub(inner.args[0], c.b.add(p, q)) : c.b.add(inner.args[0], c.b.sub(q, p));
  return c.b.add(inner.args[0], minus ? c.b.sub(p, q) : c.b.add(p, q));
}

NodeId channel(Builder& b, float scale) {
  const float v[] = {scale, 2 * scale, 0.5f * scale, -scale};
  return b.constant(Tensor::from<float>(DType::f32, {4}, v));
}

constexpr RewriteRule kAlgebraRules[] = {
    {"constant-right", "c + x -> x + c (also *, min, max)", constant_right,
     [](Builder& b) { return b.add(channel(b, 1), x_of(b)); }},
    {"map-of-splats", "f(splat a, splat b) -> splat f(a, b)", map_of_splats,
     [](Builder& b) {
       const TensorType t{DType::f32, {2, 3}};
       return b.add(b.sqrt(b.full(t, 3)), b.graph().add_input("x", t));
     }},
    {"add-zero", "x + 0, x - 0 -> x", add_zero, [](Builder& b) { return b.add(x_of(b), 0.0); }},
    {"mul-one", "x * 1, x / 1 -> x", mul_one, [](Builder& b) { return b.div(x_of(b), 1.0); }},
    {"logical-constant", "x and true, x or false -> x; x and false -> false; x or true -> true",
     logical_constant,
     [](Builder& b) {
       const NodeId yes = b.full({DType::b1, {3, 4}}, 1);
       return b.map(ScalarFn::logical_and, {yes, b.cast(x_of(b), DType::b1)});
     }},
    {"double-negation", "-(-x), !!x, ~~x -> x", double_negation,
     [](Builder& b) { return b.neg(b.neg(x_of(b))); }},
    {"add-negated", "x + (-y) -> x - y, x - (-y) -> x + y", add_negated,
     [](Builder& b) {
       const NodeId x = x_of(b);
       return b.sub(b.exp(x), b.neg(x));
     }},
    {"cast-of-cast", "cast(cast(x)) -> cast(x)  if the middle type holds all of x's values",
     cast_of_cast, [](Builder& b) { return b.cast(b.cast(x_of(b), DType::f64), DType::f16); }},
    {"same-arguments", "max(x, x), select(c, x, x), select(true, x, y) -> x", same_arguments,
     [](Builder& b) {
       const NodeId x = x_of(b);
       return b.select(b.full({DType::b1, {3, 4}}, 1), x, b.exp(x));
     }},
    {"nested-bound", "max(max(x, p), q) -> max(x, max(p, q))", nested_bound,
     [](Builder& b) { return b.relu(b.max(x_of(b), b.scalar(DType::f32, -1))); }},
    {"constant-power",
     "x^2 -> x*x, x^0.5 -> sqrt x (their signs differ at -0 and -inf), x^-1 -> 1/x", constant_power,
     [](Builder& b) {
       return b.map(ScalarFn::pow, {x_of(b), b.scalar(DType::f32, 3)});
     }},
    {"div-by-power-of-two", "x / 2^k -> x * 2^-k", div_by_power_of_two,
     [](Builder& b) { return b.div(x_of(b), 8.0); }},
    {"div-by-broadcast", "x / broadcast(y) -> x * broadcast(1/y)", div_by_broadcast,
     [](Builder& b) {
       const NodeId x = x_of(b, {3, 16});
       return b.div(x, b.add(b.reduce_max(b.map(ScalarFn::abs, {x}), {1}), 1.0));
     }},
    {"smooth-of-quotient", "erf(x / c), tanh(x / c) -> erf(x * (1/c)), tanh(x * (1/c))",
     smooth_of_quotient, [](Builder& b) { return b.erf(b.div(x_of(b), 1.4142135)); }},
    {"tanh-of-softplus", "tanh(softplus(x)) -> a quotient of polynomials of exp(-|x|)",
     tanh_of_softplus,
     [](Builder& b) {
       const NodeId x = x_of(b), zero = b.full(b.type(x), 0);
       const NodeId above = b.map(ScalarFn::greater, {x, zero});
       const NodeId tail = b.log(b.add(b.exp(b.select(above, b.neg(x), x)), 1.0));
       return b.tanh(b.add(b.select(above, x, zero), tail));
     }},
    {"scale-of-scale", "(x * p) * q -> x * (p*q)", scale_of_scale,
     [](Builder& b) { return b.mul(b.mul(x_of(b), 0.3), 0.7); }},
    {"common-factor",
     "a*x + a*y -> a*(x + y), also with - (an infinite a may give NaN for one of them)",
     common_factor,
     [](Builder& b) {
       const NodeId a = x_of(b), y = b.graph().add_input("y", b.type(a));
       const NodeId z = b.graph().add_input("z", b.type(a));
       return b.add(b.mul(a, y), b.mul(z, a));
     }},
    {"bias-of-bias", "(x + p) + q -> x + (p + q), also with -", bias_of_bias,
     [](Builder& b) { return b.sub(b.add(x_of(b), channel(b, 1)), channel(b, 3)); }},
};

}  // namespace

std::span<const RewriteRule> algebra_rules() { return kAlgebraRules; }

}  // namespace heddle::prim

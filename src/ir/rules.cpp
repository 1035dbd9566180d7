#include "ir/rules.h"

#include <numeric>

#include "ir/arith.h"

namespace heddle::ir {
namespace {

using Kind = IndexNode::Kind;
using Term = IndexNode::Term;
using Rewritten = std::optional<Expr>;

/// Calls f(coefficient, atom) for each term of e seen as a sum, and returns its constant.
template <class F>
std::int64_t for_each_term(const Expr& e, F&& f) {
  const IndexNode& n = e.node();
  if (n.kind != Kind::sum) {
    f(std::int64_t{1}, e);
    return 0;
  }
  for (const Term& t : n.terms) f(t.coefficient, t.atom);
  return n.constant;
}

/// e = g·multiple + rest, where rest holds the terms that g does not divide, and rest's bounds lie
/// inside one multiple of g: [m·g, (m+1)·g) for m = `offset`.
struct Split {
  std::int64_t g = 1;
  Expr multiple, rest;
  std::int64_t offset = 0;
};

std::optional<Split> split_by(const Expr& e, std::int64_t g, const Ranges& ranges) {
  Split s{g, 0, 0, 0};
  const std::int64_t c = for_each_term(e, [&](std::int64_t k, const Expr& atom) {
    if (k % g == 0)
      s.multiple = s.multiple + atom * (k / g);
    else
      s.rest = s.rest + atom * k;
  });
  s.rest = s.rest + floor_mod_int(c, g);
  s.multiple = s.multiple + floor_div_int(c, g);
  const auto b = bounds(s.rest, ranges);
  if (!b) return std::nullopt;
  s.offset = floor_div_int(b->low, g);
  if (floor_div_int(b->high, g) != s.offset) return std::nullopt;
  return s;
}

/// The largest g > 1 that divides `divisor` and splits e so.
std::optional<Split> best_split(const Expr& e, std::int64_t divisor, const Ranges& ranges) {
  std::optional<Split> best;
  std::int64_t last = 1;
  for_each_term(e, [&](std::int64_t k, const Expr&) {
    const std::int64_t g = std::gcd(k, divisor);
    if (g == 1 || g == last || (best && best->g >= g)) return;
    last = g;
    if (auto s = split_by(e, g, ranges)) best = std::move(s);
  });
  return best;
}

Rewritten fixed(const Expr& e, const Ranges& ranges) {
  if (e.constant()) return std::nullopt;
  const auto b = bounds(e, ranges);
  if (!b || b->low != b->high) return std::nullopt;
  return Expr(b->low);
}

Rewritten div_multiple(const Expr& e, const Ranges&) {
  const std::int64_t d = e.node().constant;
  Expr quotient = 0, rest = 0;
  const std::int64_t c = for_each_term(e.node().args[0], [&](std::int64_t k, const Expr& atom) {
    if (k % d == 0)
      quotient = quotient + atom * (k / d);
    else
      rest = rest + atom * k;
  });
  quotient = quotient + floor_div_int(c, d);
  if (quotient.is_constant(0)) return std::nullopt;
  return quotient + floor_div(rest + floor_mod_int(c, d), d);
}

Rewritten div_small_rest(const Expr& e, const Ranges& ranges) {
  const std::int64_t d = e.node().constant;
  const auto s = best_split(e.node().args[0], d, ranges);
  if (!s) return std::nullopt;
  return floor_div(s->multiple + s->offset, d / s->g);
}

/// x with k·y written as k·m·(y / m) + k·(y % m) where y % m is there too; nullopt if it is
/// nowhere.
Rewritten in_digits(const Expr& x) {
  const IndexNode& n = x.node();
  for (const Term& t : n.terms) {
    const IndexNode& mod = t.atom.node();
    if (mod.kind != Kind::mod) continue;
    for (const Term& whole : n.terms) {
      if (!(whole.atom == mod.args[0])) continue;
      const auto scale = mul_or_none(whole.coefficient, mod.constant);
      if (!scale) continue;
      return x - whole.atom * whole.coefficient + floor_div(whole.atom, mod.constant) * *scale +
             t.atom * whole.coefficient;
    }
  }
  return std::nullopt;
}

Rewritten div_digits(const Expr& e, const Ranges& ranges) {
  const auto digits = in_digits(e.node().args[0]);
  if (!digits) return std::nullopt;
  const auto s = best_split(*digits, e.node().constant, ranges);
  if (!s) return std::nullopt;
  return floor_div(s->multiple + s->offset, e.node().constant / s->g);
}

Rewritten mod_digits(const Expr& e, const Ranges& ranges) {
  const std::int64_t d = e.node().constant;
  const auto digits = in_digits(e.node().args[0]);
  if (!digits) return std::nullopt;
  const auto s = best_split(*digits, d, ranges);
  if (!s) return std::nullopt;
  return floor_mod(s->multiple + s->offset, d / s->g) * s->g + (s->rest - s->offset * s->g);
}

/// x when e is x / a or (x / a) + constant.
struct InnerDiv {
  Expr x;
  std::int64_t divisor, constant;
};
std::optional<InnerDiv> inner_div(const Expr& e) {
  const IndexNode& n = e.node();
  if (n.kind == Kind::div) return InnerDiv{n.args[0], n.constant, 0};
  if (n.kind != Kind::sum || n.terms.size() != 1 || n.terms[0].coefficient != 1)
    return std::nullopt;
  const IndexNode& atom = n.terms[0].atom.node();
  if (atom.kind != Kind::div) return std::nullopt;
  return InnerDiv{atom.args[0], atom.constant, n.constant};
}

Rewritten div_div(const Expr& e, const Ranges&) {
  const auto inner = inner_div(e.node().args[0]);
  if (!inner) return std::nullopt;
  const auto divisor = mul_or_none(inner->divisor, e.node().constant);
  const auto shift = mul_or_none(inner->constant, inner->divisor);
  if (!divisor || !shift) return std::nullopt;
  return floor_div(inner->x + *shift, *divisor);
}

Rewritten div_mod(const Expr& e, const Ranges&) {
  const std::int64_t d = e.node().constant;
  const IndexNode& inner = e.node().args[0].node();
  if (inner.kind != Kind::mod || inner.constant % d != 0) return std::nullopt;
  return floor_mod(floor_div(inner.args[0], d), inner.constant / d);
}

Rewritten mod_in_range(const Expr& e, const Ranges& ranges) {
  const std::int64_t d = e.node().constant;
  const auto b = bounds(e.node().args[0], ranges);
  if (!b || floor_div_int(b->low, d) != floor_div_int(b->high, d)) return std::nullopt;
  const auto shift = mul_or_none(floor_div_int(b->low, d), d);
  if (!shift) return std::nullopt;
  return e.node().args[0] - *shift;
}

Rewritten mod_multiple(const Expr& e, const Ranges&) {
  const std::int64_t d = e.node().constant;
  Expr rest = 0;
  bool changed = false;
  const std::int64_t c = for_each_term(e.node().args[0], [&](std::int64_t k, const Expr& atom) {
    changed |= k % d != k;
    rest = rest + atom * (k % d);
  });
  changed |= floor_mod_int(c, d) != c;
  if (!changed) return std::nullopt;
  return floor_mod(rest + floor_mod_int(c, d), d);
}

Rewritten mod_small_rest(const Expr& e, const Ranges& ranges) {
  const std::int64_t d = e.node().constant;
  const auto s = best_split(e.node().args[0], d, ranges);
  if (!s) return std::nullopt;
  return floor_mod(s->multiple + s->offset, d / s->g) * s->g + (s->rest - s->offset * s->g);
}

Rewritten mod_mod(const Expr& e, const Ranges&) {
  const std::int64_t d = e.node().constant;
  Expr sum = 0;
  bool changed = false;
  const std::int64_t c = for_each_term(e.node().args[0], [&](std::int64_t k, const Expr& atom) {
    const IndexNode& n = atom.node();
    const bool drop = n.kind == Kind::mod && mul_or_none(k % d, n.constant).value_or(1) % d == 0;
    changed |= drop;
    sum = sum + (drop ? n.args[0] : atom) * k;
  });
  if (!changed) return std::nullopt;
  return floor_mod(sum + c, d);
}

/// k·m·(x / m) + k·(x % m) → k·x, where x / m stands there in whatever form it simplifies to.
Rewritten split_rejoin(const Expr& e, const Ranges& ranges) {
  for (const Term& t : e.node().terms) {
    const IndexNode& mod = t.atom.node();
    if (mod.kind != Kind::mod) continue;
    const auto scale = mul_or_none(t.coefficient, mod.constant);
    if (!scale) continue;
    const Expr quotient = simplify(floor_div(mod.args[0], mod.constant), ranges);
    if (quotient.constant()) continue;
    const Expr others = e - t.atom * t.coefficient, rest = others - quotient * *scale;
    // The quotient must be there: what is left over of it would loosen the bounds.
    if (node_count(rest) >= node_count(others)) continue;
    const Expr rejoined = rest + mod.args[0] * t.coefficient;
    if (node_count(rejoined) < node_count(e)) return rejoined;
  }
  return std::nullopt;
}

/// k·m·(x / m) + k·(y % m) → k·x, where y differs from x by multiples of m.
Rewritten rejoin_modulo(const Expr& e, const Ranges&) {
  for (const Term& t : e.node().terms) {
    const IndexNode& mod = t.atom.node();
    if (mod.kind != Kind::mod) continue;
    const auto scale = mul_or_none(t.coefficient, mod.constant);
    if (!scale) continue;
    for (const Term& u : e.node().terms) {
      const IndexNode& div = u.atom.node();
      if (div.kind != Kind::div || div.constant != mod.constant || u.coefficient != *scale)
        continue;
      bool multiple = true;
      const std::int64_t c =
          for_each_term(div.args[0] - mod.args[0],
                        [&](std::int64_t k, const Expr&) { multiple &= k % mod.constant == 0; });
      if (!multiple || c % mod.constant != 0) continue;
      const Expr rejoined =
          e - t.atom * t.coefficient - u.atom * *scale + div.args[0] * t.coefficient;
      if (node_count(rejoined) < node_count(e)) return rejoined;
    }
  }
  return std::nullopt;
}

/// k·x - k·m·(x / m) → k·(x % m).
Rewritten sub_multiple(const Expr& e, const Ranges&) {
  for (const Term& t : e.node().terms) {
    const IndexNode& div = t.atom.node();
    if (div.kind != Kind::div || t.coefficient % div.constant != 0) continue;
    const std::int64_t k = -(t.coefficient / div.constant);
    const Expr shorter = e - t.atom * t.coefficient - div.args[0] * k;
    const Expr joined = shorter + floor_mod(div.args[0], div.constant) * k;
    if (node_count(joined) < node_count(e)) return joined;
  }
  return std::nullopt;
}

template <bool kMin>
Rewritten choose(const Expr& e, const Ranges& ranges) {
  const Expr &x = e.node().args[0], &y = e.node().args[1];
  const auto b = bounds(y - x, ranges);
  if (!b) return std::nullopt;
  if (b->low >= 0) return kMin ? x : y;
  if (b->high <= 0) return kMin ? y : x;
  return std::nullopt;
}

constexpr IndexRule kRules[] = {
    {"fixed-sum", "x -> c  if x is always c", Kind::sum, fixed, "d4*3 + 2"},
    {"fixed-variable", "x -> c  if x is always c", Kind::var, fixed, "d4"},
    {"split-rejoin", "(x/m)*(k*m) + (x%m)*k -> x*k", Kind::sum, split_rejoin,
     "(d5 / 8)*8 + d5 % 8"},
    {"rejoin-modulo", "(x/m)*(k*m) + (y%m)*k -> x*k  if m divides x - y", Kind::sum, rejoin_modulo,
     "((d0*9 + d5) / 8)*8 + (d0 + d5) % 8"},
    {"sub-multiple", "x*k - (x/m)*(k*m) -> (x%m)*k", Kind::sum, sub_multiple, "d5*2 - (d5 / 8)*16"},
    {"fixed-div", "x / d -> c  if it is always c", Kind::div, fixed, "d0 / 16"},
    {"div-multiple", "(x*(q*d) + y) / d -> x*q + y / d", Kind::div, div_multiple,
     "(d0*24 + d5) / 8"},
    {"div-small-rest", "(x*g + y) / d -> (x + m) / (d/g)  if g divides d, y in [m*g, m*g+g)",
     Kind::div, div_small_rest, "(d0*8 + d1) / 32"},
    {"div-digits", "(x*k + (x%m)*j + y) / d -> ((x/m)*(k*m) + (x%m)*(k+j) + y) / d  if that splits",
     Kind::div, div_digits, "(d5*5 - (d5 % 3)*4 + d2*3) / 15"},
    {"div-div", "(x/a + c) / b -> (x + c*a) / (a*b)", Kind::div, div_div, "(d5 / 4 + 1) / 3"},
    {"div-mod", "(x % (a*b)) / b -> (x / b) % a", Kind::div, div_mod, "(d5 % 24) / 8"},
    {"fixed-mod", "x % d -> c  if it is always c", Kind::mod, fixed, "(d4 + 7) % 5"},
    {"mod-in-range", "x % d -> x - m*d  if x in [m*d, m*d+d)", Kind::mod, mod_in_range, "d0 % 16"},
    {"mod-multiple", "(x*(q*d + r) + y) % d -> (x*r + y) % d", Kind::mod, mod_multiple,
     "(d0*9 + d5 + 17) % 8"},
    {"mod-small-rest",
     "(x*g + y) % d -> ((x + m) % (d/g))*g + y - m*g  if g divides d, y in [m*g, m*g+g)", Kind::mod,
     mod_small_rest, "(d0*8 + d1) % 32"},
    {"mod-digits", "(x*k + (x%m)*j + y) % d -> ((x/m)*(k*m) + (x%m)*(k+j) + y) % d  if that splits",
     Kind::mod, mod_digits, "(d5*5 - (d5 % 3)*4 + d2*3) % 30"},
    {"mod-mod", "((x % m)*k + y) % d -> (x*k + y) % d  if d divides k*m", Kind::mod, mod_mod,
     "(d5 % 24 + d0) % 8"},
    {"fixed-min", "min(x, y) -> c  if it is always c", Kind::min, fixed, "min(d4, d0)"},
    {"min-decided", "min(x, y) -> x  if x <= y always", Kind::min, choose<true>,
     "min(d0, d1 + 15)"},
    {"fixed-max", "max(x, y) -> c  if it is always c", Kind::max, fixed, "max(d4, 0 - d0)"},
    {"max-decided", "max(x, y) -> y  if x <= y always", Kind::max, choose<false>,
     "max(d0, d1 + 15)"},
};

}  // namespace

std::span<const IndexRule> index_rules() { return kRules; }

Ranges example_ranges() {
  return {Interval{0, 15}, Interval{0, 7}, Interval{0, 3},
          Interval{-3, 4}, Interval{0, 0}, Interval{0, 999}};
}

}  // namespace heddle::ir

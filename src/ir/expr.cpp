#include "ir/expr.h"

#include <algorithm>
#include <array>
#include <limits>

#include "ir/arith.h"
#include "support/hash.h"
#include "support/result.h"

namespace heddle::ir {
namespace {

using Kind = IndexNode::Kind;
using NodePtr = std::shared_ptr<const IndexNode>;
using Term = IndexNode::Term;

std::size_t mix(std::size_t seed, std::int64_t value) {
  return combine(seed * 0x9ddfea08eb382d69ull, static_cast<std::size_t>(value));
}

std::size_t hash_of(const IndexNode& n) {
  std::size_t h = mix(static_cast<std::size_t>(n.kind) + 1, n.constant);
  if (n.kind == Kind::var) h = mix(h, n.var.index);
  for (const Term& t : n.terms)
    h = mix(mix(h, t.coefficient), static_cast<std::int64_t>(t.atom.hash()));
  for (const Expr& a : n.args) h = mix(h, static_cast<std::int64_t>(a.hash()));
  return h;
}

NodePtr finish(IndexNode n) {
  n.hash = hash_of(n);
  return std::make_shared<const IndexNode>(std::move(n));
}

NodePtr make_constant(std::int64_t value) {
  return finish({.kind = Kind::sum, .constant = value, .var = {}, .terms = {}, .args = {}});
}
NodePtr make_variable(Var var) {
  return finish({.kind = Kind::var, .constant = 0, .var = var, .terms = {}, .args = {}});
}

// Small constants and variables are shared: they are most of the leaves ever made.
constexpr std::int64_t kLowShared = -16, kHighShared = 256;
constexpr std::int32_t kSharedVars = 32;

const NodePtr& shared_constant(std::int64_t value) {
  static const std::vector<NodePtr> nodes = [] {
    std::vector<NodePtr> all;
    for (std::int64_t v = kLowShared; v <= kHighShared; ++v) all.push_back(make_constant(v));
    return all;
  }();
  return nodes[static_cast<std::size_t>(value - kLowShared)];
}

const NodePtr& shared_variable(std::int32_t index) {
  static const std::vector<NodePtr> nodes = [] {
    std::vector<NodePtr> all;
    for (std::int32_t v = 0; v < kSharedVars; ++v) all.push_back(make_variable(Var{v}));
    return all;
  }();
  return nodes[static_cast<std::size_t>(index)];
}

std::strong_ordering compare(const IndexNode& a, const IndexNode& b) {
  if (&a == &b) return std::strong_ordering::equal;
  if (auto c = a.kind <=> b.kind; c != 0) return c;
  if (auto c = a.var <=> b.var; c != 0) return c;
  const std::size_t terms = std::min(a.terms.size(), b.terms.size());
  for (std::size_t i = 0; i < terms; ++i) {
    if (auto c = compare(a.terms[i].atom.node(), b.terms[i].atom.node()); c != 0) return c;
    if (auto c = a.terms[i].coefficient <=> b.terms[i].coefficient; c != 0) return c;
  }
  if (auto c = a.terms.size() <=> b.terms.size(); c != 0) return c;
  for (std::size_t i = 0; i < std::min(a.args.size(), b.args.size()); ++i)
    if (auto c = compare(a.args[i].node(), b.args[i].node()); c != 0) return c;
  return a.constant <=> b.constant;
}

bool equal(const IndexNode& a, const IndexNode& b) {
  return &a == &b || (a.hash == b.hash && compare(a, b) == 0);
}

/// The sum `constant + Σ terms` in its canonical form; terms are ordered and unique already.
Expr make_sum(std::int64_t constant, std::vector<Term> terms) {
  if (terms.empty()) return Expr(constant);
  if (constant == 0 && terms.size() == 1 && terms[0].coefficient == 1) return terms[0].atom;
  return Expr(finish(
      {.kind = Kind::sum, .constant = constant, .var = {}, .terms = std::move(terms), .args = {}}));
}

Expr make_call(Kind kind, std::int64_t constant, std::vector<Expr> args) {
  return Expr(finish(
      {.kind = kind, .constant = constant, .var = {}, .terms = {}, .args = std::move(args)}));
}

/// The terms of any expression seen as a sum.
struct SumView {
  std::int64_t constant = 0;
  Term single{1, Expr()};
  const Term* begin = nullptr;
  const Term* end = nullptr;
  explicit SumView(const Expr& e) {
    const IndexNode& n = e.node();
    if (n.kind == Kind::sum) {
      constant = n.constant;
      begin = n.terms.data();
      end = begin + n.terms.size();
    } else {
      single.atom = e;
      begin = &single;
      end = begin + 1;
    }
  }
  SumView(const SumView&) = delete;
  SumView& operator=(const SumView&) = delete;
};

/// a + factor · b by merging two ordered lists of terms.
Expr add_scaled(const Expr& a, const Expr& b, std::int64_t factor) {
  const SumView x(a), y(b);
  std::vector<Term> terms;
  terms.reserve(static_cast<std::size_t>((x.end - x.begin) + (y.end - y.begin)));
  const Term *p = x.begin, *q = y.begin;
  while (p != x.end || q != y.end) {
    const std::strong_ordering order = p == x.end   ? std::strong_ordering::greater
                                       : q == y.end ? std::strong_ordering::less
                                                    : compare(p->atom.node(), q->atom.node());
    std::int64_t coefficient = order <= 0 ? p->coefficient : 0;
    if (order >= 0) coefficient = add_checked(coefficient, mul_checked(factor, q->coefficient));
    if (coefficient != 0) terms.push_back({coefficient, order <= 0 ? p->atom : q->atom});
    if (order <= 0) ++p;
    if (order >= 0) ++q;
  }
  return make_sum(add_checked(x.constant, mul_checked(factor, y.constant)), std::move(terms));
}

}  // namespace

Expr::Expr(std::int64_t value)
    : node_(value >= kLowShared && value <= kHighShared ? shared_constant(value)
                                                        : make_constant(value)) {}
Expr::Expr(Var var)
    : node_(var.index >= 0 && var.index < kSharedVars ? shared_variable(var.index)
                                                      : make_variable(var)) {}

std::optional<std::int64_t> Expr::constant() const {
  if (node_->kind == Kind::sum && node_->terms.empty()) return node_->constant;
  return std::nullopt;
}
std::optional<Var> Expr::variable() const {
  if (node_->kind == Kind::var) return node_->var;
  return std::nullopt;
}
std::size_t Expr::hash() const { return node_->hash; }

Expr operator+(const Expr& a, const Expr& b) {
  if (a.is_constant(0)) return b;
  if (b.is_constant(0)) return a;
  return add_scaled(a, b, 1);
}
Expr operator-(const Expr& a, const Expr& b) {
  if (b.is_constant(0)) return a;
  return add_scaled(a, b, -1);
}
Expr operator*(const Expr& a, const Expr& b) {
  const bool right = b.constant().has_value();
  HEDDLE_CHECK(right || a.constant(), "product of {} and {} is not affine", to_string(a),
               to_string(b));
  const std::int64_t factor = right ? *b.constant() : *a.constant();
  const Expr& e = right ? a : b;
  if (factor == 1) return e;
  if (factor == 0) return Expr(0);
  return add_scaled(Expr(0), e, factor);
}
bool operator==(const Expr& a, const Expr& b) { return equal(*a.node_, *b.node_); }
std::strong_ordering operator<=>(const Expr& a, const Expr& b) {
  return compare(*a.node_, *b.node_);
}

Expr floor_div(const Expr& a, std::int64_t divisor) {
  HEDDLE_CHECK(divisor > 0, "division of {} by {}", to_string(a), divisor);
  if (divisor == 1) return a;
  if (auto c = a.constant()) return floor_div_int(*c, divisor);
  return make_call(Kind::div, divisor, {a});
}
Expr floor_mod(const Expr& a, std::int64_t divisor) {
  HEDDLE_CHECK(divisor > 0, "remainder of {} by {}", to_string(a), divisor);
  if (divisor == 1) return 0;
  if (auto c = a.constant()) return floor_mod_int(*c, divisor);
  return make_call(Kind::mod, divisor, {a});
}
Expr min(const Expr& a, const Expr& b) {
  if (a.constant() && b.constant()) return std::min(*a.constant(), *b.constant());
  if (a == b) return a;
  return a <= b ? make_call(Kind::min, 0, {a, b}) : make_call(Kind::min, 0, {b, a});
}
Expr max(const Expr& a, const Expr& b) {
  if (a.constant() && b.constant()) return std::max(*a.constant(), *b.constant());
  if (a == b) return a;
  return a <= b ? make_call(Kind::max, 0, {a, b}) : make_call(Kind::max, 0, {b, a});
}

Expr map_children(const Expr& e, const std::function<Expr(const Expr&)>& f) {
  const IndexNode& n = e.node();
  switch (n.kind) {
    case Kind::var:
      return e;
    case Kind::sum: {
      // Only a changed atom needs the sum to be put in order again.
      bool changed = false;
      std::vector<Expr> atoms;
      atoms.reserve(n.terms.size());
      for (const Term& t : n.terms) {
        atoms.push_back(f(t.atom));
        changed |= !(atoms.back() == t.atom);
      }
      if (!changed) return e;
      Expr sum = n.constant;
      for (std::size_t i = 0; i < atoms.size(); ++i)
        sum = add_scaled(sum, atoms[i], n.terms[i].coefficient);
      return sum;
    }
    case Kind::div:
    case Kind::mod: {
      const Expr a = f(n.args[0]);
      if (a == n.args[0]) return e;
      return n.kind == Kind::div ? floor_div(a, n.constant) : floor_mod(a, n.constant);
    }
    case Kind::min:
    case Kind::max: {
      const Expr a = f(n.args[0]), b = f(n.args[1]);
      if (a == n.args[0] && b == n.args[1]) return e;
      return n.kind == Kind::min ? min(a, b) : max(a, b);
    }
  }
  return e;
}

}  // namespace heddle::ir

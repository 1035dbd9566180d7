// What can be asked of an index expression: bounds, values, variables, text.
#include <algorithm>

#include "ir/arith.h"
#include "ir/expr.h"

namespace heddle::ir {
namespace {

using Kind = IndexNode::Kind;

std::optional<Interval> sum_bounds(const IndexNode& n, const Ranges& ranges) {
  Interval total{n.constant, n.constant};
  for (const IndexNode::Term& t : n.terms) {
    const auto b = bounds(t.atom, ranges);
    if (!b) return std::nullopt;
    auto low = mul_or_none(t.coefficient, b->low), high = mul_or_none(t.coefficient, b->high);
    if (!low || !high) return std::nullopt;
    if (t.coefficient < 0) std::swap(low, high);
    low = add_or_none(total.low, *low);
    high = add_or_none(total.high, *high);
    if (!low || !high) return std::nullopt;
    total = {*low, *high};
  }
  return total;
}

Interval mod_bounds(const Interval& a, std::int64_t divisor) {
  if (floor_div_int(a.low, divisor) == floor_div_int(a.high, divisor))
    return {floor_mod_int(a.low, divisor), floor_mod_int(a.high, divisor)};
  return {0, divisor - 1};
}

std::string factor_text(const Expr& e) {
  switch (e.node().kind) {
    case Kind::var:
    case Kind::min:
    case Kind::max:
      return to_string(e);
    case Kind::sum: {
      const auto c = e.constant();
      return c && *c >= 0 ? to_string(e) : "(" + to_string(e) + ")";
    }
    case Kind::div:
    case Kind::mod:
      return "(" + to_string(e) + ")";
  }
  return {};
}

std::string sum_text(const IndexNode& n) {
  std::string text;
  for (const IndexNode::Term& t : n.terms) {
    std::int64_t c = t.coefficient;
    if (!text.empty()) text += c < 0 ? " - " : " + ";
    // INT64_MIN has no positive counterpart; it stays a factor.
    if (!text.empty() && c < 0 && c != INT64_MIN) c = -c;
    text += c == 1 ? (t.atom.node().kind == Kind::div || t.atom.node().kind == Kind::mod
                          ? to_string(t.atom)
                          : factor_text(t.atom))
                   : fmt::format("{}*{}", factor_text(t.atom), c);
  }
  if (text.empty()) return fmt::format("{}", n.constant);
  if (n.constant > 0) text += fmt::format(" + {}", n.constant);
  if (n.constant < 0) text += " - " + fmt::format("{}", n.constant).substr(1);
  return text;
}

}  // namespace

Ranges ranges_of(const std::vector<std::int64_t>& extents) {
  Ranges ranges;
  for (std::int64_t e : extents) ranges.push_back(Interval{0, std::max<std::int64_t>(e, 1) - 1});
  return ranges;
}

std::optional<Interval> bounds(const Expr& e, const Ranges& ranges) {
  const IndexNode& n = e.node();
  switch (n.kind) {
    case Kind::sum:
      return sum_bounds(n, ranges);
    case Kind::var: {
      const auto i = static_cast<std::size_t>(n.var.index);
      return n.var.index >= 0 && i < ranges.size() ? ranges[i] : std::nullopt;
    }
    case Kind::div:
    case Kind::mod: {
      const auto a = bounds(n.args[0], ranges);
      if (!a) return std::nullopt;
      if (n.kind == Kind::mod) return mod_bounds(*a, n.constant);
      return Interval{floor_div_int(a->low, n.constant), floor_div_int(a->high, n.constant)};
    }
    case Kind::min:
    case Kind::max: {
      const auto a = bounds(n.args[0], ranges), b = bounds(n.args[1], ranges);
      if (!a || !b) return std::nullopt;
      // max(x, c - x) is at least c/2 and min at most, as in reflections about a point.
      const auto c = (n.args[0] + n.args[1]).constant();
      if (n.kind == Kind::min) {
        const std::int64_t high = std::min(a->high, b->high);
        return Interval{std::min(a->low, b->low), c ? std::min(high, floor_div_int(*c, 2)) : high};
      }
      const std::int64_t low = std::max(a->low, b->low);
      return Interval{c ? std::max(low, -floor_div_int(-*c, 2)) : low, std::max(a->high, b->high)};
    }
  }
  return std::nullopt;
}

namespace {

/// Bounds of e that follow from `c`, when e = m·c.expr + rest.
std::optional<Interval> bounds_through(const Expr& e, const Condition& c, const Ranges& ranges) {
  const IndexNode &cn = c.expr.node(), &en = e.node();
  const bool sum = cn.kind == Kind::sum;
  if (sum && cn.terms.empty()) return std::nullopt;
  const Expr& lead = sum ? cn.terms[0].atom : c.expr;
  const std::int64_t in_condition = sum ? cn.terms[0].coefficient : 1;
  std::int64_t in_e = 0;
  if (en.kind != Kind::sum) in_e = e == lead ? 1 : 0;
  for (const IndexNode::Term& t : en.terms)
    if (t.atom == lead) in_e = t.coefficient;
  if (in_e == 0 || in_e % in_condition != 0) return std::nullopt;
  const std::int64_t m = in_e / in_condition;
  const Expr rest = e - c.expr * m;
  const auto b = bounds(rest, ranges);
  auto low = mul_or_none(m, c.low), high = mul_or_none(m, c.high - 1);
  if (!b || !low || !high) return std::nullopt;
  if (m < 0) std::swap(low, high);
  low = add_or_none(*low, b->low);
  high = add_or_none(*high, b->high);
  if (!low || !high) return std::nullopt;
  return Interval{*low, *high};
}

std::optional<Interval> structural_where(const Expr& e, const std::vector<Condition>& conditions,
                                         const Ranges& ranges) {
  const IndexNode& n = e.node();
  if (n.kind == Kind::sum || n.kind == Kind::var) return bounds(e, ranges);
  const auto a = bounds_where(n.args[0], conditions, ranges);
  if (!a) return std::nullopt;
  if (n.kind == Kind::mod) return mod_bounds(*a, n.constant);
  if (n.kind == Kind::div)
    return Interval{floor_div_int(a->low, n.constant), floor_div_int(a->high, n.constant)};
  const auto b = bounds_where(n.args[1], conditions, ranges);
  if (!b) return std::nullopt;
  if (n.kind == Kind::min) return Interval{std::min(a->low, b->low), std::min(a->high, b->high)};
  return Interval{std::max(a->low, b->low), std::max(a->high, b->high)};
}

}  // namespace

std::optional<Interval> bounds_where(const Expr& e, const std::vector<Condition>& conditions,
                                     const Ranges& ranges) {
  if (conditions.empty()) return bounds(e, ranges);
  Ranges narrowed = ranges;
  for (const Condition& c : conditions) {
    const auto v = c.expr.variable();
    if (!v || static_cast<std::size_t>(v->index) >= narrowed.size()) continue;
    auto& r = narrowed[static_cast<std::size_t>(v->index)];
    if (r) r = Interval{std::max(r->low, c.low), std::min(r->high, c.high - 1)};
    if (r && r->low > r->high) return Interval{0, -1};
  }
  auto result = structural_where(e, conditions, narrowed);
  for (const Condition& c : conditions) {
    if (c.low >= c.high) return Interval{0, -1};
    const auto b = bounds_through(e, c, narrowed);
    if (b && result)
      result = Interval{std::max(result->low, b->low), std::min(result->high, b->high)};
    else if (b)
      result = b;
  }
  return result;
}

Expr substitute(const Expr& e, const std::function<std::optional<Expr>(Var)>& replacement) {
  if (const auto v = e.variable()) return replacement(*v).value_or(e);
  return map_children(e, [&](const Expr& c) { return substitute(c, replacement); });
}

Expr substitute(const Expr& e, const std::vector<Expr>& values) {
  if (const auto v = e.variable()) {
    const auto i = static_cast<std::size_t>(v->index);
    return v->index >= 0 && i < values.size() ? values[i] : e;
  }
  if (e.constant()) return e;
  return map_children(e, [&](const Expr& c) { return substitute(c, values); });
}

std::int64_t evaluate(const Expr& e, const std::vector<std::int64_t>& values) {
  const IndexNode& n = e.node();
  switch (n.kind) {
    case Kind::sum: {
      std::int64_t total = n.constant;
      for (const IndexNode::Term& t : n.terms)
        total = add_checked(total, mul_checked(t.coefficient, evaluate(t.atom, values)));
      return total;
    }
    case Kind::var: {
      const auto i = static_cast<std::size_t>(n.var.index);
      HEDDLE_CHECK(n.var.index >= 0 && i < values.size(), "d{} has no value", n.var.index);
      return values[i];
    }
    case Kind::div:
      return floor_div_int(evaluate(n.args[0], values), n.constant);
    case Kind::mod:
      return floor_mod_int(evaluate(n.args[0], values), n.constant);
    case Kind::min:
      return std::min(evaluate(n.args[0], values), evaluate(n.args[1], values));
    case Kind::max:
      return std::max(evaluate(n.args[0], values), evaluate(n.args[1], values));
  }
  return 0;
}

bool depends_on(const Expr& e, Var var) {
  const IndexNode& n = e.node();
  if (n.kind == Kind::var) return n.var == var;
  const auto in = [&](const Expr& c) { return depends_on(c, var); };
  return std::any_of(n.args.begin(), n.args.end(), in) ||
         std::any_of(n.terms.begin(), n.terms.end(), [&](const auto& t) { return in(t.atom); });
}

void collect_variables(const Expr& e, std::vector<Var>& out) {
  const IndexNode& n = e.node();
  if (n.kind == Kind::var) {
    const auto at = std::lower_bound(out.begin(), out.end(), n.var);
    if (at == out.end() || *at != n.var) out.insert(at, n.var);
  }
  for (const auto& t : n.terms) collect_variables(t.atom, out);
  for (const Expr& a : n.args) collect_variables(a, out);
}

std::optional<std::int64_t> coefficient_of(const Expr& e, Var var) {
  const IndexNode& n = e.node();
  if (n.kind == Kind::var) return n.var == var ? 1 : 0;
  if (n.kind != Kind::sum) {
    if (depends_on(e, var)) return std::nullopt;
    return 0;
  }
  std::int64_t coefficient = 0;
  for (const IndexNode::Term& t : n.terms) {
    if (t.atom.variable() == var)
      coefficient = t.coefficient;
    else if (depends_on(t.atom, var))
      return std::nullopt;
  }
  return coefficient;
}

std::int64_t node_count(const Expr& e) {
  std::int64_t count = 1;
  for (const auto& t : e.node().terms) count += node_count(t.atom);
  for (const Expr& a : e.node().args) count += node_count(a);
  return count;
}

std::string to_string(const Expr& e) {
  const IndexNode& n = e.node();
  switch (n.kind) {
    case Kind::sum:
      return sum_text(n);
    case Kind::var:
      return fmt::format("d{}", n.var.index);
    case Kind::div:
      return fmt::format("{} / {}", factor_text(n.args[0]), n.constant);
    case Kind::mod:
      return fmt::format("{} % {}", factor_text(n.args[0]), n.constant);
    case Kind::min:
      return fmt::format("min({}, {})", to_string(n.args[0]), to_string(n.args[1]));
    case Kind::max:
      return fmt::format("max({}, {})", to_string(n.args[0]), to_string(n.args[1]));
  }
  return {};
}

std::optional<bool> decide(const Condition& c, const Ranges& ranges) {
  if (c.low >= c.high) return false;
  const auto b = bounds(c.expr, ranges);
  if (!b) return std::nullopt;
  if (b->low >= c.low && b->high < c.high) return true;
  if (b->high < c.low || b->low >= c.high) return false;
  return std::nullopt;
}

std::string to_string(const Condition& c) {
  return fmt::format("{} <= {} < {}", c.low, to_string(c.expr), c.high);
}

}  // namespace heddle::ir

#include "kernel/bounds.h"

#include <algorithm>

namespace heddle::kernel {
namespace {

using ir::Interval;
using ir::IndexNode;
constexpr int kMaxTries = 400;

/// e as Σ coefficient · atom + constant.
std::vector<IndexNode::Term> terms_of(const Expr& e) {
  if (e.constant()) return {};
  if (e.node().kind == IndexNode::Kind::sum) return e.node().terms;
  return {{1, e}};
}

struct Search {
  const Conditions& conditions;
  ir::Ranges ranges;  // extended by one variable for each condition's value
  std::int32_t first_value;
  std::optional<Interval> best;
  int tries = 0;

  void visit(const Expr& e, std::uint32_t used) {
    if (++tries > kMaxTries) return;
    if (auto b = ir::bounds(e, ranges)) {
      if (best)
        best = Interval{std::max(best->low, b->low), std::min(best->high, b->high)};
      else
        best = b;
    }
    for (std::size_t i = 0; i < conditions.size() && i < 16; ++i) {
      if (used & (1u << i)) continue;
      const Expr& c = conditions[i].expr;
      const Expr value{Var{first_value + static_cast<std::int32_t>(i)}};
      std::vector<std::int64_t> factors;
      for (const auto& in_condition : terms_of(c))
        for (const auto& in_e : terms_of(e))
          if (in_e.atom == in_condition.atom &&
              in_e.coefficient % in_condition.coefficient == 0)
            factors.push_back(in_e.coefficient / in_condition.coefficient);
      std::sort(factors.begin(), factors.end());
      factors.erase(std::unique(factors.begin(), factors.end()), factors.end());
      for (std::int64_t factor : factors)
        visit(e + (value - c) * Expr(factor), used | (1u << i));
    }
  }
};

void add(Conditions& out, ir::Condition fact) {
  if (std::find(out.begin(), out.end(), fact) == out.end()) out.push_back(std::move(fact));
}

/// What quotients and remainders in `e` say of themselves: 0 <= x - q·(x / q) < q, which recovers
/// remainders written that way; x % q = x - q·(x / q); and x / q is bounded as x is under `given`.
void quotients(const Expr& e, const Conditions& given, const ir::Ranges& ranges, Conditions& out) {
  const IndexNode& node = e.node();
  for (const auto& term : node.terms) quotients(term.atom, given, ranges, out);
  for (const Expr& arg : node.args) quotients(arg, given, ranges, out);
  if (node.kind != IndexNode::Kind::div && node.kind != IndexNode::Kind::mod) return;
  const std::int64_t q = node.constant;
  const Expr x = node.args[0], quotient = ir::floor_div(x, q);
  add(out, {x - quotient * Expr(q), 0, q});
  if (node.kind == IndexNode::Kind::mod) add(out, {e - x + quotient * Expr(q), 0, 1});
  if (given.empty()) return;
  if (auto b = bounds_under(x, given, ranges))
    add(out, {quotient, ir::evaluate(ir::floor_div(Expr(b->low), q), {}),
              ir::evaluate(ir::floor_div(Expr(b->high), q), {}) + 1});
}

}  // namespace

std::optional<Interval> bounds_under(const Expr& e, const Conditions& given,
                                     const ir::Ranges& ranges) {
  Conditions conditions = given;
  quotients(e, given, ranges, conditions);
  for (const ir::Condition& c : given) quotients(c.expr, {}, ranges, conditions);
  if (conditions.empty()) return ir::bounds(e, ranges);
  Search search{conditions, ranges, static_cast<std::int32_t>(ranges.size()), std::nullopt};
  for (const ir::Condition& c : conditions) {
    Interval value{c.low, c.high - 1};
    // The plain range of the condition's expression may be tighter on one side.
    if (auto plain = ir::bounds(c.expr, ranges))
      value = {std::max(value.low, plain->low), std::min(value.high, plain->high)};
    if (value.low > value.high) return value;  // never holds
    search.ranges.push_back(value);
  }
  search.visit(e, 0);
  return search.best;
}

void set_range(ir::Ranges& ranges, Var var, std::optional<Interval> range) {
  const auto at = static_cast<std::size_t>(var.index);
  if (ranges.size() <= at) ranges.resize(at + 1);
  ranges[at] = range;
}

}  // namespace heddle::kernel

// Drives the rows of rules.cpp to a fixed point, children first.
#include <algorithm>
#include <numeric>
#include <unordered_map>

#include "ir/arith.h"
#include "ir/rules.h"

namespace heddle::ir {
namespace {

using Kind = IndexNode::Kind;

/// Rows shrink or order an expression, so they end; the budget is a guard against a row that does
/// not, and only costs completeness.
constexpr int kMaxSteps = 512;

struct RulesByKind {
  std::vector<const IndexRule*> rows[6];
  RulesByKind() {
    for (const IndexRule& r : index_rules()) rows[static_cast<int>(r.root)].push_back(&r);
  }
};

class Simplifier {
 public:
  explicit Simplifier(const Ranges& ranges) : ranges_(ranges) {}

  Expr run(const Expr& e) {
    const IndexNode& n = e.node();
    if (n.kind == Kind::var) return rewrite(e);
    if (n.kind == Kind::sum && n.terms.empty()) return e;
    // Composition shares subtrees; seeing each once keeps this linear in the shared size.
    if (const auto found = memo_.find(&n); found != memo_.end()) return found->second.second;
    Expr result = rewrite(map_children(e, [this](const Expr& c) { return run(c); }));
    memo_.try_emplace(&n, e, result);
    return result;
  }

 private:
  Expr rewrite(const Expr& e) {
    static const RulesByKind kRules;
    for (const IndexRule* rule : kRules.rows[static_cast<int>(e.node().kind)]) {
      if (steps_ >= kMaxSteps) break;
      if (auto next = rule->apply(e, ranges_); next && !(*next == e)) {
        ++steps_;
        return run(*next);
      }
    }
    return e;
  }

  const Ranges& ranges_;
  int steps_ = 0;
  // The key's expression is kept with the value, so that its address is not reused.
  std::unordered_map<const IndexNode*, std::pair<Expr, Expr>> memo_;
};

std::int64_t ceil_div_int(std::int64_t a, std::int64_t b) { return -floor_div_int(-a, b); }

/// The condition with no constant part, no common factor and no bound that cannot bind, so that
/// equal conditions look equal.
Condition normal_form(Condition c, const Ranges& ranges) {
  c.expr = simplify(c.expr, ranges);
  const IndexNode& n = c.expr.node();
  if (n.kind == Kind::sum && !n.terms.empty()) {
    const auto low = add_or_none(c.low, -n.constant), high = add_or_none(c.high, -n.constant);
    if (n.constant != 0 && n.constant != INT64_MIN && low && high)
      c = {c.expr - n.constant, *low, *high};
  }
  if (c.expr.node().kind == Kind::sum && c.low != INT64_MIN && c.high != INT64_MIN) {
    std::int64_t g = 0;
    Expr reduced = 0;
    for (const auto& t : c.expr.node().terms) g = std::gcd(g, t.coefficient);
    if (g > 1 && c.expr.node().constant == 0) {
      for (const auto& t : c.expr.node().terms) reduced = reduced + t.atom * (t.coefficient / g);
      c = {reduced, ceil_div_int(c.low, g), ceil_div_int(c.high, g)};
    }
  }
  if (const auto b = bounds(c.expr, ranges); b && b->high != INT64_MAX) {
    c.low = std::max(c.low, b->low);
    c.high = std::min(c.high, b->high + 1);
  }
  return c;
}

}  // namespace

Expr simplify(const Expr& e, const Ranges& ranges) {
  if (e.constant()) return e;
  return Simplifier(ranges).run(e);
}

std::optional<std::vector<Condition>> simplify(const std::vector<Condition>& conditions,
                                               const Ranges& ranges) {
  std::vector<Condition> kept;
  for (const Condition& c : conditions) {
    const Condition normal = normal_form(c, ranges);
    const auto decided = decide(normal, ranges);
    if (decided == false) return std::nullopt;
    if (decided == true) continue;
    const auto same = std::find_if(kept.begin(), kept.end(),
                                   [&](const Condition& k) { return k.expr == normal.expr; });
    if (same == kept.end()) {
      kept.push_back(normal);
      continue;
    }
    same->low = std::max(same->low, normal.low);
    same->high = std::min(same->high, normal.high);
    if (same->low >= same->high) return std::nullopt;
  }
  std::sort(kept.begin(), kept.end());
  return kept;
}

}  // namespace heddle::ir

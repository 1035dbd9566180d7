#include "kernel/bounds.h"

#include <algorithm>
#include <map>
#include <numeric>

namespace heddle::kernel {
namespace {

using ir::IndexNode;
using ir::Interval;
constexpr int kMaxTries = 2000;

/// e as Σ coefficient · atom + constant.
std::vector<IndexNode::Term> terms_of(const Expr& e) {
  if (e.constant()) return {};
  if (e.node().kind == IndexNode::Kind::sum) return e.node().terms;
  return {{1, e}};
}

/// Rewrites expressions so that equal parts cancel: x % q becomes x - q·(x / q), and a variable
/// that is divided by q1 | q2 | … (a task number that is decoded) becomes its mixed-radix digits.
/// `whole`: of a sum that is divided (a row of tiles that is decoded) multiples of q leave the
/// quotient, as they leave remainders.
class Normaliser {
 public:
  Normaliser(ir::Ranges& ranges, bool whole) : ranges_(ranges), whole_(whole) {}

  void scan(const Expr& e) {
    const IndexNode& node = e.node();
    for (const auto& term : node.terms) scan(term.atom);
    for (const Expr& arg : node.args) scan(arg);
    if (node.kind != IndexNode::Kind::div && node.kind != IndexNode::Kind::mod) return;
    if (auto v = node.args[0].variable()) add(digits_[*v].cuts, node.constant);
  }

  void finish() {
    for (auto& [v, d] : digits_) {
      const auto& range = ranges_[static_cast<std::size_t>(v.index)];
      if (!range || range->low < 0) continue;
      std::sort(d.cuts.begin(), d.cuts.end());
      std::int64_t below = 1;
      bool chain = true;
      for (std::int64_t cut : d.cuts) {
        chain &= cut % below == 0;
        below = cut;
      }
      if (!chain) continue;
      d.cuts.insert(d.cuts.begin(), 1);
      for (std::size_t i = 0; i < d.cuts.size(); ++i) {
        const std::int64_t top = range->high / d.cuts[i];
        const std::int64_t high =
            i + 1 < d.cuts.size() ? std::min(top, d.cuts[i + 1] / d.cuts[i] - 1) : top;
        d.vars.push_back(Var{static_cast<std::int32_t>(ranges_.size())});
        ranges_.push_back(Interval{0, high});
      }
    }
  }

  /// Variables whose digits reach what they do not: 3 of 0..4 is 1 + 2·1, but 1 + 2·2 is none.
  Conditions of_digits() const {
    Conditions out;
    for (const auto& [v, d] : digits_) {
      if (d.vars.empty()) continue;
      const Interval& range = *ranges_[static_cast<std::size_t>(v.index)];
      const Expr sum = *quotient(Expr(v), 1);
      const auto all = ir::bounds(sum, ranges_);
      if (all && (all->low < range.low || all->high > range.high))
        out.push_back({sum, range.low, range.high + 1});
    }
    return out;
  }

  Expr operator()(const Expr& e) const {
    const IndexNode& node = e.node();
    switch (node.kind) {
      case IndexNode::Kind::sum: {
        Expr out(node.constant);
        for (const auto& t : node.terms) out = out + (*this)(t.atom) * Expr(t.coefficient);
        return out;
      }
      case IndexNode::Kind::var:
        return quotient(e, 1).value_or(e);
      case IndexNode::Kind::div: {
        if (auto digits = quotient(node.args[0], node.constant)) return *digits;
        return divided((*this)(node.args[0]), node.constant);
      }
      case IndexNode::Kind::mod: {
        const Expr x = (*this)(node.args[0]);
        auto digits = quotient(node.args[0], node.constant);
        return x - digits.value_or(divided(x, node.constant)) * Expr(node.constant);
      }
      case IndexNode::Kind::min:
        return ir::min((*this)(node.args[0]), (*this)(node.args[1]));
      case IndexNode::Kind::max:
        return ir::max((*this)(node.args[0]), (*this)(node.args[1]));
    }
    return e;
  }

 private:
  struct Digits {
    std::vector<std::int64_t> cuts;
    std::vector<Var> vars;
  };
  static void add(std::vector<std::int64_t>& list, std::int64_t x) {
    if (std::find(list.begin(), list.end(), x) == list.end()) list.push_back(x);
  }
  Expr divided(const Expr& x, std::int64_t q) const {
    if (!whole_ || x.node().kind != IndexNode::Kind::sum)
      return ir::simplify(ir::floor_div(x, q), ranges_);
    const auto quotient = [&](std::int64_t c) { return c / q - (c % q < 0 ? 1 : 0); };
    Expr out(quotient(x.node().constant));
    Expr rest(x.node().constant - quotient(x.node().constant) * q);
    for (const IndexNode::Term& t : x.node().terms) {
      out = out + t.atom * Expr(quotient(t.coefficient));
      rest = rest + t.atom * Expr(t.coefficient - quotient(t.coefficient) * q);
    }
    return out + ir::simplify(ir::floor_div(rest, q), ranges_);
  }
  /// x / q for a variable x in digits.
  std::optional<Expr> quotient(const Expr& x, std::int64_t q) const {
    const auto v = x.variable();
    if (!v) return std::nullopt;
    const auto found = digits_.find(*v);
    if (found == digits_.end() || found->second.vars.empty()) return std::nullopt;
    Expr out(0);
    const Digits& d = found->second;
    for (std::size_t i = 0; i < d.vars.size(); ++i)
      if (d.cuts[i] >= q) out = out + Expr(d.vars[i]) * Expr(d.cuts[i] / q);
    return out;
  }

  ir::Ranges& ranges_;
  bool whole_;
  std::map<Var, Digits> digits_;
};

struct Search {
  const Conditions& conditions;
  ir::Ranges ranges;  // extended by one variable for each condition's value
  std::int32_t first_value;
  std::optional<Interval> needed, best;
  int tries = 0;

  bool enough() const {
    return best && ((needed && best->low >= needed->low && best->high <= needed->high) ||
                    best->low > best->high);
  }

  /// Combinations of few conditions first.
  void run(const Expr& e) {
    for (const int most : {2, 4, INT32_MAX}) {
      tries = 0;
      visit(e, 0, most);
    }
  }

  /// Adds multiples of (value of condition i - its expression) for i >= first: combinations of at
  /// most so many.
  void visit(const Expr& e, std::size_t first, int most) {
    if (++tries > kMaxTries || enough()) return;
    if (auto b = ir::bounds(e, ranges)) {
      if (best)
        best = Interval{std::max(best->low, b->low), std::min(best->high, b->high)};
      else
        best = b;
    }
    if (most == 0) return;
    const auto in_e = terms_of(e);
    for (std::size_t i = first; i < conditions.size(); ++i) {
      const Expr value{Var{first_value + static_cast<std::int32_t>(i)}};
      std::vector<std::int64_t> factors;
      for (const auto& mine : terms_of(conditions[i].expr))
        for (const auto& theirs : in_e)
          if (theirs.atom == mine.atom && theirs.coefficient % mine.coefficient == 0)
            factors.push_back(theirs.coefficient / mine.coefficient);
      std::sort(factors.begin(), factors.end());
      factors.erase(std::unique(factors.begin(), factors.end()), factors.end());
      for (std::int64_t factor : factors)
        visit(e + (value - conditions[i].expr) * Expr(factor), i + 1, most - 1);
    }
  }
};

std::optional<Interval> search(const Expr& e, const Conditions& conditions,
                               const ir::Ranges& ranges, std::optional<Interval> needed,
                               std::optional<Interval> best) {
  Search search{conditions, ranges, static_cast<std::int32_t>(ranges.size()), needed, best};
  for (const ir::Condition& c : conditions) {
    Interval value{c.low, c.high - 1};
    // The plain range of the condition's expression may be tighter on one side.
    if (auto range = ir::bounds(c.expr, ranges))
      value = {std::max(value.low, range->low), std::min(value.high, range->high)};
    if (value.low > value.high) return value;  // never holds
    search.ranges.push_back(value);
  }
  search.run(e);
  return search.best;
}

bool has_quotient(const Expr& e) {
  const IndexNode& node = e.node();
  return node.kind == IndexNode::Kind::div ||
         std::ranges::any_of(node.terms, [](const auto& t) { return has_quotient(t.atom); }) ||
         std::ranges::any_of(node.args, has_quotient);
}

void add(Conditions& out, ir::Condition fact) {
  if (std::find(out.begin(), out.end(), fact) == out.end()) out.push_back(std::move(fact));
}

/// What quotients in `e` say of themselves: 0 <= x - q·(x / q) < q; and x / q is bounded as x is
/// under `given`.
void quotients(const Expr& e, const Conditions& given, const ir::Ranges& ranges, Conditions& out) {
  const IndexNode& node = e.node();
  for (const auto& term : node.terms) quotients(term.atom, given, ranges, out);
  for (const Expr& arg : node.args) quotients(arg, given, ranges, out);
  if (node.kind != IndexNode::Kind::div) return;
  const std::int64_t q = node.constant;
  add(out, {node.args[0] - e * Expr(q), 0, q});
  if (given.empty()) return;
  if (auto b = bounds_under(node.args[0], given, ranges))
    add(out, {e, ir::evaluate(ir::floor_div(Expr(b->low), q), {}),
              ir::evaluate(ir::floor_div(Expr(b->high), q), {}) + 1});
}

/// Bounds of the normal form.
std::optional<Interval> normal_bounds(const Expr& expr, const Conditions& given,
                                      const ir::Ranges& known, std::optional<Interval> needed,
                                      std::optional<Interval> best, bool whole) {
  ir::Ranges ranges = known;
  Normaliser normalise(ranges, whole);
  normalise.scan(expr);
  for (const ir::Condition& c : given) normalise.scan(c.expr);
  normalise.finish();
  const Expr e = normalise(expr);
  Conditions conditions;
  for (const ir::Condition& c : given) conditions.push_back({normalise(c.expr), c.low, c.high});
  const std::size_t explicit_count = conditions.size();
  const Conditions own = conditions;
  quotients(e, own, ranges, conditions);
  // Those of conditions are bounded by conditions without any.
  Conditions plain;
  for (const ir::Condition& c : own)
    if (!has_quotient(c.expr)) plain.push_back(c);
  for (std::size_t i = 0; i < explicit_count; ++i) {
    const Expr condition = conditions[i].expr;
    quotients(condition, plain, ranges, conditions);
  }
  for (const ir::Condition& c : normalise.of_digits()) add(conditions, c);
  // What quotients say of themselves brings them in, the conditions may then bound them; and where
  // a condition brings in a quotient, the other way round.
  const Conditions facts(conditions.begin() + static_cast<std::ptrdiff_t>(explicit_count),
                         conditions.end());
  // Remainders and quotients of one sum bring in each other.
  if (whole) conditions.insert(conditions.begin(), own.begin(), own.end());
  conditions.insert(whole ? conditions.end() : conditions.begin(), facts.begin(), facts.end());
  return search(e, conditions, ranges, needed, best);
}

}  // namespace

std::optional<Interval> bounds_under(const Expr& expr, const Conditions& given,
                                     const ir::Ranges& outer, std::optional<Interval> needed) {
  ir::Ranges known = outer;
  // A condition on a variable alone is a range: it counts inside min and max too.
  for (const ir::Condition& c : given) {
    const auto v = c.expr.variable();
    if (!v || static_cast<std::size_t>(v->index) >= known.size()) continue;
    auto& range = known[static_cast<std::size_t>(v->index)];
    if (!range) continue;
    const Interval both{std::max(range->low, c.low), std::min(range->high, c.high - 1)};
    if (both.low > both.high) return both;  // never holds
    range = both;
  }
  const auto plain = ir::bounds(expr, known);
  if (!plain) return std::nullopt;
  if (needed && plain->low >= needed->low && plain->high <= needed->high) return plain;
  // As written first: x - q·(x / q) is looser than the x % q that it stands for.
  Conditions all = given;
  quotients(expr, given, known, all);
  const auto written = search(expr, all, known, needed, plain);
  if (needed && written->low >= needed->low && written->high <= needed->high) return written;
  if (written->low > written->high) return written;  // never holds
  const auto normal = normal_bounds(expr, given, known, needed, written, false);
  if (!needed || (normal->low >= needed->low && normal->high <= needed->high) ||
      normal->low > normal->high)
    return normal;
  return normal_bounds(expr, given, known, needed, normal, true);
}

bool multiple_of(const Expr& e, std::int64_t n) {
  if (n == 1) return true;
  const IndexNode& node = e.node();
  switch (node.kind) {
    case IndexNode::Kind::var:
    case IndexNode::Kind::div:
      return false;
    case IndexNode::Kind::mod:
      return node.constant % n == 0 && multiple_of(node.args[0], n);
    case IndexNode::Kind::min:
    case IndexNode::Kind::max:
      return multiple_of(node.args[0], n) && multiple_of(node.args[1], n);
    case IndexNode::Kind::sum:
      break;
  }
  // c·(x % q) is c·x but for a multiple of c·q.
  Expr flat(node.constant);
  bool changed = false;
  for (const IndexNode::Term& t : node.terms) {
    const IndexNode& atom = t.atom.node();
    const bool drop = atom.kind == IndexNode::Kind::mod && t.coefficient * atom.constant % n == 0;
    flat = flat + (drop ? atom.args[0] : t.atom) * Expr(t.coefficient);
    changed = changed || drop;
  }
  if (changed) return multiple_of(flat, n);
  return node.constant % n == 0 &&
         std::all_of(node.terms.begin(), node.terms.end(), [&](const IndexNode::Term& t) {
           return multiple_of(t.atom, n / std::gcd(n, t.coefficient));
         });
}

void set_range(ir::Ranges& ranges, Var var, std::optional<Interval> range) {
  const auto at = static_cast<std::size_t>(var.index);
  if (ranges.size() <= at) ranges.resize(at + 1);
  ranges[at] = range;
}

}  // namespace heddle::kernel

#include "grad/solve.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "ir/digits.h"
#include "prim/access.h"

namespace heddle::grad {
namespace {

using ir::Expr;
using ir::IndexNode;
using ir::Var;
using prim::var;

struct Digit : ir::Digit {
  std::optional<Expr> value = {};  ///< as a function of the source's coordinates and free digits
};

using Terms = std::vector<IndexNode::Term>;

/// Solves one system of digits; a digit's variable number is its position in digits_.
class Solver {
 public:
  Solver(std::vector<Digit> digits, std::vector<Expr> index, std::size_t rank)
      : digits_(std::move(digits)), index_(std::move(index)), rank_(rank) {}

  /// False if an index is not affine in the digits, or coordinates need each other's pivots.
  bool run() {
    for (const Expr& e : index_)
      for (const IndexNode::Term& t : terms_of(e))
        if (!t.atom.variable()) return false;
    for (std::size_t k = 0; k < index_.size(); ++k) choose_pivots(k);
    name_free_digits();
    std::vector<std::size_t> open(index_.size());
    std::iota(open.begin(), open.end(), 0);
    while (!open.empty()) {
      const auto next =
          std::find_if(open.begin(), open.end(), [this](std::size_t k) { return ready(k); });
      if (next == open.end()) return false;
      solve_coordinate(*next);
      open.erase(next);
    }
    return true;
  }
  Expr value_of(std::size_t digit) const { return *digits_[digit].value; }
  const Shape& free() const { return free_; }
  const std::vector<ir::Condition>& conditions() const { return conditions_; }

 private:
  static Terms terms_of(const Expr& e) {
    if (e.node().kind == IndexNode::Kind::sum) return e.node().terms;
    return {{1, e}};
  }
  static std::size_t digit_of(const IndexNode::Term& t) {
    return static_cast<std::size_t>(t.atom.variable()->index);
  }

  /// Digits of coordinate k that no earlier one has taken, as a chain c, c·e0, c·e0·e1, … of
  /// coefficients: together they are one number that the coordinate fixes. The longest range wins.
  void choose_pivots(std::size_t k) {
    Terms terms;
    for (const IndexNode::Term& t : terms_of(index_[k]))
      if (!taken_.contains(digit_of(t))) terms.push_back(t);
    std::sort(terms.begin(), terms.end(), [](const auto& a, const auto& b) {
      return std::abs(a.coefficient) < std::abs(b.coefficient);
    });
    std::vector<std::size_t> best;
    std::int64_t best_range = 0, best_unit = 0;
    for (std::size_t first = 0; first < terms.size(); ++first) {
      std::vector<std::size_t> chain;
      std::int64_t range = 1;
      for (std::size_t i = first; i < terms.size(); ++i) {
        if (terms[i].coefficient != terms[first].coefficient * range) continue;
        chain.push_back(digit_of(terms[i]));
        range *= digits_[chain.back()].extent;
      }
      // Steps of 1 need no test of divisibility.
      const bool unit = std::abs(terms[first].coefficient) == 1;
      const bool best_is_unit = std::abs(best_unit) == 1;
      if (best.empty() || (unit && !best_is_unit) || (unit == best_is_unit && range > best_range)) {
        best = std::move(chain);
        best_range = range;
        best_unit = terms[first].coefficient;
      }
    }
    taken_.insert(best.begin(), best.end());
    pivots_.push_back({std::move(best), best_unit, best_range});
  }

  void name_free_digits() {
    for (std::size_t d = 0; d < digits_.size(); ++d)
      if (!taken_.contains(d)) {
        digits_[d].value = var(rank_ + free_.size());
        free_.push_back(digits_[d].extent);
      }
  }

  bool is_pivot(std::size_t k, std::size_t digit) const {
    const auto& digits = pivots_[k].digits;
    return std::find(digits.begin(), digits.end(), digit) != digits.end();
  }
  /// True if all but the pivots of coordinate k is known.
  bool ready(std::size_t k) const {
    for (const IndexNode::Term& t : terms_of(index_[k]))
      if (!is_pivot(k, digit_of(t)) && !digits_[digit_of(t)].value) return false;
    return true;
  }

  /// coordinate = constant + unit · (number made of the pivots) + rest.
  void solve_coordinate(std::size_t k) {
    const Pivot& pivot = pivots_[k];
    Expr rest = index_[k].node().kind == IndexNode::Kind::sum ? index_[k].node().constant : 0;
    for (const IndexNode::Term& t : terms_of(index_[k])) {
      const std::size_t d = digit_of(t);
      if (!is_pivot(k, d)) rest = rest + *digits_[d].value * Expr(t.coefficient);
    }
    Expr number = var(k) - rest;
    if (pivot.digits.empty()) {
      conditions_.push_back({number, 0, 1});
      return;
    }
    if (pivot.unit < 0) number = Expr(0) - number;
    const std::int64_t step = std::abs(pivot.unit);
    if (step != 1) {
      conditions_.push_back({ir::floor_mod(number, step), 0, 1});
      number = ir::floor_div(number, step);
    }
    conditions_.push_back({number, 0, pivot.range});
    std::int64_t radix = 1;
    for (std::size_t d : pivot.digits) {
      Expr value = ir::floor_div(number, radix);
      if (d != pivot.digits.back()) value = ir::floor_mod(value, digits_[d].extent);
      digits_[d].value = value;
      radix *= digits_[d].extent;
    }
  }

  struct Pivot {
    std::vector<std::size_t> digits;
    std::int64_t unit, range;
  };
  std::vector<Digit> digits_;
  std::vector<Expr> index_;
  std::size_t rank_;
  std::set<std::size_t> taken_;
  std::vector<Pivot> pivots_;
  Shape free_;
  std::vector<ir::Condition> conditions_;
};

/// `index` in terms of digits, or nullopt if the variables have none.
std::optional<Solution> solve_index(const std::vector<Expr>& index, const Shape& extents,
                                    std::size_t rank) {
  auto parts = ir::in_digits(index, extents);
  if (!parts) return std::nullopt;
  std::vector<Digit> digits;
  for (const ir::Digit& d : parts->digits) digits.push_back({d});
  Solver solver(digits, std::move(parts->index), rank);
  if (!solver.run()) return std::nullopt;
  Solution s{std::vector<Expr>(extents.size(), Expr(0)), solver.free(), solver.conditions()};
  for (std::size_t i = 0; i < digits.size(); ++i) {
    const Digit& d = digits[i];
    s.variables[d.variable] = s.variables[d.variable] + solver.value_of(i) * Expr(d.weight);
  }
  return s;
}

}  // namespace

std::optional<Solution> solve(const prim::Access& a, const Shape& extents, const Shape& source) {
  std::optional<Solution> s = solve_index(a.index, extents, source.size());
  if (!s) {
    // Dimensions that only their row-major number relates to the source (a reshape of [8,3] to
    // [6,4]) are solved as that number.
    const std::vector<Expr> split = prim::unflatten(var(0), extents);
    const Shape flat = {element_count(extents)};
    std::vector<Expr> index;
    for (const Expr& e : a.index)
      index.push_back(ir::simplify(ir::substitute(e, split), ir::ranges_of(flat)));
    s = solve_index(index, flat, source.size());
    if (!s) return std::nullopt;
    s->variables = prim::unflatten(s->variables[0], extents);
  }
  for (const ir::Condition& c : a.inside)
    s->conditions.push_back({ir::substitute(c.expr, s->variables), c.low, c.high});
  return s;
}

}  // namespace heddle::grad

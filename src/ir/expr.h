#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "support/id.h"

namespace heddle::ir {

/// A loop or dimension variable. In a View or Contract, variable i is output dimension i and the
/// reduction dimensions follow; in a kernel, variables are numbered per kernel.
struct Var {
  std::int32_t index = -1;
  auto operator<=>(const Var&) const = default;
};

/// Integer arithmetic on int64: div and mod are floor division and its remainder, the divisor is a
/// positive constant (quasi-affine).
enum class IndexOp : std::uint8_t { add, mul, div, mod, min, max };

struct IndexNode;

/// An immutable quasi-affine integer expression: cheap to copy, never null, compared by structure.
/// Constructors fold constants and keep sums flat and ordered, so equal sums compare equal;
/// simplifications that need to know the ranges of variables are in simplify().
class Expr {
 public:
  Expr(std::int64_t value = 0);                                // NOLINT: integers are expressions
  Expr(int value) : Expr(static_cast<std::int64_t>(value)) {}  // NOLINT
  Expr(Var var);                                               // NOLINT

  const IndexNode& node() const { return *node_; }
  /// The value, if this is a constant.
  std::optional<std::int64_t> constant() const;
  bool is_constant(std::int64_t value) const { return constant() == value; }
  std::optional<Var> variable() const;
  std::size_t hash() const;

  friend Expr operator+(const Expr& a, const Expr& b);
  friend Expr operator-(const Expr& a, const Expr& b);
  friend Expr operator*(const Expr& a, const Expr& b);  ///< one side must be constant
  friend bool operator==(const Expr& a, const Expr& b);
  friend std::strong_ordering operator<=>(const Expr& a, const Expr& b);

  explicit Expr(std::shared_ptr<const IndexNode> node) : node_(std::move(node)) {}

 private:
  std::shared_ptr<const IndexNode> node_;
};

/// Floor division and remainder by a positive constant; min and max.
Expr floor_div(const Expr& a, std::int64_t divisor);
Expr floor_mod(const Expr& a, std::int64_t divisor);
Expr min(const Expr& a, const Expr& b);
Expr max(const Expr& a, const Expr& b);

/// One node. A sum is `constant + Σ coefficient · term` with terms ordered, unique, and none a
/// constant or a sum; every other node is an atom of such sums.
struct IndexNode {
  enum class Kind : std::uint8_t { sum, var, div, mod, min, max } kind;
  std::int64_t constant = 0;  ///< sum: the constant part; div and mod: the divisor
  Var var;
  struct Term {
    std::int64_t coefficient;
    Expr atom;
  };
  std::vector<Term> terms;  ///< sum only
  std::vector<Expr> args;   ///< div, mod: 1; min, max: 2
  std::size_t hash = 0;
};

/// Inclusive bounds of an expression or variable.
struct Interval {
  std::int64_t low = 0, high = 0;
  auto operator<=>(const Interval&) const = default;
};
/// Bounds of each variable by Var::index; a missing variable is unknown.
using Ranges = std::vector<std::optional<Interval>>;
/// Ranges of variables 0..n-1 that run over [0, extent).
Ranges ranges_of(const std::vector<std::int64_t>& extents);

/// Tight for affine expressions; nullopt if a variable is unknown or arithmetic would overflow.
std::optional<Interval> bounds(const Expr& e, const Ranges& ranges);

struct Condition;
/// Bounds of e at the points where all conditions hold (an empty interval, low > high, if it can be
/// shown that they hold nowhere); conditions on a part of e, or on e up to a multiple, are used.
std::optional<Interval> bounds_where(const Expr& e, const std::vector<Condition>& conditions,
                                     const Ranges& ranges);

/// Applies the rewrite rows of ir/rules.cpp to a fixed point, using the ranges of the variables:
/// (i*8+j)/8 → i and (i*8+j)%8 → j when 0 ≤ j < 8.
Expr simplify(const Expr& e, const Ranges& ranges);

/// The one traversal: rebuilds `e` with each child (atoms of a sum, arguments) through `f`; returns
/// `e` itself where nothing changed.
Expr map_children(const Expr& e, const std::function<Expr(const Expr&)>& f);
/// Nodes of the expression seen as a tree: the size that compositions must keep small.
std::int64_t node_count(const Expr& e);

/// Replaces variables; `replacement(var)` returns nullopt to keep a variable.
Expr substitute(const Expr& e, const std::function<std::optional<Expr>(Var)>& replacement);
/// Replaces variable i by values[i] for i < values.size().
Expr substitute(const Expr& e, const std::vector<Expr>& values);

std::int64_t evaluate(const Expr& e, const std::vector<std::int64_t>& values);
bool depends_on(const Expr& e, Var var);
void collect_variables(const Expr& e, std::vector<Var>& out);  ///< sorted, unique
/// The coefficient c when e = c·var + rest with rest free of var; nullopt if not affine in var.
std::optional<std::int64_t> coefficient_of(const Expr& e, Var var);

std::string to_string(const Expr& e);  ///< "d0*8 + d1 / 4 + 3"; variables print as d<index>

/// Holds where low ≤ expr < high.
struct Condition {
  Expr expr;
  std::int64_t low = 0, high = 0;
  auto operator<=>(const Condition&) const = default;
};
/// True or false where ranges decide it.
std::optional<bool> decide(const Condition& c, const Ranges& ranges);
/// Drops conditions that always hold, simplifies the others; nullopt when one can never hold.
std::optional<std::vector<Condition>> simplify(const std::vector<Condition>& conditions,
                                               const Ranges& ranges);
std::string to_string(const Condition& c);  ///< "0 <= d1 - 1 < 56"

}  // namespace heddle::ir

template <>
struct std::hash<heddle::ir::Expr> {
  std::size_t operator()(const heddle::ir::Expr& e) const { return e.hash(); }
};

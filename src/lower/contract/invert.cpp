#include "lower/contract/invert.h"

#include <algorithm>
#include <set>

namespace heddle::lower::contract {
namespace {

using ir::Expr;
using ir::IndexNode;
using ir::Var;

/// Collects, for each variable d, the radices at which div and mod cut it: (d / a) % b cuts at a
/// and a·b. Every quotient of a sum is offered to every variable in it, scaled by its coefficient.
void cuts_of(const Expr& e, std::int64_t scale, std::vector<std::set<std::int64_t>>& cuts) {
  const IndexNode& node = e.node();
  switch (node.kind) {
    case IndexNode::Kind::sum:
      for (const IndexNode::Term& t : node.terms) cuts_of(t.atom, scale, cuts);
      return;
    case IndexNode::Kind::var:
      return;
    case IndexNode::Kind::div:
    case IndexNode::Kind::mod: {
      const Expr& inner = node.args[0];
      const std::int64_t at = scale * node.constant;
      if (auto v = inner.variable()) cuts[static_cast<std::size_t>(v->index)].insert(at);
      if (inner.node().kind == IndexNode::Kind::sum)
        for (const IndexNode::Term& t : inner.node().terms)
          if (auto v = t.atom.variable(); v && t.coefficient > 0 && at % t.coefficient == 0)
            cuts[static_cast<std::size_t>(v->index)].insert(at / t.coefficient);
      cuts_of(inner, node.kind == IndexNode::Kind::div ? at : scale, cuts);
      return;
    }
    case IndexNode::Kind::min:
    case IndexNode::Kind::max:
      return;
  }
}

struct Digit {
  std::size_t variable;  ///< which variable it belongs to
  std::int64_t weight;   ///< in that variable
  std::int64_t extent;
  std::optional<Expr> value;  ///< as a function of the coordinates, once found
};

std::optional<std::vector<Digit>> digits_of(const std::vector<Expr>& map, const Shape& from) {
  std::vector<std::set<std::int64_t>> cuts(from.size());
  for (const Expr& e : map) cuts_of(e, 1, cuts);
  std::vector<Digit> digits;
  for (std::size_t d = 0; d < from.size(); ++d) {
    std::int64_t low = 1;
    cuts[d].insert(from[d]);
    for (std::int64_t cut : cuts[d]) {
      if (cut <= low || cut > from[d]) continue;
      if (cut % low != 0) return std::nullopt;
      digits.push_back({d, low, cut / low, std::nullopt});
      low = cut;
    }
  }
  return digits;
}

/// Reads `e` as a mixed-radix number of digits and solves each digit from `coordinate`.
bool solve(const Expr& e, std::int64_t extent, const Expr& coordinate, std::vector<Digit>& digits) {
  std::vector<IndexNode::Term> terms;
  if (e.node().kind == IndexNode::Kind::sum) {
    if (e.node().constant != 0) return false;
    terms = e.node().terms;
  } else {
    terms = {{1, e}};
  }
  std::sort(terms.begin(), terms.end(),
            [](const auto& a, const auto& b) { return a.coefficient < b.coefficient; });
  std::int64_t radix = 1;
  for (const IndexNode::Term& t : terms) {
    const auto v = t.atom.variable();
    if (!v || t.coefficient != radix) return false;
    Digit& digit = digits[static_cast<std::size_t>(v->index)];
    if (digit.value) return false;
    Expr value = ir::floor_div(coordinate, radix);
    if (radix * digit.extent != extent) value = ir::floor_mod(value, digit.extent);
    digit.value = value;
    radix *= digit.extent;
  }
  return radix == extent;
}

}  // namespace

std::optional<std::vector<Expr>> invert(const std::vector<Expr>& map, const Shape& from,
                                        const Shape& to, const std::vector<Expr>& coordinates) {
  auto digits = digits_of(map, from);
  if (!digits) return std::nullopt;
  std::vector<Expr> as_digits(from.size(), Expr(0));
  std::vector<std::int64_t> extents;
  for (std::size_t i = 0; i < digits->size(); ++i) {
    const Digit& d = (*digits)[i];
    as_digits[d.variable] =
        as_digits[d.variable] + Expr(Var{static_cast<std::int32_t>(i)}) * Expr(d.weight);
    extents.push_back(d.extent);
  }
  const ir::Ranges ranges = ir::ranges_of(extents);
  for (std::size_t k = 0; k < map.size(); ++k) {
    const Expr e = ir::simplify(ir::substitute(map[k], as_digits), ranges);
    if (to[k] == 1 && e.is_constant(0)) continue;
    if (!solve(e, to[k], coordinates[k], *digits)) return std::nullopt;
  }
  std::vector<Expr> out(from.size(), Expr(0));
  for (const Digit& d : *digits) {
    if (!d.value) return std::nullopt;
    out[d.variable] = out[d.variable] + *d.value * Expr(d.weight);
  }
  return out;
}

}  // namespace heddle::lower::contract

#include "lower/contract/invert.h"

#include <algorithm>

#include "ir/digits.h"

namespace heddle::lower::contract {
namespace {

using ir::Expr;
using ir::IndexNode;

struct Digit : ir::Digit {
  std::optional<Expr> value = {};  ///< as a function of the coordinates, once found
};

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
  const auto parts = ir::in_digits(map, from);
  if (!parts) return std::nullopt;
  std::vector<Digit> digits;
  for (const ir::Digit& d : parts->digits) digits.push_back({d});
  for (std::size_t k = 0; k < map.size(); ++k) {
    const Expr& e = parts->index[k];
    if (to[k] == 1 && e.is_constant(0)) continue;
    if (!solve(e, to[k], coordinates[k], digits)) return std::nullopt;
  }
  std::vector<Expr> out(from.size(), Expr(0));
  for (const Digit& d : digits) {
    if (!d.value) return std::nullopt;
    out[d.variable] = out[d.variable] + *d.value * Expr(d.weight);
  }
  return out;
}

}  // namespace heddle::lower::contract

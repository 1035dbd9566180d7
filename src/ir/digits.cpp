#include "ir/digits.h"

#include <set>

namespace heddle::ir {
namespace {

using Cuts = std::vector<std::set<std::int64_t>>;

/// A quotient of a sum is offered to every variable in it, scaled by its coefficient.
void collect_cuts(const Expr& e, std::int64_t scale, Cuts& cuts) {
  const IndexNode& node = e.node();
  if (node.kind == IndexNode::Kind::sum)
    for (const IndexNode::Term& t : node.terms) collect_cuts(t.atom, scale, cuts);
  if (node.kind != IndexNode::Kind::div && node.kind != IndexNode::Kind::mod) return;
  const Expr& inner = node.args[0];
  const std::int64_t at = scale * node.constant;
  if (const auto v = inner.variable()) cuts[static_cast<std::size_t>(v->index)].insert(at);
  if (inner.node().kind == IndexNode::Kind::sum)
    for (const IndexNode::Term& t : inner.node().terms)
      if (const auto v = t.atom.variable(); v && t.coefficient > 0 && at % t.coefficient == 0)
        cuts[static_cast<std::size_t>(v->index)].insert(at / t.coefficient);
  collect_cuts(inner, node.kind == IndexNode::Kind::div ? at : scale, cuts);
}

}  // namespace

std::optional<Digits> in_digits(const std::vector<Expr>& index, const Shape& extents) {
  Cuts cuts(extents.size());
  for (const Expr& e : index) collect_cuts(e, 1, cuts);
  Digits out;
  Shape digit_extents;
  std::vector<Expr> variables(extents.size(), Expr(0));
  for (std::size_t d = 0; d < extents.size(); ++d) {
    std::int64_t low = 1;
    cuts[d].insert(extents[d]);
    for (const std::int64_t cut : cuts[d]) {
      if (cut <= low || cut > extents[d]) continue;
      if (cut % low != 0) return std::nullopt;
      const Var digit{static_cast<std::int32_t>(out.digits.size())};
      variables[d] = variables[d] + Expr(digit) * Expr(low);
      out.digits.push_back({d, low, cut / low});
      digit_extents.push_back(cut / low);
      low = cut;
    }
  }
  const Ranges ranges = ranges_of(digit_extents);
  for (const Expr& e : index) out.index.push_back(simplify(substitute(e, variables), ranges));
  return out;
}

}  // namespace heddle::ir

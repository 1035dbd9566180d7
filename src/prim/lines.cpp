#include "prim/lines.h"

#include <algorithm>

#include "ir/arith.h"

namespace heddle::prim {

using ir::Expr;
using ir::Var;

LineWalker::Form LineWalker::form_of(const Expr& e) {
  Form form;
  const ir::IndexNode& n = e.node();
  const auto add = [&](const Expr& atom, std::int64_t c) {
    if (const auto v = atom.variable())
      form.affine.emplace_back(static_cast<std::size_t>(v->index), c);
    else
      form.others.emplace_back(atom, c);
  };
  if (n.kind != ir::IndexNode::Kind::sum) {
    add(e, 1);
    return form;
  }
  form.constant = n.constant;
  for (const auto& t : n.terms) add(t.atom, t.coefficient);
  return form;
}

int LineWalker::choose_inner(const std::vector<Expr>& addresses,
                             const std::vector<ir::Condition>& conditions) const {
  // Elements of a cache line: beyond that stride every access is a miss.
  constexpr std::int64_t kFar = 8;
  constexpr double kLineCost = 24;  // of starting a line, in accesses
  int best = -1;
  double best_cost = 0;
  for (std::size_t v = 0; v < variables_.size(); ++v) {
    const Var var{static_cast<std::int32_t>(v)};
    double cost = kLineCost / static_cast<double>(variables_[v]);
    bool affine = true;
    for (const Expr& e : addresses) {
      const auto step = ir::coefficient_of(e, var);
      affine = affine && step.has_value();
      if (step) cost += static_cast<double>(std::min(std::abs(*step), kFar));
    }
    for (const auto& c : conditions) affine = affine && ir::coefficient_of(c.expr, var).has_value();
    if (!affine || (best >= 0 && cost >= best_cost)) continue;
    best = static_cast<int>(v);
    best_cost = cost;
  }
  return best;
}

LineWalker::LineWalker(Shape variables, const std::vector<Operand>& operands)
    : variables_(std::move(variables)) {
  empty_ = std::any_of(variables_.begin(), variables_.end(), [](auto e) { return e <= 0; });
  if (empty_) return;
  const ir::Ranges ranges = ir::ranges_of(variables_);
  std::vector<Expr> addresses;
  std::vector<ir::Condition> conditions;
  for (const Operand& o : operands) {
    addresses.push_back(ir::simplify(flat_index(o.access->index, *o.shape), ranges));
    conditions.insert(conditions.end(), o.access->inside.begin(), o.access->inside.end());
  }
  inner_ = choose_inner(addresses, conditions);
  const Var inner{inner_};
  for (const Expr& e : addresses) {
    addresses_.push_back(form_of(e));
    steps_.push_back(inner_ < 0 ? 0 : *ir::coefficient_of(e, inner));
  }
  for (const auto& c : conditions)
    bounds_.push_back(
        {form_of(c.expr), c.low, c.high, inner_ < 0 ? 0 : *ir::coefficient_of(c.expr, inner)});
  base_.resize(addresses_.size());
}

bool LineWalker::inside(std::int64_t& low, std::int64_t& high) const {
  low = 0;
  high = inner_ < 0 ? 1 : variables_[static_cast<std::size_t>(inner_)];
  for (const Bound& b : bounds_) {
    const std::int64_t at = b.form.at(point_);  // at inner = 0
    if (b.step == 0) {
      if (at < b.low || at >= b.high) return false;
    } else {
      // low <= at + i·step < high
      const std::int64_t s = std::abs(b.step);
      const std::int64_t first = b.step > 0 ? b.low - at : at - b.high + 1;
      const std::int64_t last = b.step > 0 ? b.high - 1 - at : at - b.low;
      low = std::max(low, -ir::floor_div_int(-first, s));
      high = std::min(high, ir::floor_div_int(last, s) + 1);
    }
  }
  return low < high;
}

bool LineWalker::advance() {
  for (std::size_t v = variables_.size(); v-- > 0;) {
    if (static_cast<int>(v) == inner_) continue;
    if (++point_[v] < variables_[v]) return true;
    point_[v] = 0;
  }
  return false;
}

}  // namespace heddle::prim

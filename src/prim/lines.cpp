#include "prim/lines.h"

#include <algorithm>

#include "ir/arith.h"

namespace heddle::prim {

using ir::Expr;
using ir::Var;

std::optional<IndexForm::Table> IndexForm::table_of(const Expr& atom, std::int64_t coefficient,
                                                    const Shape& variables, int inner) {
  constexpr std::int64_t kMost = 1 << 16;
  std::vector<Var> vars;
  ir::collect_variables(atom, vars);
  const auto extent = [&](Var v) { return variables[static_cast<std::size_t>(v.index)]; };
  std::int64_t count = 1, points = 1;
  for (const Var v : vars) count = std::min(count * extent(v), kMost + 1);
  for (std::size_t v = 0; v < variables.size(); ++v)
    if (static_cast<int>(v) != inner) points = std::min(points * variables[v], 4 * kMost);
  if (count == 0 || count > points / 4) return std::nullopt;  // not worth its own evaluation
  Table table;
  std::int64_t stride = count;
  for (const Var v : vars)
    table.strides.emplace_back(static_cast<std::size_t>(v.index), stride /= extent(v));
  std::vector<std::int64_t> point(variables.size(), 0);
  for (std::int64_t i = 0; i < count; ++i) {
    for (const auto& [v, s] : table.strides) point[v] = i / s % variables[v];
    table.values.push_back(ir::evaluate(atom, point) * coefficient);
  }
  return table;
}

IndexForm::IndexForm(const Expr& e, const Shape& variables, int inner) {
  const ir::IndexNode& n = e.node();
  const auto add = [&](const Expr& atom, std::int64_t c) {
    if (const auto v = atom.variable())
      affine_.emplace_back(static_cast<std::size_t>(v->index), c);
    else if (auto table = table_of(atom, c, variables, inner))
      tables_.push_back(std::move(*table));
    else
      others_.emplace_back(atom, c);
  };
  if (n.kind != ir::IndexNode::Kind::sum) {
    add(e, 1);
  } else {
    constant_ = n.constant;
    for (const auto& t : n.terms) add(t.atom, t.coefficient);
  }
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

int LineWalker::choose_blocked(const std::vector<Expr>& addresses, std::size_t blockable) const {
  int last = static_cast<int>(variables_.size()) - 1;
  if (last == inner_) --last;  // walked fastest as it is
  for (int v = std::min(static_cast<int>(blockable), last) - 1; v >= 0; --v) {
    if (v == inner_ || variables_[static_cast<std::size_t>(v)] == 1) continue;
    for (std::size_t i = 0; i < addresses.size(); ++i)
      if (steps_[i] != 0 && !ir::depends_on(addresses[i], Var{v})) return v;
  }
  return -1;
}

LineWalker::LineWalker(Shape variables, const std::vector<Operand>& operands, std::size_t blockable)
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
    addresses_.emplace_back(e, variables_, inner_);
    steps_.push_back(inner_ < 0 ? 0 : *ir::coefficient_of(e, inner));
  }
  for (const auto& c : conditions)
    bounds_.push_back({IndexForm(c.expr, variables_, inner_), c.low, c.high,
                       inner_ < 0 ? 0 : *ir::coefficient_of(c.expr, inner)});
  blocked_ = choose_blocked(addresses, blockable);
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
  constexpr std::int64_t kBlock = 8;
  if (blocked_ >= 0) {
    const auto v = static_cast<std::size_t>(blocked_);
    if (++point_[v] < std::min(block_ + kBlock, variables_[v])) return true;
    point_[v] = block_;
  }
  for (std::size_t v = variables_.size(); v-- > 0;) {
    if (static_cast<int>(v) == inner_ || static_cast<int>(v) == blocked_) continue;
    if (++point_[v] < variables_[v]) return true;
    point_[v] = 0;
  }
  if (blocked_ < 0) return false;
  const auto v = static_cast<std::size_t>(blocked_);
  point_[v] = block_ += kBlock;
  return block_ < variables_[v];
}

}  // namespace heddle::prim

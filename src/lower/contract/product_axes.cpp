#include "kernel/traverse.h"
#include "lower/contract/product.h"

namespace heddle::lower::contract {

using ir::Expr;
using kernel::Value;

bool chained(const std::vector<Expr>& exprs, const Axis& p, const Axis& q) {
  for (const Expr& e : exprs) {
    const auto outer = ir::coefficient_of(e, p.var), inner = ir::coefficient_of(e, q.var);
    if (!outer || !inner || *outer != *inner * q.extent) return false;
  }
  return true;
}

std::vector<Axis> merged_reductions(const Product& p, const std::vector<Expr>& exprs) {
  std::vector<Axis> out;
  for (const KLoop& loop : p.k)
    for (Axis axis : loop.axes) {
      if (!out.empty() && chained(exprs, out.back(), axis)) {
        axis.extent *= out.back().extent;
        out.pop_back();
      }
      out.push_back(axis);
    }
  return out;
}

std::int64_t row_tasks(const Product& p, const Schedule& s) {
  std::int64_t tasks = s.row_blocks(p.extents) * s.tile_blocks();
  for (const Axis& axis : p.outer)
    if (axis.role == Role::m) tasks *= axis.extent;
  return tasks;
}

std::vector<Expr> expressions_of(const Value& v) {
  std::vector<Expr> out;
  kernel::for_each_value(v, [&](const Value& x) {
    kernel::for_each_expr(*x, [&](const Expr& e) { out.push_back(e); });
  });
  return out;
}

std::uint32_t bits_at(const Tensor& t, std::int64_t i) {
  if (t.dtype() != DType::bf16) return static_cast<std::uint32_t>(t.int_at(i));
  return reinterpret_cast<const std::uint16_t*>(t.data())[i];
}

std::uint32_t word_at(const Tensor& source, std::int64_t offset, std::int64_t next, int parts) {
  const int bits = 32 / parts;
  std::uint32_t word = 0;
  for (int part = parts; part-- > 0;)
    word = (word << bits) | (bits_at(source, offset + next * part) << (32 - bits) >> (32 - bits));
  return word;
}

Value replace_loads(const Value& v, const std::vector<std::pair<kernel::BufferId, Value>>& with) {
  std::unordered_map<const kernel::ValueNode*, Value> memo;
  const std::function<Value(const Value&)> visit = [&](const Value& x) -> Value {
    if (const auto* load = std::get_if<kernel::Load>(&x->op))
      for (const auto& [buffer, value] : with)
        if (load->buffer == buffer) return value;
    auto found = memo.find(x.get());
    if (found != memo.end()) return found->second;
    kernel::Mapper m;
    m.value = visit;
    Value out = kernel::map_children(x, m);
    memo.emplace(x.get(), out);
    return out;
  };
  return visit(v);
}

Value in_units_of(const Axis& q, const Axis& p, const Value& v) {
  kernel::Mapper m;
  m.value = [&](const Value& x) { return in_units_of(q, p, x); };
  m.conditions = [&](kernel::Conditions all) {
    for (ir::Condition& c : all)
      if (ir::coefficient_of(c.expr, p.var) == 1 && ir::coefficient_of(c.expr, q.var) == 0)
        c = {c.expr * Expr(q.extent) + Expr(q.var), c.low * q.extent, c.high * q.extent};
    return all;
  };
  return kernel::map_children(v, m);
}

}  // namespace heddle::lower::contract

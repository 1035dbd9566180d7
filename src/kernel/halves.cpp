#include "kernel/halves.h"

namespace heddle::kernel {
namespace {

using ir::ScalarFn;

/// The other argument of fn(value, number).
std::optional<Value> with_number(const Value& v, ScalarFn fn, std::int64_t number) {
  const auto* x = std::get_if<Apply>(&v->op);
  if (x == nullptr || x->fn != fn) return std::nullopt;
  const auto* second = std::get_if<Imm>(&x->args[1]->op);
  if (second == nullptr || second->integer != number) return std::nullopt;
  return x->args[0];
}

}  // namespace

Value halves(Value low, Value high) {
  const DType t = DType::i32;
  Value below = apply(ScalarFn::bit_and, {std::move(low), imm_int(t, 0xffff)}, t);
  Value above = apply(ScalarFn::shift_left, {std::move(high), imm_int(t, 16)}, t);
  return apply(ScalarFn::bit_or, {std::move(below), std::move(above)}, t);
}

std::optional<std::pair<Value, Value>> as_halves(const Apply& x) {
  if (x.fn != ScalarFn::bit_or || x.args[0]->dtype != DType::i32) return std::nullopt;
  const auto low = with_number(x.args[0], ScalarFn::bit_and, 0xffff);
  const auto high = with_number(x.args[1], ScalarFn::shift_left, 16);
  if (!low || !high) return std::nullopt;
  return std::pair{*low, *high};
}

std::optional<std::pair<Value, Value>> as_halves(const Value& v) {
  const auto* x = std::get_if<Apply>(&v->op);
  return x ? as_halves(*x) : std::nullopt;
}

const Load* load_under_cast(const Value& v) {
  const ValueNode* node = v.get();
  if (const auto* x = std::get_if<Apply>(&node->op); x && x->fn == ScalarFn::cast)
    node = x->args[0].get();
  return std::get_if<Load>(&node->op);
}

std::optional<Expr> distance_of_halves(const Value& low, const Value& high) {
  const Load *a = load_under_cast(low), *b = load_under_cast(high);
  if (!a || !b || a->buffer != b->buffer || !a->dynamic.empty() || !b->dynamic.empty())
    return std::nullopt;
  return b->offset - a->offset;
}

}  // namespace heddle::kernel

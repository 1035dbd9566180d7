#include "kernel/halves.h"

#include "support/result.h"

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

/// The part of a word of `bits` bits each that `v` puts at `shift`; nullopt if it puts none there.
std::optional<Value> part_at(const Value& v, int bits, int shift) {
  const auto moved = shift == 0 ? std::optional(v) : with_number(v, ScalarFn::shift_left, shift);
  if (!moved || shift + bits == 32) return moved;
  return with_number(*moved, ScalarFn::bit_and, (std::int64_t{1} << bits) - 1);
}

/// The arguments of nested bit_or, from the left.
void alternatives(const Value& v, std::vector<Value>& out) {
  const auto* x = std::get_if<Apply>(&v->op);
  if (x == nullptr || x->fn != ScalarFn::bit_or) return out.push_back(v);
  alternatives(x->args[0], out);
  out.push_back(x->args[1]);
}

}  // namespace

Value packed(std::span<const Value> parts) {
  const DType t = DType::i32;
  HEDDLE_CHECK(parts.size() == 2 || parts.size() == 4, "{} parts of a word", parts.size());
  const int bits = 32 / static_cast<int>(parts.size());
  Value word;
  int shift = 0;
  for (Value part : parts) {
    if (shift + bits < 32)
      part = apply(ScalarFn::bit_and, {part, imm_int(t, (std::int64_t{1} << bits) - 1)}, t);
    if (shift > 0) part = apply(ScalarFn::shift_left, {part, imm_int(t, shift)}, t);
    word = word ? apply(ScalarFn::bit_or, {word, part}, t) : part;
    shift += bits;
  }
  return word;
}

std::vector<Value> parts_of(const Apply& x) {
  if (x.fn != ScalarFn::bit_or || x.args[0]->dtype != DType::i32) return {};
  std::vector<Value> words, parts;
  alternatives(x.args[0], words);
  words.push_back(x.args[1]);
  if (words.size() != 2 && words.size() != 4) return {};
  const int bits = 32 / static_cast<int>(words.size());
  for (std::size_t i = 0; i < words.size(); ++i) {
    const auto part = part_at(words[i], bits, static_cast<int>(i) * bits);
    if (!part) return {};
    parts.push_back(*part);
  }
  return parts;
}

std::vector<Value> parts_of(const Value& v) {
  const auto* x = std::get_if<Apply>(&v->op);
  return x ? parts_of(*x) : std::vector<Value>();
}

const Load* load_under_cast(const Value& v) {
  const ValueNode* node = v.get();
  if (const auto* x = std::get_if<Apply>(&node->op); x && x->fn == ScalarFn::cast)
    node = x->args[0].get();
  return std::get_if<Load>(&node->op);
}

std::optional<Expr> distance_of_parts(std::span<const Value> parts) {
  std::optional<Expr> distance;
  for (std::size_t i = 0; i + 1 < parts.size(); ++i) {
    const Load *a = load_under_cast(parts[i]), *b = load_under_cast(parts[i + 1]);
    if (!a || !b || a->buffer != b->buffer || !a->dynamic.empty() || !b->dynamic.empty())
      return std::nullopt;
    const Expr here = b->offset - a->offset;
    if (distance && !(*distance == here)) return std::nullopt;
    distance = here;
  }
  return distance;
}

}  // namespace heddle::kernel

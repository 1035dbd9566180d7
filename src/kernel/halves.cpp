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

namespace {

constexpr std::int64_t kUpper = -65536;

/// A half of each word as an f32.
Value low_half(const Value& word) {
  const Value bits = apply(ScalarFn::shift_left, {word, imm_int(DType::i32, 16)}, DType::i32);
  return apply(ScalarFn::bitcast, {bits}, DType::f32);
}
Value high_half(const Value& word) {
  const Value bits = apply(ScalarFn::bit_and, {word, imm_int(DType::i32, kUpper)}, DType::i32);
  return apply(ScalarFn::bitcast, {bits}, DType::f32);
}

/// The arguments of fn(x, y).
const std::vector<Value>* arguments(const Value& v, ScalarFn fn) {
  const auto* x = std::get_if<Apply>(&v->op);
  return x != nullptr && x->fn == fn ? &x->args : nullptr;
}
/// The word that low_half() or high_half() is of.
std::optional<Value> word_of(const Value& v, ScalarFn fn, std::int64_t number) {
  const auto* bits = arguments(v, ScalarFn::bitcast);
  return bits ? with_number((*bits)[0], fn, number) : std::nullopt;
}

}  // namespace

Value upper_half(Value v) {
  const Value bits = apply(ScalarFn::bitcast, {std::move(v)}, DType::i32);
  return apply(ScalarFn::shift_right, {bits, imm_int(DType::i32, 16)}, DType::i32);
}

Value product_of_halves(const Value& x, const Value& y) {
  const DType t = DType::f32;
  return apply(ScalarFn::add,
               {apply(ScalarFn::mul, {low_half(x), low_half(y)}, t),
                apply(ScalarFn::mul, {high_half(x), high_half(y)}, t)},
               t);
}

std::optional<std::pair<Value, Value>> factors_of_halves(const Value& v) {
  const auto* sum = arguments(v, ScalarFn::add);
  const auto* low = sum ? arguments((*sum)[0], ScalarFn::mul) : nullptr;
  const auto* high = sum ? arguments((*sum)[1], ScalarFn::mul) : nullptr;
  if (!low || !high) return std::nullopt;
  std::vector<Value> words;
  for (std::size_t i = 0; i < 2; ++i) {
    const auto a = word_of((*low)[i], ScalarFn::shift_left, 16);
    const auto b = word_of((*high)[i], ScalarFn::bit_and, kUpper);
    if (!a || !b || *a != *b) return std::nullopt;
    words.push_back(*a);
  }
  return std::pair{words[0], words[1]};
}

const Load* load_under_cast(const Value& v) {
  const ValueNode* node = v.get();
  if (const auto bits = with_number(v, ScalarFn::shift_right, 16))
    if (const auto* whole = arguments(*bits, ScalarFn::bitcast))
      return std::get_if<Load>(&(*whole)[0]->op);
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

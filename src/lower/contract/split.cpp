#include <bit>

#include "lower/contract/pieces.h"

namespace heddle::lower::contract {

using ir::ScalarFn;
using kernel::Value;

namespace {

Value integer(ScalarFn fn, Value x, std::int64_t y, DType type = DType::i32) {
  return kernel::apply(fn, {std::move(x), kernel::imm_int(DType::i32, y)}, type);
}

constexpr std::int64_t kUpper = -65536;

Value as_f32(Value bits) { return kernel::apply(ScalarFn::bitcast, {std::move(bits)}, DType::f32); }

/// The bits of v rounded to bf16, ties away from zero; `any`: of any f32, else of one that does not
/// round to infinity. (A NaN may become another value: then the pieces after it are NaN.)
Value rounded_bits(const Value& bits, bool any) {
  constexpr std::int64_t kHalfUnit = 0x8000, kSize = 0x7fffffff,
                         kLargest = 0x7f7f8000;  // from here on, a half unit more is infinite
  Value up = integer(ScalarFn::add, bits, kHalfUnit);
  if (any) {
    const Value fits =
        integer(ScalarFn::less, integer(ScalarFn::bit_and, bits, kSize), kLargest, DType::b1);
    up = kernel::apply(ScalarFn::select, {fits, up, bits}, DType::i32);
  }
  return integer(ScalarFn::bit_and, std::move(up), kUpper);
}

}  // namespace

// What two leave of three fits the third as it is, unless it is a denormal, whose lower half counts
// for nothing then.
std::vector<Value> split(const Value& v, int count) {
  const auto bits = [](const Value& x) {
    return kernel::apply(ScalarFn::bitcast, {x}, DType::i32);
  };
  if (count == 1) return {rounded_bits(bits(v), true)};
  const auto rest = [](const Value& x, const Value& piece) {
    return kernel::apply(ScalarFn::sub, {x, as_f32(piece)}, DType::f32);
  };
  const Value first = rounded_bits(bits(v), true), left = rest(v, first);
  const Value second = rounded_bits(bits(left), false);
  return {first, second, integer(ScalarFn::bit_and, bits(rest(left, second)), kUpper)};
}

std::uint16_t piece_of(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const bool fits = (bits & 0x7fffffffU) < 0x7f7f8000U;
  return static_cast<std::uint16_t>((fits ? bits + 0x8000U : bits) >> 16);
}

}  // namespace heddle::lower::contract

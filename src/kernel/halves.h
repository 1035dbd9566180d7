#pragma once
#include <optional>
#include <span>
#include <vector>

#include "kernel/kernel.h"

namespace heddle::kernel {

/// Integers as the halves (two of 16 bits, for ScalarFn::dot2) or bytes (four, for dot4) of one
/// i32, the first in its low bits. All are i32.
Value packed(std::span<const Value> parts);
/// What packed() was made of, if the value was; else empty.
std::vector<Value> parts_of(const Value& v);
std::vector<Value> parts_of(const Apply& x);

/// The upper half of an f32's bits, which are all that bf16 has, as an i32: a part of a word.
Value upper_half(Value v);
/// low·low + high·high of the bf16 halves of two i32 words, f32: one instruction of some processors
/// adds that to a sum (AVX512-BF16, which takes denormals for zeros).
Value product_of_halves(const Value& x, const Value& y);
/// The words, if the value is such a product.
std::optional<std::pair<Value, Value>> factors_of_halves(const Value& v);

/// Distance in memory from each part to the next, where all are loads (perhaps under casts) from
/// one buffer, evenly apart; neighbours can be read as one i32.
std::optional<Expr> distance_of_parts(std::span<const Value> parts);
/// The load, perhaps under a cast or upper_half(), or null.
const Load* load_under_cast(const Value& v);

}  // namespace heddle::kernel

#pragma once
#include <optional>
#include <utility>

#include "kernel/kernel.h"

namespace heddle::kernel {

/// Two values of 16-bit integers as the halves of one i32, the operands of ScalarFn::dot2: `low` in
/// the low bits. Both are i32.
Value halves(Value low, Value high);
/// What halves() was made of, if the value was.
std::optional<std::pair<Value, Value>> as_halves(const Value& v);
std::optional<std::pair<Value, Value>> as_halves(const Apply& x);

/// Distance in memory from the low half to the high one, where both are loads (perhaps under casts)
/// from one buffer of 16-bit integers; two neighbours can be read as one i32.
std::optional<Expr> distance_of_halves(const Value& low, const Value& high);
/// The load, perhaps under a cast, or null.
const Load* load_under_cast(const Value& v);

}  // namespace heddle::kernel

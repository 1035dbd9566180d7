#pragma once
#include <optional>
#include <span>

#include "ir/scalar.h"
#include "support/dtype.h"

namespace heddle::prim {

/// Result type of a scalar function on arguments of these types; nullopt if it has none. Arguments
/// agree (except select's condition, which is b1); logic wants b1, bits and shifts want integers,
/// arithmetic anything but b1. Not for cast, whose result is the node's own.
std::optional<DType> result_type(ir::ScalarFn fn, std::span<const DType> args);

}  // namespace heddle::prim

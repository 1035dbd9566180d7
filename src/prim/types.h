#pragma once
#include <optional>
#include <span>

#include "ir/scalar.h"
#include "prim/graph.h"
#include "support/dtype.h"

namespace heddle::prim {

/// Result type of a scalar function on arguments of these types; nullopt if it has none. Arguments
/// agree (except select's condition, which is b1); logic wants b1, bits and shifts want integers,
/// arithmetic anything but b1. Not for cast, whose result is the node's own.
std::optional<DType> result_type(ir::ScalarFn fn, std::span<const DType> args);

/// Checks one node, whose arguments have been checked.
Status verify_node(const Graph& g, NodeId id);

}  // namespace heddle::prim

#pragma once
#include <functional>
#include <span>

#include "prim/graph.h"
#include "support/result.h"

namespace heddle::prim {

/// The reference: floating values are kept in double and are rounded only by an explicit cast to a
/// narrower type and where an output is stored; integers are exact. Plain code that shares nothing
/// with the code generator. Inputs must have the declared types.
Result<std::vector<Tensor>> interpret(const Graph& g, const std::vector<Tensor>& inputs);

/// Working values: f64 for floating types, i64 for integers (u64 by bit pattern) and b1 (0 or 1).
Tensor to_reference(const Tensor& value);
/// Stores a working value as `type`.
Tensor from_reference(const Tensor& value, DType type);

/// Calls visit(node, working value) for each live node in order; values are dropped after their
/// last use, so that large models fit.
Status interpret_each(const Graph& g, const std::vector<Tensor>& inputs,
                      const std::function<void(NodeId, const Tensor&)>& visit);
/// The working value of every live node, by id; an empty Tensor for dead nodes.
Result<std::vector<Tensor>> interpret_all(const Graph& g, const std::vector<Tensor>& inputs);

/// Error: inputs that differ from the declared ones.
Status check_inputs(const Graph& g, const std::vector<Tensor>& inputs);

/// One node from the working values of its arguments (Input excepted).
Tensor evaluate_node(const Graph& g, NodeId id, std::span<const Tensor> args);

}  // namespace heddle::prim

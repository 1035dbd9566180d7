#pragma once
#include "lower/evaluate.h"

namespace heddle::lower {

/// The value of a Reduce or Contract at `index`, used only where `under` holds. argmax and argmin
/// are two reductions: the extreme, then the least position that has it.
kernel::Value reduce_node(const prim::Graph& g, NodeId node, const Evaluator::Index& index,
                          const Evaluator::Conditions& under, const Evaluator::Combine& combine);
/// True for the nodes reduce_node takes.
bool is_reduction(const prim::Graph& g, NodeId node);
/// Terms of one element of the result.
std::int64_t reduced_count(const prim::Graph& g, NodeId node);
/// The literal that changes nothing.
kernel::Value identity_value(ir::Monoid fn, DType type);

}  // namespace heddle::lower

#pragma once
#include <unordered_map>

#include "driver/driver.h"

namespace heddle::driver {

struct LoweredPlan {
  std::vector<CompiledKernel> kernels;                      ///< in execution order, without code
  std::unordered_map<prim::NodeId, lower::Layout> layouts;  ///< of what the kernels write
};

/// Each kernel lowered with the layouts that its producers chose.
Result<LoweredPlan> lower_plan(const prim::Graph& graph, const plan::Plan& plan,
                               const lower::Target& target);

/// What other plans of the graph will probably store: a value that `known` lacks follows its first
/// operand of the same rank; inputs and the rest are row-major.
std::function<lower::Layout(prim::NodeId)> likely_layouts(
    const prim::Graph& graph, std::unordered_map<prim::NodeId, lower::Layout> known);

}  // namespace heddle::driver

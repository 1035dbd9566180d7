#pragma once
#include <map>
#include <unordered_map>

#include "driver/platform.h"
#include "support/hash.h"

namespace heddle::driver {

/// A kernel of the plan that has no lowering for the target.
struct Refusal {
  std::size_t kernel = 0;
  Error error;
};
struct LoweredPlan {
  std::vector<CompiledKernel> kernels;                      ///< in execution order, without code
  std::unordered_map<prim::NodeId, lower::Layout> layouts;  ///< of what the kernels write
  std::vector<Refusal> refusals;
  std::vector<lower::Join> joins;  ///< concatenations in place, with parts by what is computed
};

/// Schedules that replace the plan's, by what a kernel computes.
using Tunings = std::map<Hash, lower::Tuning>;
Hash key_of(const prim::Graph& graph, const lower::Cluster& cluster);

/// Told of a constant whose bytes no kernel reads any more, as they are in others' packed ones.
using DoneWith = std::function<void(prim::NodeId)>;

/// Each kernel lowered with the layouts that its producers chose; on a GPU with its text. What is
/// refused as unsupported is listed; other errors are the result. Constants are packed at last, one
/// kernel after the other.
Result<LoweredPlan> lower_plan(const prim::Graph& graph, const plan::Plan& plan,
                               const Platform& platform, const Tunings& tunings = {},
                               const DoneWith& done_with = {});
/// The layouts alone.
Result<std::unordered_map<prim::NodeId, lower::Layout>> layouts_of(const prim::Graph& graph,
                                                                   const plan::Plan& plan,
                                                                   const Platform& platform);

/// What other plans of the graph will probably store: a value that `known` lacks follows its first
/// operand of the same rank; inputs and the rest are row-major.
std::function<lower::Layout(prim::NodeId)> likely_layouts(
    const prim::Graph& graph, std::unordered_map<prim::NodeId, lower::Layout> known);

}  // namespace heddle::driver

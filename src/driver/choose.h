#pragma once
#include "driver/lower_plan.h"
#include "driver/platform.h"

namespace heddle::driver {

struct Chosen {
  plan::Plan plan;
  std::vector<CompiledKernel> kernels;  ///< lowered; on a GPU with their text
};

/// Makes plans by `orchestrate` until every kernel of one has a lowering: clusters whose lowering
/// refuses are no candidates of the next plan. Errors: unsupported, naming the source node, where
/// a single primitive has no kernel.
Result<Chosen> choose_kernels(
    const prim::Graph& graph, plan::Options planning, const Platform& platform,
    const std::function<Result<plan::Plan>(const plan::Options&)>& orchestrate);

}  // namespace heddle::driver

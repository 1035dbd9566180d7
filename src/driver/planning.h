#pragma once
#include "driver/driver.h"
#include "driver/dump.h"
#include "driver/platform.h"

namespace heddle::driver {

/// Rewrites and folding to a fixed point, for what the machine has, dumped and verified as the
/// options ask.
Result<prim::Graph> run_graph_passes(prim::Graph graph, const CompileOptions& options,
                                     const Platform& platform, Dumper& dumper);

/// What the orchestrator is told: strategy, what the lowering can do, the machine. Alternatives are
/// added to the graph.
Result<plan::Options> plan_options(prim::Graph& graph, const CompileOptions& options,
                                   const Platform& platform);

}  // namespace heddle::driver

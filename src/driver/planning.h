#pragma once
#include "driver/driver.h"
#include "driver/dump.h"
#include "driver/platform.h"

namespace heddle::driver {

/// Rewrites and folding to a fixed point, for what the machine has, dumped and verified as the
/// options ask.
Result<prim::Graph> run_graph_passes(prim::Graph graph, const CompileOptions& options,
                                     const Platform& platform, Dumper& dumper);

/// The graph with the variances of normalisations as sums that ride in the epilogue of what makes
/// their values (prim/moments.h), if its plan is modelled to cost less. `*delta_us`: how much more
/// that plan costs than the other, if there is any such variance.
Result<prim::Graph> with_riding_moments(prim::Graph graph, const CompileOptions& options,
                                        const Platform& platform, ThreadPool& pool,
                                        std::optional<double>* delta_us);

/// What the orchestrator is told: strategy, what the lowering can do, the machine. Alternatives are
/// added to the graph.
Result<plan::Options> plan_options(prim::Graph& graph, const CompileOptions& options,
                                   const Platform& platform);

}  // namespace heddle::driver

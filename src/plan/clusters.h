#pragma once
#include "plan/cost.h"

namespace heddle::plan {

/// Source operators of a cluster, by first node.
std::vector<prim::OriginId> origins_of(const prim::Graph& g, const Cluster& c);

/// Every live primitive alone, with the broadcasts that it reads (in Korch's graphs, and in ONNX,
/// broadcasting is implicit).
std::vector<Cluster> single_clusters(const Facts& facts);

/// The rule of TVM and XLA: walk from the results; a node joins the kernel of its consumers when
/// there is one such kernel: elementwise and views always (not into a main loop's operands), a main
/// loop takes elementwise followers, a reduction ends its kernel.
std::vector<Cluster> greedy_clusters(const Facts& facts, const Options& options);

/// The same rule without fission: an operator's primitives stay together, and whole operators join.
/// One that no single kernel computes becomes one kernel per primitive.
std::vector<Cluster> operator_clusters(const Facts& facts, const Options& options);

/// Orders clusters so that inputs come before their readers and fills in the rest of the plan.
/// nullopt when they wait for each other in a cycle or an input is missing.
std::optional<Plan> assemble(const Facts& facts, std::vector<Cluster> clusters,
                             const Options& options, CostModel& cost);

}  // namespace heddle::plan

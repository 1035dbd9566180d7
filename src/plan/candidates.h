#pragma once
#include "plan/cost.h"
#include "plan/regions.h"

namespace heddle::plan {

/// A kernel that could be part of the plan of a region.
struct Candidate {
  enum class Kind { cone, greedy, aux_store, sibling, packed, chain } kind = Kind::cone;
  Cluster cluster;
  std::vector<NodeId> inputs;  ///< values it needs in memory: region nodes and values made earlier
  Cost cost;
};
std::string_view name_of(Candidate::Kind k);

/// Fan-in cones by priority cuts, as in FPGA technology mapping with duplication: in topological
/// order, each argument is either read from memory or replaced by one of its own cones; the best
/// `cuts_per_node` legal ones by estimated plan cost are kept, dominated ones dropped. Every node
/// has at least the cone of itself. With Strategy::full, kernels with several outputs are added.
std::vector<Candidate> enumerate(const Facts& facts, const Region& region, const Options& options,
                                 CostModel& cost);

/// Multi-output kernels made from the cones: interior values that others read are stored as well,
/// cones over the same input share a kernel, small independent kernels share a launch.
std::vector<Candidate> multi_output(const Facts& facts, const Region& region,
                                    const std::vector<Candidate>& cones, const Options& options,
                                    CostModel& cost);

/// Drops candidates whose outputs nobody can use, and with `dominance` those that cost no less and
/// read no less than another with the same outputs (sound only where recomputation is allowed).
std::vector<Candidate> prune(const Facts& facts, const Region& region,
                             std::vector<Candidate> candidates, bool dominance);

/// A candidate from its cluster: inputs and cost filled in.
Candidate make_candidate(const Facts& facts, Candidate::Kind kind, Cluster cluster,
                         const Options& options, CostModel& cost);

}  // namespace heddle::plan

#include "driver/choose.h"

#include <set>

#include "driver/cuda_code.h"
#include "plan/tuning_db.h"
#include "support/hash.h"
#include "support/log.h"

namespace heddle::driver {
namespace {

constexpr int kRounds = 20;  // then every primitive is a kernel of its own

Hash key_of(const prim::Graph& graph, const lower::Cluster& cluster) {
  return hash_bytes(plan::structure_of(graph, cluster, 0));
}

/// "Softmax 'attention_3'" of the first source node; what the primitive is where it has none.
std::string source_of(const prim::Graph& graph, const plan::Kernel& kernel) {
  for (prim::OriginId id : kernel.origins)
    if (id) return fmt::format("{} '{}'", graph.origin(id).op, graph.origin(id).name);
  return fmt::format("%{} ({})", kernel.cluster.outputs[0].value,
                     prim::kind_name(graph[kernel.cluster.outputs[0]].op));
}

}  // namespace

Result<Chosen> choose_kernels(
    const prim::Graph& graph, plan::Options planning, const Platform& platform,
    const std::function<Result<plan::Plan>(const plan::Options&)>& orchestrate) {
  std::set<Hash> refused;
  const auto supports = planning.legality.supports;
  planning.legality.supports = [&](const prim::Graph& g, const lower::Cluster& c) {
    return supports(g, c) && (refused.empty() || !refused.contains(key_of(g, c)));
  };
  for (int round = 0;; ++round) {
    if (round == kRounds) planning.strategy = plan::Strategy::single;
    Chosen chosen;
    chosen.plan = HEDDLE_TRY(orchestrate(planning));
    LoweredPlan lowered = HEDDLE_TRY(lower_plan(graph, chosen.plan, platform));
    if (lowered.refusals.empty()) {
      chosen.kernels = std::move(lowered.kernels);
      return chosen;
    }
    for (const Refusal& r : lowered.refusals) {
      const plan::Kernel& kernel = chosen.plan.kernels[r.kernel];
      // Single primitives are candidates whatever the legality says.
      if (!refused.insert(key_of(graph, kernel.cluster)).second || round > kRounds)
        return unsupported("{}: no kernel for {}: {}", source_of(graph, kernel), platform.name(),
                           r.error.message);
      log(LogLevel::info, "kernel over {}: {}; planned again without it",
          source_of(graph, kernel), r.error.message);
    }
  }
}

}  // namespace heddle::driver

#include "driver/choose.h"

#include <algorithm>
#include <mutex>
#include <unordered_map>

#include "driver/cuda_code.h"
#include "support/log.h"

namespace heddle::driver {
namespace {

constexpr int kRounds = 20;  // then every primitive is a kernel of its own

/// "Softmax 'attention_3'" of the first source node; what the primitive is where it has none.
std::string source_of(const prim::Graph& graph, const plan::Kernel& kernel) {
  for (prim::OriginId id : kernel.origins)
    if (id) return fmt::format("{} '{}'", graph.origin(id).op, graph.origin(id).name);
  return fmt::format("%{} ({})", kernel.cluster.outputs[0].value,
                     prim::kind_name(graph[kernel.cluster.outputs[0]].op));
}

using Supports = std::function<bool(const prim::Graph&, const lower::Cluster&)>;

Hash hash_of(const lower::Cluster& c) {
  std::string bytes;
  const auto add = [&](const std::vector<prim::NodeId>& ids) {
    for (const prim::NodeId id : ids)
      bytes.append(reinterpret_cast<const char*>(&id.value), sizeof id.value);
    bytes.append(sizeof(prim::NodeId::value), '\xff');
  };
  add(c.nodes);
  add(c.outputs);
  return hash_bytes(bytes);
}

/// Of one graph, asked once for each cluster (plans with alternatives and without hold much the
/// same), on any thread.
Supports asked_once(Supports supports) {
  struct Answers {
    std::mutex mutex;
    std::unordered_map<Hash, bool> known;
  };
  return [supports = std::move(supports), answers = std::make_shared<Answers>()](
             const prim::Graph& g, const lower::Cluster& c) {
    const Hash key = hash_of(c);
    {
      std::lock_guard lock(answers->mutex);
      if (const auto at = answers->known.find(key); at != answers->known.end()) return at->second;
    }
    const bool answer = supports(g, c);
    std::lock_guard lock(answers->mutex);
    answers->known.emplace(key, answer);
    return answer;
  };
}

}  // namespace

Result<Chosen> choose_kernels(const prim::Graph& graph, plan::Options planning,
                              const Platform& platform, const Orchestrate& orchestrate,
                              Learnt learnt, const DoneWith& done_with) {
  std::set<Hash>& refused = learnt.refused;
  const Supports supports = asked_once(planning.legality.supports);
  bool bands = true;
  planning.legality.supports = [&](const prim::Graph& g, const lower::Cluster& c) {
    const bool small = std::all_of(c.outputs.begin(), c.outputs.end(), [&](prim::NodeId id) {
      const auto most = learnt.most.find(id);
      return most == learnt.most.end() || c.nodes.size() <= most->second;
    });
    return small && supports(g, c) && (refused.empty() || !refused.contains(key_of(g, c))) &&
           (bands || !lower::bands::supports(g, c, platform.target()));
  };
  for (int round = 0;; ++round) {
    if (round == kRounds) planning.strategy = plan::Strategy::single;
    Chosen chosen;
    chosen.plan = HEDDLE_TRY(orchestrate(planning));
    LoweredPlan lowered =
        HEDDLE_TRY(lower_plan(graph, chosen.plan, platform, learnt.tunings, done_with));
    if (lowered.refusals.empty()) {
      chosen.kernels = std::move(lowered.kernels);
      chosen.joins = std::move(lowered.joins);
      return chosen;
    }
    std::set<Hash> fresh;  // equal kernels are refused together
    for (const Refusal& r : lowered.refusals) {
      const plan::Kernel& kernel = chosen.plan.kernels[r.kernel];
      // Layouts decide which layers can go band by band: after a second try none do.
      if (round > 0 && lower::bands::supports(graph, kernel.cluster, platform.target()))
        bands = false;
      // Single primitives are candidates whatever the legality says.
      const Hash key = key_of(graph, kernel.cluster);
      fresh.insert(key);
      if (refused.contains(key) || round > kRounds)
        return unsupported("{}: no kernel for {}: {}", source_of(graph, kernel), platform.name(),
                           r.error.message);
      log(LogLevel::info, "kernel over {}: {}; planned again without it", source_of(graph, kernel),
          r.error.message);
    }
    refused.merge(fresh);
  }
}

namespace {

constexpr std::size_t kLeanerSchedules = 6;  // tried against spilling

int spilled_bytes(const CompiledKernel& kernel) {
  int bytes = 0;
  for (const codegen::cuda::FunctionInfo& f : kernel.code.functions) bytes += f.spill_bytes;
  return bytes;
}

/// Schedules of less for each thread than the lowering's own choice.
std::vector<lower::Tuning> leaner(const prim::Graph& graph, const CompiledKernel& kernel,
                                  const Platform& platform) {
  lower::Request request;
  request.graph = &graph;
  request.cluster = kernel.planned.cluster;
  request.target = platform.target();
  request.target.library = request.target.cutlass = false;
  request.layout_of = [&](prim::NodeId id) { return lower::row_major(graph[id].type.shape); };
  std::vector<lower::Tuning> all = lower::tuning_space(request);
  if (!all.empty()) all.erase(all.begin());
  if (all.size() < 2) all.insert(all.end(), {{{"lanes", 4}}, {{"lanes", 2}}, {{"lanes", 1}}});
  if (all.size() > kLeanerSchedules) all.resize(kLeanerSchedules);
  return all;
}

/// Takes the next schedule for each kernel that spills; false if nothing is left to be tried.
bool learn(const prim::Graph& graph, const std::vector<CompiledKernel>& kernels,
           const Platform& platform, std::map<Hash, std::size_t>& tried, Learnt& learnt) {
  bool again = false;
  const bool splitting = !learnt.most.empty();
  std::set<Hash> seen;
  for (const CompiledKernel& kernel : kernels) {
    const int bytes = spilled_bytes(kernel);
    if (bytes == 0) continue;
    const lower::Cluster& cluster = kernel.planned.cluster;
    const Hash key = key_of(graph, cluster);
    const std::vector<lower::Tuning> space = leaner(graph, kernel, platform);
    // Kernels that are alike are dealt with alike.
    const std::size_t next = seen.insert(key).second ? tried[key]++ : tried[key] - 1;
    // Once schedules have not helped, the parts of what was split are split at once.
    if (next < space.size() && !splitting) {
      learnt.tunings[key] = space[next];
    } else if (next <= space.size() && cluster.nodes.size() > 1) {
      tried[key] = space.size() + 1;
      learnt.tunings.erase(key);
      for (prim::NodeId id : cluster.outputs) learnt.most[id] = cluster.nodes.size() / 2;
    } else {
      continue;
    }
    again = true;
    log(LogLevel::info, "kernel over {}: {} bytes of registers in memory ({}); lowered again",
        source_of(graph, kernel.planned), bytes, kernel.lowered.schedule);
  }
  return again;
}

}  // namespace

Result<Built> build_kernels(const prim::Graph& graph, const plan::Options& planning,
                            const Platform& platform, const Orchestrate& orchestrate,
                            const AssembleFn& assemble) {
  Learnt learnt;
  std::map<Hash, std::size_t> tried;
  for (int round = 0;; ++round) {
    Built built{HEDDLE_TRY(choose_kernels(graph, planning, platform, orchestrate, learnt)), {}};
    built.objects = HEDDLE_TRY(assemble(built.chosen.kernels));
    if (round == kRounds || !learn(graph, built.chosen.kernels, platform, tried, learnt))
      return built;
  }
}

}  // namespace heddle::driver

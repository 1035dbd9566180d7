#include "driver/group_tuning.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <random>

#include "driver/cuda_code.h"
#include "driver/lower_plan.h"
#include "driver/measure.h"
#include "support/clock.h"
#include "support/log.h"
#include "support/median.h"

namespace heddle::driver {
namespace {

constexpr int kFactors[] = {1, 2, 4, 8};
constexpr int kRunsOfGroup = 30;

/// Stages of one kernel: those without shared memory stream through it, and may have several tasks'
/// loads in flight.
StageGroup group_of(const CompiledKernel& kernel) {
  StageGroup group{hash_bytes(kernel.code.source), 1, {1}};
  const bool streams = std::ranges::all_of(
      kernel.code.phases, [](const runtime::Phase& p) { return p.grid.shared_bytes == 0; });
  if (streams) group.factors.assign(std::begin(kFactors), std::end(kFactors));
  return group;
}

}  // namespace

std::vector<Platform::Persistent> persistent_settings() {
  std::vector<Platform::Persistent> out;
  for (const int threads : {256, 512})
    for (const int blocks : {1, 2, 3, 4}) out.push_back({threads, blocks, {}});
  return out;
}

std::string to_string(const GroupTuning& t) {
  return fmt::format(
      "groups tuned alone: {} threads, {} blocks a multiprocessor, sum {:.1f} us; 10^{:.1f} "
      "programs to choose from, 10^{:.1f} candidates of groups apart, {} timed in {:.1f} s",
      t.setting.threads, t.setting.blocks, 1e6 * t.seconds, t.naive_log10, t.reduced_log10, t.timed,
      t.spent);
}

GroupTuning tune_groups(const std::vector<Platform::Persistent>& settings,
                        const GroupsOf& groups_of, const TimeGroup& time, double budget_s) {
  GroupTuning out;
  const double begin = now();
  double naive = 0, reduced = 0, candidates = 0;
  bool found = false;
  const auto over = [&] { return found && now() - begin > budget_s; };
  for (const Platform::Persistent& setting : settings) {
    if (over()) {  // of the space, as many as the last setting has
      reduced += candidates;
      continue;
    }
    const std::vector<StageGroup> groups = groups_of(setting);
    if (groups.empty()) continue;  // the plan has no such form
    double product = 0;
    candidates = 0;
    for (const StageGroup& g : groups) {
      product += static_cast<double>(g.stages) * std::log10(static_cast<double>(g.factors.size()));
      candidates += static_cast<double>(g.factors.size());
    }
    reduced += candidates;
    naive = std::max(naive, product);
    Platform::Persistent best = setting;
    double sum = 0;
    // A group that does not run is the end of a setting, as is the end of the time.
    for (std::size_t g = 0; g < groups.size() && std::isfinite(sum); ++g) {
      if (over()) {
        sum = std::numeric_limits<double>::infinity();
        break;
      }
      double least = std::numeric_limits<double>::infinity();
      for (const int factor : groups[g].factors) {
        const std::optional<double> seconds = time(setting, g, factor);
        if (!seconds) continue;
        ++out.timed;
        if (*seconds < least) least = *seconds, best.factors[groups[g].key] = factor;
      }
      sum += least * static_cast<double>(groups[g].stages);
    }
    if (!std::isfinite(sum) || (found && sum >= out.seconds)) continue;
    found = true;
    out.setting = std::move(best);
    out.seconds = sum;
  }
  out.naive_log10 =
      naive + std::log10(static_cast<double>(std::max<std::size_t>(1, settings.size())));
  out.reduced_log10 = std::log10(std::max(1.0, reduced));
  out.spent = now() - begin;
  return out;
}

namespace {

/// The plan's kernels under the settings that were asked for, and how long each takes alone.
struct Tuner {
  const Compiled& compiled;
  const Platform& platform;
  const CompileOptions& options;
  Platform::Persistent current = {};
  std::vector<CompiledKernel> kernels = {};  ///< one of each group

  std::vector<StageGroup> groups(const Platform::Persistent& setting) {
    Platform own = platform;
    own.persistent = current = setting;
    kernels.clear();
    auto lowered = lower_plan(compiled.graph, compiled.plan, own);
    if (!lowered || !lowered->refusals.empty()) return {};
    std::vector<StageGroup> out;
    std::map<Hash, std::size_t> numbers;
    for (CompiledKernel& kernel : lowered->kernels) {
      StageGroup group = group_of(kernel);
      const auto [at, fresh] = numbers.try_emplace(group.key, out.size());
      if (!fresh) {
        ++out[at->second].stages;
        continue;
      }
      out.push_back(std::move(group));
      kernels.push_back(std::move(kernel));
    }
    return out;
  }

  Result<double> time(std::size_t group, int factor) {
    CompiledKernel kernel = kernels[group];
    Platform own = platform;
    own.persistent = current;
    own.persistent->factors[hash_bytes(kernel.code.source)] = factor;
    kernel.code = HEDDLE_TRY(cuda_text(kernel.lowered.kernel, own, paging_of(kernel.code)));
    std::vector<KernelCode*> codes{&kernel.code};
    auto objects = HEDDLE_TRY(compile_persistent(codes, own, options.options));
    for (const auto& f : kernel.code.functions)
      if (f.spill_bytes > 0) return fail("spills");
    SingleKernel single = single_kernel(compiled.graph, kernel, std::move(objects), own.name());
    const auto program = std::make_shared<runtime::Program>(std::move(single.program));
    const auto executor = HEDDLE_TRY(executor_for(*program, options));
    const auto session = HEDDLE_TRY(executor->session(program));
    std::mt19937_64 random(1);
    std::vector<Tensor> inputs;
    for (const runtime::Port& port : program->inputs)
      inputs.push_back(plain_values(port.type, random));
    return median(HEDDLE_TRY(session->time_runs(inputs, kRunsOfGroup)));
  }
};

}  // namespace

Result<GroupTuning> tune_monolith(const Compiled& compiled, const Platform& platform,
                                  const CompileOptions& options, double budget_s) {
  Tuner tuner{compiled, platform, options};
  GroupTuning tuned = tune_groups(
      persistent_settings(), [&](const Platform::Persistent& s) { return tuner.groups(s); },
      [&](const Platform::Persistent&, std::size_t group, int factor) -> std::optional<double> {
        auto seconds = tuner.time(group, factor);
        if (!seconds) {
          log(LogLevel::info, "group {}: {}", group, seconds.error().message);
          return std::nullopt;
        }
        return *seconds;
      },
      budget_s);
  if (tuned.timed == 0) return fail("monolith: no stage could be timed");
  return tuned;
}

}  // namespace heddle::driver

#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "driver/platform.h"
#include "support/hash.h"

namespace heddle::driver {

/// Stages that are alike, under one setting of a persistent kernel's resources.
struct StageGroup {
  Hash key;
  std::int64_t stages = 1;  ///< that are alike
  std::vector<int> factors = {1};
};
/// What schedule-independent group tuning did (MonoNN, OSDI'24, section 5): groups are timed alone
/// under each setting, and the best of each are added up.
struct GroupTuning {
  Platform::Persistent setting;  ///< the best, with its factors
  double seconds = 0;            ///< sum over stages under it
  double naive_log10 = 0;        ///< choices for all stages together, and settings
  double reduced_log10 = 0;      ///< candidates to be timed
  int timed = 0;
  double spent = 0;  ///< seconds of tuning
};
std::string to_string(const GroupTuning& tuning);

using GroupsOf = std::function<std::vector<StageGroup>(const Platform::Persistent& setting)>;
/// Seconds of one stage of group number `group` alone, in a persistent kernel of this setting;
/// nullopt if it cannot be made.
using TimeGroup = std::function<std::optional<double>(const Platform::Persistent& setting,
                                                      std::size_t group, int factor)>;
/// Settings are tried in order, until the time is over; groups that are alike are timed once. A
/// setting under which some group cannot be made is none.
GroupTuning tune_groups(const std::vector<Platform::Persistent>& settings, const GroupsOf& groups,
                        const TimeGroup& time, double budget_s);

/// Threads of a block by blocks of a multiprocessor.
std::vector<Platform::Persistent> persistent_settings();

/// The same for the kernels of a compiled monolith, timed on the GPU.
Result<GroupTuning> tune_monolith(const Compiled& compiled, const Platform& platform,
                                  const CompileOptions& options, double budget_s);

}  // namespace heddle::driver

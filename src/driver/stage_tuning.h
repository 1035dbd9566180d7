#pragma once
#include <string>
#include <vector>

#include "driver/driver.h"
#include "runtime/session.h"

namespace heddle::driver {

/// What each stage of a monolith may be: waits on counters for the tasks that it needs, in one item
/// of each worker, in several, or all on one worker; or a barrier before it.
std::vector<runtime::StageChoice> stage_choices();
std::string to_string(const runtime::StageChoice& choice);

/// Stages that are alike: the same code behind the same code.
struct AlikeStages {
  std::vector<std::size_t> stages;
  std::vector<double> seconds;  ///< by choice: what each of them adds to a run
  std::size_t chosen = 0;
};
/// Schedule-independent tuning of stages on the CPU (MonoNN, OSDI'24, section 5): a run has the
/// same choice for all stages, and says what each adds to it; then each takes its best.
struct StageTuning {
  std::vector<AlikeStages> groups;
  double naive_log10 = 0;    ///< choices for all stages together
  double reduced_log10 = 0;  ///< choices for groups apart
  int runs = 0;
  double spent = 0;  ///< seconds
  std::vector<runtime::StageChoice> own() const;
};
std::string to_string(const StageTuning& tuning);

/// `added`: seconds by choice and stage; `alike`: the group of each stage. The first choice stays
/// where no other is better by more than `margin` of it.
StageTuning choose_stages(const std::vector<std::vector<double>>& added,
                          const std::vector<std::size_t>& alike, double margin = 0.02);

/// By stage, what it adds to a run with this choice for all stages: how much later all up to it are
/// complete than all before it. Of a stage on one worker, how long that takes: what others do at
/// the same time is nothing that can be counted on.
std::vector<double> added_by_stage(const runtime::Program& program,
                                   const std::vector<runtime::ItemTime>& items,
                                   const runtime::StageChoice& choice);

/// Times runs of each choice in turns, for about so many seconds.
Result<StageTuning> tune_stages(const runtime::Program& program, runtime::Session& session,
                                std::span<const Tensor> inputs, double seconds);

}  // namespace heddle::driver

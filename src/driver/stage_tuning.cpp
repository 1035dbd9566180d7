#include "driver/stage_tuning.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "support/clock.h"

namespace heddle::driver {
namespace {

using runtime::StageChoice;

constexpr int kFewestTurns = 3, kMostTurns = 50;

/// The number of a launch's first stage, by launch.
std::vector<std::size_t> first_stages(const runtime::Program& program) {
  std::vector<std::size_t> first;
  std::size_t stages = 0;
  for (const runtime::Launch& launch : program.launches) {
    first.push_back(stages);
    stages += launch.phases.size();
  }
  first.push_back(stages);
  return first;
}

/// A stage is like another if both are the same code, and what comes before them is.
std::vector<std::size_t> alike(const runtime::Program& program) {
  std::map<std::pair<std::string, std::string>, std::size_t> numbers;
  std::vector<std::size_t> out;
  std::string previous;
  for (const runtime::Launch& launch : program.launches)
    for (const runtime::Phase& phase : launch.phases) {
      out.push_back(numbers.try_emplace({previous, phase.symbol}, numbers.size()).first->second);
      previous = phase.symbol;
    }
  return out;
}

}  // namespace

std::vector<StageChoice> stage_choices() { return {{1, false}, {1, true}, {4, false}, {0, false}}; }

std::string to_string(const StageChoice& choice) {
  if (choice.grain == 0) return choice.meet ? "barrier, one worker" : "one worker";
  const std::string how = choice.meet ? "barrier" : "counters";
  return choice.grain == 1 ? how : fmt::format("{}, grain={}", how, choice.grain);
}

std::vector<StageChoice> StageTuning::own() const {
  const std::vector<StageChoice> choices = stage_choices();
  std::vector<StageChoice> out;
  for (const AlikeStages& group : groups)
    for (const std::size_t stage : group.stages) {
      out.resize(std::max(out.size(), stage + 1));
      out[stage] = choices[group.chosen];
    }
  return out;
}

std::string to_string(const StageTuning& t) {
  std::string out = "stages alone:";
  const std::vector<StageChoice> choices = stage_choices();
  for (std::size_t c = 0; c < choices.size(); ++c) {
    std::size_t stages = 0;
    for (const AlikeStages& group : t.groups)
      if (group.chosen == c) stages += group.stages.size();
    out += fmt::format("{} {} {}", c == 0 ? "" : ";", stages, to_string(choices[c]));
  }
  return out + fmt::format("; 10^{:.1f} choices together, 10^{:.1f} apart, {} runs in {:.2f} s",
                           t.naive_log10, t.reduced_log10, t.runs, t.spent);
}

StageTuning choose_stages(const std::vector<std::vector<double>>& added,
                          const std::vector<std::size_t>& alike, double margin) {
  StageTuning out;
  for (std::size_t s = 0; s < alike.size(); ++s) {
    if (out.groups.size() <= alike[s]) out.groups.resize(alike[s] + 1);
    AlikeStages& group = out.groups[alike[s]];
    group.stages.push_back(s);
    group.seconds.resize(added.size());
    for (std::size_t c = 0; c < added.size(); ++c) group.seconds[c] += added[c][s];
  }
  for (AlikeStages& group : out.groups) {
    for (double& seconds : group.seconds) seconds /= static_cast<double>(group.stages.size());
    const auto best = std::ranges::min_element(group.seconds);
    if (*best < group.seconds.front() * (1 - margin))
      group.chosen = static_cast<std::size_t>(best - group.seconds.begin());
  }
  const double each = std::log10(static_cast<double>(added.size()));
  out.naive_log10 = each * static_cast<double>(alike.size());
  out.reduced_log10 =
      std::log10(static_cast<double>(std::max<std::size_t>(1, added.size() * out.groups.size())));
  return out;
}

std::vector<double> added_by_stage(const runtime::Program& program,
                                   const std::vector<runtime::ItemTime>& items,
                                   const StageChoice& choice) {
  const std::vector<std::size_t> first = first_stages(program);
  std::vector<double> end(first.back()), alone(first.back());
  for (const runtime::ItemTime& item : items) {
    const std::size_t stage =
        first[static_cast<std::size_t>(item.launch)] + static_cast<std::size_t>(item.phase);
    end[stage] = std::max(end[stage], item.end);
    alone[stage] += item.end - item.begin;
  }
  if (choice.grain == 0) return alone;
  double complete = 0;
  for (double& at : end) {
    const double added = std::max(0.0, at - complete);
    complete += added;
    at = added;
  }
  return end;
}

Result<StageTuning> tune_stages(const runtime::Program& program, runtime::Session& session,
                                std::span<const Tensor> inputs, double seconds) {
  const double start = now();
  const std::vector<StageChoice> choices = stage_choices();
  const std::size_t stages = first_stages(program).back();
  std::vector<std::vector<double>> least(choices.size(), std::vector<double>(stages, 1e30));
  int turns = 0;
  for (; turns < kFewestTurns || (turns < kMostTurns && now() - start < seconds); ++turns)
    for (std::size_t c = 0; c < choices.size(); ++c) {
      runtime::StageLayout layout;
      layout.own.assign(stages, choices[c]);
      layout.depth_first = true;
      session.use(layout);
      const std::vector<double> added =
          added_by_stage(program, HEDDLE_TRY(session.timeline(inputs)), choices[c]);
      for (std::size_t s = 0; s < stages; ++s) least[c][s] = std::min(least[c][s], added[s]);
    }
  StageTuning out = choose_stages(least, alike(program));
  out.runs = turns * static_cast<int>(choices.size());
  out.spent = now() - start;
  return out;
}

}  // namespace heddle::driver

#include "driver/stage_tuning.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "runtime/schedule.h"
#include "support/clock.h"

namespace heddle::driver {
namespace {

using runtime::StageChoice;

constexpr int kFewestRounds = 2, kMostRounds = 50;
constexpr int kRuns = 2;         ///< in each turn: the first finds other stages' data in the caches
constexpr double kMostOver = 4;  ///< of the time that was asked for, where two turns take longer
constexpr int kGrains[] = {1, 4, 0};
constexpr double kLeastGain = 1e-7;  ///< seconds of a barrier: about what a clock shows

/// Both stages laid out by one choice; no other has tasks.
runtime::StageLayout layout_of(const StageEdge& edge, const EdgeChoice& choice,
                               std::size_t stages) {
  runtime::StageLayout layout;
  layout.depth_first = true;
  layout.own.resize(stages);
  StageChoice& second = layout.own[static_cast<std::size_t>(edge.stage)];
  layout.own[static_cast<std::size_t>(edge.before)].grain = second.grain = choice.grain;
  if (choice.barrier) second.meets = {edge.before};
  return layout;
}

/// From the first item's begin to the last one's end.
double seconds_of(const std::vector<runtime::ItemTime>& items) {
  double begin = std::numeric_limits<double>::infinity(), end = 0;
  for (const runtime::ItemTime& item : items)
    begin = std::min(begin, item.begin), end = std::max(end, item.end);
  return std::max(0.0, end - begin);
}

}  // namespace

std::vector<EdgeChoice> edge_choices() { return {{1, false}, {1, true}, {4, false}, {0, false}}; }

std::string to_string(const StageTuning& t) {
  std::size_t edges = 0, barriers = 0;
  for (const AlikeEdges& group : t.groups) edges += group.edges.size();
  for (const StageChoice& stage : t.own) barriers += stage.meets.size();
  std::string out = fmt::format("pairs of stages alone: {} edges by counters, {} by barriers; ",
                                edges - barriers, barriers);
  for (const int grain : kGrains)
    out += fmt::format("{}{} stages {}", grain == kGrains[0] ? "" : ", ",
                       std::ranges::count(t.own, grain, &StageChoice::grain),
                       grain == 0 ? "on one worker" : fmt::format("of grain {}", grain));
  return out + fmt::format("; 10^{:.1f} choices together, 10^{:.1f} apart, {} runs in {:.2f} s",
                           t.naive_log10, t.reduced_log10, t.runs, t.spent);
}

std::vector<AlikeEdges> alike_edges(const runtime::Program& program) {
  std::vector<std::string> symbols;
  for (const runtime::Launch& launch : program.launches)
    for (const runtime::Phase& phase : launch.phases) symbols.push_back(phase.symbol);
  const std::vector<runtime::Stage> stages = runtime::stages_of(program);
  const auto edges = runtime::edges_of(stages);
  std::map<std::tuple<std::string, std::string, std::vector<std::int64_t>>, std::size_t> numbers;
  std::vector<AlikeEdges> out;
  for (std::size_t s = 0; s < edges.size(); ++s)
    for (const int before : edges[s]) {
      const auto b = static_cast<std::size_t>(before);
      const auto [at, fresh] = numbers.try_emplace(
          {symbols[b], symbols[s], runtime::meeting_of(stages[b], stages[s])}, out.size());
      if (fresh) out.emplace_back();
      out[at->second].edges.push_back({before, static_cast<int>(s)});
    }
  return out;
}

void choose_stages(StageTuning& tuning, std::size_t stages, double margin) {
  const std::vector<EdgeChoice> choices = edge_choices();
  // By stage and grain, what its edges take.
  std::vector<std::vector<double>> take(stages, std::vector<double>(std::size(kGrains)));
  for (const AlikeEdges& group : tuning.groups)
    for (std::size_t g = 0; g < std::size(kGrains); ++g) {
      double least = std::numeric_limits<double>::infinity();
      for (std::size_t c = 0; c < choices.size(); ++c)
        if (choices[c].grain == kGrains[g]) least = std::min(least, group.seconds(c));
      for (const StageEdge& edge : group.edges)
        for (const int stage : {edge.before, edge.stage})
          take[static_cast<std::size_t>(stage)][g] += least;
    }
  tuning.own.assign(stages, {});
  for (std::size_t s = 0; s < stages; ++s) {
    const auto best = std::ranges::min_element(take[s]);
    if (*best < take[s][0] * (1 - margin)) tuning.own[s].grain = kGrains[best - take[s].begin()];
  }
  for (const AlikeEdges& group : tuning.groups) {
    const auto wins = [&](const std::vector<double>& seconds) {
      return seconds[1] < std::min(seconds[0] * (1 - margin), seconds[0] - kLeastGain);
    };
    if (!std::ranges::all_of(group.halves, wins)) continue;
    for (const StageEdge& edge : group.edges)
      if (StageChoice& stage = tuning.own[static_cast<std::size_t>(edge.stage)];
          stage.grain == 1 && tuning.own[static_cast<std::size_t>(edge.before)].grain == 1)
        stage.meets.push_back(edge.before);
  }
}

Result<StageTuning> tune_stages(const runtime::Program& program, runtime::Session& session,
                                std::span<const Tensor> inputs, double seconds) {
  const double start = now();
  const std::vector<EdgeChoice> choices = edge_choices();
  const std::size_t stages = runtime::stages_of(program).size();
  StageTuning out;
  out.groups = alike_edges(program);
  std::size_t edges = 0;
  for (AlikeEdges& group : out.groups) {
    group.halves.fill(std::vector<double>(choices.size(), std::numeric_limits<double>::infinity()));
    edges += group.edges.size();
  }
  const auto over = [&](double limit) { return now() - start > limit; };
  for (int turn = 0; turn < kFewestRounds || (turn < kMostRounds && !over(seconds)); ++turn)
    for (AlikeEdges& group : out.groups) {
      // In long programs what is not reached stays as it is.
      if (over(kMostOver * seconds)) break;
      for (std::size_t c = 0; c < choices.size(); ++c) {
        const StageEdge& edge = group.edges.front();
        const int both[] = {edge.before, edge.stage};
        HEDDLE_TRY(session.use(layout_of(edge, choices[c], stages), both));
        double& half = group.halves[static_cast<std::size_t>(turn % 2)][c];
        for (int run = 0; run < kRuns; ++run, ++out.runs)
          half = std::min(half, seconds_of(HEDDLE_TRY(session.timeline(inputs))));
      }
    }
  for (AlikeEdges& group : out.groups)
    if (!std::isfinite(group.halves[1].back()))
      group.halves.fill(std::vector<double>(choices.size()));
  choose_stages(out, stages);
  const double each = std::log10(static_cast<double>(choices.size()));
  out.naive_log10 = each * static_cast<double>(edges);
  out.reduced_log10 =
      each + std::log10(static_cast<double>(std::max<std::size_t>(1, out.groups.size())));
  out.spent = now() - start;
  return out;
}

}  // namespace heddle::driver

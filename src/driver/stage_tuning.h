#pragma once
#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "driver/driver.h"
#include "runtime/session.h"

namespace heddle::driver {

/// What an edge between two stages of a monolith may be: the second waits on counters for the tasks
/// that it needs, both in one item of each worker, in several, or whole on one worker; or a barrier
/// is between them.
struct EdgeChoice {
  int grain = 1;  ///< of both, as StageChoice has it
  bool barrier = false;
};
std::vector<EdgeChoice> edge_choices();

/// One stage waits for another (runtime::edges_of).
struct StageEdge {
  int before = 0, stage = 0;
  bool operator==(const StageEdge&) const = default;
};
/// Edges that are alike: between the same code, which touches the same of each other's memory.
struct AlikeEdges {
  std::vector<StageEdge> edges;
  /// By choice, the two stages alone: the least of every other turn, and of the turns between. What
  /// is no chance wins in both.
  std::array<std::vector<double>, 2> halves = {};
  double seconds(std::size_t choice) const {
    return std::min(halves[0][choice], halves[1][choice]);
  }
};
/// Schedule-independent tuning (MonoNN, OSDI'24, section 5): the two stages of an edge run alone in
/// the persistent region (CPU) or kernel (CUDA) for each choice, edges that are alike once; then
/// each stage takes the grain that its edges take least with, and each edge counters or a barrier.
struct StageTuning {
  std::vector<AlikeEdges> groups;
  std::vector<runtime::StageChoice> own;  ///< by stage: what came of it
  double naive_log10 = 0;                 ///< choices for all edges together
  double reduced_log10 = 0;               ///< choices for groups apart
  int runs = 0;
  double spent = 0;  ///< seconds
};
std::string to_string(const StageTuning& tuning);

std::vector<AlikeEdges> alike_edges(const runtime::Program& program);

/// Fills in `own` for so many stages, by what was measured. The first grain stays where nothing
/// else takes less by more than `margin` of it; a barrier has to, and by 100 ns, in both halves of
/// the turns.
void choose_stages(StageTuning& tuning, std::size_t stages, double margin = 0.03);

/// Times each group's first edge for each choice in turns, for about so many seconds. The session,
/// a monolith's, has run before: stages find what is in memory from then.
Result<StageTuning> tune_stages(const runtime::Program& program, runtime::Session& session,
                                std::span<const Tensor> inputs, double seconds);

}  // namespace heddle::driver

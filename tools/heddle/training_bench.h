#pragma once
#include "common.h"
#include "versus.h"

namespace heddle::tool {

/// How long everybody steps, and who.
struct TrainingContest {
  std::vector<std::string> peers;
  double duration = 2;  ///< seconds of measuring, each
  int rounds = 12;
  Terms terms;  ///< all but training
};

/// `bench --train`: training steps on one batch, interleaved with peers'. The losses of the first
/// steps are compared; peaks are of resident memory once everything is compiled.
Result<nlohmann::json> bench_training(const ModelFlags& flags, TrainingContest contest);

}  // namespace heddle::tool

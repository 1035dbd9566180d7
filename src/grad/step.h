#pragma once
#include <string>
#include <vector>

#include "grad/optimizers.h"
#include "prim/graph.h"

namespace heddle::grad {

struct StepOptions {
  std::string loss = "cross_entropy";
  std::string optimizer = "adamw";
  OptimizerSettings settings;
  double clip_norm = 0;  ///< gradients are scaled so that their common norm is at most this; 0: not
};

/// One training step as one graph: forward, backward and update.
struct Step {
  /// Inputs: those of the forward graph, "target", "learning_rate" and "step" (f32[]; the number of
  /// this step, from 1), then states ("mean:NAME"). Outputs: "loss", then new values of parameters,
  /// states and statistics under the names of the inputs that they replace.
  prim::Graph graph;
  std::vector<std::string> states;  ///< names of the inputs that start as zeros
  /// Output `from` is input `to` of the next step.
  struct Feedback {
    std::size_t from, to;
  };
  std::vector<Feedback> feedback;
};

/// `forward`: its first output is the prediction; outputs that have an input's name (running
/// statistics) are fed back. Errors: an unknown loss, optimiser or parameter, a prediction that the
/// loss cannot take, what gradients() cannot differentiate.
Result<Step> training_step(prim::Graph forward, const std::vector<std::string>& parameters,
                           const StepOptions& options);

}  // namespace heddle::grad

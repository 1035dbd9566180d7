#pragma once
#include <optional>
#include <string>
#include <vector>

#include "grad/optimizers.h"
#include "prim/graph.h"

namespace heddle::grad {

struct StepOptions {
  std::string loss = "cross_entropy";
  std::string optimizer = "adamw";
  OptimizerSettings settings;
  /// Targets of this class count neither in the sum nor in the number that it is divided by
  /// (cross_entropy, nll).
  std::optional<std::int64_t> ignore_index = {};
  double clip_norm = 0;  ///< gradients are scaled so that their common norm is at most this; 0: not
  /// What values between the parameters and the loss are stored as (f32, f16, bf16; see
  /// prim::with_storage); parameters, gradients' sums, states and the update stay f32.
  DType precision = DType::f32;
  /// f16: the loss is multiplied by this number before it is differentiated, so that small
  /// gradients are not rounded to zero. It doubles after `scale_interval` steps; where a gradient
  /// is infinite or no number the step changes nothing, and the number is halved.
  double loss_scale = 65536;
  double scale_interval = 2000;
  std::uint64_t seed = 0;  ///< of random numbers (dropout)
  int parts = 1;           ///< gradients given to the update are sums over this many batches
  /// Gradients are added to inputs of their names (kGradient), those of the batches before.
  bool accumulate = false;
  /// A collective sums each gradient over processes before the update.
  bool distributed = false;
};

/// A graph some of whose outputs are inputs of its next run.
struct Step {
  prim::Graph graph;
  /// Inputs that are kept between runs besides the model's values, and what they start as.
  struct State {
    std::string name;
    double initial = 0;
    bool operator==(const State&) const = default;
  };
  std::vector<State> states;
  /// Output `from` is input `to` of the next step.
  struct Feedback {
    std::size_t from, to;
  };
  std::vector<Feedback> feedback;
  std::vector<std::string> sums;  ///< names of what collectives sum, by channel
};

/// Names of inputs of steps. kDraw is there if the model draws random numbers: one i64, another one
/// for every batch. kStep is the number of the step, from 1.
inline constexpr std::string_view kTarget = "target", kRate = "learning_rate", kStep = "step",
                                  kDraw = "draw", kScale = "loss_scale";
/// The state that counts the steps in which a gradient was infinite (f16).
inline constexpr std::string_view kSkipped = "loss_scale:skipped";
/// Before the name of a parameter: its gradient.
inline constexpr std::string_view kGradient = "gradient:";
/// Steps have inputs or outputs of this name besides the model's, or may have.
bool is_own_name(std::string_view name);

/// One training step, forward, backward and update, as one graph. `forward`: its first output is
/// the prediction (or the loss: see grad::losses); outputs that have an input's name (running
/// statistics) are fed back. Inputs: those of the forward graph, then those above, then states.
/// Outputs: "loss", then new values under the names of the inputs that they replace.
/// Errors: an input of the model with an is_own_name(), an unknown loss, optimiser or parameter, a
/// prediction that the loss cannot take, what gradients() cannot differentiate.
Result<Step> training_step(prim::Graph forward, const std::vector<std::string>& parameters,
                           const StepOptions& options);

/// A distributed step in two at its collectives (prim::split_at_collectives).
struct SplitStep {
  Step gradients;  ///< outputs: "loss", statistics, then each parameter's gradient (kGradient)
  Step update;     ///< inputs: parameters, rate, step, states, then sums of gradients
  std::vector<std::size_t> summed;  ///< outputs of `gradients` that are to be summed
};
Result<SplitStep> split_step(const Step& step);

}  // namespace heddle::grad

#pragma once
#include <span>
#include <string_view>
#include <vector>

#include "prim/builder.h"
#include "support/result.h"

namespace heddle::grad {

using prim::Builder;
using prim::NodeId;

/// What optimisers are told besides gradients; PyTorch's defaults.
struct OptimizerSettings {
  double momentum = 0.9;
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8;
  double weight_decay = 0;
};

/// One parameter's update: everything has the parameter's shape, `rate` and `step` (the number of
/// this step, from 1) have shape [].
struct Update {
  NodeId parameter, gradient;
  std::vector<NodeId> states;
  NodeId rate, step;
};
struct Updated {
  NodeId parameter;
  std::vector<NodeId> states;
};

/// An optimiser as a function on primitives, so that the whole step is one graph.
struct Optimizer {
  std::string_view name;
  std::string_view help;
  std::vector<std::string_view> states;  ///< kept between steps, zeros at first
  Updated (*update)(Builder& b, const Update& u, const OptimizerSettings& settings);
};
/// sgd, momentum, nesterov, adam, adamw: the updates of PyTorch's SGD, Adam and AdamW.
std::span<const Optimizer> optimizers();
/// Error: lists the names.
Result<const Optimizer*> optimizer_named(std::string_view name);

}  // namespace heddle::grad

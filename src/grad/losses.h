#pragma once
#include <optional>
#include <span>
#include <string_view>

#include "prim/builder.h"
#include "support/result.h"

namespace heddle::grad {

using prim::Builder;
using prim::NodeId;

/// A loss: one number (shape []) from a prediction and a target.
struct Loss {
  std::string_view name;
  std::string_view help;
  /// The target's type for a prediction of this type, nullopt if there is none; error: what
  /// predictions it wants.
  Result<std::optional<TensorType>> (*target)(const TensorType& prediction);
  NodeId (*value)(Builder& b, NodeId prediction, NodeId target);
};
/// cross_entropy, nll, mse, l1, bce, bce_logits, kl: means as PyTorch's with their defaults (kl: of
/// the batch). output: the prediction is the loss.
std::span<const Loss> losses();
/// Error: lists the names.
Result<const Loss*> loss_named(std::string_view name);

}  // namespace heddle::grad

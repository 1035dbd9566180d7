#include "grad/losses.h"

#include <limits>

namespace heddle::grad {
namespace {

using ir::ScalarFn;

std::vector<int> all_axes(const Builder& b, NodeId x) {
  std::vector<int> axes;
  for (int k = 0; k < b.rank(x); ++k) axes.push_back(k);
  return axes;
}
NodeId mean_of(Builder& b, NodeId x) { return b.mean(x, all_axes(b, x), false); }

using Target = Result<std::optional<TensorType>>;

Target same(const TensorType& prediction) { return std::optional(prediction); }
Target none(const TensorType& prediction) {
  if (element_count(prediction.shape) != 1)
    return fail("shape {}, want one number", to_string(prediction.shape));
  return std::optional<TensorType>();
}
/// Predictions [N, classes, …] and positions of classes [N, …].
Target classes(const TensorType& prediction) {
  if (prediction.shape.size() < 2)
    return fail("prediction of shape {}, want [N, classes, …]", to_string(prediction.shape));
  Shape shape = prediction.shape;
  shape.erase(shape.begin() + 1);
  return std::optional(TensorType{DType::i64, shape});
}

/// -Σ log p[target] / N. Reading by comparison keeps the gradient a map: softmax - onehot.
NodeId likelihood(Builder& b, NodeId logp, NodeId target) {
  const NodeId position = b.iota({DType::i64, b.shape(logp)}, 1);
  const NodeId hit = b.map(ScalarFn::equal, {b.unsqueeze(target, {1}), position});
  const NodeId picked = b.select(hit, logp, b.full(b.type(logp), 0));
  const double count = static_cast<double>(element_count(b.shape(target)));
  return b.mul(b.reduce_sum(picked, all_axes(b, picked), false), -1 / count);
}
NodeId cross_entropy(Builder& b, NodeId scores, NodeId target) {
  const NodeId centred = b.sub(scores, b.reduce_max(scores, {1}));
  return likelihood(b, b.sub(centred, b.log(b.reduce_sum(b.exp(centred), {1}))), target);
}
NodeId itself(Builder& b, NodeId y, NodeId) { return b.reshape(y, {}); }
NodeId squared(Builder& b, NodeId y, NodeId target) {
  const NodeId d = b.sub(y, target);
  return mean_of(b, b.mul(d, d));
}
NodeId absolute(Builder& b, NodeId y, NodeId target) {
  return mean_of(b, b.map(ScalarFn::abs, {b.sub(y, target)}));
}
/// PyTorch's limit: logarithms are at least -100. The logarithm itself is of something above 0,
/// whose derivative is finite. What is no number stays none.
NodeId bounded_log(Builder& b, NodeId x) {
  const double least = b.dtype(x) == DType::f64 ? std::numeric_limits<double>::min()
                                                : std::numeric_limits<float>::min();
  const NodeId limit = b.full(b.type(x), -100);
  const NodeId none = b.map(ScalarFn::less_equal, {x, b.full(b.type(x), 0)});
  const NodeId tiny = b.map(ScalarFn::less, {x, b.full(b.type(x), least)});
  const NodeId log = b.log(b.select(tiny, b.full(b.type(x), least), x));
  const NodeId low = b.map(ScalarFn::less, {log, limit});
  return b.select(none, limit, b.select(low, limit, log));
}
NodeId binary(Builder& b, NodeId p, NodeId target) {
  const NodeId one = b.full(b.type(p), 1);
  return b.neg(mean_of(b, b.add(b.mul(target, bounded_log(b, p)),
                                b.mul(b.sub(one, target), bounded_log(b, b.sub(one, p))))));
}
/// max(x, 0) - x·t + log(1 + exp(-|x|)): no overflow, and by choices whose derivatives are right at
/// 0.
NodeId binary_logits(Builder& b, NodeId x, NodeId target) {
  const NodeId zero = b.full(b.type(x), 0), above = b.map(ScalarFn::greater, {x, zero});
  const NodeId tail = b.log(b.add(b.exp(b.select(above, b.neg(x), x)), 1));
  return mean_of(b, b.add(b.sub(b.select(above, x, zero), b.mul(x, target)), tail));
}
/// Σ t·(log t - prediction) / N, where t = 0 gives 0.
NodeId divergence(Builder& b, NodeId logp, NodeId target) {
  const NodeId zero = b.full(b.type(target), 0), one = b.full(b.type(target), 1);
  const NodeId some = b.map(ScalarFn::greater, {target, zero});
  const NodeId entropy = b.mul(target, b.log(b.select(some, target, one)));
  const NodeId sum = b.sub(entropy, b.mul(target, logp));
  const double rows = b.rank(sum) == 0 ? 1 : static_cast<double>(b.shape(sum)[0]);
  return b.mul(b.reduce_sum(sum, all_axes(b, sum), false), 1 / rows);
}

constexpr Loss kLosses[] = {
    {"cross_entropy", "scores [N, classes, …], classes i64 [N, …]", classes, cross_entropy},
    {"nll", "log-probabilities [N, classes, …], classes i64 [N, …]", classes, likelihood},
    {"mse", "mean of squared differences", same, squared},
    {"l1", "mean of absolute differences", same, absolute},
    {"bce", "probabilities and targets between 0 and 1", same, binary},
    {"bce_logits", "scores, and targets between 0 and 1", same, binary_logits},
    {"kl", "log-probabilities and probabilities, summed, over the batch's size", same, divergence},
    {"output", "the model's first output is the loss, one number; no target", none, itself},
};

}  // namespace

std::span<const Loss> losses() { return kLosses; }

Result<const Loss*> loss_named(std::string_view name) {
  std::string known;
  for (const Loss& loss : kLosses) {
    if (loss.name == name) return &loss;
    known += (known.empty() ? "" : ", ") + std::string(loss.name);
  }
  return fail(ErrorCode::usage, "unknown loss '{}', want one of {}", name, known);
}

}  // namespace heddle::grad

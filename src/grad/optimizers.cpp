#include "grad/optimizers.h"

#include <cmath>

namespace heddle::grad {
namespace {

using ir::ScalarFn;

NodeId decayed(Builder& b, const Update& u, double weight_decay) {
  return weight_decay == 0 ? u.gradient : b.add(u.gradient, b.mul(u.parameter, weight_decay));
}

Updated sgd(Builder& b, const Update& u, const OptimizerSettings& s) {
  return {b.sub(u.parameter, b.mul(decayed(b, u, s.weight_decay), u.rate)), {}};
}

Updated momentum(Builder& b, const Update& u, const OptimizerSettings& s) {
  const NodeId v = b.add(b.mul(u.states[0], s.momentum), decayed(b, u, s.weight_decay));
  return {b.sub(u.parameter, b.mul(v, u.rate)), {v}};
}

/// Momentum that looks ahead, in PyTorch's form.
Updated nesterov(Builder& b, const Update& u, const OptimizerSettings& s) {
  const NodeId g = decayed(b, u, s.weight_decay);
  const NodeId v = b.add(b.mul(u.states[0], s.momentum), g);
  return {b.sub(u.parameter, b.mul(b.add(g, b.mul(v, s.momentum)), u.rate)), {v}};
}

/// Kingma & Ba 2015, algorithm 1.
Updated adam_step(Builder& b, const Update& u, NodeId from, NodeId gradient,
                  const OptimizerSettings& s) {
  const NodeId m = b.add(b.mul(u.states[0], s.beta1), b.mul(gradient, 1 - s.beta1));
  const NodeId v =
      b.add(b.mul(u.states[1], s.beta2), b.mul(b.mul(gradient, gradient), 1 - s.beta2));
  // 1 - beta^t = 2 u / (1 + u) with u = tanh(-t log(beta) / 2), exact for a beta near 1, too.
  const auto correction = [&](double beta) {
    const NodeId half = b.mul(u.step, -std::log(beta) / 2), part = b.tanh(half);
    return b.div(b.mul(part, 2), b.add(part, 1));
  };
  const NodeId scale = b.div(u.rate, correction(s.beta1));
  const NodeId spread =
      b.add(b.mul(b.sqrt(v), b.map(ScalarFn::rsqrt, {correction(s.beta2)})), s.epsilon);
  return {b.sub(from, b.mul(b.div(m, spread), scale)), {m, v}};
}
Updated adam(Builder& b, const Update& u, const OptimizerSettings& s) {
  return adam_step(b, u, u.parameter, decayed(b, u, s.weight_decay), s);
}
/// Loshchilov & Hutter 2019: decay apart from the gradient.
Updated adamw(Builder& b, const Update& u, const OptimizerSettings& s) {
  const NodeId kept = b.sub(b.scalar(b.dtype(u.rate), 1), b.mul(u.rate, s.weight_decay));
  return adam_step(b, u, b.mul(u.parameter, kept), u.gradient, s);
}

const Optimizer kOptimizers[] = {
    {"sgd", "p - rate·g", {}, sgd},
    {"momentum", "v = momentum·v + g, p - rate·v", {"velocity"}, momentum},
    {"nesterov", "v = momentum·v + g, p - rate·(g + momentum·v)", {"velocity"}, nesterov},
    {"adam", "moments of the gradient, decay in the gradient", {"mean", "variance"}, adam},
    {"adamw", "moments of the gradient, decay apart", {"mean", "variance"}, adamw},
};

}  // namespace

std::span<const Optimizer> optimizers() { return kOptimizers; }

Result<const Optimizer*> optimizer_named(std::string_view name) {
  std::string known;
  for (const Optimizer& o : kOptimizers) {
    if (o.name == name) return &o;
    known += (known.empty() ? "" : ", ") + std::string(o.name);
  }
  return fail(ErrorCode::usage, "unknown optimizer '{}', want one of {}", name, known);
}

}  // namespace heddle::grad

#pragma once
#include <gtest/gtest.h>

#include <cmath>

#include "grad/grad.h"
#include "prim/interpret.h"
#include "prim/test_util.h"
#include "prim/text.h"

/// Gradients against central differences in float64.
namespace heddle::grad {

using prim::Graph;

/// Σ over outputs of their elements, each times a random weight, in float64.
inline double weighted_sum(const Graph& g, const std::vector<Tensor>& inputs,
                           const std::vector<Tensor>& weights) {
  const auto values = prim::interpret_all(g, inputs);
  EXPECT_TRUE(values);
  double sum = 0;
  for (std::size_t o = 0; o < g.outputs.size(); ++o) {
    if (!is_float(g[g.outputs[o].node].type.dtype)) continue;
    const Tensor& v = (*values)[static_cast<std::size_t>(g.outputs[o].node.value)];
    for (std::int64_t i = 0; i < v.count(); ++i) sum += v.at(i) * weights[o].at(i);
  }
  return sum;
}

/// True if a value is rounded inside, which differences divide by a small step.
inline bool rounds(const Graph& g) {
  for (std::int32_t i = 0; i < g.size(); ++i)
    if (const auto* m = std::get_if<prim::Map>(&g[NodeId{i}].op); m && m->fn == ir::ScalarFn::cast)
      return true;
  return false;
}

/// "" if the derivative along a random direction of all floating inputs agrees with differences.
inline std::string check(const Graph& forward, std::mt19937& rng, std::vector<Tensor> inputs) {
  Graph g = forward;
  std::vector<Seed> seeds;
  std::vector<Tensor> weights;
  std::vector<NodeId> wrt;
  std::vector<std::size_t> slots;
  for (const auto& out : forward.outputs) {
    weights.push_back(prim::random_tensor({DType::f32, forward[out.node].type.shape}, rng));
    if (!is_float(forward[out.node].type.dtype)) continue;
    Tensor typed(forward[out.node].type);
    for (std::int64_t i = 0; i < typed.count(); ++i) typed.set(i, weights.back().at(i));
    seeds.push_back({out.node, g.add_constant(typed)});
  }
  for (std::int32_t i = 0; i < forward.size(); ++i)
    if (const auto* in = std::get_if<prim::Input>(&forward[NodeId{i}].op);
        in && is_float(forward[NodeId{i}].type.dtype)) {
      wrt.push_back(NodeId{i});
      slots.push_back(static_cast<std::size_t>(in->slot));
    }
  const auto result = gradients(g, seeds, wrt);
  if (!result) return result.error().message;
  Graph all = g;
  all.outputs.clear();
  for (NodeId id : *result) all.outputs.push_back({fmt::format("d{}", id.value), id});
  if (const Status s = prim::verify(all); !s) return s.error().message;
  const auto values = prim::interpret_all(all, inputs);
  if (!values) return values.error().message;
  // Powers of two, so that neither the step nor the inputs are rounded.
  std::vector<Tensor> direction;
  double analytic = 0, scale = 0;
  for (std::size_t k = 0; k < wrt.size(); ++k) {
    const Tensor& d = (*values)[static_cast<std::size_t>((*result)[k].value)];
    if ((*result)[k].value < 0 || all[(*result)[k]].type != forward[wrt[k]].type) return "type";
    direction.push_back(Tensor(forward[wrt[k]].type));
    for (std::int64_t i = 0; i < d.count(); ++i) {
      direction[k].set(i, rng() % 2 ? 1 : -1);
      analytic += d.at(i) * direction[k].at(i);
      scale += std::fabs(d.at(i));
    }
  }
  const auto moved = [&](double h) {
    std::vector<Tensor> at = inputs;
    for (std::size_t k = 0; k < wrt.size(); ++k) {
      Tensor t(inputs[slots[k]].type());
      for (std::int64_t i = 0; i < t.count(); ++i)
        t.set(i, inputs[slots[k]].at(i) + h * direction[k].at(i));
      at[slots[k]] = t;
    }
    return weighted_sum(forward, at, weights);
  };
  const auto slope = [&](double h) { return (moved(h) - moved(-h)) / (2 * h); };
  const double coarse = slope(std::ldexp(1, -9)), fine = slope(std::ldexp(1, -10));
  const double estimate = fine + (fine - coarse) / 3;
  if (std::fabs(fine - coarse) > 1e-3 * (1 + scale)) return "not smooth here";
  const double error = std::fabs(estimate - analytic) / (1e-3 + scale);
  if (error < (rounds(forward) ? 2e-3 : 1e-5) + std::fabs(fine - coarse) / (1e-3 + scale))
    return "";
  return fmt::format("derivative {} but differences {} ({} relative)\n{}", analytic, estimate,
                     error, prim::print(all));
}
inline std::string check(const Graph& g, std::mt19937& rng) {
  return check(g, rng, prim::random_inputs(g, rng));
}

}  // namespace heddle::grad

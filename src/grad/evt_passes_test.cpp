// EVT's graph passes, each on the joint graph of a training step: it fires, and the float64
// interpreter gives the same loss, weights and states before and after.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "grad/step.h"
#include "prim/access.h"
#include "prim/interpret.h"
#include "prim/passes.h"
#include "prim/rewrite.h"

namespace heddle::grad {
namespace {

using ir::ScalarFn;
using prim::Graph;

Step step_of(NodeId (*model)(Builder& b), std::vector<std::string> parameters) {
  Graph g;
  Builder b(g);
  g.outputs.push_back({"y", model(b)});
  StepOptions options;
  options.optimizer = "sgd";
  auto step = training_step(std::move(g), parameters, options);
  EXPECT_TRUE(step) << step.error().message;
  return *std::move(step);
}
NodeId parameter(Builder& b, const char* name, Shape shape) {
  return b.graph().add_input(name, {DType::f32, std::move(shape)});
}

NodeId perceptron(Builder& b) {
  const NodeId x = parameter(b, "x", {6, 5});
  const NodeId h = b.relu(b.add(b.matmul(x, parameter(b, "w1", {5, 7})), parameter(b, "b1", {7})));
  return b.add(b.matmul(h, parameter(b, "w2", {7, 3})), parameter(b, "b2", {3}));
}
Step perceptron_step() { return step_of(perceptron, {"w1", "b1", "w2", "b2"}); }

NodeId layer_norm(Builder& b) {
  const NodeId h = b.matmul(parameter(b, "x", {6, 5}), parameter(b, "w1", {5, 8}));
  const NodeId n =
      b.add(b.mul(b.normalize(h, {1}, 1e-5), parameter(b, "g", {8})), parameter(b, "c", {8}));
  return b.matmul(n, parameter(b, "w2", {8, 3}));
}
Step layer_norm_step() { return step_of(layer_norm, {"w1", "g", "c", "w2"}); }

NodeId batch_norm(Builder& b) {
  const auto channel = [&](NodeId v) { return b.reshape(v, {1, 4, 1, 1}); };
  NodeId y = b.conv(parameter(b, "x", {4, 2, 6, 6}), parameter(b, "w1", {4, 2, 3, 3}),
                    {{1, 1}, {1, 1}, {1, 1}, {1, 1}, 1});
  y = b.normalize(y, {0, 2, 3}, 1e-5);
  y = b.relu(b.add(b.mul(y, channel(parameter(b, "g", {4}))), channel(parameter(b, "c", {4}))));
  return b.mean(y, {2, 3}, false);
}
Step batch_norm_step() { return step_of(batch_norm, {"w1", "g", "c"}); }

std::vector<Tensor> inputs_of(const Graph& g) {
  std::mt19937 random(11);
  std::normal_distribution<double> normal;
  std::vector<Tensor> inputs;
  for (const auto& in : g.inputs) {
    Tensor t(in.type);
    for (std::int64_t i = 0; i < t.count(); ++i)
      is_float(in.type.dtype) ? t.set(i, normal(random))
                              : t.set_int(i, static_cast<std::int64_t>(random() % 3));
    inputs.push_back(std::move(t));
  }
  return inputs;
}

void expect_same(const Graph& before, const Graph& after) {
  const auto inputs = inputs_of(before);
  const auto want = prim::interpret(before, inputs), got = prim::interpret(after, inputs);
  ASSERT_TRUE(want.ok() && got.ok());
  ASSERT_EQ(want->size(), got->size());
  for (std::size_t o = 0; o < want->size(); ++o)
    for (std::int64_t i = 0; i < (*want)[o].count(); ++i)
      EXPECT_NEAR((*got)[o].at(i), (*want)[o].at(i), 1e-5 * (1 + std::fabs((*want)[o].at(i))))
          << before.outputs[o].name << " at " << i;
}

template <class F>
int count(const Graph& g, F matches) {
  int n = 0;
  for (NodeId id : prim::live_nodes(g)) n += matches(g[id]);
  return n;
}
int maps(const Graph& g, ScalarFn fn) {
  return count(g, [&](const prim::Node& n) { return prim::is_map(n, fn); });
}
int sums(const Graph& g) {
  return count(g, [](const prim::Node& n) {
    const auto* r = std::get_if<prim::Reduce>(&n.op);
    return r != nullptr && r->fn == ir::Monoid::sum;
  });
}

/// The graph without one row, and with it; it has fired.
struct Pair {
  Graph without, with;
};
Pair pair_of(const Graph& g, std::string_view row) {
  prim::RewriteCounts counts;
  Pair p{prim::canonicalize(g, row), prim::canonicalize(g, "", &counts)};
  EXPECT_GT(counts[row], 0) << row << " does not fire";
  expect_same(g, p.with);
  return p;
}

TEST(EvtPasses, LossElimination) {
  Step step = perceptron_step();
  Graph silent = step.graph;
  silent.outputs.erase(silent.outputs.begin());  // nobody asks for the loss
  const Graph with = prim::canonicalize(step.graph), without = prim::canonicalize(silent);
  EXPECT_EQ(maps(with, ScalarFn::log), 1);
  EXPECT_EQ(maps(without, ScalarFn::log), 0);
  // What is gone is what only the value needs, and it was there.
  const Graph dropped = prim::drop_dead(silent);
  const auto logs = [](const Graph& g) {
    int n = 0;
    for (std::int32_t id = 0; id < g.size(); ++id) n += prim::is_map(g[NodeId{id}], ScalarFn::log);
    return n;
  };
  EXPECT_EQ(logs(silent), 1);
  EXPECT_EQ(logs(dropped), 0);
  EXPECT_LT(dropped.size(), prim::drop_dead(step.graph).size());
  EXPECT_LT(sums(without), sums(with));
  expect_same(silent, without);
}

/// Cross entropy backwards is softmax - onehot: the sum over classes of the onehot is 1.
TEST(EvtPasses, LossSimplification) {
  const Pair p = pair_of(perceptron_step().graph, "sum-of-one-hot");
  EXPECT_EQ(sums(p.with), sums(p.without) - 1);
}

/// Sums run through factors that do not change along what is summed.
TEST(EvtPasses, ReductionReassociation) {
  pair_of(layer_norm_step().graph, "sum-of-scaled");
  pair_of(batch_norm_step().graph, "sum-of-scaled");
}

NodeId averaged(Builder& b) {
  const NodeId h = b.matmul(parameter(b, "x", {4, 6, 5}), parameter(b, "w", {5, 3}));
  return b.mean(b.add(h, parameter(b, "c", {3})), {1}, false);
}

/// The gradient of a mean is a broadcast, and the sum of that for the bias a product.
TEST(EvtPasses, ReductionElimination) {
  const Pair p = pair_of(step_of(averaged, {"w", "c"}).graph, "reduce-of-broadcast");
  EXPECT_LE(sums(p.with), sums(p.without));
}

/// γ's and β's gradients are plain sums over rows, that a neighbouring kernel can take over.
TEST(EvtPasses, NormDecomposition) {
  const Pair p = pair_of(layer_norm_step().graph, "view-below-reduce");
  const auto over_rows = [](const prim::Node& n) {
    const auto* r = std::get_if<prim::Reduce>(&n.op);
    return r != nullptr && r->axes == std::vector<int>{0} && n.type.shape == Shape{8};
  };
  EXPECT_EQ(count(p.without, over_rows), 0);
  EXPECT_EQ(count(p.with, over_rows), 2);
}

int viewed_operands(const Graph& g) {
  int n = 0;
  for (NodeId id : prim::live_nodes(g))
    if (std::holds_alternative<prim::Contract>(g[id].op))
      for (NodeId arg : g[id].args) n += std::holds_alternative<prim::View>(g[arg].op);
  return n;
}

/// Weights that lie turned, as PyTorch's do, and a turned value between the two products.
NodeId turned(Builder& b) {
  const NodeId w1 = b.transpose(parameter(b, "w1", {7, 5}), {1, 0});
  const NodeId h = b.transpose(b.matmul(parameter(b, "x", {6, 5}), w1), {1, 0});
  return b.matmul(b.transpose(b.relu(h), {1, 0}), parameter(b, "w2", {7, 3}));
}

/// Products read values as they lie, forwards and backwards: Xᵀ·dY and dY·Wᵀ are written so, and
/// the model's own transposes go into accesses.
TEST(EvtPasses, TransposesAreAbsorbed) {
  const Pair p = pair_of(step_of(turned, {"w1", "w2"}).graph, "contract-of-view");
  EXPECT_GT(viewed_operands(p.without), 0);
  EXPECT_EQ(viewed_operands(p.with), 0);
  for (const Step& step : {perceptron_step(), layer_norm_step()})
    EXPECT_EQ(viewed_operands(step.graph), 0);
}

TEST(EvtPasses, DeadForwardOutputs) {
  Step step = perceptron_step();
  const auto size = prim::live_nodes(step.graph).size();
  Builder b(step.graph);
  b.neg(step.graph.outputs[1].node);  // read by nobody
  const Graph g = prim::drop_dead(step.graph);
  EXPECT_EQ(static_cast<std::size_t>(g.size()), size);
  expect_same(step.graph, g);
}

/// What is scaled by the same value twice (here both terms of a gradient by another gate's).
NodeId gated(Builder& b) {
  const NodeId x = parameter(b, "x", {6, 5});
  const NodeId u = b.matmul(x, parameter(b, "u", {5, 3}));
  return b.add(b.mul(u, b.matmul(x, parameter(b, "v", {5, 3}))),
               b.mul(u, b.matmul(x, parameter(b, "w", {5, 3}))));
}
TEST(EvtPasses, CommonFactors) {
  const Pair p = pair_of(step_of(gated, {"u", "v", "w"}).graph, "common-factor");
  EXPECT_LT(maps(p.with, ScalarFn::mul), maps(p.without, ScalarFn::mul));
}

}  // namespace
}  // namespace heddle::grad

#include "plan/plan.h"

#include <gtest/gtest.h>

#include "plan/test_graphs.h"
#include "prim/builder.h"

namespace heddle::plan {
namespace {

using test::Mini, test::planned;

std::vector<NodeId> trivial_classes(const prim::Graph& g) {
  std::vector<NodeId> out;
  for (std::int32_t i = 0; i < g.size(); ++i) out.push_back(NodeId{i});
  return out;
}
int products_in(const prim::Graph& g, const Plan& plan) {
  int products = 0;
  for (const Kernel& k : plan.kernels) {
    for (NodeId id : k.cluster.nodes) products += std::holds_alternative<prim::Contract>(g[id].op);
  }
  return products;
}

TEST(Orchestrate, AlternativesCompete) {
  // y = (x·w)·s or, by the same right, (x·s)·w: the second scales 256 times as many elements.
  for (bool dear_first : {false, true}) {
    Mini m;
    NodeId x = m.input({64, 4096}), w = m.input({4096, 16});
    NodeId dear, cheap;
    auto make_dear = [&] {
      dear = m.matmul(m.map(ir::ScalarFn::exp, {m.map(ir::ScalarFn::erf, {x})}), w);
    };
    if (dear_first) make_dear();
    cheap = m.matmul(x, w);
    if (!dear_first) make_dear();
    NodeId written = dear_first ? dear : cheap;
    m.output(m.map(ir::ScalarFn::tanh, {written}));
    Options options;
    options.class_of = trivial_classes(m.g);
    options.class_of[static_cast<std::size_t>(dear.value)] = written;
    options.class_of[static_cast<std::size_t>(cheap.value)] = written;
    auto plan = orchestrate(m.g, options);
    ASSERT_TRUE(plan) << plan.error().message;
    auto good = verify(m.g, *plan);
    EXPECT_TRUE(good) << good.error().message;
    EXPECT_EQ(products_in(m.g, *plan), 1);
    SCOPED_TRACE(print(m.g, *plan));
    // As written, the tanh is in the epilogue; by the alternative, it reads the result instead.
    EXPECT_EQ(plan->kernels.size(), dear_first ? 2u : 1u);
    EXPECT_EQ(plan->substitutes.size(), dear_first ? 1u : 0u);
    if (dear_first) {
      EXPECT_EQ(plan->substitutes[0], (Substitute{dear, cheap}));
    }
  }
}

TEST(Orchestrate, MergedProductsAreAnAlternativeOfThree) {
  // q, k, v = x·wq, x·wk, x·wv, or slices of x·[wq wk wv]: small rows make the merged one pay.
  Mini m;
  NodeId x = m.input({1, 256});
  std::vector<NodeId> parts, slices;
  for (int i = 0; i < 3; ++i) {
    parts.push_back(m.matmul(x, m.input({256, 64})));
    m.output(m.map(ir::ScalarFn::tanh, {parts.back()}));
  }
  NodeId merged = m.matmul(x, m.input({256, 192}));
  Options options;
  options.class_of = trivial_classes(m.g);
  for (int i = 0; i < 3; ++i) {
    slices.push_back(m.view(merged, {1, 64}, {Mini::d(0), Mini::d(1) + 64 * i}));
    options.class_of.push_back(parts[static_cast<std::size_t>(i)]);
  }
  // This lowering can split the result of a product.
  options.legality.supports = [](const prim::Graph& g, const Cluster& c) {
    int products = 0;
    for (NodeId id : c.nodes) products += std::holds_alternative<prim::Contract>(g[id].op);
    return products <= 1;
  };
  auto plan = orchestrate(m.g, options);
  ASSERT_TRUE(plan) << plan.error().message;
  auto good = verify(m.g, *plan);
  EXPECT_TRUE(good) << good.error().message;
  SCOPED_TRACE(print(m.g, *plan));
  const auto makes_all = [&](const Kernel& k) { return k.cluster.outputs == slices; };
  const bool merged_is_there = std::any_of(plan->kernels.begin(), plan->kernels.end(), makes_all);
  Options apart = options;
  apart.class_of.clear();
  auto without = orchestrate(m.g, apart);
  ASSERT_TRUE(without);
  EXPECT_LE(plan->cost_us, without->cost_us * (1 + 1e-9));
  EXPECT_EQ(merged_is_there, plan->cost_us < without->cost_us);
}

}  // namespace
}  // namespace heddle::plan

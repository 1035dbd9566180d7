#include "plan/regions.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "plan/plan.h"
#include "plan/test_graphs.h"
#include "prim/builder.h"

namespace heddle::plan {
namespace {

using test::Mini, test::planned;

TEST(Regions, EqualRegionsAreSolvedOnce) {
  Mini m;
  NodeId x = m.input({128, 768}), mask = m.input({128});
  for (int i = 0; i < 12; ++i) x = test::transformer_layer(m, x, 12, 3072, mask);
  m.output(x);
  auto plan = planned(m.g, Strategy::full);
  ASSERT_TRUE(plan) << plan.error().message;
  EXPECT_GE(plan->stats.regions, 12);
  EXPECT_LE(plan->stats.unique_regions, plan->stats.regions / 4);
  EXPECT_NEAR(plan->gap(), 0, 1e-9);
  EXPECT_EQ(plan->kernels.size() % 12, 0u);
}

TEST(Regions, AlternativesThatSpanLessSurviveThoseThatSpanMore) {
  // A chain with an alternative next to what it equals, and one far behind it.
  Mini m;
  std::vector<NodeId> chain{m.input({64, 64})};
  for (int i = 0; i < 60; ++i) {
    const auto fn = i % 2 ? ir::ScalarFn::exp : ir::ScalarFn::tanh;
    chain.push_back(m.map(fn, {chain.back()}));
  }
  const NodeId near = m.map(ir::ScalarFn::sin, {chain[59]});
  const NodeId far = m.map(ir::ScalarFn::erf, {chain[59]});
  m.output(m.add(m.add(chain[60], near), m.add(chain[10], far)));
  Options options;
  for (std::int32_t i = 0; i < m.g.size(); ++i) options.class_of.push_back(NodeId{i});
  options.class_of[static_cast<std::size_t>(far.value)] = chain[10];
  options.class_of[static_cast<std::size_t>(near.value)] = chain[60];
  const Facts facts = facts_of(m.g, options.legality, options.class_of);
  EXPECT_TRUE(sprawling_alternatives(facts).empty());
  EXPECT_EQ(sprawling_alternatives(facts, 1.0 / 8), (std::vector<NodeId>{chain[10], far}));
}

TEST(Regions, LargeUpdatesAreKernelsOfTheirOwn) {
  // In an epilogue the update of a weight goes from tile to tile, which streams from DRAM badly.
  const auto kernels = [](std::int64_t n) {
    Mini m;
    prim::Builder b(m.g);
    const NodeId x = m.input({n, 256}), dy = m.input({256, n}), w = m.input({n, n});
    m.output(b.sub(w, b.matmul(x, dy)));
    auto plan = planned(m.g, Strategy::full);
    return plan ? plan->kernels.size() : 0;
  };
  EXPECT_EQ(kernels(256), 1u);
  EXPECT_EQ(kernels(4096), 2u);
}

TEST(Regions, MapsOfLeavesAreNotCutFromTheirReaders) {
  // The decay of a weight and of its moment, read at the end of a graph of several regions.
  Mini m;
  prim::Builder b(m.g);
  NodeId x = m.input({8192, 768});
  const NodeId w = m.input({8192, 768}), moment = m.input({8192, 768}), mask = m.input({8192});
  const NodeId decayed = b.mul(w, m.input({8192, 768})), faded = b.exp(moment);
  for (int i = 0; i < 3; ++i) x = test::transformer_layer(m, x, 12, 3072, mask);
  m.output(b.sub(decayed, b.div(b.add(faded, x), b.sqrt(x))));
  auto plan = planned(m.g, Strategy::full);
  ASSERT_TRUE(plan) << plan.error().message;
  EXPECT_GT(plan->stats.regions, 1);
  for (const Kernel& k : plan->kernels)
    for (const NodeId stored : k.cluster.outputs)
      EXPECT_TRUE(stored != decayed && stored != faded) << print(m.g, *plan);
}

/// A main loop converts what it copies of an input; for two of them that is done once.
TEST(Regions, InputsAreConvertedByTheirMainLoop) {
  for (const int readers : {1, 2}) {
    Mini m;
    prim::Builder b(m.g);
    prim::Builder::Conv by;
    by.strides = by.dilations = {1, 1};
    by.pads_begin = by.pads_end = {1, 1};
    const NodeId x = b.cast(m.input({1, 3, 224, 224}), DType::bf16);
    for (int i = 0; i < readers; ++i)
      m.output(b.conv(x, b.cast(m.input({64, 3, 3, 3}), DType::bf16), by));
    auto plan = planned(m.g, Strategy::full);
    ASSERT_TRUE(plan) << plan.error().message;
    int stored = 0;
    for (const Kernel& k : plan->kernels) stored += std::ranges::count(k.cluster.outputs, x);
    EXPECT_EQ(stored, readers - 1) << print(m.g, *plan);
  }
}

TEST(Regions, SumsOverRowsAreNotCutFromWhatMakesTheValue) {
  // Bias gradients: the value is a cut, since products read it, and the sum stands behind it.
  Mini m;
  prim::Builder b(m.g);
  NodeId x = m.input({512, 64});
  std::vector<NodeId> sums;
  for (int i = 0; i < 12; ++i) {
    x = b.tanh(b.matmul(x, m.input({64, 64})));
    sums.push_back(b.reduce_sum(x, {0}, false));
  }
  m.output(x);
  for (const NodeId sum : sums) m.output(sum);
  const Facts f = facts_of(m.g, structural_legality());
  const std::vector<Region> regions = regions_of(f);
  EXPECT_GT(regions.size(), 1u);
  for (const Region& r : regions)
    for (const NodeId sum : sums) {
      const auto has = [&](NodeId id) { return std::ranges::count(r.nodes, id) > 0; };
      EXPECT_EQ(has(sum), has(m.g[sum].args[0])) << sum.value;
    }
}

TEST(Regions, StepsOfAnUnrolledLoopAreSolvedOnce) {
  Mini m;
  prim::Builder b(m.g);
  const NodeId x = m.input({24, 1, 256}), w = m.input({256, 256});
  NodeId h = m.input({1, 256});
  std::vector<NodeId> states;
  for (int t = 0; t < 24; ++t) {
    const NodeId step = b.reshape(b.slice_axis(x, 0, t, 1), {1, 256});
    h = b.tanh(b.add(step, b.matmul(h, w)));
    states.push_back(h);
  }
  m.output(b.stack(states, 0));
  auto plan = planned(m.g, Strategy::full);
  ASSERT_TRUE(plan) << plan.error().message;
  EXPECT_GE(plan->stats.regions, 12);
  EXPECT_LE(plan->stats.unique_regions, plan->stats.regions / 3);
}

TEST(Regions, StepsEndWithTheirState) {
  // Cells of an LSTM whose states are all outputs, so that they stay open: a step is a product and
  // one kernel for its gates, cell and state, but for the first and the last.
  Mini m;
  prim::Builder b(m.g);
  constexpr int kSteps = 24, kWidth = 128;
  const NodeId w = m.input({kWidth, 4 * kWidth});
  const NodeId x =
      b.add(b.matmul(m.input({kSteps, 16, 64}), m.input({64, 4 * kWidth})), m.input({4 * kWidth}));
  const NodeId bias = m.input({4 * kWidth});
  NodeId h, c = m.input({16, kWidth});
  std::vector<NodeId> states;
  for (int t = 0; t < kSteps; ++t) {
    NodeId gates = b.reshape(b.slice_axis(x, 0, t, 1), {16, 4 * kWidth});
    if (t > 0) gates = b.add(gates, b.matmul(h, w));
    gates = b.add(gates, bias);
    const auto gate = [&](int i) { return b.slice_axis(gates, 1, i * kWidth, kWidth); };
    c = b.add(b.mul(b.sigmoid(gate(0)), c), b.mul(b.sigmoid(gate(1)), b.tanh(gate(2))));
    h = b.mul(b.sigmoid(gate(3)), b.tanh(c));
    states.push_back(h);
  }
  m.output(b.concat(states, 0));
  auto plan = planned(m.g, Strategy::full);
  ASSERT_TRUE(plan) << plan.error().message;
  const auto cells = std::ranges::count_if(
      plan->kernels, [](const Kernel& k) { return k.cluster.nodes.size() > 2; });
  EXPECT_LE(cells, kSteps + 2) << print(m.g, *plan);
}

}  // namespace
}  // namespace heddle::plan

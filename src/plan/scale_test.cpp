#include <gtest/gtest.h>

#include <chrono>
#include <ctime>
#include <random>

#include "plan/plan.h"
#include "plan/test_graphs.h"
#include "support/thread_pool.h"

namespace heddle::plan {
namespace {

using test::Mini;

TEST(Orchestrate, TwoThousandPrimitivesInTime) {
  Mini m;
  NodeId x = m.input({128, 384}), mask = m.input({128});
  int layers = 0;
  while (m.g.size() < 2300) {
    // Widths differ, so that no two layers are equal.
    x = test::transformer_layer(m, x, 12, 1024 + 16 * layers++, mask);
  }
  m.output(x);
  const auto begin = std::chrono::steady_clock::now();
  auto plan = orchestrate(m.g);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  ASSERT_TRUE(plan) << plan.error().message;
  EXPECT_GE(plan->stats.nodes, 2000);
  EXPECT_GT(plan->stats.unique_regions, layers);
  EXPECT_LT(took.count(), 10) << "seconds";
}

/// Plans `g` and expects an answer, from regions of bounded size. The limit is several times what a
/// machine on its own takes: it is there to notice work that grows faster than the graph.
Plan planned_within(double seconds, const prim::Graph& g) {
  const std::clock_t begin = std::clock();
  auto plan = orchestrate(g);
  const double took = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
  EXPECT_TRUE(plan) << plan.error().message;
  if (!plan) return {};
  EXPECT_LT(took, seconds);
  EXPECT_TRUE(verify(g, *plan));
  EXPECT_GE(plan->stats.regions, plan->stats.nodes / 200) << "a region that nothing cuts";
  return *plan;
}

TEST(Orchestrate, ReductionsOneAfterAnotherInTime) {
  Mini m;  // Sinkhorn: rows and columns in turn
  NodeId x = m.input({64, 64});
  while (m.g.size() < 2000) {
    for (int axis : {0, 1}) x = m.div(x, m.spread(m.sum(x, {axis}), {64, 64}, {axis}));
  }
  m.output(x);
  const Plan plan = planned_within(30, m.g);
  EXPECT_LE(plan.stats.unique_regions, 6) << "equal layers are cut alike";
}

TEST(Orchestrate, RandomGraphsOfTwoThousandNodesInTime) {
  for (const std::size_t back : {8, 100, 100000}) {
    std::mt19937 random(7);
    Mini m;
    std::vector<NodeId> values = {m.input({64, 64})};
    while (m.g.size() < 2000) {
      const std::size_t from = values.size() - std::min(values.size(), back);
      const auto pick = [&] { return values[from + random() % (values.size() - from)]; };
      NodeId a = pick();
      const int axis = static_cast<int>(random() % 2);
      if (random() % 4 == 0) a = m.spread(m.sum(a, {axis}), {64, 64}, {axis});
      values.push_back(m.map(random() % 2 ? ir::ScalarFn::add : ir::ScalarFn::max, {a, pick()}));
    }
    for (std::size_t i = values.size() - 20; i < values.size(); ++i) m.output(values[i]);
    // Nothing repeats here, and the rules of this test fuse without end: the worst there is.
    planned_within(60, m.g);
  }
}

TEST(Orchestrate, ThreadsDoNotChangeThePlan) {
  Mini m;
  NodeId x = m.input({128, 384}), mask = m.input({128});
  for (int layer = 0; layer < 5; ++layer)
    x = test::transformer_layer(m, x, 12, 1024 + 16 * layer, mask);
  m.output(x);
  Options options;
  const auto alone = orchestrate(m.g, options);
  ThreadPool pool(3);
  options.pool = &pool;
  const auto together = orchestrate(m.g, options);
  ASSERT_TRUE(alone && together);
  EXPECT_GT(alone->stats.unique_regions, 8) << "more than a wave";
  EXPECT_EQ(print(m.g, *alone), print(m.g, *together));
}

}  // namespace
}  // namespace heddle::plan

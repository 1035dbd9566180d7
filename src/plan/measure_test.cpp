#include "plan/measure.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "plan/test_graphs.h"

namespace heddle::plan {
namespace {

struct Fixture {
  test::Mini m;
  MeasureOptions how;
  int timings = 0;
  double seconds = 0;
  Fixture() {
    NodeId x = m.input({512, 1024});
    m.output(m.normalize(m.add(x, m.input({512, 1024})), {1}, 1, m.input({1024}), m.input({1024})));
    m.output(m.softmax(x, 1));
    how.budget_s = std::numeric_limits<double>::infinity();
    how.machine = "m";
    how.build = "b";
    how.clock = [this] { return seconds; };
    how.time = [this](const prim::Graph& g, const Cluster& c, bool) -> Result<Timing> {
      ++timings;
      seconds += 1;
      return Timing{time_of(g, c), {{"t", 1}}, 5};
    };
  }
  std::function<double(const prim::Graph&, const Cluster&)> time_of =
      [](const prim::Graph& g, const Cluster& c) { return cost_of(g, c, {}).us; };
};

TEST(Measure, EveryChosenKernelIsMeasured) {
  Fixture f;
  MeasureReport report;
  auto plan = orchestrate_measured(f.m.g, {}, f.how, &report);
  ASSERT_TRUE(plan) << plan.error().message;
  for (const Kernel& k : plan->kernels) EXPECT_EQ(k.cost.provenance, Provenance::measured);
  EXPECT_EQ(report.timed, f.timings);
  EXPECT_FALSE(report.budget_spent);
  // The clock agrees with the model: the plan stays.
  EXPECT_EQ(plan->kernels.size(), orchestrate(f.m.g)->kernels.size());
}

TEST(Measure, MeasurementsOverruleTheModel) {
  Fixture f;
  // Large kernels turn out to be twenty times slower than the model thinks.
  f.time_of = [](const prim::Graph& g, const Cluster& c) {
    return cost_of(g, c, {}).us * (c.nodes.size() > 8 ? 20 : 1);
  };
  const auto modelled = orchestrate(f.m.g);
  ASSERT_TRUE(modelled);
  auto plan = orchestrate_measured(f.m.g, {}, f.how);
  ASSERT_TRUE(plan) << plan.error().message;
  EXPECT_GT(plan->kernels.size(), modelled->kernels.size());
  double old_plan = 0;
  for (const Kernel& k : modelled->kernels) old_plan += f.time_of(f.m.g, k.cluster);
  EXPECT_LT(plan->cost_us, old_plan);
}

TEST(Measure, TheDatabaseSavesTheWork) {
  Fixture f;
  auto db = TuningDb::open(":memory:");
  ASSERT_TRUE(db);
  f.how.db = db->get();
  MeasureReport first, second;
  auto a = orchestrate_measured(f.m.g, {}, f.how, &first);
  const int timings = f.timings;
  auto b = orchestrate_measured(f.m.g, {}, f.how, &second);
  ASSERT_TRUE(a && b);
  EXPECT_EQ(first.from_db, 0);
  EXPECT_EQ(first.misses["never measured"], first.timed);
  EXPECT_EQ(f.timings, timings);
  EXPECT_EQ(second.from_db, first.timed);
  EXPECT_EQ(print(f.m.g, *a), print(f.m.g, *b));
}

TEST(Measure, WhatAnotherMachineNameMeasuredIsReadFirst) {
  Fixture f;
  auto db = TuningDb::open(":memory:");
  ASSERT_TRUE(db);
  f.how.db = db->get();
  std::size_t prepared = 0;
  f.how.prepare = [&](const prim::Graph&, const std::vector<Cluster>& all) {
    prepared += all.size();
  };
  f.how.machine = "m, more";
  MeasureReport first, second, third;
  ASSERT_TRUE(orchestrate_measured(f.m.g, {}, f.how, &first));
  EXPECT_EQ(prepared, static_cast<std::size_t>(first.timed));
  f.how.machine = "m";
  f.how.other_machine = "m, more";
  ASSERT_TRUE(orchestrate_measured(f.m.g, {}, f.how, &second));
  EXPECT_EQ(second.timed, 0);
  EXPECT_EQ(prepared, static_cast<std::size_t>(first.timed));
  f.how.other_machine = "";
  ASSERT_TRUE(orchestrate_measured(f.m.g, {}, f.how, &third));
  EXPECT_EQ(third.timed, first.timed);
}

TEST(Measure, BudgetIsKept) {
  Fixture f;
  f.how.budget_s = 2;  // each timing takes one second
  MeasureReport report;
  auto plan = orchestrate_measured(f.m.g, {}, f.how, &report);
  ASSERT_TRUE(plan) << plan.error().message;
  EXPECT_EQ(report.timed, 2);
  EXPECT_TRUE(report.budget_spent);
  EXPECT_TRUE(verify(f.m.g, *plan));
}

TEST(Measure, PreparesSoManyAtOnceAndTimesTheFirstFirst) {
  Fixture f;
  std::vector<std::size_t> prepared;
  std::vector<Cluster> timed;
  f.how.prepare = [&](const prim::Graph&, const std::vector<Cluster>& all) {
    prepared.push_back(all.size());
  };
  f.how.prepared_at_once = 3;
  const auto time = f.how.time;
  f.how.time = [&](const prim::Graph& g, const Cluster& c, bool near) {
    timed.push_back(c);
    return time(g, c, near);
  };
  const auto single = orchestrate(f.m.g, {.strategy = Strategy::single});
  ASSERT_TRUE(single);
  f.how.first = {single->kernels[1].cluster, single->kernels[0].cluster};
  MeasureReport report;
  ASSERT_TRUE(orchestrate_measured(f.m.g, {}, f.how, &report));
  ASSERT_GT(report.timed, 3);
  EXPECT_EQ(timed[0], f.how.first[0]);
  EXPECT_EQ(timed[1], f.how.first[1]);
  EXPECT_LE(*std::ranges::max_element(prepared), 3u);
  EXPECT_EQ(std::accumulate(prepared.begin(), prepared.end(), std::size_t{0}),
            static_cast<std::size_t>(report.timed));
}

TEST(Measure, KernelsThatFailAreReplaced) {
  Fixture f;
  f.how.time = [&](const prim::Graph& g, const Cluster& c, bool) -> Result<Timing> {
    if (c.nodes.size() > 6) return fail("too large to lower");
    return Timing{cost_of(g, c, {}).us, {}, 1};
  };
  MeasureReport report;
  auto plan = orchestrate_measured(f.m.g, {}, f.how, &report);
  ASSERT_TRUE(plan) << plan.error().message;
  EXPECT_GT(report.failed, 0);
  EXPECT_EQ(report.failures[0], "too large to lower");
  EXPECT_TRUE(verify(f.m.g, *plan));
}

}  // namespace
}  // namespace heddle::plan

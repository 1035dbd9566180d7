#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "ilp/relax.h"
#include "ilp/solve.h"

namespace heddle::ilp {
namespace {

/// Choose sets that cover 1..n at least cost.
Model cover(const std::vector<std::pair<double, std::vector<int>>>& sets, int n) {
  Model m;
  std::vector<Row> rows;
  for (int i = 0; i < n; ++i)
    rows.push_back({"cover_" + std::to_string(i), {}, Sense::at_least, 1});
  for (std::size_t s = 0; s < sets.size(); ++s) {
    VarId v = m.add_variable("use_" + std::to_string(s), sets[s].first);
    for (int i : sets[s].second) rows[static_cast<std::size_t>(i)].terms.push_back({v, 1});
  }
  for (Row& r : rows) m.add_row(std::move(r));
  return m;
}

double exhaustive(const Model& m, const std::function<bool(const std::vector<bool>&)>& ok) {
  const int n = m.variables().size();
  double best = 1e300;
  for (int bits = 0; bits < 1 << n; ++bits) {
    std::vector<bool> x(static_cast<std::size_t>(n));
    for (int i = 0; i < n; ++i) x[static_cast<std::size_t>(i)] = bits >> i & 1;
    if (!violated_row(m, x) && ok(x)) best = std::min(best, objective(m, x));
  }
  return best;
}

TEST(Ilp, FindsTheCheapestCover) {
  Model m = cover({{3, {0, 1}}, {3, {1, 2}}, {3, {0, 2}}, {5, {0, 1, 2}}}, 3);
  auto s = solve(m);
  ASSERT_TRUE(s) << s.error().message;
  EXPECT_EQ(s->status, Solution::Status::optimal);
  EXPECT_DOUBLE_EQ(s->objective, 5);
  EXPECT_EQ(s->values, (std::vector<bool>{false, false, false, true}));
  EXPECT_NEAR(s->bound, 5, 1e-4);
}

TEST(Ilp, RepeatedTermsOfARowAreSummed) {
  Model m;
  const VarId a = m.add_variable("a", 1), b = m.add_variable("b", 3);
  m.add_row({"two", {{a, 1}, {b, 2}, {a, 1}, {a, -1}}, Sense::at_least, 2});
  auto s = solve(m);
  ASSERT_TRUE(s) << s.error().message;
  EXPECT_EQ(s->status, Solution::Status::optimal);
  EXPECT_EQ(s->values, (std::vector<bool>{false, true}));
}

TEST(Ilp, SaysInfeasible) {
  Model m = cover({{1, {0}}}, 2);
  m.add_row({"both", {{VarId{0}, 1}}, Sense::equal, 0});
  auto s = solve(m);
  ASSERT_TRUE(s);
  EXPECT_EQ(s->status, Solution::Status::infeasible);

  Model clash;
  VarId a = clash.add_variable("a", 1), b = clash.add_variable("b", 1);
  clash.add_row({"one", {{a, 1}, {b, 1}}, Sense::at_least, 2});
  clash.add_row({"not_both", {{a, 1}, {b, 1}}, Sense::at_most, 1});
  s = solve(clash);
  ASSERT_TRUE(s);
  EXPECT_EQ(s->status, Solution::Status::infeasible);
}

TEST(Ilp, EmptyModel) {
  auto s = solve(Model());
  ASSERT_TRUE(s);
  EXPECT_EQ(s->status, Solution::Status::optimal);
  EXPECT_EQ(s->objective, 0);
}

TEST(Ilp, WarmStartIsCheckedAndUsed) {
  Model m = cover({{3, {0, 1}}, {3, {1, 2}}, {3, {0, 2}}, {5, {0, 1, 2}}}, 3);
  auto good = solve(m, {.start = {true, true, false, false}});
  ASSERT_TRUE(good) << good.error().message;
  EXPECT_DOUBLE_EQ(good->objective, 5);
  auto bad = solve(m, {.start = {true, false, false, false}});
  ASSERT_FALSE(bad);
  EXPECT_EQ(bad.error().message, "ILP start breaks row 'cover_2'");
  auto short_one = solve(m, {.start = {true}});
  EXPECT_FALSE(short_one);
}

TEST(Ilp, LazyCutsAreAddedUntilNoneIsBroken) {
  Model m;
  for (int i = 0; i < 6; ++i) m.add_variable("x" + std::to_string(i), 1 + 0.1 * i);
  Row two{"two", {}, Sense::at_least, 2};
  for (int i = 0; i < 6; ++i) two.terms.push_back({VarId{i}, 1});
  m.add_row(two);
  // Forbidden: two neighbours (cyclically).
  auto cuts = [](const std::vector<bool>& x) {
    std::vector<Row> rows;
    for (int i = 0; i < 6; ++i) {
      int j = (i + 1) % 6;
      if (x[static_cast<std::size_t>(i)] && x[static_cast<std::size_t>(j)]) {
        rows.push_back(
            {"apart_" + std::to_string(i), {{VarId{i}, 1}, {VarId{j}, 1}}, Sense::at_most, 1});
      }
    }
    return rows;
  };
  auto s = solve(m, {.cuts = cuts});
  ASSERT_TRUE(s) << s.error().message;
  EXPECT_EQ(s->status, Solution::Status::optimal);
  EXPECT_GT(s->rounds, 1);
  EXPECT_FALSE(s->cuts.empty());
  EXPECT_NEAR(s->objective, exhaustive(m, [&](const auto& x) { return cuts(x).empty(); }), 1e-9);
}

TEST(Ilp, EqualsExhaustiveSearchOnRandomCovers) {
  std::mt19937 random(7);
  for (int trial = 0; trial < 20; ++trial) {
    std::vector<std::pair<double, std::vector<int>>> sets;
    for (int s = 0; s < 12; ++s) {
      std::vector<int> members;
      for (int i = 0; i < 7; ++i) {
        if (random() % 3 == 0) members.push_back(i);
      }
      sets.push_back({1.0 + static_cast<double>(random() % 100) / 10, members});
    }
    Model m = cover(sets, 7);
    const double best = exhaustive(m, [](const auto&) { return true; });
    auto s = solve(m);
    ASSERT_TRUE(s) << s.error().message;
    if (best > 1e200) {
      EXPECT_EQ(s->status, Solution::Status::infeasible) << "trial " << trial;
    } else {
      EXPECT_NEAR(s->objective, best, 1e-6) << "trial " << trial;
    }
  }
}

std::vector<std::pair<double, std::vector<int>>> random_sets(std::mt19937& random, int sets,
                                                             int items, int one_in) {
  std::vector<std::pair<double, std::vector<int>>> out;
  for (int s = 0; s < sets; ++s) {
    std::vector<int> members;
    for (int i = 0; i < items; ++i) {
      if (random() % static_cast<unsigned>(one_in) == 0) members.push_back(i);
    }
    out.push_back({1.0 + static_cast<double>(random() % 100) / 10, members});
  }
  return out;
}

TEST(Ilp, WhatReducedCostsFixIsInNoCheaperAssignment) {
  std::mt19937 random(11);
  int fixed = 0;
  for (int trial = 0; trial < 20; ++trial) {
    Model m = cover(random_sets(random, 12, 6, 3), 6);
    const double best = exhaustive(m, [](const auto&) { return true; });
    if (best > 1e200) continue;
    const auto relaxation = relax(m, 1000);
    ASSERT_TRUE(relaxation);
    EXPECT_LE(relaxation->bound, best + 1e-9);
    const double limit = best + 1;
    const std::vector<bool> gone = fixed_to_zero(*relaxation, limit);
    for (std::size_t v = 0; v < gone.size(); ++v) {
      if (!gone[v]) continue;
      ++fixed;
      EXPECT_GT(exhaustive(m, [&](const auto& x) { return x[v]; }), limit) << "trial " << trial;
    }
    const Reduced less = without(m, gone);
    EXPECT_EQ(
        less.kept.size() + static_cast<std::size_t>(std::count(gone.begin(), gone.end(), true)),
        gone.size());
    EXPECT_NEAR(exhaustive(less.model, [](const auto&) { return true; }), best, 1e-9);
  }
  EXPECT_GT(fixed, 20);
}

TEST(Ilp, StartsAndRepairsLeadToTheSameOptimum) {
  std::mt19937 random(5);
  for (int trial = 0; trial < 20; ++trial) {
    Model m = cover(random_sets(random, 14, 8, 3), 8);
    const std::vector<bool> all(14, true);
    if (violated_row(m, all)) continue;
    const double best = exhaustive(m, [](const auto&) { return true; });
    int repairs = 0;
    SolveOptions how{.start = all};
    how.repair = [&](const std::vector<double>& x) -> std::optional<std::vector<bool>> {
      ++repairs;
      std::vector<bool> up;
      for (double v : x) up.push_back(v > 1e-9);
      return up;
    };
    auto s = solve(m, how);
    ASSERT_TRUE(s) << s.error().message;
    EXPECT_EQ(repairs, 1);
    EXPECT_NEAR(s->objective, best, 1e-6) << "trial " << trial;
    EXPECT_LE(s->bound, s->objective);
  }
}

TEST(Ilp, WorkIsBounded) {
  std::mt19937 random(3);
  Model m = cover(random_sets(random, 120, 90, 12), 90);
  const std::vector<bool> all(120, true);
  ASSERT_FALSE(violated_row(m, all));
  auto free = solve(m, {.start = all});
  auto bounded = solve(m, {.work_budget = 3000, .start = all});
  auto stopped = solve(m, {.work_budget = 0.1, .start = all});
  ASSERT_TRUE(free && bounded && stopped);
  EXPECT_GT(free->nodes, 1);
  EXPECT_LT(bounded->nodes, free->nodes);
  EXPECT_LE(bounded->work, 5000);
  EXPECT_LE(bounded->bound, free->objective + 1e-6);
  EXPECT_GE(bounded->objective, free->objective - 1e-6);
  EXPECT_EQ(stopped->values, all);
  EXPECT_EQ(stopped->bound, 0);
}

TEST(Ilp, IsSilentAndDeterministic) {
  std::mt19937 random(3);
  std::vector<std::pair<double, std::vector<int>>> sets;
  for (int s = 0; s < 60; ++s) {
    std::vector<int> members;
    for (int i = 0; i < 40; ++i) {
      if (random() % 8 == 0) members.push_back(i);
    }
    sets.push_back({1.0 + static_cast<double>(random() % 10), members});
  }
  Model m = cover(sets, 40);
  testing::internal::CaptureStdout();
  auto a = solve(m), b = solve(m);
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "");
  ASSERT_TRUE(a && b);
  EXPECT_EQ(a->values, b->values);
  EXPECT_EQ(a->nodes, b->nodes);
}

TEST(Ilp, LpText) {
  Model m;
  VarId a = m.add_variable("use 1", 2.5), b = m.add_variable("e2", 1);
  m.add_row({"needs x/y", {{a, 1}, {b, -1}}, Sense::at_least, 0});
  m.add_row({"one", {{a, 1}, {b, 1}}, Sense::equal, 1});
  EXPECT_EQ(to_lp(m),
            "Minimize\n cost: + 2.5 use_1 + 1 _e2\nSubject To\n"
            " needs_x_y: + 1 use_1 - 1 _e2 >= 0\n"
            " one: + 1 use_1 + 1 _e2 = 1\n"
            "Binary\n use_1\n _e2\nEnd\n");
}

}  // namespace
}  // namespace heddle::ilp

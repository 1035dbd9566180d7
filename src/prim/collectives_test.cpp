// Collectives: what they mean over several processes, and that nothing merges, drops or folds them.
#include "prim/collectives.h"

#include <gtest/gtest.h>

#include "prim/fold.h"
#include "prim/interpret.h"
#include "prim/passes.h"
#include "prim/test_util.h"
#include "prim/text.h"
#include "prim/types.h"

namespace heddle::prim {
namespace {

Tensor row_of(double a, double b, double c) {
  Tensor t(TensorType{DType::f64, {3}});
  for (std::int64_t i = 0; i < 3; ++i) t.set(i, i == 0 ? a : i == 1 ? b : c);
  return t;
}

/// y = 2 · Σ x², twice, of equal arguments; and a sum that no output needs.
Graph two_alike() {
  Graph g;
  Builder b(g);
  const NodeId x = g.add_input("x", {DType::f64, {3}}), w = g.add_input("w", {DType::f64, {3}});
  const NodeId square = b.mul(x, x);
  const NodeId first = b.all_reduce(square), second = b.all_reduce(square);
  b.all_reduce(w);
  g.outputs = {{"y", b.add(first, second)}, {"z", b.exp(w)}};
  return g;
}

TEST(Collectives, AreNeitherMergedNorDropped) {
  Graph g = two_alike();
  ASSERT_TRUE(verify(g));
  PassOptions options;
  options.verify_each = true;
  EXPECT_EQ(collectives(g).size(), 3U);
  const auto after = run_passes(default_passes(), g, options);
  ASSERT_TRUE(after) << after.error().message;
  EXPECT_EQ(collectives(*after).size(), 3U);
  for (int channel = 0; channel < 3; ++channel)
    EXPECT_EQ(
        std::get<AllReduce>((*after)[collectives(*after)[static_cast<std::size_t>(channel)]].op)
            .channel,
        channel);
}

TEST(Collectives, OfConstantsAreNoConstants) {
  Graph g;
  Builder b(g);
  g.outputs = {{"ranks", b.all_reduce(b.scalar(DType::f64, 1))}};
  g = fold_constants(g);
  EXPECT_EQ(collectives(g).size(), 1U);
  const auto out = interpret_ranks(g, {{}, {}, {}});
  ASSERT_TRUE(out);
  EXPECT_EQ((*out)[1][0].at(0), 3);
}

TEST(Collectives, SumOverProcesses) {
  const Graph g = two_alike();
  const std::vector<std::vector<Tensor>> inputs = {{row_of(1, 2, 3), row_of(0, 0, 0)},
                                                   {row_of(0, -1, 5), row_of(1, 1, 1)}};
  const auto both = interpret_ranks(g, inputs);
  const auto alone = interpret(g, inputs[0]);
  ASSERT_TRUE(both && alone);
  const double want[] = {2, 10, 68}, one[] = {2, 8, 18};
  for (std::int64_t i = 0; i < 3; ++i) {
    EXPECT_EQ((*both)[0][0].at(i), want[i]);
    EXPECT_EQ((*both)[1][0].at(i), want[i]);
    EXPECT_EQ((*alone)[0].at(i), one[i]);
  }
  EXPECT_EQ((*both)[0][1].at(0), 1);
  EXPECT_NE((*both)[1][1].at(0), 1);
}

TEST(Collectives, RoundTripAsText) {
  const Graph g = drop_dead(two_alike());
  const auto parsed = parse_graph(print(g), large_constants(g));
  ASSERT_TRUE(parsed) << parsed.error().message;
  EXPECT_EQ(*parsed, g) << print(g);
}

TEST(Collectives, HaveChannelsOfTheirOwnAndFloats) {
  Graph g;
  const NodeId x = g.add_input("x", {DType::f32, {2}}), i = g.add_input("i", {DType::i32, {2}});
  const NodeId y = g.add(AllReduce{0}, {x}, {DType::f32, {2}});
  g.add(AllReduce{0}, {y}, {DType::f32, {2}});
  const Status twice = verify(g);
  ASSERT_FALSE(twice);
  EXPECT_NE(twice.error().message.find("channel 0"), std::string::npos) << twice.error().message;
  EXPECT_FALSE(verify_node(g, g.add(AllReduce{1}, {i}, {DType::i32, {2}})));
  EXPECT_FALSE(verify_node(g, g.add(AllReduce{2}, {x}, {DType::f32, {1, 2}})));
}

TEST(Collectives, CutAGraphInTwo) {
  Graph g = two_alike();
  const std::vector<std::string> names = {"a", "b", "c"};
  const auto split = split_at_collectives(g, names);
  ASSERT_TRUE(split) << split.error().message;
  ASSERT_TRUE(verify(split->before) && verify(split->after));
  EXPECT_TRUE(collectives(split->before).empty() && collectives(split->after).empty());
  EXPECT_EQ(split->summed, (std::vector<std::size_t>{1, 2, 3}));
  const std::vector<Tensor> first = {row_of(1, 2, 3), row_of(0, 0, 0)},
                            second = {row_of(0, -1, 5), row_of(1, 1, 1)};
  const auto a = interpret(split->before, first), b = interpret(split->before, second);
  ASSERT_TRUE(a && b);
  const auto sum = [&](std::size_t o) {
    return row_of((*a)[o].at(0) + (*b)[o].at(0), (*a)[o].at(1) + (*b)[o].at(1),
                  (*a)[o].at(2) + (*b)[o].at(2));
  };
  ASSERT_EQ(split->after.inputs.size(), 2U);  // x, w and the third sum are not needed
  const auto y = interpret(split->after, {sum(1), sum(2)});
  const auto want = interpret_ranks(g, {first, second});
  ASSERT_TRUE(y && want);
  for (std::int64_t i = 0; i < 3; ++i) EXPECT_EQ((*y)[0].at(i), (*want)[0][0].at(i));
}

TEST(Collectives, OneAfterAnotherAreNoStep) {
  Graph g;
  Builder b(g);
  g.outputs = {{"y", b.all_reduce(b.exp(b.all_reduce(g.add_input("x", {DType::f64, {3}}))))}};
  const std::vector<std::string> names = {"a", "b"};
  EXPECT_FALSE(split_at_collectives(g, names));
}

}  // namespace
}  // namespace heddle::prim

#include "prim/moments.h"

#include <gtest/gtest.h>

#include <random>

#include "prim/builder.h"
#include "prim/interpret.h"
#include "prim/precision.h"
#include "prim/rewrite.h"
#include "prim/test_util.h"

namespace heddle::prim {
namespace {

Graph in_one_pass(const Graph& g) {
  return moments_in_one_pass(g, [](const Deviation&) { return true; });
}
int sums_of(const Graph& g, DType type) {
  int count = 0;
  for (const NodeId id : live_nodes(g))
    count += std::holds_alternative<Reduce>(g[id].op) && g[id].type.dtype == type;
  return count;
}

/// The same values, for the axes of a layer's, a batch's and an instance's normalisation.
TEST(Moments, EqualTheTwoPasses) {
  struct Case {
    Shape shape;
    std::vector<int> axes;
  };
  std::mt19937 rng(7);
  for (const auto& [shape, axes] : {Case{{3, 40}, {1}}, Case{{4, 5, 3, 7}, {0, 2, 3}},
                                    Case{{1, 6, 9}, {2}}, Case{{2, 3, 5, 1}, {2, 3}}}) {
    Graph g;
    Builder b(g);
    const NodeId x = g.add_input("x", {DType::f32, shape});
    g.outputs = {{"y", b.normalize(x, axes, 1e-5)}, {"mean", b.mean(x, axes)}};
    g = canonicalize(g);
    ASSERT_EQ(deviations(g).size(), 1u);
    const Graph once = in_one_pass(g);
    ASSERT_TRUE(verify(once));
    EXPECT_EQ(sums_of(once, DType::f64), 2);
    EXPECT_EQ(sums_of(once, DType::f32), 0);
    const auto inputs = random_inputs(g, rng);
    const auto want = *interpret(g, inputs), found = *interpret(once, inputs);
    for (std::size_t o = 0; o < want.size(); ++o)
      for (std::int64_t i = 0; i < want[o].count(); ++i)
        EXPECT_NEAR(found[o].at(i), want[o].at(i), 1e-5);
  }
}

/// A mean far from 0 costs no digits, and equal elements vary by no less than 0.
TEST(Moments, OfFarMeans) {
  Graph g;
  Builder b(g);
  const NodeId x = g.add_input("x", {DType::f32, {3, 4}});
  const NodeId centred = b.sub(x, b.mean(x, {1}));
  g.outputs = {{"s", b.reduce_sum(b.mul(centred, centred), {1}, false)}};
  const Graph once = in_one_pass(canonicalize(g));
  ASSERT_EQ(sums_of(once, DType::f64), 2);
  Tensor value({DType::f32, {3, 4}});
  for (int i = 0; i < 4; ++i) {
    value.set(i, 4096 + i % 2);
    value.set(4 + i, 1e6 + 0.0625);
    value.set(8 + i, i == 1 ? NAN : 1);
  }
  const Tensor s = (*interpret(once, {value}))[0];
  EXPECT_DOUBLE_EQ(s.at(0), 1);
  EXPECT_GE(s.at(1), 0);
  EXPECT_LT(s.at(1), 1e-3);  // f32 would lose 4e5 of 4e12
  EXPECT_TRUE(std::isnan(s.at(2)));
}

/// Sums about anything but the mean of the same elements are left alone, and so are those that are
/// not wanted.
TEST(Moments, OnlyAboutTheMean) {
  const auto found = [](auto about) {
    Graph g;
    Builder b(g);
    const NodeId x = g.add_input("x", {DType::f32, {6, 6}});
    const NodeId y = g.add_input("y", {DType::f32, {6, 6}});
    const NodeId centred = b.sub(x, about(b, x, y));
    g.outputs = {{"s", b.reduce_sum(b.mul(centred, centred), {1}, false)}};
    g = canonicalize(g);
    EXPECT_EQ(sums_of(moments_in_one_pass(g, [](const Deviation&) { return false; }), DType::f64),
              0);
    return !deviations(g).empty();
  };
  EXPECT_TRUE(found([](Builder& b, NodeId x, NodeId) { return b.mean(x, {1}); }));
  EXPECT_FALSE(found([](Builder& b, NodeId, NodeId y) { return b.mean(y, {1}); }));
  EXPECT_FALSE(found([](Builder& b, NodeId x, NodeId) { return b.mean(x, {0}); }));
  EXPECT_FALSE(found([](Builder& b, NodeId x, NodeId) {
    return b.broadcast(b.transpose(b.mean(x, {1}), {1, 0}), {6, 6});
  }));
  EXPECT_FALSE(
      found([](Builder& b, NodeId x, NodeId) { return b.mul(b.reduce_sum(x, {1}), 0.2); }));
}

/// Where x is rounded on the way, a row of equal elements varies by 0 and is centred at its
/// rounding: the two passes see that, sums before the rounding would not.
TEST(Moments, NotOfWhatIsStoredIn16Bits) {
  Graph g;
  Builder b(g);
  const NodeId x = g.add_input("x", {DType::f32, {4, 16}});
  const NodeId w = g.add_input("w", {DType::f32, {16, 64}});
  g.outputs = {{"y", b.normalize(b.matmul(x, w), {1}, 1e-5)}};
  EXPECT_EQ(deviations(canonicalize(g)).size(), 1u);
  for (const DType type : {DType::bf16, DType::f16})
    EXPECT_TRUE(deviations(canonicalize(with_storage(g, type))).empty());
}

}  // namespace
}  // namespace heddle::prim

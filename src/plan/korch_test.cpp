#include "plan/korch.h"

#include <gtest/gtest.h>

namespace heddle::plan {
namespace {

/// Candy (fast neural style) at Korch's granularity. Inputs, weights and scalars are not
/// primitives.
struct Candy {
  KorchGraph g;
  std::vector<int> of(int x) { return x < 0 ? std::vector<int>() : std::vector<int>{x}; }
  int map(int x) { return g.add(of(x)); }
  int conv(int x) { return g.add(of(x), true); }
  /// mean, x - mean, squared, its mean, + epsilon, square root, quotient, · scale, + bias.
  int instance_norm(int x) {
    const int mean = map(x), d = g.add({x, mean}), square = g.add({d}), variance = map(square);
    const int root = map(map(variance));
    return map(map(g.add({d, root})));
  }
  int block(int x) { return map(instance_norm(conv(map(x)))); }  // pad, conv, norm, relu
  int residual(int x) {
    const int y = instance_norm(conv(map(block(x))));
    return g.add({y, x});
  }
  Candy() {
    int x = -1;
    for (int i = 0; i < 3; ++i) x = block(x);
    for (int i = 0; i < 5; ++i) x = residual(x);
    for (int i = 0; i < 2; ++i) x = block(map(x));  // upsample first
    conv(map(x));
  }
};

TEST(Korch, CandyHasThePublishedCounts) {
  Candy candy;
  ASSERT_EQ(candy.g.args.size(), 184u);
  auto c = korch_candidates(candy.g);
  ASSERT_TRUE(c) << c.error().message;
  EXPECT_EQ(c->states, 185);
  EXPECT_EQ(c->convex_sets, 17020);
  EXPECT_EQ(c->kernels.size(), 1031u);
}

TEST(Korch, RulesOnADiamond) {
  // a → b, a → c, (b, c) → d, with d linear.
  KorchGraph g;
  const int a = g.add({}), b = g.add({a}), c = g.add({a});
  g.add({b, c}, true);
  auto k = korch_candidates(g);
  ASSERT_TRUE(k);
  EXPECT_EQ(k->states, 6);
  // {a} {ab} {ac} {b} {c} {d}; not {abc} nor {bc} (two sinks), nothing else with d.
  EXPECT_EQ(k->kernels, (std::vector<std::vector<int>>{{0}, {0, 1}, {0, 2}, {1}, {2}, {3}}));
}

TEST(Korch, WideGraphsAreRefused) {
  KorchGraph g;
  for (int i = 0; i < 40; ++i) g.add({});
  auto k = korch_candidates(g);
  ASSERT_FALSE(k);
  EXPECT_EQ(k.error().message, "graph of 40 primitives: more than 4000 execution states");
}

}  // namespace
}  // namespace heddle::plan

#include "prim/precision.h"

#include <gtest/gtest.h>

#include <cmath>

#include "prim/bytes.h"
#include "prim/passes.h"
#include "prim/random_graph.h"
#include "prim/rewrite.h"
#include "prim/test_util.h"

namespace heddle::prim {
namespace {

/// Largest difference of any output, as a share of its scale (at least 1: some cancel to nothing).
double difference(const Graph& a, const Graph& b, std::mt19937& rng) {
  const std::vector<Tensor> inputs = random_inputs(a, rng);
  const auto x = interpret(a, inputs), y = interpret(b, inputs);
  EXPECT_TRUE(x) << x.error().message;
  EXPECT_TRUE(y) << y.error().message;
  double worst = 0;
  for (std::size_t o = 0; o < x->size(); ++o) {
    double scale = 1, error = 0;
    for (std::int64_t i = 0; i < (*x)[o].count(); ++i) {
      scale = std::max(scale, std::abs((*x)[o].at(i)));
      const double e = std::abs((*x)[o].at(i) - (*y)[o].at(i));
      error = std::max(error, std::isnan(e) ? INFINITY : e);
    }
    worst = std::max(worst, error / scale);
  }
  return worst;
}

int count_of(const Graph& g, DType type) {
  int n = 0;
  for (const NodeId id : live_nodes(g)) n += g[id].type.dtype == type;
  return n;
}

TEST(Precision, RandomGraphsKeepTheirPortsAndAlmostTheirValues) {
  std::mt19937 rng(7);
  int lowered = 0;
  for (int i = 0; i < 60; ++i) {
    const Graph g = random_graph(rng, 12);
    for (const auto& [low, tolerance] : {std::pair{DType::f16, 2e-2}, {DType::bf16, 1e-1}}) {
      const Graph stored = with_storage(g, low);
      const Status status = verify(stored);
      ASSERT_TRUE(status) << status.error().message;
      EXPECT_EQ(stored.inputs, g.inputs);
      for (std::size_t o = 0; o < g.outputs.size(); ++o)
        EXPECT_EQ(stored[stored.outputs[o].node].type, g[g.outputs[o].node].type);
      EXPECT_LT(difference(g, stored, rng), tolerance) << i;
      EXPECT_LT(difference(g, canonicalize(stored), rng), tolerance) << i;
      lowered += count_of(stored, low);
    }
  }
  EXPECT_GT(lowered, 600);
}

/// Layer normalisation of x·w with an epsilon and a mask that f16 cannot hold.
Graph masked_norm() {
  Graph g;
  Builder b(g);
  std::mt19937 rng(1);
  const NodeId x = g.add_input("x", {DType::f32, {3, 8}});
  const NodeId keep = g.add_input("keep", {DType::b1, {3, 16}});
  const NodeId w = b.constant(random_tensor({DType::f32, {8, 16}}, rng));
  const NodeId y = b.matmul(x, w);
  const NodeId normal = b.normalize(y, {1}, 1e-12);
  const NodeId masked = b.select(keep, normal, b.scalar(DType::f32, -3e38));
  g.outputs = {{"y", b.reduce_max(masked, {1})}};
  return g;
}

TEST(Precision, WeightsAreStoredLowAndWhatCannotBeIsNot) {
  const Graph g = masked_norm();
  std::mt19937 rng(3);
  for (const DType low : {DType::f16, DType::bf16}) {
    const Graph stored = with_storage(g, low);
    ASSERT_TRUE(verify(stored));
    EXPECT_LT(difference(g, stored, rng), low == DType::f16 ? 2e-3 : 2e-2);
    for (const NodeId id : live_nodes(stored)) {
      const Node& n = stored[id];
      if (const Tensor* c = stored.constant_of(id)) {
        EXPECT_EQ(c->type().dtype, c->count() > 1 ? low : DType::f32);
      }
      if (std::holds_alternative<Contract>(n.op)) {
        EXPECT_EQ(n.type.dtype, low);
      }
      if (std::holds_alternative<Reduce>(n.op)) {
        EXPECT_EQ(n.type.dtype, DType::f32);
      }
    }
  }
}

/// A number that f16 takes for 0 among a product's weights, which a sum reads as well, and one that
/// it takes for infinite among others'.
TEST(Precision, WeightsOfProductsMayLoseWhatIsTiny) {
  std::mt19937 rng(4);
  for (const double odd : {1e-9, 1e6}) {
    Graph g;
    Builder b(g);
    Tensor weights = random_tensor({DType::f32, {8, 16}}, rng);
    weights.set(3, odd);
    const NodeId x = g.add_input("x", {DType::f32, {3, 8}}), w = b.constant(weights);
    g.outputs = {{"y", b.matmul(x, w)}, {"z", b.div(b.reduce_sum(x, {1}), b.reduce_max(w, {0}))}};
    const Graph stored = with_storage(g, DType::f16);
    ASSERT_TRUE(verify(stored));
    int low = 0, whole = 0;
    for (const NodeId id : live_nodes(stored))
      if (const Tensor* c = stored.constant_of(id); c != nullptr && c->count() > 1)
        ++(c->dtype() == DType::f16 ? low : whole);
    EXPECT_EQ(low, odd < 1 ? 1 : 0);
    EXPECT_EQ(whole, 1);
  }
}

TEST(Precision, WhatIsNotF32IsLeftAlone) {
  Graph g;
  Builder b(g);
  const NodeId x = g.add_input("x", {DType::f16, {4}}), n = g.add_input("n", {DType::i64, {4}});
  const NodeId z = g.add_input("z", {DType::f64, {4}});
  g.outputs = {{"a", b.exp(b.add(x, x))},
               {"b", b.reduce_sum(x, {0})},
               {"c", b.add(n, n)},
               {"d", b.mul(z, z)},
               {"e", b.cast(x, DType::f32)}};
  EXPECT_EQ(with_storage(g, DType::f16), drop_dead(g));
  EXPECT_EQ(with_storage(g, DType::bf16), drop_dead(g));
}

/// Rounded and bounded integers that a convolution over windows, or two nodes, read.
TEST(WithBytes, KeepsTheMeaning) {
  for (const double low : {-128.0, -30.0, 0.0}) {
    Graph g;
    Builder b(g);
    std::mt19937 rng(2);
    const NodeId x = g.add_input("x", {DType::f32, {4, 9}});
    const NodeId y = b.map(ir::ScalarFn::round, {b.mul(x, 100.0)});
    const NodeId bounded =
        b.min(b.max(y, b.scalar(DType::f32, low)), b.scalar(DType::f32, low + 255));
    const NodeId q = b.cast(b.cast(bounded, DType::i32), DType::f32);
    g.outputs = {{"sum", b.reduce_sum(q, {1}, false)}, {"more", b.exp(b.mul(q, 0.01))}};
    const Graph after = with_bytes(g);
    bool bytes = false;
    for (const NodeId id : live_nodes(after)) bytes |= size_of(after[id].type.dtype) == 1;
    EXPECT_TRUE(bytes);
    const auto inputs = random_inputs(g, rng);
    const auto want = interpret(g, inputs), got = interpret(after, inputs);
    ASSERT_TRUE(want.ok() && got.ok());
    for (std::size_t i = 0; i < want->size(); ++i)
      for (std::int64_t k = 0; k < (*want)[i].count(); ++k)
        EXPECT_EQ((*got)[i].at(k), (*want)[i].at(k));
  }
}

/// Of numbers that are seen to be finite every quantised value is made of bytes, and these of what
/// they hold.
TEST(WithBytes, OfFiniteValuesIsFoundAgain) {
  for (const double low : {-130.0, 0.0}) {
    Graph g;
    Builder b(g);
    const NodeId i = g.add_input("i", {DType::i32, {4, 9}});
    const NodeId y = b.map(ir::ScalarFn::round, {b.mul(b.cast(i, DType::f32), 1e-3)});
    const NodeId bounded =
        b.min(b.max(y, b.scalar(DType::f32, low)), b.scalar(DType::f32, low + 255));
    const NodeId q = b.cast(b.cast(bounded, DType::i32), DType::f32);
    g.outputs = {{"scaled", b.mul(q, 0.01)}};
    const Graph after = with_bytes(g);
    const NodeId read = after[after.outputs[0].node].args[0];
    const auto through = without_bytes(after, read);
    ASSERT_TRUE(through);
    EXPECT_EQ(after[through->value].op, g[bounded].op);
    std::mt19937 rng(2);
    EXPECT_EQ(difference(g, after, rng), 0);
    // Of what may be NaN it is not.
    Graph other;
    Builder c(other);
    const NodeId x = other.add_input("x", {DType::f32, {4, 9}});
    const NodeId z = c.min(c.max(c.map(ir::ScalarFn::round, {x}), c.scalar(DType::f32, low)),
                           c.scalar(DType::f32, low + 255));
    EXPECT_FALSE(without_bytes(other, c.cast(c.cast(z, DType::u8), DType::f32)));
  }
}

}  // namespace
}  // namespace heddle::prim

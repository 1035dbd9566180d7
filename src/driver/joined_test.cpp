// Concatenations in place: what is stored as parts of another value is as right as by itself.
#include <gtest/gtest.h>

#include <random>

#include "driver/driver.h"
#include "driver/joined.h"
#include "driver/test_util.h"
#include "driver/verify.h"
#include "prim/builder.h"

namespace heddle::driver {
namespace {

using prim::Builder;
using prim::Graph;
using prim::NodeId;

struct Images {
  Graph g;
  Builder b{g};
  std::mt19937 random{5};

  NodeId weights(Shape shape) {
    Tensor t({DType::f32, std::move(shape)});
    std::normal_distribution<double> normal(0, 0.2);
    for (std::int64_t i = 0; i < t.count(); ++i) t.set(i, normal(random));
    return b.constant(t);
  }
  NodeId conv(NodeId x, std::int64_t filters, std::int64_t taps, std::int64_t groups = 1) {
    const std::int64_t channels = b.shape(x)[1], pad = taps / 2;
    return b.relu(b.conv(x, weights({filters, channels / groups, taps, taps}),
                         {{1, 1}, {1, 1}, {pad, pad}, {pad, pad}, static_cast<int>(groups)}));
  }
  void output(NodeId id) { g.outputs.push_back({fmt::format("y{}", g.outputs.size()), id}); }
};

CompileOptions joining(const std::string& mode = "kernels", DType precision = DType::f32) {
  CompileOptions options;
  options.precision = precision;
  options.threads = 2;
  options.mode = mode;
  return options;
}

/// Kernels and outputs of the whole, in both modes; `joins`: concatenations in place.
void expect_right(const Graph& g, std::size_t joins, DType precision = DType::f32) {
  const double tolerance = precision == DType::f32 ? 1e-4 : 5e-2;
  std::mt19937 random(3);
  std::normal_distribution<double> normal;
  std::vector<Tensor> inputs;
  for (const prim::GraphInput& input : g.inputs) {
    inputs.emplace_back(input.type);
    for (std::int64_t i = 0; i < inputs.back().count(); ++i) inputs.back().set(i, normal(random));
  }
  for (const char* mode : {"kernels", "monolith"}) {
    const CompileOptions options = joining(mode, precision);
    const auto compiled = compile(g, options);
    ASSERT_TRUE(compiled.ok()) << compiled.error().message;
    EXPECT_EQ(compiled->joins.size(), joins) << mode;
    const auto checked = verify(*compiled, inputs, tolerance, tolerance, options);
    ASSERT_TRUE(checked.ok()) << checked.error().message;
    EXPECT_EQ(checked->wrong, 0) << mode << ": " << checked->first_wrong;
  }
}

/// A value that others read, too, and one that is made after it.
TEST(Joined, SkipsOfAnEncoder) {
  Images m;
  const NodeId x = in(m.g, {1, 16, 19, 22});
  const NodeId skip = m.conv(x, 32, 3), low = m.conv(skip, 16, 3);
  const NodeId up = m.conv(m.conv(low, 16, 5), 48, 1);
  m.output(m.conv(m.b.concat({skip, up}, 1), 24, 3));
  expect_right(m.g, 1);
  expect_right(m.g, 1, DType::bf16);
}

/// Each layer reads all before it: longer concatenations begin as the shorter ones do.
TEST(Joined, LayersOfADenseBlock) {
  Images m;
  std::vector<NodeId> all{m.conv(in(m.g, {1, 16, 13, 17}), 32, 3)};
  for (int layer = 0; layer < 3; ++layer) {
    const NodeId before = all.size() == 1 ? all[0] : m.b.concat(all, 1);
    all.push_back(m.conv(m.conv(before, 48, 1), 16, 3));
  }
  m.output(m.conv(m.b.concat(all, 1), 32, 1));
  expect_right(m.g, 3);
}

/// What makes the second part; the first one is a convolution's.
using Maker = NodeId (*)(Images&, NodeId);
struct Made {
  const char* name;
  Maker make;
};
class JoinedParts : public testing::TestWithParam<Made> {};

TEST_P(JoinedParts, AreStoredInPlace) {
  Images m;
  const NodeId x = in(m.g, {2, 32, 15, 18});
  const NodeId first = m.conv(x, 64, 3), second = GetParam().make(m, m.conv(x, 32, 1));
  m.output(m.conv(m.b.concat({first, second}, 1), 32, 3));
  expect_right(m.g, 1);
}

INSTANTIATE_TEST_SUITE_P(
    Rows, JoinedParts,
    testing::Values(Made{"product", [](Images& m, NodeId x) { return m.conv(x, 48, 1); }},
                    Made{"winograd", [](Images& m, NodeId x) { return m.conv(x, 64, 3); }},
                    Made{"few_channels", [](Images& m, NodeId x) { return m.conv(x, 4, 5); }},
                    Made{"depthwise", [](Images& m, NodeId x) { return m.conv(x, 32, 3, 32); }},
                    Made{"pooling",
                         [](Images& m, NodeId x) {
                           const NodeId windows = m.b.windows(
                               x, {3, 3}, {{1, 1}, {1, 1}, {1, 1}, {1, 1}, 1}, {15, 18}, -9);
                           return m.b.reduce_max(windows, {4, 5}, false);
                         }},
                    Made{"functions", [](Images& m, NodeId x) { return m.b.tanh(m.b.exp(x)); }},
                    Made{"norms",
                         [](Images& m, NodeId x) {
                           return m.b.div(x, m.b.reduce_sum(x, {2, 3}, true));
                         }}),
    [](const auto& info) { return std::string(info.param.name); });

/// Along the columns of matrices; but an output is where the caller has it.
TEST(Joined, ColumnsOfMatrices) {
  for (const bool given : {false, true}) {
    Images m;
    const NodeId x = in(m.g, {37, 64});
    const auto layer = [&](NodeId v) { return m.b.tanh(m.b.matmul(v, m.weights({64, 64}))); };
    const NodeId first = layer(x);
    if (given) m.output(first);
    m.output(m.b.matmul(m.b.concat({first, layer(m.b.relu(x))}, 1), m.weights({128, 32})));
    SCOPED_TRACE(given);
    expect_right(m.g, given ? 0 : 1);
  }
}

/// Parts that are given, twice the same, or of odd sizes are copied.
TEST(Joined, WhatIsNotInPlace) {
  for (const int what : {0, 1, 2}) {
    Images m;
    const NodeId x = in(m.g, {1, 32, 11, 12});
    const NodeId part = m.conv(x, what == 2 ? 35 : 32, 3);
    const NodeId other = what == 0 ? x : what == 1 ? part : m.conv(x, 16, 1);
    m.output(m.conv(m.b.concat({part, other}, 1), 16, 3));
    SCOPED_TRACE(what);
    expect_right(m.g, 0);
  }
}

/// A concatenation of two values and one of these and a third, and what reads them.
struct TwoJoins {
  Graph g;
  Builder b{g};
  NodeId p, q, r, two, three, first, second;
  TwoJoins() {
    const NodeId x = in(g, {4, 8});
    p = b.exp(x), q = b.tanh(x), r = b.sigmoid(x);
    two = b.concat({p, q}, 1), three = b.concat({p, q, r}, 1);
    first = b.neg(two), second = b.neg(three);
    g.outputs = {{"first", first}, {"second", second}};
  }
  /// Which of the two are in place, by kernels of (nodes, outputs).
  std::size_t joins(const std::vector<std::pair<std::vector<NodeId>, std::vector<NodeId>>>& all) {
    plan::Plan plan;
    for (const auto& [nodes, outputs] : all) plan.kernels.emplace_back().cluster = {nodes, outputs};
    joined = join_in_place(g, plan, {}, [](NodeId id) { return id; }, {});
    return joined.joins.size();
  }
  JoinedPlan joined;
};

TEST(Joined, WindowsOfALongerOne) {
  TwoJoins t;
  EXPECT_EQ(t.joins({{{t.p}, {t.p}},
                     {{t.q}, {t.q}},
                     {{t.two}, {t.two}},
                     {{t.first}, {t.first}},
                     {{t.r}, {t.r}},
                     {{t.three}, {t.three}},
                     {{t.second}, {t.second}}}),
            2U);
  EXPECT_EQ(t.joined.kernels.size(), 5U);
  EXPECT_EQ(t.joined.members.at(t.two).root, t.three);
  EXPECT_EQ(t.joined.members.at(t.q).first, 8);
  EXPECT_EQ(t.joined.members.at(t.r).first, 16);
}

/// What the concatenation's kernel alone makes is what is left of it.
TEST(Joined, PartsThatOnlyItsKernelMakes) {
  TwoJoins t;
  EXPECT_EQ(t.joins({{{t.p}, {t.p}},
                     {{t.q, t.two}, {t.two}},
                     {{t.first}, {t.first}},
                     {{t.p, t.q, t.r, t.three, t.second}, {t.second}}}),
            1U);
  ASSERT_EQ(t.joined.kernels.size(), 4U);
  EXPECT_EQ(t.joined.kernels[1].cluster.outputs, std::vector{t.q});
  EXPECT_EQ(t.joined.kernels[1].cluster.nodes, std::vector{t.q});
  EXPECT_EQ(t.joined.planned, (std::vector<std::size_t>{0, 1, 2, 3}));
}

/// A part that another kernel makes later, or a root that a kernel makes by itself.
TEST(Joined, NotWhatIsMadeLaterOrElsewhere) {
  TwoJoins t;
  EXPECT_EQ(t.joins({{{t.q}, {t.q}},
                     {{t.p, t.two}, {t.two}},
                     {{t.first}, {t.first}},
                     {{t.p}, {t.p}},
                     {{t.p, t.q, t.r, t.three, t.second}, {t.second}}}),
            0U);
  EXPECT_EQ(t.joins({{{t.p}, {t.p}},
                     {{t.q}, {t.q}},
                     {{t.two}, {t.two}},
                     {{t.first}, {t.first}},
                     {{t.r, t.three, t.second}, {t.three, t.second}}}),
            0U);
}

/// Kernels that run again to save memory make whole blocks.
TEST(Joined, NotWithinAMemoryLimit) {
  Images m;
  const NodeId x = in(m.g, {1, 16, 32, 32});
  const NodeId skip = m.conv(x, 32, 3);
  m.output(m.conv(m.b.concat({skip, m.conv(m.conv(skip, 16, 3), 16, 3)}, 1), 24, 3));
  CompileOptions options = joining();
  EXPECT_EQ(compile(m.g, options)->joins.size(), 1U);
  options.memory_limit = 1 << 30;
  const auto compiled = compile(m.g, options);
  ASSERT_TRUE(compiled.ok()) << compiled.error().message;
  EXPECT_TRUE(compiled->joins.empty());
}

}  // namespace
}  // namespace heddle::driver

// verify() itself: steps of rounded numbers are no errors, wrong kernels are.
#include "driver/verify.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "driver/reference.h"
#include "prim/builder.h"
#include "prim/precision.h"

namespace heddle::driver {
namespace {

using ir::ScalarFn;
using prim::Builder;
using prim::NodeId;

CompileOptions quick() {
  CompileOptions options;
  options.threads = 2;
  return options;
}

std::vector<Tensor> random_inputs(const prim::Graph& g) {
  std::mt19937 rng(3);
  std::normal_distribution<double> normal;
  std::vector<Tensor> out;
  for (const prim::GraphInput& input : g.inputs) {
    out.emplace_back(input.type);
    for (std::int64_t i = 0; i < out.back().count(); ++i) out.back().set(i, normal(rng));
  }
  return out;
}

Result<Verification> verified(const prim::Graph& g) {
  const Compiled compiled = HEDDLE_TRY(compile(g, quick()));
  return verify(compiled, random_inputs(g), 1e-2, 1e-1, quick());
}

/// s = x·w is an output, stored in 16 bits, and what a step is taken of.
struct Steps : testing::TestWithParam<ScalarFn> {
  prim::Graph graph;
  Steps() {
    Builder b(graph);
    const NodeId x = graph.add_input("x", {DType::f32, {64, 301}});
    const NodeId w = graph.add_input("w", {DType::f32, {64, 301}});
    const NodeId s = b.mul(b.mul(b.sigmoid(x), b.tanh(w)), 8.0);
    const ScalarFn fn = GetParam();
    const NodeId other = fn == ScalarFn::fmod ? b.full({DType::f32, {64, 301}}, 0.75) : b.exp(x);
    const NodeId step = ir::info(fn).arity == 1 ? b.map(fn, {s}) : b.map(fn, {s, other});
    const NodeId y = b.cast(step, DType::f32);
    graph.outputs = {{"s", s}, {"y", y}};
    // A remainder falls far at its step, and between them it rises: see reference_of.
    if (fn != ScalarFn::fmod) graph.outputs.push_back({"z", b.reduce_sum(b.mul(y, 0.5), {1})});
  }
};

TEST_P(Steps, AreNoErrors) {
  for (const DType low : {DType::f32, DType::f16, DType::bf16}) {
    const auto v = verified(low == DType::f32 ? graph : prim::with_storage(graph, low));
    ASSERT_TRUE(v) << v.error().message;
    EXPECT_EQ(v->wrong, 0) << name_of(low) << ": " << v->first_wrong << " " << v->worst;
    EXPECT_EQ(v->unjudged.size(), graph.outputs.size() - 1);
    if (low != DType::f32 && GetParam() != ScalarFn::fmod) {
      EXPECT_GT(v->uncertain, 0);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Functions, Steps,
                         testing::Values(ScalarFn::floor, ScalarFn::ceil, ScalarFn::round,
                                         ScalarFn::trunc, ScalarFn::sign, ScalarFn::greater,
                                         ScalarFn::less_equal, ScalarFn::fmod),
                         [](const auto& i) { return std::string(ir::info(i.param).name); });

/// A step of what is read, not computed, has one side.
TEST(Reference, StepsOfWhatIsReadAreExact) {
  prim::Graph g;
  Builder b(g);
  const NodeId x = g.add_input("x", {DType::bf16, {5}});
  const NodeId read = b.map(ScalarFn::floor, {b.map(ScalarFn::neg, {x})});
  const NodeId made = b.map(ScalarFn::floor, {b.mul(x, 3.0)});
  g.outputs = {{"a", read}, {"b", made}};
  const std::vector<bool> depends = depend_on_steps(g, prim::live_nodes(g));
  EXPECT_TRUE(depends.back());
  EXPECT_EQ(std::count(depends.begin(), depends.end(), true), 1);
  lower::Cluster all;
  for (const NodeId id : prim::live_nodes(g))
    if (id != x && g.constant_of(id) == nullptr) all.nodes.push_back(id);
  all.outputs = {read, made};
  const float values[] = {1, 2, 0.75F, -1, -2};
  Tensor t({DType::bf16, {5}});
  for (int i = 0; i < 5; ++i) t.set(i, values[i]);
  const auto allowed = reference_of(g, all, {{x, t}});
  EXPECT_EQ(allowed[0].uncertain(), 0);
  EXPECT_EQ(allowed[1].uncertain(), 4);  // 3, 6, -3 and -6 are on steps, 2.25 is not
  Tensor found({DType::bf16, {5}});
  for (const double first : {2.0, 3.0, 4.0, 1.0}) {
    const double rest[] = {first, 5, 2, -4, -6};
    for (int i = 0; i < 5; ++i) found.set(i, rest[i]);
    EXPECT_EQ(allowed[1].error_of(found) == 0, first == 2 || first == 3) << first;
  }
}

/// A difference of two rounded numbers, rounded again: each may lie on either side, so all from -2
/// to 0 is right, and nothing else.
TEST(Reference, StepsOfSumsOfSteps) {
  prim::Graph g;
  Builder b(g);
  const NodeId x = g.add_input("x", {DType::f32, {1, 2}});
  const NodeId w = b.constant(Tensor::from<float>(DType::f32, {2, 1}, std::vector<float>{1, -1}));
  const NodeId first = b.map(ScalarFn::round, {b.mul(x, 3.0)});
  const NodeId second = b.map(ScalarFn::round, {b.matmul(first, w)});
  g.outputs = {{"y", second}};
  lower::Cluster all;
  for (const NodeId id : prim::live_nodes(g))
    if (id != x && g.constant_of(id) == nullptr) all.nodes.push_back(id);
  all.outputs = {second};
  const auto error = [&](std::vector<float> values, float given) {
    const auto allowed =
        reference_of(g, all, {{x, Tensor::from<float>(DType::f32, {1, 2}, values)}});
    return allowed[0].error_of(Tensor::from<float>(DType::f32, {1, 1}, std::vector<float>{given}));
  };
  for (const float right : {-2.F, -1.F, 0.F}) EXPECT_EQ(error({0.5, 2.5F / 3}, right), 0) << right;
  for (const float wrong : {-3.F, 1.F}) EXPECT_GT(error({0.5, 2.5F / 3}, wrong), 0.1) << wrong;
  // Away from a step there is one result.
  EXPECT_EQ(error({1, 1.1F}, 0), 0);
  for (const float wrong : {-1.F, 1.F}) EXPECT_GT(error({1, 1.1F}, wrong), 0.1) << wrong;
}

lower::Cluster whole(const prim::Graph& g) {
  lower::Cluster all;
  for (const NodeId id : prim::live_nodes(g))
    if (g.constant_of(id) == nullptr && !std::holds_alternative<prim::Input>(g[id].op))
      all.nodes.push_back(id);
  for (const prim::GraphOutput& o : g.outputs) all.outputs.push_back(o.node);
  return all;
}

/// x quantised to whole numbers in f32, a zero point added, cast: what is rounded is whole, so that
/// neither the sum nor the cast can be off by rounding.
TEST(Reference, WholeNumbersAreNotRoundedAgain) {
  prim::Graph g;
  Builder b(g);
  const NodeId x = g.add_input("x", {DType::f32, {3}});
  const NodeId q = b.add(b.map(ScalarFn::round, {b.mul(x, 3.0)}), 3.0);
  const NodeId y = b.cast(q, DType::i32);
  const NodeId back = b.map(ScalarFn::floor, {b.mul(b.cast(y, DType::f32), 2.0)});
  g.outputs = {{"y", y}, {"back", back}};
  const auto read = Tensor::from<float>(DType::f32, {3}, std::vector<float>{1.1F, 40, 0.5});
  const std::vector<Allowed> allowed = reference_of(g, whole(g), {{x, read}});
  EXPECT_EQ(allowed[0].uncertain(), 1);  // 3 · 0.5 alone lies on a step
  EXPECT_EQ(allowed[1].uncertain(), 1);
  Tensor found({DType::i32, {3}});
  for (const std::int64_t last : {4, 5}) {
    found.set_int(0, 6);
    found.set_int(1, 123);
    found.set_int(2, last);
    EXPECT_EQ(allowed[0].error_of(found), 0) << last;
  }
  for (const std::int64_t wrong : {122, 124}) {
    found.set_int(1, wrong);
    EXPECT_EQ(allowed[0].error_of(found), INFINITY) << wrong;
  }
}

TEST(Reference, WhatF32DoesNotHoldIsInfinite) {
  prim::Graph g;
  Builder b(g);
  const NodeId x = g.add_input("x", {DType::f32, {2}}), y = b.exp(x);
  g.outputs = {{"y", y}};
  const auto read = Tensor::from<float>(DType::f32, {2}, std::vector<float>{100, 1});
  const Allowed wanted = reference_of(g, {{y}, {y}}, {{x, read}})[0];
  const float e = std::exp(1.0F);
  const auto error_of = [&](float large) {
    return wanted.error_of(Tensor::from<float>(DType::f32, {2}, std::vector<float>{large, e}));
  };
  EXPECT_LT(error_of(INFINITY), 1e-6);
  EXPECT_EQ(error_of(-INFINITY), INFINITY);
  EXPECT_EQ(error_of(1), INFINITY);
}

TEST(Reference, WhatF16DoesNotHoldIsInfinite) {
  const auto f64 = [](std::vector<double> v) {
    return Tensor::from<double>(DType::f64, {2}, std::move(v));
  };
  const Allowed wanted{f64({65519, 65521}), {}, {}, {}};
  const auto error_of = [&](double a, double b) {
    Tensor found({DType::f16, {2}});
    found.set(0, a);
    found.set(1, b);
    return wanted.error_of(found);
  };
  EXPECT_LT(error_of(65504, INFINITY), 1e-3);
  EXPECT_EQ(error_of(INFINITY, INFINITY), INFINITY);
  EXPECT_EQ(error_of(65504, 65504), INFINITY);
  EXPECT_EQ(error_of(65504, -INFINITY), INFINITY);
}

TEST(Reference, IntegersAreExact) {
  Tensor wanted({DType::i64, {2}}), found({DType::i32, {2}});
  wanted.set_int(0, 100000);
  found.set_int(0, 100000);
  EXPECT_EQ((Allowed{wanted, {}, {}, {}}).error_of(found), 0);
  found.set_int(0, 100001);
  EXPECT_TRUE(std::isinf((Allowed{wanted, {}, {}, {}}).error_of(found)));
}

/// The first kernel with a step computes another one than the graph says; the second is right, on
/// what it reads.
TEST(Verify, FindsTheFirstWrongKernel) {
  const auto graph = [](ScalarFn first) {
    prim::Graph g;
    Builder b(g);
    NodeId x = g.add_input("x", {DType::f32, {33, 64}});
    for (const ScalarFn step : {first, ScalarFn::floor}) {
      const NodeId w = b.constant(Tensor::from<float>(
          DType::f32, {64, 64}, std::vector<float>(std::size_t{64} * 64, 0.07F)));
      x = b.map(step, {b.matmul(x, w)});
    }
    g.outputs = {{"y", x}};
    return g;
  };
  const auto right = compile(graph(ScalarFn::floor), quick());
  auto wrong = compile(graph(ScalarFn::ceil), quick());
  ASSERT_TRUE(right.ok() && wrong.ok());
  ASSERT_EQ(wrong->kernels.size(), right->kernels.size());
  const std::vector<Tensor> inputs = random_inputs(right->graph);
  EXPECT_EQ(verify(*right, inputs, 1e-3, 1e-3, quick())->wrong, 0);
  wrong->graph = right->graph;
  const auto v = verify(*wrong, inputs, 1e-3, 1e-3, quick());
  ASSERT_TRUE(v) << v.error().message;
  EXPECT_EQ(v->wrong, 1);
  EXPECT_FALSE(v->kernels[0].equal);
  EXPECT_EQ(v->first_wrong, v->kernels[0].name);
}

/// Quantised numbers that are all one too small: a step of a whole number is none.
TEST(Verify, FindsAWrongZeroPoint) {
  const auto graph = [](double zero) {
    prim::Graph g;
    Builder b(g);
    const NodeId x = g.add_input("x", {DType::f32, {33, 64}});
    const NodeId q = b.add(b.map(ScalarFn::round, {b.mul(x, 3.1)}), zero);
    g.outputs = {{"y", b.mul(b.cast(b.cast(q, DType::i32), DType::f32), 0.1)}};
    return g;
  };
  auto compiled = compile(graph(2), quick());
  ASSERT_TRUE(compiled) << compiled.error().message;
  const std::vector<Tensor> inputs = random_inputs(compiled->graph);
  EXPECT_EQ(verify(*compiled, inputs, 1e-3, 1e-3, quick())->wrong, 0);
  const auto other = compile(graph(3), quick());
  ASSERT_TRUE(other) << other.error().message;
  ASSERT_EQ(other->kernels.size(), compiled->kernels.size());
  compiled->graph = other->graph;
  EXPECT_GT(verify(*compiled, inputs, 1e-3, 1e-3, quick())->wrong, 0);
}

/// x less its mean, where that is most of it: f32 keeps few digits of what is left, and a mean that
/// is wrong is still found.
TEST(Verify, KnowsWhatCancels) {
  const auto graph = [](double share) {
    prim::Graph g;
    Builder b(g);
    const NodeId x = g.add_input("x", {DType::f32, {8, 1000}});
    const NodeId mean = b.mul(b.reduce_sum(x, {1}), share / 1000);
    g.outputs = {{"y", b.sub(x, mean)}};
    return g;
  };
  const auto right = compile(graph(1), quick());
  auto wrong = compile(graph(1.0001), quick());
  ASSERT_TRUE(right.ok() && wrong.ok());
  std::mt19937 rng(5);
  Tensor x({DType::f32, {8, 1000}});
  for (std::int64_t i = 0; i < x.count(); ++i)
    x.set(i, 10000 + static_cast<double>(rng() % 3) / 1024);
  const std::vector<Tensor> inputs{x};
  const auto good = verify(*right, inputs, 1e-3, 1e-3, quick());
  ASSERT_TRUE(good) << good.error().message;
  EXPECT_EQ(good->wrong, 0) << good->worst << " " << good->outputs_error;
  wrong->graph = right->graph;
  ASSERT_EQ(wrong->kernels.size(), right->kernels.size());
  const auto bad = verify(*wrong, inputs, 1e-3, 1e-3, quick());
  ASSERT_TRUE(bad) << bad.error().message;
  EXPECT_GT(bad->wrong, 0);
}

/// The square of a sum that is exactly zero: rounding leaves the square of what it leaves of the
/// sum (the second moments of a gradient that is zero).
TEST(Verify, KnowsSquaresOfWhatCancels) {
  const auto graph = [](double share) {
    prim::Graph g;
    Builder b(g);
    const NodeId x = g.add_input("x", {DType::f32, {8, 1000}});
    const NodeId mean = b.mul(b.reduce_sum(x, {1}), share / 1000);
    const NodeId none = b.reduce_sum(b.sub(x, mean), {1});
    g.outputs = {{"y", b.mul(none, none)}};
    return g;
  };
  const auto right = compile(graph(1), quick());
  auto wrong = compile(graph(1.0001), quick());
  ASSERT_TRUE(right.ok() && wrong.ok());
  const std::vector<Tensor> inputs = random_inputs(right->graph);
  const auto good = verify(*right, inputs, 1e-3, 1e-3, quick());
  ASSERT_TRUE(good) << good.error().message;
  EXPECT_EQ(good->wrong, 0) << good->worst << " " << good->outputs_error;
  wrong->graph = right->graph;
  const auto bad = verify(*wrong, inputs, 1e-3, 1e-3, quick());
  ASSERT_TRUE(bad) << bad.error().message;
  EXPECT_GT(bad->wrong, 0);
}

/// A kernel keeps in registers what f16 would not hold, unless it stores it (masks of -1e9).
TEST(Verify, KnowsWhatIsRoundedWhenItIsStored) {
  prim::Graph g;
  Builder b(g);
  const NodeId x = g.add_input("x", {DType::f32, {8, 100}});
  const NodeId low = b.cast(b.mul(x, 1e9), DType::f16), sum = b.add(low, b.cast(x, DType::f16));
  g.outputs = {{"sum", sum}, {"wide", b.cast(sum, DType::f32)}};
  const auto v = verified(g);
  ASSERT_TRUE(v) << v.error().message;
  EXPECT_EQ(v->kernels.size(), 1U);
  for (const KernelCheck& k : v->kernels) EXPECT_TRUE(k.equal) << k.error;
}

/// What comes after a value that f16 does not hold is another number than the reference's: no
/// kernel's fault, and no output's that does not read it.
TEST(Verify, KnowsWhatFollowsAnOverflow) {
  prim::Graph g;
  Builder b(g);
  const NodeId x = g.add_input("x", {DType::f32, {256, 512}});
  const NodeId w = g.add_input("w", {DType::f32, {512, 512}});
  const NodeId size = b.map(ScalarFn::abs, {b.matmul(x, w)});
  const NodeId high = b.cast(b.mul(b.add(size, 1), 1e6), DType::f16);
  const NodeId ratio = b.div(b.scalar(DType::f32, 1e6), b.cast(high, DType::f32));
  g.outputs = {{"high", high}, {"y", b.matmul(ratio, w)}, {"z", b.mul(x, 3.0)}};
  const auto v = verified(g);
  ASSERT_TRUE(v) << v.error().message;
  EXPECT_TRUE(v->overflow);
  EXPECT_EQ(v->wrong, 0) << v->first_wrong << " " << v->worst;
  EXPECT_EQ(v->unjudged, std::vector<std::string>{"y"});
}

/// Numbers around the largest of f16 may round to infinity, and around the least to zero.
TEST(Reference, EndsOfF16) {
  Allowed wanted{Tensor({DType::f64, {1}}), {}, {}, Tensor({DType::f64, {1}})};
  Tensor found({DType::f16, {1}});
  const auto is_right = [&](double exact, double noise, double value) {
    wanted.exact.set(0, exact);
    wanted.noise.set(0, noise);
    found.set(0, value);
    return wanted.error_of(found) == 0;
  };
  EXPECT_TRUE(is_right(65500, 50, INFINITY));
  EXPECT_TRUE(is_right(-65500, 50, -INFINITY));
  EXPECT_TRUE(is_right(65530, 50, 65504));
  EXPECT_FALSE(is_right(65500, 10, INFINITY));
  EXPECT_FALSE(is_right(65500, 50, -INFINITY));
  EXPECT_FALSE(is_right(65600, 50, 65504));
  prim::Graph g;
  Builder b(g);
  const NodeId x = g.add_input("x", {DType::f32, {64}});
  g.outputs = {{"y", b.cast(b.mul(x, 1e-9), DType::f16)}};
  const auto v = verified(g);
  ASSERT_TRUE(v) << v.error().message;
  EXPECT_EQ(v->wrong, 0) << v->worst;
}

/// No rounding makes NaN of a number, or a number of NaN, however noisy it may be.
TEST(Reference, TellsNaNApart) {
  Allowed wanted{Tensor({DType::f64, {1}}), {}, {}, Tensor({DType::f64, {1}})};
  Tensor found({DType::f32, {1}});
  const auto error = [&](double exact, double noise, double value) {
    wanted.exact.set(0, exact);
    wanted.noise.set(0, noise);
    found.set(0, value);
    return wanted.error_of(found);
  };
  for (const double noise : {0.0, 0.1, static_cast<double>(INFINITY), static_cast<double>(NAN)}) {
    EXPECT_EQ(error(1, noise, NAN), INFINITY) << noise;
    EXPECT_EQ(error(NAN, noise, 1), INFINITY) << noise;
    EXPECT_EQ(error(INFINITY, noise, NAN), INFINITY) << noise;
    EXPECT_EQ(error(NAN, noise, NAN), 0) << noise;
  }
  wanted.noise = {};
  found.set(0, NAN);
  wanted.exact.set(0, 1);
  EXPECT_EQ(wanted.error_of(found), INFINITY);
}

/// Kernels that are right one by one make a wrong program if it binds them wrongly.
TEST(Verify, FindsAWrongProgram) {
  prim::Graph g;
  Builder b(g);
  const NodeId x = g.add_input("x", {DType::f32, {7}}), z = g.add_input("z", {DType::f32, {7}});
  g.outputs = {{"y", b.map(ScalarFn::floor, {b.sub(b.exp(x), b.exp(z))})}};
  auto compiled = compile(std::move(g), quick());
  ASSERT_TRUE(compiled) << compiled.error().message;
  const std::vector<Tensor> inputs = random_inputs(compiled->graph);
  EXPECT_EQ(verify(*compiled, inputs, 1e-3, 1e-3, quick())->wrong, 0);
  auto program = std::make_shared<runtime::Program>(*compiled->program);
  std::swap(program->inputs[0], program->inputs[1]);
  for (runtime::Launch& launch : program->launches) std::swap(launch.args[0], launch.args[1]);
  compiled->program = program;
  const auto v = verify(*compiled, inputs, 1e-3, 1e-3, quick());
  ASSERT_TRUE(v) << v.error().message;
  EXPECT_EQ(v->first_wrong, "(all together: output 'y')");
}

/// What the reference cannot hold is said, before anything runs.
TEST(Verify, ValuesThatNoMemoryHolds) {
  constexpr std::int64_t kMany = 1 << 20;
  prim::Graph g;
  Builder b(g);
  const NodeId x = g.add_input("x", {DType::f32, {kMany}});
  const ir::Expr row(ir::Var{0}), tap = row - ir::Expr(ir::Var{1});
  const NodeId windows = b.view(x, {kMany, kMany}, {{row}, {{tap, 0, 3}}}, 0);
  g.outputs = {{"y", b.reduce_sum(windows, {1}, false)}};
  CompileOptions options = quick();
  options.mode = "kernels";  // none is timed
  const auto compiled = compile(g, options);
  ASSERT_TRUE(compiled.ok()) << compiled.error().message;
  const auto checked = verify(*compiled, random_inputs(g), 1e-2, 1e-1, options);
  ASSERT_FALSE(checked.ok());
  EXPECT_EQ(checked.error().code, ErrorCode::out_of_memory);
  EXPECT_NE(checked.error().message.find("8796.1 GB"), std::string::npos)
      << checked.error().message;
}

}  // namespace
}  // namespace heddle::driver

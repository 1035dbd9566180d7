#include "driver/choose.h"

#include <gtest/gtest.h>

#include "grad/step.h"
#include "prim/builder.h"
#include "prim/rewrite.h"

namespace heddle::driver {
namespace {

Platform gpu(int shared_bytes) {
  Platform p;
  p.cuda = true;
  p.gpu = *runtime::cuda::assumed_device("sm_90a");
  p.gpu.shared_per_block = shared_bytes;
  return p;
}

Result<Chosen> choose(const prim::Graph& g, const Platform& platform) {
  plan::Options planning;
  planning.legality = plan::lowering_legality(platform.target());
  planning.machine = platform.model();
  return choose_kernels(g, planning, platform,
                        [&](const plan::Options& with) { return plan::orchestrate(g, with); });
}

prim::Graph normalised_softmax() {
  prim::Graph g;
  prim::Builder b(g);
  const prim::NodeId x = g.add_input("x", {DType::f32, {64, 4096}});
  const prim::NodeId y = b.mul(b.softmax(b.normalize(x, {1}, 1e-5), {1}), 2);
  g.outputs.push_back({"y", y});
  return g;
}

std::int64_t most_shared(const Chosen& chosen) {
  std::int64_t most = 0;
  for (const CompiledKernel& kernel : chosen.kernels)
    for (const runtime::Phase& phase : kernel.code.phases)
      most = std::max(most, phase.grid.shared_bytes);
  return most;
}

TEST(ChooseKernels, LaunchesFitTheGpuOrThePrimitiveIsNamed) {
  const prim::Graph g = normalised_softmax();
  const auto roomy = choose(g, gpu(227 << 10));
  ASSERT_TRUE(roomy.ok()) << roomy.error().message;
  EXPECT_LT(roomy->kernels.size(), 4u);
  EXPECT_GT(most_shared(*roomy), 0);
  for (int bytes : {0, 16, 256, 4096, 16384}) {
    const auto tight = choose(g, gpu(bytes));
    if (tight.ok()) {
      EXPECT_LE(most_shared(*tight), bytes);
      continue;
    }
    EXPECT_EQ(tight.error().code, ErrorCode::unsupported);
    EXPECT_NE(tight.error().message.find("no kernel for cuda sm_90a: a launch of"),
              std::string::npos)
        << tight.error().message;
  }
}

/// Three layers; its backward products make what the biases' gradients are sums of.
grad::Step perceptron(std::int64_t batch) {
  prim::Graph g;
  prim::Builder b(g);
  std::vector<std::string> names;
  const auto parameter = [&](std::string name, Shape shape) {
    names.push_back(name);
    return g.add_input(std::move(name), {DType::f32, std::move(shape)});
  };
  prim::NodeId y = g.add_input("x", {DType::f32, {batch, 256}});
  std::int64_t from = 256;
  for (const std::int64_t to : {768, 768, 16}) {
    y = b.matmul(y, parameter(fmt::format("w{}", names.size()), {from, to}));
    y = b.tanh(
        b.add(y, b.broadcast(parameter(fmt::format("b{}", names.size()), {to}), {batch, to})));
    from = to;
  }
  g.outputs.push_back({"y", y});
  grad::StepOptions options;
  options.loss = "mse";
  auto step = grad::training_step(std::move(g), names, options);
  HEDDLE_CHECK(step.ok(), "no step: {}", step.error().message);
  return *std::move(step);
}

/// Both hidden biases' gradients ride in the epilogues of the products that make what they sum.
TEST(ChooseKernels, GradientsOfBiasesAreInEpilogues) {
  const prim::Graph g = prim::canonicalize(perceptron(8192).graph);
  const auto chosen = choose(g, gpu(227 << 10));
  ASSERT_TRUE(chosen.ok()) << chosen.error().message;
  int sums = 0;
  for (const CompiledKernel& kernel : chosen->kernels) {
    const auto& nodes = kernel.planned.cluster.nodes;
    const bool product = std::any_of(nodes.begin(), nodes.end(), [&](prim::NodeId id) {
      return std::holds_alternative<prim::Contract>(g[id].op);
    });
    for (const prim::NodeId id : kernel.planned.cluster.outputs)
      sums += product && std::holds_alternative<prim::Reduce>(g[id].op) &&
              g[id].type.shape == Shape{768};
  }
  EXPECT_EQ(sums, 2) << plan::print(g, chosen->plan);
}

/// Layers whose image does not lie channels-last are refused when they are lowered, and planned
/// again.
TEST(ChooseKernels, RefusedLayersArePlannedAgain) {
  prim::Graph g;
  prim::Builder b(g);
  Tensor taps({DType::f32, {16, 1, 3, 3}}), mix({DType::f32, {16, 16, 1, 1}});
  for (Tensor* t : {&taps, &mix})
    for (std::int64_t i = 0; i < t->count(); ++i) t->set(i, 0.01 * static_cast<double>(i % 17));
  const auto same = [](std::int64_t pad, std::int64_t groups) {
    return prim::Builder::Conv{{1, 1}, {1, 1}, {pad, pad}, {pad, pad}, groups};
  };
  for (int branch = 0; branch < 2; ++branch) {
    const auto name = fmt::format("{}", branch);
    const prim::NodeId x = g.add_input("x" + name, {DType::f32, {1, 16, 200, 200, 2}});
    const prim::NodeId image = b.reduce(ir::Monoid::sum, x, {4}, false);
    const prim::NodeId deep = b.relu(b.conv(image, b.constant(taps), same(1, 16)));
    g.outputs.push_back({"y" + name, b.conv(deep, b.constant(mix), same(0, 1))});
  }
  const Platform cpu;
  plan::Options planning;
  planning.legality = plan::lowering_legality(cpu.target());
  planning.machine = cpu.model();
  planning.measured = [](const prim::Graph& of, const plan::Cluster& c) -> std::optional<double> {
    const auto products = std::ranges::count_if(c.nodes, [&](prim::NodeId id) {
      return std::holds_alternative<prim::Contract>(of[id].op);
    });
    const bool chain = products == 2 && c.outputs.size() == 1;
    return chain ? std::optional(0.01) : std::nullopt;
  };
  int plans = 0;
  const auto chosen = choose_kernels(g, planning, cpu, [&](const plan::Options& with) {
    ++plans;
    return plan::orchestrate(g, with);
  });
  ASSERT_TRUE(chosen.ok()) << chosen.error().message;
  EXPECT_GT(plans, 1);  // the first was refused
}

/// Between a product of bytes and a convolution of each channel alone lie bytes, which that widens.
TEST(ChooseKernels, DepthwiseConvolutionsReadBytes) {
  prim::Graph g;
  prim::Builder b(g);
  Tensor mix({DType::i8, {96, 32, 1, 1}}), taps({DType::f32, {96, 1, 3, 3}});
  for (std::int64_t i = 0; i < mix.count(); ++i) mix.set_int(i, i * 37 % 255 - 127);
  for (std::int64_t i = 0; i < taps.count(); ++i) taps.set(i, 0.01 * static_cast<double>(i % 17));
  const auto every = [](std::int64_t step, std::int64_t pad, std::int64_t groups) {
    return prim::Builder::Conv{{step, step}, {1, 1}, {pad, pad}, {pad, pad}, groups};
  };
  const prim::NodeId x = g.add_input("x", {DType::u8, {1, 32, 112, 112}});
  const prim::NodeId q = b.conv(x, b.constant(mix), every(1, 0, 1));
  const prim::NodeId sum = g.add(g[q].op, g[q].args, {DType::i32, b.shape(q)});
  const prim::NodeId y = b.map(ir::ScalarFn::round, {b.mul(b.cast(sum, DType::f32), 0.003)});
  const prim::NodeId bytes =
      b.cast(b.min(b.max(y, b.scalar(DType::f32, 0)), b.scalar(DType::f32, 255)), DType::u8);
  const prim::NodeId image = b.conv(b.cast(bytes, DType::f32), b.constant(taps), every(2, 1, 96));
  g.outputs.push_back({"y", b.relu(image)});
  const auto chosen = choose(g, Platform());
  ASSERT_TRUE(chosen.ok()) << chosen.error().message;
  const bool stored = std::ranges::any_of(chosen->kernels, [&](const CompiledKernel& kernel) {
    return std::ranges::find(kernel.planned.cluster.outputs, bytes) !=
           kernel.planned.cluster.outputs.end();
  });
  EXPECT_TRUE(stored) << plan::print(g, chosen->plan);
}

/// Registers of these kernels are said to be in memory.
Result<Built> build(const prim::Graph& g,
                    const std::function<bool(const CompiledKernel&)>& spills) {
  const Platform platform = gpu(227 << 10);
  plan::Options planning;
  planning.legality = plan::lowering_legality(platform.target());
  planning.machine = platform.model();
  return build_kernels(
      g, planning, platform, [&](const plan::Options& with) { return plan::orchestrate(g, with); },
      [&](std::vector<CompiledKernel>& kernels) -> Result<std::vector<std::string>> {
        for (CompiledKernel& k : kernels) {
          codegen::cuda::FunctionInfo f;
          f.symbol = k.code.phases[0].symbol;
          f.spill_bytes = spills(k) ? 16 : 0;
          k.code.functions = {f};
        }
        return std::vector<std::string>{"object"};
      });
}

TEST(ChooseKernels, WhatSpillsIsLoweredAgainOrSplit) {
  const prim::Graph g = normalised_softmax();
  const auto first = build(g, [](const CompiledKernel&) { return false; });
  ASSERT_TRUE(first.ok()) << first.error().message;
  const auto wide = [](const CompiledKernel& k) {
    return k.lowered.schedule.find("vector=4") != std::string::npos;
  };
  const auto& kernels = first->chosen.kernels;
  ASSERT_TRUE(std::any_of(kernels.begin(), kernels.end(), wide)) << kernels[0].lowered.schedule;
  // Narrower vectors help: the plan stays.
  const auto slim = build(g, wide);
  ASSERT_TRUE(slim.ok()) << slim.error().message;
  EXPECT_EQ(slim->chosen.kernels.size(), kernels.size());
  EXPECT_TRUE(std::none_of(slim->chosen.kernels.begin(), slim->chosen.kernels.end(), wide));
  // Nothing helps kernels of many primitives: there are none of them in the plan.
  const auto split =
      build(g, [](const CompiledKernel& k) { return k.planned.cluster.nodes.size() > 6; });
  ASSERT_TRUE(split.ok()) << split.error().message;
  EXPECT_GT(split->chosen.kernels.size(), kernels.size());
  for (const CompiledKernel& k : split->chosen.kernels)
    EXPECT_LE(k.planned.cluster.nodes.size(), 6u);
  // Nor for anything at all: there is a program still.
  EXPECT_TRUE(build(g, [](const CompiledKernel&) { return true; }).ok());
}

TEST(Platforms, AreNamedOrRefused) {
  CompileOptions options;
  options.options.cuda_driver = "/nonexistent/libcuda.so.1";
  options.device = "cuda";
  auto p = platform_for(options);
  ASSERT_TRUE(p.ok()) << p.error().message;
  EXPECT_EQ(p->name(), "cuda sm_90a");
  EXPECT_FALSE(p->found);
  EXPECT_EQ(p->target().multiprocessors, 132);
  options.arch = "sm_80";
  p = platform_for(options);
  ASSERT_TRUE(p.ok()) << p.error().message;
  EXPECT_EQ(p->name(), "cuda sm_80");
  EXPECT_EQ(p->target().shared_bytes, 163 << 10);
  options.arch = "sm_12";
  EXPECT_EQ(platform_for(options).error().code, ErrorCode::usage);
  for (const char* device : {"gpu", "cuda:", "cuda:-1", "cuda:1x", ""}) {
    options.device = device;
    EXPECT_EQ(platform_for(options).error().code, ErrorCode::usage) << device;
  }
}

/// A bias' gradient: the sum over the rows rides in the product that makes them.
TEST(ChooseKernels, ColumnSumsAreNoKernelsOfTheirOwn) {
  prim::Graph g;
  prim::Builder b(g);
  const auto in = [&](const char* name, Shape shape) {
    return g.add_input(name, {DType::f32, std::move(shape)});
  };
  const prim::NodeId product = b.matmul(in("dy", {512, 256}), in("w", {256, 1024}));
  const prim::NodeId hidden = b.mul(product, in("mask", {512, 1024}));
  g.outputs = {{"dx", hidden}, {"db", b.reduce_sum(hidden, {0}, false)}};
  const auto chosen = choose(g, Platform{});
  ASSERT_TRUE(chosen.ok()) << chosen.error().message;
  EXPECT_EQ(chosen->kernels.size(), 1u);
}

}  // namespace
}  // namespace heddle::driver

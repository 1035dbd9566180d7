#include "driver/constant_bytes.h"

#include <gtest/gtest.h>

#include <set>

#include "driver/driver.h"

#include "prim/builder.h"

namespace heddle::driver {
namespace {

/// A product of `rows` rows with a constant of 8 MB that its kernel stores in `times` as many
/// bytes.
CompiledKernel product(prim::Graph& g, std::int64_t rows, std::string schedule, double times) {
  constexpr std::int64_t kTerms = 1024, kColumns = 2048;
  prim::Builder b(g);
  Tensor w({DType::f32, {kTerms, kColumns}});
  w.set(0, static_cast<double>(g.size()));  // unlike the others
  const prim::NodeId x = g.add_input("x", {DType::f32, {rows, kTerms}}), constant = b.constant(w);
  const prim::NodeId y = b.matmul(x, constant);
  CompiledKernel kernel;
  kernel.planned.cluster = {{y}, {y}};
  kernel.lowered.schedule = std::move(schedule);
  const auto bytes = static_cast<std::int64_t>(times * static_cast<double>(w.bytes()));
  kernel.lowered.arguments.push_back(
      {lower::Argument::Kind::packed, constant, Tensor({DType::u8, {bytes}})});
  return kernel;
}

TEST(ConstantBytes, WhatLosesLeastForAByteTakesASmallerForm) {
  prim::Graph g;
  std::vector<CompiledKernel> kernels;
  kernels.push_back(product(g, 64, "winograd F(4x4,3x3) mr=6", 4));
  kernels.push_back(product(g, 32, "winograd F(4x4,3x3) mr=6", 4));
  kernels.push_back(product(g, 32, "contract mr=6", 1));
  const auto forms = smaller_forms(g, kernels);  // 48 MB more, of which 43 are allowed
  ASSERT_EQ(forms.size(), 1u);
  EXPECT_EQ(forms[0].kernel, 1u);
  EXPECT_EQ(forms[0].tuning, (lower::Tuning{{"winograd", 2}, {"strassen", 0}}));
  EXPECT_DOUBLE_EQ(forms[0].more_flops, 2 * (4.0 / 9 - 1.0 / 4) * 32 * 1024 * 2048);
}

TEST(ConstantBytes, FewBytesAreNotBounded) {
  prim::Graph g;
  std::vector<CompiledKernel> kernels;
  for (int i = 0; i < 4; ++i) kernels.push_back(product(g, 64, "strassen mr=6", 1.75));
  EXPECT_TRUE(smaller_forms(g, kernels).empty());  // 24 MB more
  for (int i = 0; i < 6; ++i) kernels.push_back(product(g, 32, "strassen mr=6", 1.75));
  const auto forms = smaller_forms(g, kernels);  // 60, of which 57 are allowed
  ASSERT_EQ(forms.size(), 1u);
  EXPECT_GE(forms[0].kernel, 4u);
}

/// Three products of one value, of which one with all their weights side by side is an alternative.
TEST(ConstantBytes, OfAlternativesNotTakenAreFreed) {
  for (const std::int64_t rows : {1, 64}) {
    prim::Graph g;
    prim::Builder b(g);
    const prim::NodeId x = g.add_input("x", {DType::f32, {rows, 256}});
    for (int i = 0; i < 3; ++i) {
      Tensor w({DType::f32, {256, 256}});
      w.set(i, 1);
      g.outputs.push_back({fmt::format("y{}", i), b.matmul(x, b.constant(w))});
    }
    CompileOptions options;
    options.budget = "none";
    options.keep_constants = false;
    const auto compiled = compile(g, options);
    ASSERT_TRUE(compiled) << compiled.error().message;
    std::set<prim::NodeId> as_they_are;
    for (const CompiledKernel& kernel : compiled->kernels)
      for (const lower::Argument& a : kernel.lowered.arguments)
        if (a.kind == lower::Argument::Kind::value) as_they_are.insert(a.node);
    int constants = 0;
    for (std::int32_t i = 0; i < compiled->graph.size(); ++i)
      if (const Tensor* c = compiled->graph.constant_of(prim::NodeId{i});
          c && c->bytes() >= 65536) {
        EXPECT_EQ(c->data() != nullptr, as_they_are.contains(prim::NodeId{i}))
            << to_string(c->type());
        ++constants;
      }
    EXPECT_GE(constants, 4);
  }
}

}  // namespace
}  // namespace heddle::driver

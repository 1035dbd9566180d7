// Means and variances in the epilogue of what they are of.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "driver/driver.h"
#include "prim/builder.h"
#include "prim/interpret.h"
#include "prim/moments.h"
#include "prim/rewrite.h"

namespace heddle::driver {
namespace {

/// relu of x·w + 100, normalised over the batch.
prim::Graph batch_norm(std::int64_t rows, std::int64_t channels) {
  prim::Graph g;
  prim::Builder b(g);
  const prim::NodeId x = g.add_input("x", {DType::f32, {rows, 48}});
  const prim::NodeId w = g.add_input("w", {DType::f32, {48, channels}});
  const prim::NodeId y = b.add(b.matmul(x, w), 100);
  g.outputs.push_back({"z", b.relu(b.normalize(y, {0}, 1e-5))});
  return g;
}

/// Kernels that hold the product and both sums of f64.
int riding(const Compiled& compiled) {
  int count = 0;
  for (const CompiledKernel& kernel : compiled.kernels) {
    int products = 0, sums = 0;
    for (const prim::NodeId id : kernel.planned.cluster.nodes) {
      const prim::Node& node = compiled.graph[id];
      products += std::holds_alternative<prim::Contract>(node.op);
      sums += std::holds_alternative<prim::Reduce>(node.op) && node.type.dtype == DType::f64;
    }
    count += products == 1 && sums == 2;
  }
  return count;
}

TEST(RidingMoments, AreRightFarFromZero) {
  // Too many rows to find them in the second-level cache once more.
  const prim::Graph g = prim::canonicalize(batch_norm(20000, 32));
  const prim::Graph once = prim::moments_in_one_pass(g, [](const auto&) { return true; });
  CompileOptions options;
  options.threads = 2;
  options.mode = "kernels";
  const auto compiled = compile(once, options);
  ASSERT_TRUE(compiled.ok()) << compiled.error().message;
  EXPECT_EQ(riding(*compiled), 1);
  const auto session = load(compiled->program, options);
  ASSERT_TRUE(session.ok()) << session.error().message;
  std::mt19937 rng(5);
  std::normal_distribution<double> normal;
  std::vector<Tensor> inputs;
  for (const prim::GraphInput& in : g.inputs) {
    inputs.emplace_back(in.type);
    for (std::int64_t i = 0; i < inputs.back().count(); ++i) inputs.back().set(i, normal(rng));
  }
  const auto got = (*session)->run(inputs);
  ASSERT_TRUE(got.ok()) << got.error().message;
  const Tensor want = (*prim::interpret(g, inputs))[0];
  for (std::int64_t i = 0; i < want.count(); ++i)
    ASSERT_NEAR((*got)[0].at(i), want.at(i), 1e-4) << i;
}

TEST(RidingMoments, WhereTheyPay) {
  const auto count = [](const std::string& arch, const std::string& disable) {
    CompileOptions options;
    options.device = "cuda";
    options.arch = arch;
    options.options.disable = disable;
    const auto compiled = plan_only(batch_norm(1 << 16, 64), options);
    EXPECT_TRUE(compiled.ok()) << compiled.error().message;
    return compiled.ok() ? riding(*compiled) : -1;
  };
  EXPECT_EQ(count("sm_90a", ""), 1);
  EXPECT_EQ(count("sm_90a", "moments-in-one-pass"), 0);
  EXPECT_EQ(count("sm_89", ""), 0);  // computes f64 at a 64th of the rate
}

}  // namespace
}  // namespace heddle::driver

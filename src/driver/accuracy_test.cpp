// What --accuracy promises, measured on whole programs against the float64 interpreter.
#include <gtest/gtest.h>

#include <cmath>

#include "driver/driver.h"
#include "lower/stitch/test_util.h"
#include "prim/builder.h"
#include "prim/interpret.h"

namespace heddle::driver {
namespace {

/// Rectified inputs, as in a network, of a 3×3 convolution with few or many channels.
prim::Graph network(std::int64_t channels) {
  prim::Graph g;
  prim::Builder b(g);
  std::mt19937 random(5);
  const auto conv = [&](prim::NodeId x, std::int64_t to, std::int64_t kernel) {
    prim::Builder::Conv c;
    c.strides = c.dilations = {1, 1};
    c.pads_begin = c.pads_end = {kernel / 2, kernel / 2};
    const TensorType type{DType::f32, {to, b.shape(x)[1], kernel, kernel}};
    return b.relu(b.conv(x, b.constant(lower::random_values(type, random)), c));
  };
  const prim::NodeId x = g.add_input("x", {DType::f32, {1, 8, 16, 14}});
  g.outputs.push_back({"y", conv(conv(x, channels, 1), 32, 3)});
  return g;
}

/// Largest error as a share of the largest result, and whether some kernel is Winograd's.
std::pair<double, bool> measured(std::int64_t channels, const std::string& accuracy) {
  const prim::Graph g = network(channels);
  CompileOptions options;
  options.threads = 2;
  options.options.accuracy = accuracy;
  const auto compiled = compile(g, options);
  HEDDLE_CHECK(compiled.ok(), "{}", compiled.error().message);
  bool winograd = false;
  for (const CompiledKernel& k : compiled->kernels)
    winograd |= k.lowered.schedule.starts_with("winograd");
  const auto session = load(compiled->program, 2);
  HEDDLE_CHECK(session.ok(), "{}", session.error().message);
  std::mt19937 random(9);
  const std::vector<Tensor> x{lower::random_values(g.inputs[0].type, random)};
  const auto got = (*session)->run(x);
  const auto want = prim::interpret(g, x);
  HEDDLE_CHECK(got.ok() && want.ok(), "the network does not run");
  double error = 0, scale = 0;
  for (std::int64_t i = 0; i < (*want)[0].count(); ++i) {
    error = std::max(error, std::fabs((*got)[0].at(i) - (*want)[0].at(i)));
    scale = std::max(scale, std::fabs((*want)[0].at(i)));
  }
  return {error / scale, winograd};
}

TEST(Accuracy, StandardErrsByLessThanItSays) {
  for (const std::int64_t channels : {8, 128}) {
    const auto [error, winograd] = measured(channels, "standard");
    EXPECT_LT(error, 1e-5) << channels << " channels";
    EXPECT_TRUE(winograd || channels == 8);
    std::printf("%d channels: %.1e of the scale\n", static_cast<int>(channels), error);
  }
}

TEST(Accuracy, StrictKeepsSumsAsWritten) {
  const auto [error, winograd] = measured(128, "strict");
  EXPECT_LT(error, 2e-6);
  EXPECT_FALSE(winograd);
}

}  // namespace
}  // namespace heddle::driver

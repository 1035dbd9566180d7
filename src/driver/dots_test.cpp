// Products of few columns in programs: behind convolutions images lie channels-last.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "driver/driver.h"
#include "driver/test_util.h"
#include "driver/verify.h"
#include "prim/builder.h"

namespace heddle::driver {
namespace {

struct LastLayer {
  std::int64_t filters, taps, pad;
  DType precision;
};
class FewFilters : public testing::TestWithParam<LastLayer> {};

TEST_P(FewFilters, BehindAConvolution) {
  const LastLayer& row = GetParam();
  prim::Graph g;
  prim::Builder b(g);
  std::mt19937 random(5);
  std::normal_distribution<double> normal(0, 0.2);
  const auto filled = [&](Tensor t) {
    for (std::int64_t i = 0; i < t.count(); ++i) t.set(i, normal(random));
    return t;
  };
  const auto weights = [&](Shape shape) { return b.constant(filled(Tensor({DType::f32, shape}))); };
  const prim::NodeId x = in(g, {1, 16, 35, 42});
  const prim::NodeId image =
      b.relu(b.conv(x, weights({64, 16, 3, 3}), {{1, 1}, {1, 1}, {1, 1}, {1, 1}, 1}));
  const std::int64_t pad = row.pad;
  const prim::NodeId y = b.conv(image, weights({row.filters, 64, row.taps, row.taps}),
                                {{1, 1}, {1, 1}, {pad, pad}, {pad, pad}, 1});
  g.outputs = {{"y", b.sigmoid(y)}};
  CompileOptions options;
  options.threads = 2;
  options.mode = "kernels";
  options.precision = row.precision;
  const auto compiled = compile(g, options);
  ASSERT_TRUE(compiled.ok()) << compiled.error().message;
  const bool wide = machine_for({})->vector_bytes == 64;
  EXPECT_TRUE(!wide || std::ranges::any_of(compiled->kernels, [](const CompiledKernel& k) {
    return k.lowered.schedule.starts_with("dots");
  }));
  const double tolerance = row.precision == DType::f32 ? 1e-4 : 5e-2;
  const std::vector<Tensor> inputs{filled(Tensor(g.inputs[0].type))};
  const auto checked = verify(*compiled, inputs, tolerance, tolerance, options);
  ASSERT_TRUE(checked.ok()) << checked.error().message;
  EXPECT_EQ(checked->wrong, 0) << checked->first_wrong;
}

INSTANTIATE_TEST_SUITE_P(Rows, FewFilters,
                         testing::Values(LastLayer{1, 3, 1, DType::f32},
                                         LastLayer{1, 1, 0, DType::f32},
                                         LastLayer{3, 5, 0, DType::f32},
                                         LastLayer{2, 3, 1, DType::bf16},
                                         LastLayer{4, 3, 2, DType::f32}));

}  // namespace
}  // namespace heddle::driver

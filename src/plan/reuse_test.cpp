#include "plan/reuse.h"

#include <gtest/gtest.h>

#include "plan/test_graphs.h"
#include "prim/builder.h"

namespace heddle::plan {
namespace {

constexpr std::int64_t kL2 = 1 << 20;

lower::Cluster alone(NodeId id) { return {{id}, {id}}; }

struct Model : test::Mini {
  NodeId weight(Shape shape) {
    Tensor t(TensorType{DType::f32, std::move(shape)});
    t.set(0, ++weights);
    return g.add_constant(t);
  }
  NodeId matmul(NodeId a, NodeId b) { return prim::Builder(g).matmul(a, b); }
  double weights = 0;
};

/// Both kernels' weights are 64 KB; between their layers lie 4 MB of others.
TEST(Reuse, WeightsOfEachStepAreNearThoseOfOneReadAreNot) {
  Model m;
  NodeId x = m.input({4, 128});
  const NodeId step = m.weight({128, 128}), once = m.weight({128, 128});
  std::vector<NodeId> steps;
  for (int i = 0; i < 6; ++i) steps.push_back(x = m.matmul(x, step));
  const NodeId first = x = m.matmul(x, once);
  x = m.matmul(m.matmul(x, m.weight({128, 8192})), m.weight({8192, 128}));
  m.output(x);
  const std::vector<double> between = constants_between(m.g);
  EXPECT_EQ(between[static_cast<std::size_t>(step.value)], 4.0 * 128 * 128);
  EXPECT_EQ(between[static_cast<std::size_t>(once.value)], 4.0 * (2 * 128 * 128 + 2 * 128 * 8192));
  for (const NodeId id : steps) EXPECT_TRUE(finds_constants_near(m.g, alone(id), between, kL2));
  EXPECT_FALSE(finds_constants_near(m.g, alone(first), between, kL2));
  EXPECT_TRUE(finds_constants_near(m.g, {steps, {steps.back()}}, between, kL2));
  EXPECT_FALSE(finds_constants_near(m.g, {{steps.back(), first}, {first}}, between, kL2));
}

TEST(Reuse, TwoReadsFarApartAreNotNear) {
  Model m;
  const NodeId twice = m.weight({128, 128});
  const NodeId first = m.matmul(m.input({4, 128}), twice);
  const NodeId wide = m.matmul(m.matmul(first, m.weight({128, 8192})), m.weight({8192, 128}));
  m.output(m.matmul(wide, twice));
  const std::vector<double> between = constants_between(m.g);
  EXPECT_GT(between[static_cast<std::size_t>(twice.value)], 8e6);
  EXPECT_FALSE(finds_constants_near(m.g, alone(first), between, kL2));
}

}  // namespace
}  // namespace heddle::plan

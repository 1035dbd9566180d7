#include "lower/joins.h"

#include <gtest/gtest.h>

#include "prim/builder.h"

namespace heddle::lower {
namespace {

struct Parts {
  prim::Graph g;
  prim::Builder b{g};
  NodeId part(Shape shape, DType type = DType::f32) {
    return b.exp(g.add_input("x", {type, std::move(shape)}));
  }
  /// Concatenations in place of what is output as its negative.
  std::size_t count(std::vector<NodeId> parts, int axis, Target target = {}) {
    g.outputs = {{"y", b.neg(b.concat(std::move(parts), axis))}};
    return joins_of(g, target).size();
  }
};

TEST(Joins, OfComputedParts) {
  Parts p;
  const NodeId a = p.part({1, 8, 5, 6}), c = p.part({1, 4, 5, 6});
  EXPECT_EQ(p.count({a, c}, 1), 1U);
  EXPECT_EQ(p.count({c, a}, 1), 1U);
  EXPECT_EQ(p.count({a, a}, 1), 0U);                     // one value in two places
  EXPECT_EQ(p.count({a, p.part({1, 3, 5, 6})}, 1), 0U);  // its pixels begin anywhere
  EXPECT_EQ(p.count({a, p.g.add_input("given", {DType::f32, {1, 8, 5, 6}})}, 1), 0U);
  EXPECT_EQ(p.count({a, c}, 1, gpu_target(132)), 0U);
  Target without;
  without.joins = false;
  EXPECT_EQ(p.count({a, c}, 1, without), 0U);
}

TEST(Joins, NotOfOutputs) {
  Parts p;
  const NodeId a = p.part({2, 8}), c = p.part({2, 8}), whole = p.b.concat({a, c}, 1);
  p.g.outputs = {{"y", p.b.neg(whole)}};
  EXPECT_EQ(joins_of(p.g, {}).size(), 1U);
  p.g.outputs = {{"y", p.b.neg(whole)}, {"a", a}};
  EXPECT_TRUE(joins_of(p.g, {}).empty());
  p.g.outputs = {{"y", whole}};
  EXPECT_TRUE(joins_of(p.g, {}).empty());
}

/// Views that look like it: other orders, gaps, parts of parts.
TEST(Joins, NotOfOtherViews) {
  Parts p;
  const NodeId a = p.part({4, 8}), c = p.part({4, 8});
  const auto both = [&](NodeId x, NodeId y) {
    p.g.outputs = {{"y", p.b.neg(p.b.concat({x, y}, 1))}};
    return joins_of(p.g, {}).size();
  };
  EXPECT_EQ(both(a, c), 1U);
  EXPECT_EQ(both(a, p.b.slice_axis(c, 1, 0, 4)), 1U);  // a kernel of the slice stores it there
  p.g.outputs = {{"y", p.b.neg(p.b.transpose(p.b.concat({a, c}, 1), {1, 0}))}};
  for (const Join& join : joins_of(p.g, {})) EXPECT_EQ(join.parts.size(), 2U);
}

TEST(Joins, PlacesInTheWhole) {
  const Layout root = ordered({1, 12, 5, 6}, {0, 2, 3, 1});
  const Place place = place_in(root, {1, 4, 5, 6}, 1, 8);
  EXPECT_EQ(place.first, 8);
  EXPECT_EQ(place.layout.strides, root.strides);
  EXPECT_EQ(place.first + place.layout.size, root.size);
  const Place plane = place_in(row_major({1, 12, 5, 6}), {1, 4, 5, 6}, 1, 8);
  EXPECT_EQ(plane.first, 8 * 30);
  EXPECT_EQ(plane.layout.size, 4 * 30);
}

}  // namespace
}  // namespace heddle::lower

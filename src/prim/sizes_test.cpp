#include "prim/sizes.h"

#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "prim/access.h"
#include "prim/rewrite.h"
#include "prim/test_util.h"
#include "support/resized.h"

namespace heddle::prim {
namespace {

using Make = std::function<NodeId(Builder& b, std::int64_t n)>;

Graph made(const Make& make, std::int64_t n) {
  Graph g;
  Builder b(g);
  g.outputs.push_back({"y", make(b, n)});
  return g;
}

/// Fills padding with what would be seen if anything read it.
Tensor poisoned(const Tensor& value, const Shape& shape) {
  Tensor inside(TensorType{DType::b1, value.shape()});
  for (std::int64_t i = 0; i < inside.count(); ++i) inside.set_int(i, 1);
  const Tensor counts = resized(inside, shape);
  Tensor out = resized(value, shape);
  if (out.shape() == value.shape()) return out;
  for (std::int64_t i = 0; i < out.count(); ++i) {
    if (counts.int_at(i) != 0) continue;
    if (is_float(out.dtype()))
      out.set(i, std::numeric_limits<double>::quiet_NaN());
    else
      out.set_int(i, out.dtype() == DType::b1 ? 1 : 77);
  }
  return out;
}

/// One graph for all sizes computes what the graph of each size does, whatever the padding holds.
void expect_same(const Make& make, const std::vector<std::int64_t>& sizes) {
  std::vector<Graph> cases;
  for (const std::int64_t n : sizes) cases.push_back(made(make, n));
  Misfit misfit;
  const Result<Sizes> merged = merge_sizes(cases, cases.size() - 1, &misfit);
  ASSERT_TRUE(merged.ok()) << merged.error().message << ", size " << sizes[misfit.case_number];
  std::mt19937 rng(7);
  for (std::size_t c = 0; c < cases.size(); ++c) {
    const std::vector<Tensor> inputs = random_inputs(cases[c], rng);
    std::vector<Tensor> larger;
    for (std::size_t i = 0; i < inputs.size(); ++i)
      larger.push_back(poisoned(inputs[i], merged->graph.inputs[i].type.shape));
    for (const SizeInput& given : merged->given) larger.push_back(given.values[c]);
    const auto wanted = interpret(cases[c], inputs);
    ASSERT_TRUE(wanted.ok());
    for (const Graph& graph : {merged->graph, canonicalize(merged->graph)}) {
      const auto found = interpret(graph, larger);
      ASSERT_TRUE(found.ok());
      const Tensor y = resized((*found)[0], (*wanted)[0].shape());
      for (std::int64_t i = 0; i < y.count(); ++i)
        ASSERT_NEAR(y.at(i), (*wanted)[0].at(i), 1e-5) << "size " << sizes[c] << ", element " << i;
    }
  }
}

NodeId input(Builder& b, Shape shape, DType type = DType::f32) {
  return b.graph().add_input("x" + std::to_string(b.graph().inputs.size()), {type, shape});
}

TEST(Sizes, SoftmaxIgnoresPadding) {
  expect_same(
      [](Builder& b, std::int64_t n) {
        return b.softmax(input(b, {3, n}), {1});
      },
      {1, 2, 5, 8});
}

TEST(Sizes, MeanDividesByTheSize) {
  expect_same(
      [](Builder& b, std::int64_t n) {
        return b.mean(input(b, {2, n, 3}), {1});
      },
      {2, 3, 7});
}

TEST(Sizes, AttentionOfAnyLength) {
  expect_same(
      [](Builder& b, std::int64_t n) {
        const NodeId x = input(b, {1, n, 8});
        const auto heads = [&](NodeId v) {
          return b.transpose(b.reshape(v, {1, n, 2, 4}), {0, 2, 1, 3});
        };
        const NodeId q = heads(b.mul(x, 0.5)), k = heads(b.mul(x, 0.25)), v = heads(x);
        const NodeId scores = b.matmul(q, b.transpose(k, {0, 1, 3, 2}));
        const NodeId mixed = b.matmul(b.softmax(scores, {3}), v);
        return b.reshape(b.transpose(mixed, {0, 2, 1, 3}), {1, n, 8});
      },
      {1, 2, 3, 4, 5, 6});
}

TEST(Sizes, ConvolutionAndPoolingOfAnyExtent) {
  expect_same(
      [](Builder& b, std::int64_t n) {
        const NodeId x = input(b, {1, 2, n, 6}), w = input(b, {3, 2, 3, 3});
        const Builder::Conv same{{2, 1}, {1, 1}, {1, 1}, {1, 1}, 1};
        const NodeId y = b.conv(x, w, same);
        const std::int64_t h = b.shape(y)[2];
        const Builder::Conv pool{{2, 2}, {1, 1}, {1, 1}, {1, 1}, 1};
        const NodeId windows = b.windows(y, {3, 3}, pool, {(h - 1) / 2 + 1, 3},
                                         -std::numeric_limits<double>::infinity());
        return b.reduce_max(windows, {4, 5}, false);
      },
      {3, 4, 5, 8, 9, 12});
}

TEST(Sizes, PaddingIsMaskedOnceWhereAValueIsMade) {
  const Make two_readers = [](Builder& b, std::int64_t n) {
    const NodeId x = input(b, {1, 2, n, n}), w = input(b, {2, 2, 3, 3}), v = input(b, {2, 2, 5, 5});
    const Builder::Conv near{{1, 1}, {1, 1}, {1, 1}, {1, 1}, 1},
        far{{1, 1}, {1, 1}, {2, 2}, {2, 2}, 1};
    const NodeId y = b.conv(x, w, near);
    return b.add(b.conv(y, w, near), b.conv(y, v, far));
  };
  expect_same(two_readers, {4, 6, 7});
  const std::vector<Graph> cases = {made(two_readers, 4), made(two_readers, 7)};
  const Result<Sizes> merged = merge_sizes(cases, 1, nullptr);
  ASSERT_TRUE(merged.ok()) << merged.error().message;
  int masks = 0;
  for (std::int32_t i = 0; i < merged->graph.size(); ++i) {
    const auto* map = std::get_if<Map>(&merged->graph[NodeId{i}].op);
    masks += map != nullptr && map->fn == ir::ScalarFn::select;
  }
  EXPECT_EQ(masks, 2) << "one of x and one of y, for both dimensions";
}

TEST(Sizes, ReshapesThatMergeDimensions) {
  expect_same(
      [](Builder& b, std::int64_t n) {
        const NodeId x = input(b, {3, n, 2});
        return b.reduce_sum(b.mul(b.reshape(x, {3 * n, 2}), b.reshape(x, {3 * n, 2})), {0});
      },
      {2, 3, 5});
}

/// At an extent of 1 a position divided by it is the position itself.
TEST(Sizes, ReshapesThatOneRowOrColumnSimplifies) {
  for (const bool rows : {false, true})
    expect_same(
        [&](Builder& b, std::int64_t n) {
          const Shape plane = rows ? Shape{n, 6} : Shape{6, n};
          const NodeId x = input(b, {2, plane[0], plane[1]}), w = input(b, {3, 6 * n});
          const NodeId y = b.mul(b.reshape(x, {2, 6 * n}), b.slice_axis(w, 0, 0, 2));
          return b.concat({y, b.slice_axis(w, 0, 1, 2)}, 0);
        },
        {1, 2, 3, 7});
}

/// 49 · (1 / 49) is less than 1.
TEST(Sizes, PositionsAreDividedExactly) {
  expect_same(
      [](Builder& b, std::int64_t n) {
        const NodeId x = input(b, {3, n});
        return b.slice_axis(b.reshape(x, {3 * n}), 0, 1, 3 * n - 1);
      },
      {41, 47, 49, 55, 61, 82, 83, 98, 103, 110});
}

/// A detector's heads: the elements of all are picked once, by one index.
TEST(Sizes, ConcatenationsOfReshapes) {
  const auto heads = [](Builder& b, std::int64_t n) {
    const auto head = [&](std::int64_t side) {
      return b.reshape(input(b, {1, 3, side, side + 1}), {1, 3, side * (side + 1)});
    };
    return b.transpose(b.concat({head(2 * n), head(n), input(b, {1, 3, 2}), head(2)}, 2),
                       {0, 2, 1});
  };
  expect_same(heads, {1, 2, 3, 6});
  const std::vector<Graph> cases = {made(heads, 2), made(heads, 3)};
  const Result<Sizes> merged = merge_sizes(cases, 1, nullptr);
  ASSERT_TRUE(merged.ok()) << merged.error().message;
  int gathers = 0;
  const Graph g = canonicalize(merged->graph);
  for (std::int32_t i = 0; i < g.size(); ++i)
    gathers += std::holds_alternative<Gather>(g[NodeId{i}].op) && is_float(g[NodeId{i}].type.dtype);
  EXPECT_EQ(gathers, 1);
}

TEST(Sizes, ConcatenationsFlipsAndPads) {
  expect_same(
      [](Builder& b, std::int64_t n) {
        const NodeId x = input(b, {n, 2}), y = input(b, {3, 2});
        const NodeId both = b.concat({x, y, b.flip(x, {0})}, 0);
        return b.pad(both, {1, 0}, {2, 0}, 0.5);
      },
      {2, 3, 6});
}

TEST(Sizes, FlipsOfOneRowAndOfMany) {
  expect_same(
      [](Builder& b, std::int64_t n) {
        const NodeId x = b.flip(input(b, {n, 2}), {0});
        return b.concat(
            {b.softmax(x, {0}), b.flip(b.scan(ir::Monoid::sum, x, 0, false, true), {0})}, 0);
      },
      {1, 2, 3, 6});
}

TEST(Sizes, SortsGathersAndScans) {
  for (const bool descending : {false, true})
    expect_same(
        [&](Builder& b, std::int64_t n) {
          const NodeId x = input(b, {n});
          const NodeId order = b.sort_indices(x, 0, descending, n);
          return b.concat({b.scan(ir::Monoid::sum, b.take(x, order, 0), 0, false, true),
                           b.cast(order, DType::f32)},
                          0);
        },
        {2, 4, 5});
}

TEST(Sizes, IndicesFromTheEndAndScatters) {
  expect_same(
      [](Builder& b, std::int64_t n) {
        const NodeId x = input(b, {n}), to = b.scalar_int(DType::i64, -1);
        const NodeId last = b.take(x, b.broadcast(to, {1}), 0);
        const NodeId at = input(b, {n}, DType::i64);
        Scatter s{{0}, {0}, Scatter::Combine::add};
        return b.concat({last, b.scatter(input(b, {7}), x, {at}, s)}, 0);
      },
      {3, 4, 6});
}

TEST(Sizes, PadsThatTheLargestSizeDoesNotNeed) {
  expect_same(
      [](Builder& b, std::int64_t n) {
        const NodeId x = input(b, {n, 2});
        return b.slice_axis(b.exp(b.pad(x, {0, 0}, {7 - n, 0}, 0)), 0, 0, n);
      },
      {1, 3, 6, 7});
}

TEST(Sizes, SlicesOfConcatenationsThatTheLargestSizeDoesNotNeed) {
  expect_same(
      [](Builder& b, std::int64_t n) {
        const NodeId x = b.pad(input(b, {n, 2}), {0, 0}, {5 - n, 0}, 0);
        std::vector<NodeId> rows;
        for (int t = 0; t < 5; ++t) rows.push_back(b.exp(b.slice_axis(x, 0, t, 1)));
        return b.slice_axis(b.concat(rows, 0), 0, 0, n);
      },
      {1, 2, 4, 5});
}

TEST(Sizes, WhatDiffersInMoreThanExtentsIsRefused) {
  std::vector<Graph> cases;
  for (const std::int64_t n : {2, 3})
    cases.push_back(made(
        [](Builder& b, std::int64_t size) {
          const NodeId x = input(b, {size});
          return size == 2 ? b.exp(x) : b.reduce_sum(x, {0});
        },
        n));
  Misfit misfit;
  EXPECT_FALSE(merge_sizes(cases, 1, &misfit).ok());
  EXPECT_EQ(misfit.case_number, 0U);
}

}  // namespace
}  // namespace heddle::prim

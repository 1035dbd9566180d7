#include "lower/contract/test_util.h"

namespace heddle::lower {
namespace {

struct Row {
  std::int64_t images, in, out, height, width, taps, stride, pad;
};

/// Odd channels, a stride, an even window; at least 4096 positions.
const Row kRows[] = {
    {4, 3, 20, 34, 37, 3, 1, 1},
    {4, 2, 16, 64, 65, 3, 2, 1},
    {9, 4, 7, 23, 24, 2, 1, 1},
};

/// Σ over images and positions of x under the taps and of dy: the gradient of a filter.
NodeId filter_gradient(Case& c, const Row& row) {
  const auto steps = [&](std::int64_t extent) {
    return (extent + 2 * row.pad - row.taps) / row.stride + 1;
  };
  const std::int64_t rows = steps(row.height), columns = steps(row.width);
  const NodeId x = c.input({row.images, row.in, row.height, row.width});
  const NodeId dy = c.input({row.images, row.out, rows, columns});
  const auto at = [&](int tap, int position) {
    return ir::Expr(ir::Var{tap}) + ir::Expr(ir::Var{position}) * ir::Expr(row.stride) -
           ir::Expr(row.pad);
  };
  const ir::Expr y = at(2, 5), z = at(3, 6);
  return c.b.contract(x, dy, {row.out, row.in, row.taps, row.taps}, {row.images, rows, columns},
                      {{ir::Var{4}, ir::Var{1}, y, z}, {{y, 0, row.height}, {z, 0, row.width}}},
                      {{ir::Var{4}, ir::Var{0}, ir::Var{5}, ir::Var{6}}, {}}, DType::f32);
}

TEST(FilterGradient, TapsAreTheRowsOfOneTile) {
  for (const Row& row : kRows) {
    SCOPED_TRACE(fmt::format("{} to {} channels", row.in, row.out));
    Case c;
    c.output(filter_gradient(c, row));
    ASSERT_NO_FATAL_FAILURE(check(c));
    EXPECT_NE(c.schedule.find("rows=1 "), std::string::npos) << c.schedule;
    EXPECT_NE(c.schedule.find("a=box b=phase-packed"), std::string::npos) << c.schedule;
  }
}

/// The update of the weights rides in the epilogue, in their own layout.
TEST(FilterGradient, WithAnUpdate) {
  const Row row = kRows[0];
  Case c;
  const NodeId gradient = filter_gradient(c, row);
  const NodeId weight = c.input({row.out, row.in, row.taps, row.taps});
  c.output(c.b.sub(weight, c.b.mul(gradient, 0.01)));
  ASSERT_NO_FATAL_FAILURE(check(c));
  EXPECT_NE(c.schedule.find("a=box"), std::string::npos) << c.schedule;
}

/// Filters that are computed, as they are and reflected with the channels exchanged (the gradient
/// of the input): transformed in a phase of the kernel. Several panels, the last not whole.
TEST(Convolution, WinogradOfFiltersThatAreComputed) {
  for (const std::int64_t m : {2, 4})
    for (const bool gradient : {false, true}) {
      SCOPED_TRACE(fmt::format("F({0}x{0}) gradient {1}", m, gradient));
      Case c;
      c.target.winograd = 4;
      c.tuning = {{"winograd", m}, {"mr", 3}, {"nv", 2}, {"panels", 1}};
      const std::int64_t from = 16, to = 24, height = 9, width = 6;
      const NodeId x = c.input({2, from, height, width});
      c.layouts[x] = ordered(c.g[x].type.shape, {0, 2, 3, 1});
      const auto v = [](int i) { return ir::Expr(ir::Var{i}); };
      const ir::Expr y = v(2) + v(5) - 1, z = v(3) + v(6) - 1;
      const prim::Access image{{v(0), v(4), y, z}, {{y, 0, height}, {z, 0, width}}};
      const prim::Access filter =
          gradient ? prim::Access{{v(4), v(1), ir::Expr(2) - v(5), ir::Expr(2) - v(6)}, {}}
                   : prim::Access{{v(1), v(4), v(5), v(6)}, {}};
      const NodeId w = c.input(gradient ? Shape{from, to, 3, 3} : Shape{to, from, 3, 3});
      c.output(c.b.relu(
          c.b.contract(x, w, {2, to, height, width}, {from, 3, 3}, image, filter, DType::f32)));
      ASSERT_NO_FATAL_FAILURE(check(c));
      EXPECT_TRUE(c.schedule.starts_with(fmt::format("winograd F({0}x{0}", m))) << c.schedule;
      EXPECT_NE(c.schedule.find("b=phase-packed"), std::string::npos) << c.schedule;
    }
}

}  // namespace
}  // namespace heddle::lower

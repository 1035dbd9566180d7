#include "lower/contract/test_util.h"

namespace heddle::lower {
namespace {

struct Row {
  std::int64_t images, in, out, height, width, taps, stride, pad;
};

/// Odd channels, a stride, taps in one line, no padding.
const Row kRows[] = {
    {3, 5, 20, 40, 37, 3, 1, 1},
    {5, 16, 16, 64, 65, 3, 2, 1},
    {6, 3, 33, 30, 30, 3, 1, 0},
    {9, 4, 7, 24, 24, 2, 1, 1},
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

}  // namespace
}  // namespace heddle::lower

// Every point of an access is found again from the element that it reads.
#include "grad/solve.h"

#include <gtest/gtest.h>

#include <map>

namespace heddle::grad {
namespace {

using ir::Expr;
using ir::Var;

Expr d(int i) { return Var{i}; }

/// All positions of a shape, in row-major order.
std::vector<std::vector<std::int64_t>> positions(const Shape& shape) {
  std::vector<std::vector<std::int64_t>> all;
  for (std::int64_t p = 0; p < element_count(shape); ++p) {
    std::vector<std::int64_t> at(shape.size());
    std::int64_t rest = p;
    for (std::size_t k = shape.size(); k-- > 0; rest /= shape[k]) at[k] = rest % shape[k];
    all.push_back(std::move(at));
  }
  return all;
}
bool holds(const std::vector<ir::Condition>& conditions, const std::vector<std::int64_t>& at) {
  for (const ir::Condition& c : conditions) {
    const std::int64_t v = ir::evaluate(c.expr, at);
    if (v < c.low || v >= c.high) return false;
  }
  return true;
}
std::vector<std::int64_t> evaluate(const std::vector<Expr>& es,
                                   const std::vector<std::int64_t>& at) {
  std::vector<std::int64_t> out;
  for (const Expr& e : es) out.push_back(ir::evaluate(e, at));
  return out;
}

/// "" if the solution lists exactly the points that read each element, each once.
std::string check(const prim::Access& a, const Shape& extents, const Shape& source) {
  const auto s = solve(a, extents, source);
  if (!s) return "no solution";
  using Point = std::vector<std::int64_t>;
  std::map<std::pair<Point, Point>, int> want, found;
  for (const Point& v : positions(extents))
    if (holds(a.inside, v)) ++want[{evaluate(a.index, v), v}];
  Shape space = source;
  space.insert(space.end(), s->free.begin(), s->free.end());
  for (const Point& at : positions(space))
    if (holds(s->conditions, at))
      ++found[{Point(at.begin(), at.begin() + static_cast<std::ptrdiff_t>(source.size())),
               evaluate(s->variables, at)}];
  return want == found ? "" : fmt::format("{} points, want {}", found.size(), want.size());
}

TEST(Solve, Permutation) { EXPECT_EQ(check({{d(1), d(0)}, {}}, {3, 4}, {4, 3}), ""); }
TEST(Solve, Broadcast) { EXPECT_EQ(check({{d(1)}, {}}, {3, 4, 2}, {4}), ""); }
TEST(Solve, Flip) { EXPECT_EQ(check({{Expr(4) - d(0)}, {}}, {5}, {5}), ""); }
TEST(Solve, StridedSlice) { EXPECT_EQ(check({{d(0) * 3 + 1}, {}}, {4}, {11}), ""); }
TEST(Solve, Pad) { EXPECT_EQ(check({{d(0) - 2}, {{d(0) - 2, 0, 5}}}, {9}, {5}), ""); }
TEST(Solve, Window) {
  const Expr at = d(0) * 2 + d(1) * 3 - 1;
  EXPECT_EQ(check({{at}, {{at, 0, 10}}}, {5, 3}, {10}), "");
}
TEST(Solve, GroupedChannels) {
  EXPECT_EQ(check({{ir::floor_div(d(0), 3) * 2 + d(1)}, {}}, {12, 2}, {8}), "");
}
TEST(Solve, Merge) { EXPECT_EQ(check({{d(0) * 4 + d(1)}, {}}, {3, 4}, {12}), ""); }
TEST(Solve, Split) {
  EXPECT_EQ(check({{ir::floor_div(d(0), 4), ir::floor_mod(d(0), 4)}, {}}, {12}, {3, 4}), "");
}
TEST(Solve, ReshapeAcrossDigits) {
  EXPECT_EQ(
      check({prim::unflatten(prim::flat_index({d(0), d(1)}, {8, 3}), {6, 4}), {}}, {8, 3}, {6, 4}),
      "");
}
TEST(Solve, Diagonal) { EXPECT_EQ(check({{d(0), d(0)}, {}}, {4}, {4, 4}), ""); }
TEST(Solve, TransposedConvolution) {
  const Expr reach = d(0) + 1 - d(1);
  const prim::Access a{{ir::floor_div(reach, 2)},
                       {{ir::floor_mod(reach, 2), 0, 1}, {ir::floor_div(reach, 2), 0, 4}}};
  const auto s = solve(a, {7, 3}, {4});
  if (s) {
    EXPECT_EQ(check(a, {7, 3}, {4}), "");
  }
}
TEST(Solve, DependentCoordinates) {
  EXPECT_EQ(check({{d(0) + d(1), d(1)}, {}}, {3, 4}, {6, 4}), "");
  EXPECT_EQ(check({{d(0), d(0) + d(1)}, {}}, {3, 4}, {3, 6}), "");
}
TEST(Solve, RefusesWhatHasNoDigits) { EXPECT_FALSE(solve({{ir::min(d(0), 3)}, {}}, {5}, {4})); }

}  // namespace
}  // namespace heddle::grad

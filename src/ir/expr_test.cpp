#include "ir/expr.h"

#include <gtest/gtest.h>

#include "ir/text.h"

namespace heddle::ir {
namespace {

const Expr i = Var{0}, j = Var{1}, k = Var{2};

TEST(Expr, EqualSumsCompareEqual) {
  EXPECT_EQ(i + j, j + i);
  EXPECT_EQ((i + 1) + (j - 1), i + j);
  EXPECT_EQ(i * 2 + i, i * 3);
  EXPECT_EQ(i - i, Expr(0));
  EXPECT_EQ((i + j) * 4 - j * 4, i * 4);
  EXPECT_EQ((i * 2 + 3).hash(), (Expr(3) + i + i).hash());
  EXPECT_NE(i, j);
  EXPECT_NE(floor_div(i, 4), floor_mod(i, 4));
}

TEST(Expr, ConstantsFoldWithFloorSemantics) {
  EXPECT_EQ(floor_div(Expr(-7), 4), Expr(-2));
  EXPECT_EQ(floor_mod(Expr(-7), 4), Expr(1));
  EXPECT_EQ(floor_div(i, 1), i);
  EXPECT_EQ(floor_mod(i, 1), Expr(0));
  EXPECT_EQ(min(Expr(3), Expr(4)), Expr(3));
  EXPECT_THROW(floor_div(i, 0), InternalError);
  EXPECT_THROW(i * j, InternalError);
  EXPECT_THROW(Expr(INT64_MAX) + 1, InternalError);
}

struct TextCase {
  Expr e;
  const char* text;
};
TEST(Expr, PrintsAndParses) {
  const TextCase cases[] = {
      {i * 8 + floor_div(j, 4) + 3, "d0*8 + d1 / 4 + 3"},
      {floor_mod(i + j, 5) * 2, "((d0 + d1) % 5)*2"},
      {i - j * 2 - 1, "d0 - d1*2 - 1"},
      {Expr(0) - i, "d0*-1"},
      {min(i, j + 1) * 3, "min(d0, d1 + 1)*3"},
      {floor_mod(floor_div(i, 8), 4), "(d0 / 8) % 4"},
      {-5, "-5"},
  };
  for (const TextCase& c : cases) {
    auto parsed = parse_expr(c.text);
    ASSERT_TRUE(parsed) << c.text << ": " << parsed.error().message;
    EXPECT_EQ(*parsed, c.e) << to_string(*parsed);
    auto again = parse_expr(to_string(c.e));
    ASSERT_TRUE(again) << to_string(c.e);
    EXPECT_EQ(*again, c.e);
  }
  EXPECT_EQ(to_string(cases[0].e), cases[0].text);
  EXPECT_EQ(to_string(cases[1].e), cases[1].text);
}

TEST(Expr, GarbageTextIsAnError) {
  for (const char* text : {"", "d", "dx", "d0 +", "d0 / 0", "d0 / d1", "d0*d1", "min(d0", "((((",
                           "99999999999999999999", "d0 $", "d99999999999", "1 << 2"})
    EXPECT_FALSE(parse_expr(text)) << text;
  EXPECT_FALSE(parse_expr(std::string(100000, '(')));
  EXPECT_FALSE(parse_expr("1000000000000*1000000000000*1000000000000*d0"));
}

TEST(Expr, Bounds) {
  const Ranges r = ranges_of({4, 8, 2});
  EXPECT_EQ(bounds(i * 8 + j, r), (Interval{0, 31}));
  EXPECT_EQ(bounds(j - i * 2, r), (Interval{-6, 7}));
  EXPECT_EQ(bounds(floor_mod(j, 16), r), (Interval{0, 7}));
  EXPECT_EQ(bounds(floor_div(j - 1, 2), r), (Interval{-1, 3}));
  EXPECT_EQ(bounds(Expr(Var{9}), r), std::nullopt);
  EXPECT_EQ(bounds(i * INT64_MAX, r), std::nullopt);
  EXPECT_EQ(bounds(max(i, j) + k, r), (Interval{0, 8}));
}

TEST(Expr, CoefficientOf) {
  EXPECT_EQ(coefficient_of(i * 3 + j, Var{0}), 3);
  EXPECT_EQ(coefficient_of(j + 1, Var{0}), 0);
  EXPECT_EQ(coefficient_of(floor_div(i, 2) + i, Var{0}), std::nullopt);
  EXPECT_EQ(coefficient_of(floor_div(j, 2) + i, Var{0}), 1);
}

TEST(Expr, SubstituteAndEvaluate) {
  const Expr e = floor_div(i * 5 + j, 3);
  EXPECT_EQ(evaluate(e, {2, 1}), 3);
  EXPECT_EQ(substitute(e, {Expr(2), k}), floor_div(k + 10, 3));
  std::vector<Var> vars;
  collect_variables(e + k, vars);
  EXPECT_EQ(vars, (std::vector<Var>{{0}, {1}, {2}}));
}

TEST(Condition, Simplify) {
  const Ranges r = ranges_of({56, 3});
  EXPECT_TRUE(simplify({{i, 0, 56}}, r)->empty());
  EXPECT_FALSE(simplify({{i, 56, 60}}, r).has_value());
  const auto pad = simplify({{i + j - 1, 0, 56}}, r);
  ASSERT_EQ(pad->size(), 1u);
  EXPECT_EQ(to_string((*pad)[0]), "1 <= d0 + d1 < 57");
  // Both sides of one expression become one condition.
  EXPECT_EQ(simplify({{i, 3, 100}, {i, -5, 10}}, r), (std::vector<Condition>{{i, 3, 10}}));
  EXPECT_EQ(simplify({{i * 2, 3, 10}}, r), (std::vector<Condition>{{i, 2, 5}}));
}

}  // namespace
}  // namespace heddle::ir

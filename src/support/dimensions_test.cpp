#include "support/dimensions.h"

#include <gtest/gtest.h>

namespace heddle {
namespace {

using Sizes = std::map<std::string, std::int64_t>;

std::int64_t value(std::string_view text, const Sizes& sizes) {
  const auto expr = DimensionExpr::parse(text);
  EXPECT_TRUE(expr) << text;
  const auto found = expr->value(sizes);
  EXPECT_TRUE(found) << found.error().message;
  return found ? *found : -1;
}
std::string why(std::string_view text, const Sizes& sizes) {
  const auto found = DimensionExpr::parse(text)->value(sizes);
  return found ? "" : found.error().message;
}

TEST(Dimensions, ExpressionsHaveTheUsualPrecedence) {
  const Sizes at = {{"past", 7}, {"s.0", 3}};
  EXPECT_EQ(value("past + s.0", at), 10);
  EXPECT_EQ(value("past-s.0-1", at), 3);
  EXPECT_EQ(value("2*past+s.0*(1+1)", at), 20);
  EXPECT_EQ(value("past//s.0", at), 2);
  EXPECT_EQ(value("(past - 1)/s.0", at), 2);
  EXPECT_EQ(value("-s.0 + past", at), 4);
  EXPECT_EQ(value("-(-8//3)", at), 3);
  EXPECT_EQ(DimensionExpr::parse("a*(b+a)")->names(), (std::set<std::string>{"a", "b"}));
}

TEST(Dimensions, WhatIsNoExpressionIsNone) {
  for (const char* text : {"", " ", "a b", "a+", "(a", "a)", "1a", "a^2", "a/", "+a", "?", "a,b",
                           "99999999999999999999", "a***b", "()"})
    EXPECT_FALSE(DimensionExpr::parse(text)) << text;
  EXPECT_FALSE(DimensionExpr::parse(std::string(100000, '(')));
  EXPECT_FALSE(DimensionExpr::parse(std::string(100000, '-') + "a"));
}

TEST(Dimensions, WhatIsNoExtentIsAnError) {
  EXPECT_NE(why("a - 5", {{"a", 3}}).find("a = 3 is -2"), std::string::npos);
  EXPECT_NE(why("a/2", {{"a", 3}}).find("rest"), std::string::npos);
  EXPECT_NE(why("1//a", {{"a", 0}}).find("zero"), std::string::npos);
  EXPECT_NE(why("a + b", {{"a", 0}}).find("'b' is not given"), std::string::npos);
  EXPECT_NE(why("a*a*a*a", {{"a", 1 << 30}}).find("too large"), std::string::npos);
  EXPECT_EQ(why("a//-2", {{"a", 0}}), "");
}

TEST(Dimensions, FactsAreFollowedAndChecked) {
  const DimensionFacts facts = {{"total", *DimensionExpr::parse("past + seq")},
                                {"double", *DimensionExpr::parse("2*total")},
                                {"free", *DimensionExpr::parse("other + 1")}};
  EXPECT_TRUE(check_facts(facts));
  Sizes sizes = {{"past", 4}, {"seq", 2}};
  ASSERT_TRUE(derive(facts, sizes));
  EXPECT_EQ(sizes, (Sizes{{"past", 4}, {"seq", 2}, {"total", 6}, {"double", 12}}));
  sizes.erase("double");
  sizes["total"] = 7;
  EXPECT_EQ(derive(facts, sizes).error().message,
            "dimension 'total' is 7, want past + seq = 6 for past = 4, seq = 2");
  const DimensionFacts circle = {{"a", *DimensionExpr::parse("b + 1")},
                                 {"b", *DimensionExpr::parse("a - 1")}};
  EXPECT_NE(check_facts(circle).error().message.find("'a' = b + 1, 'b' = a - 1"),
            std::string::npos);
}

}  // namespace
}  // namespace heddle

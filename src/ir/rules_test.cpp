// Every row of rules.cpp is tried on random expressions over random ranges; no row has a test of
// its own, and the checker is itself shown to catch a wrong row.
#include "ir/rules.h"

#include <gtest/gtest.h>

#include <random>

#include "ir/text.h"

namespace heddle::ir {
namespace {

using Rng = std::mt19937;
std::int64_t pick(Rng& rng, std::int64_t low, std::int64_t high) {
  return std::uniform_int_distribution<std::int64_t>(low, high)(rng);
}

std::int64_t random_divisor(Rng& rng) {
  static constexpr std::int64_t kDivisors[] = {2, 3, 4, 6, 8, 12, 16, 24, 32, 7};
  return kDivisors[pick(rng, 0, 9)];
}

Expr random_expr(Rng& rng, int depth) {
  const std::int64_t choice = depth == 0 ? 0 : pick(rng, 0, 9);
  if (choice < 2)
    return pick(rng, 0, 4) ? Expr(Var{static_cast<int>(pick(rng, 0, 3))})
                           : Expr(pick(rng, -20, 20));
  const Expr a = random_expr(rng, depth - 1);
  if (choice < 4) return floor_div(a, random_divisor(rng));
  if (choice < 6) return floor_mod(a, random_divisor(rng));
  const Expr b = random_expr(rng, depth - 1);
  if (choice == 6) return pick(rng, 0, 1) ? min(a, b) : max(a, b);
  return a * pick(rng, -3, 24) + b * (pick(rng, 0, 2) ? 1 : random_divisor(rng));
}

Ranges random_ranges(Rng& rng) {
  Ranges r;
  for (int v = 0; v < 4; ++v) {
    const std::int64_t low = pick(rng, 0, 3) ? 0 : pick(rng, -10, 10);
    r.push_back(Interval{low, low + pick(rng, 0, 3) * pick(rng, 0, 11)});
  }
  return r;
}

bool agree(const Expr& a, const Expr& b, const Ranges& ranges, Rng& rng) {
  for (int trial = 0; trial < 24; ++trial) {
    std::vector<std::int64_t> point;
    for (const auto& r : ranges) point.push_back(pick(rng, r->low, r->high));
    if (evaluate(a, point) != evaluate(b, point)) return false;
  }
  return true;
}

/// Applies the row to random expressions (and its own example) wherever it matches.
bool holds_on_random_inputs(const IndexRule& rule, int* fired = nullptr) {
  Rng rng(7);
  for (int trial = 0; trial < 6000; ++trial) {
    const Ranges ranges = trial == 0 ? example_ranges() : random_ranges(rng);
    Expr e = trial == 0 ? *parse_expr(rule.example) : random_expr(rng, 3);
    if (e.node().kind != rule.root) {  // wrap, so that rare roots are met too
      if (rule.root == IndexNode::Kind::div) e = floor_div(e, random_divisor(rng));
      if (rule.root == IndexNode::Kind::mod) e = floor_mod(e, random_divisor(rng));
      if (e.node().kind != rule.root) continue;
    }
    const auto result = rule.apply(e, ranges);
    if (!result) continue;
    if (fired != nullptr) ++*fired;
    if (!agree(e, *result, ranges, rng)) {
      std::printf("%s: %s became %s\n", std::string(rule.name).c_str(), to_string(e).c_str(),
                  to_string(*result).c_str());
      return false;
    }
  }
  return true;
}

TEST(IndexRules, AreSound) {
  for (const IndexRule& r : index_rules()) {
    int fired = 0;
    EXPECT_TRUE(holds_on_random_inputs(r, &fired)) << r.name;
    EXPECT_GE(fired, 1) << r.name;
  }
}

TEST(IndexRules, FireOnTheirExample) {
  for (const IndexRule& r : index_rules()) {
    const auto e = parse_expr(r.example);
    ASSERT_TRUE(e) << r.name;
    EXPECT_EQ(e->node().kind, r.root) << r.name;
    const auto result = r.apply(*e, example_ranges());
    EXPECT_TRUE(result && !(*result == *e)) << r.name;
  }
}

TEST(IndexRules, CheckerCatchesAWrongRow) {
  const IndexRule bad{"bad", "(x / c)*c -> x", IndexNode::Kind::div,
                      [](const Expr& e, const Ranges&) -> std::optional<Expr> {
                        return e.node().args[0] - (e.node().constant - 1);
                      },
                      "d0 / 3"};
  EXPECT_FALSE(holds_on_random_inputs(bad));
  const IndexRule subtle{
      "subtle", "(x % m) / d -> (x / d) % (m / d), without d | m", IndexNode::Kind::div,
      [](const Expr& e, const Ranges&) -> std::optional<Expr> {
        const IndexNode& n = e.node().args[0].node();
        if (n.kind != IndexNode::Kind::mod) return std::nullopt;
        const std::int64_t d = e.node().constant;
        return floor_mod(floor_div(n.args[0], d), std::max<std::int64_t>(1, n.constant / d));
      },
      "(d0 % 8) / 4"};
  EXPECT_FALSE(holds_on_random_inputs(subtle));
}

TEST(Simplify, KeepsTheValueOfRandomExpressions) {
  Rng rng(11);
  for (int trial = 0; trial < 20000; ++trial) {
    const Ranges ranges = random_ranges(rng);
    const Expr e = random_expr(rng, 4);
    const Expr s = simplify(e, ranges);
    ASSERT_TRUE(agree(e, s, ranges, rng)) << to_string(e) << " became " << to_string(s);
    ASSERT_EQ(simplify(s, ranges), s) << to_string(e);
  }
}

struct ChainCase {
  const char* before;
  const char* after;
};
TEST(Simplify, ReshapeTransposeAndWindowChains) {
  // d0 in [0,16), d1 in [0,8), d2 in [0,4), d3 in [-3,5), d5 in [0,1000)
  const ChainCase cases[] = {
      {"(d0*8 + d1) / 8", "d0"},
      {"(d0*8 + d1) % 8", "d1"},
      {"((d0*8 + d1)*4 + d2) / 32", "d0"},
      {"(((d0*8 + d1)*4 + d2) / 4) % 8", "d1"},
      {"(((d0*8 + d1)*4 + d2) % 32) / 4", "d1"},
      {"(d5 / 8)*8 + d5 % 8", "d5"},
      {"(d5 / 32)*32 + ((d5 / 8) % 4)*8 + d5 % 8", "d5"},
      {"((d5 / 32)*4 + (d5 / 8) % 4)*8 + d5 % 8", "d5"},
      {"((d0*32 + d1*4 + d2) / 8) % 4", "d1 / 2"},
      {"((d5 + 9) / 8)*8 + (d5 + 9) % 8", "d5 + 9"},
      {"((d0*12 + d1 + d2) / 12)*12 + (d0*12 + d1 + d2) % 12", "d0*12 + d1 + d2"},
      {"(d3 + 3) / 8", "0"},
      {"(d3 - 5) % 8", "d3 + 3"},
      {"(d5 % 24) % 8", "d5 % 8"},
      {"(d5 / 4) / 5", "d5 / 20"},
      {"min(d1, 7) + max(d1, 0)", "d1*2"},
  };
  for (const ChainCase& c : cases)
    EXPECT_EQ(to_string(simplify(*parse_expr(c.before), example_ranges())), c.after) << c.before;
}

}  // namespace
}  // namespace heddle::ir

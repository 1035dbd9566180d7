#include "kernel/jam.h"

#include <gtest/gtest.h>

#include <random>

#include "kernel/traverse.h"
#include "support/tensor.h"

namespace heddle::kernel {
namespace {

/// Rows of 24 numbers over the sum of their exponentials, which a row in scratch memory keeps.
constexpr std::string_view kRows = R"(kernel "rows" vars=9 {
  buffer b0 "x" f32[312] grid arg=0
  buffer b1 "y" f32[312] grid arg=1 written
  buffer b2 "acc" f32[8] lane lanes=8
  buffer b3 "sum" f32[1] lane
  buffer b4 "row" f32[24] block
  for grid d0 in 0..1 {
    for serial d1 in 0..13 {
      for vector d2 in 0..8 {
        b2[d2] = f32(0)
      }
      for serial d3 in 0..3 {
        for vector d4 in 0..8 {
          b4[d3*8 + d4] = exp.f32(load.f32 b0[d1*24 + d3*8 + d4])
          b2[d4] = add.f32(load.f32 b2[d4], load.f32 b4[d3*8 + d4])
        }
      }
      b3[0] = lanes_sum.f32 b2[0]
      for serial d5 in 0..3 {
        for vector d6 in 0..8 {
          b1[d1*24 + d5*8 + d6] = div.f32(load.f32 b4[d5*8 + d6], load.f32 b3[0])
        }
      }
    }
  }
}
)";

std::string replaced(std::string text, std::string_view from, std::string_view to) {
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

/// What a kernel makes of random numbers.
Tensor result(const Kernel& k) {
  Tensor x({DType::f32, {312}}), y({DType::f32, {312}});
  std::mt19937 rng(3);
  std::normal_distribution<double> normal;
  for (std::int64_t i = 0; i < x.count(); ++i) x.set(i, normal(rng)), y.set(i, 0);
  const auto bytes = [](Tensor& t) {
    return std::span(t.mutable_data(), static_cast<std::size_t>(t.bytes()));
  };
  const Status done = interpret(k, {bytes(x), bytes(y)});
  EXPECT_TRUE(done.ok()) << done.error().message;
  return y;
}

/// The most horizontal reductions that one body holds: rows side by side.
int side_by_side(const Kernel& k) {
  int most = 0;
  const auto count = [&](const Body& body) {
    int here = 0;
    for (const Stmt& s : body)
      for_each_value_of(s,
                        [&](const Value& v) { here += std::holds_alternative<LaneReduce>(v->op); });
    most = std::max(most, here);
  };
  for_each_stmt(k.body, [&](const Stmt& s) {
    if (const For* x = std::get_if<For>(&s.op)) count(*x->body);
    if (const Let* x = std::get_if<Let>(&s.op)) count(*x->body);
  });
  return most;
}

void expect_same(const std::string& text, int rows) {
  const auto k = parse_kernel(text);
  ASSERT_TRUE(k.ok()) << k.error().message;
  ASSERT_TRUE(verify(*k).ok()) << verify(*k).error().message;
  const Kernel jammed = with_rows_side_by_side(*k);
  const Status valid = verify(jammed);
  ASSERT_TRUE(valid.ok()) << valid.error().message << "\n" << to_string(jammed);
  EXPECT_EQ(side_by_side(jammed), rows) << to_string(jammed);
  const Tensor want = result(*k), got = result(jammed);
  for (std::int64_t i = 0; i < want.count(); ++i) ASSERT_EQ(got.at(i), want.at(i)) << i;
}

TEST(Jam, ComputesTheSame) { expect_same(std::string(kRows), 4); }

/// The last task has fewer rows; its odd ones go alone.
TEST(Jam, RaggedTasks) {
  for (const int tasks : {2, 3, 5}) {
    const int each = (13 + tasks - 1) / tasks;
    std::string text =
        replaced(std::string(kRows), "d0 in 0..1 ", fmt::format("d0 in 0..{} ", tasks));
    text = replaced(
        text, "for serial d1 in 0..13 {",
        fmt::format("for serial d7 in 0..{0} {{\n let d1 = d0*{0} + d7 in 0..13 {{", each));
    expect_same(text + "}\n", each < 4 ? 2 : 4);
  }
}

/// A sum over all rows so far, a result that the next row reads, what is used behind the loop, and
/// more accumulators than registers.
TEST(Jam, RowsThatDependOnEachOtherStayInOrder) {
  const std::string text(kRows);
  expect_same(
      replaced(
          replaced(text, "      for vector d2 in 0..8 {\n        b2[d2] = f32(0)\n      }\n", ""),
          "    for serial d1",
          "    for vector d2 in 0..8 {\n b2[d2] = f32(0)\n }\n    for serial d1"),
      1);
  expect_same(replaced(text, "exp.f32(load.f32 b0[d1*24 + d3*8 + d4])",
                       "exp.f32(load.f32 b1[d1*24 + d3*8 + d4])"),
              1);
  expect_same(replaced(text, "    }\n  }\n}\n", "    }\n    b1[0] = load.f32 b3[0]\n  }\n}\n"), 1);
  std::string wide = replaced(text, "f32[8] lane lanes=8", "f32[80] lane lanes=8");
  expect_same(wide, 1);
}

/// Few rows, or nothing that has to wait for lanes to meet.
TEST(Jam, OnlyWhereItHelps) {
  const std::string text(kRows);
  expect_same(replaced(text, "d1 in 0..13", "d1 in 0..1"), 1);
  expect_same(replaced(text, "lanes_sum.f32 b2[0]", "f32(2)"), 0);
}

}  // namespace
}  // namespace heddle::kernel

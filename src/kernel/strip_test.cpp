#include "kernel/strip.h"

#include <gtest/gtest.h>

namespace heddle::kernel {
namespace {

/// Rows of b0 times a vector, five tasks of two rows but for the last; `offset`: of the matrix.
std::string read(const std::string& offset, const std::string& more = "") {
  const auto k = parse_kernel(fmt::format(R"(kernel "rows" vars=4 {{
  buffer b0 "w" f32[63] grid arg=0
  buffer b1 "i" i64[1] grid arg=1
  buffer b2 "y" f32[63] grid arg=2 written
  for grid d0 in 0..5 {{
    for serial d1 in 0..2 {{
      let d2 = 2*d0 + d1 in 0..9 {{
        for serial d3 in 0..7 {{
          b2[7*d2 + d3] = load.f32 b0[{}{}]
        }}
      }}
    }}
  }}
}}
)",
                                          offset, more));
  EXPECT_TRUE(k.ok()) << k.error().message;
  if (!k) return "";
  const auto strip = strip_of(*k, std::get<For>(k->body[0].op), BufferId{0});
  if (!strip) return strip.error().message;
  return fmt::format("{}+{}t, {}", strip->begin, strip->step, strip->count);
}

TEST(Strip, TasksGoThroughInOrder) { EXPECT_EQ(read("7*d2 + d3"), "0+14t, 14"); }

TEST(Strip, WhatTasksDoNotGoThroughInOrderHasAReason) {
  EXPECT_EQ(read("d2 + 9*d3"), "tasks do not read one piece after the other");
  EXPECT_EQ(read("56 - 7*d2 + d3"), "tasks do not read one piece after the other");
  EXPECT_EQ(read("d3"), "all tasks read the same");
  EXPECT_EQ(read("7*d0 + d1"), "tasks leave out what lies between their pieces");
  EXPECT_EQ(read("0", "; load.i64 b1[0] : 9 * 7"), "values decide what is read");
}

TEST(Strip, WhatIsWrittenStaysWhereItIs) {
  const auto k = parse_kernel(R"(kernel "own" vars=1 {
  buffer b0 "x" f32[4] grid arg=0 written
  for grid d0 in 0..4 {
    b0[d0] = add.f32(load.f32 b0[d0], f32(1))
  }
}
)");
  ASSERT_TRUE(k.ok()) << k.error().message;
  EXPECT_EQ(strip_of(*k, std::get<For>(k->body[0].op), BufferId{0}).error().message, "is written");
}

}  // namespace
}  // namespace heddle::kernel

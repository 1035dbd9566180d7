#include "kernel/footprint_check.h"
#include "kernel/test_util.h"

#include <gtest/gtest.h>

namespace heddle::kernel {
namespace {

std::vector<Touch> touches(const Kernel& k, std::int64_t shares) {
  return touches_of(k, std::get<For>(k.body[0].op), shares);
}
using Intervals = std::vector<ir::Interval>;

// Rows of a 3-point stencil: neighbours of a share's rows are read, too.
constexpr std::string_view kRowStencil = R"(kernel "stencil" vars=2 {
  buffer b0 "x" f32[40] grid arg=0
  buffer b1 "y" f32[40] grid arg=1 written
  for grid d0 in 0..10 {
    for serial d1 in 0..4 {
      b1[4*d0 + d1] = add.f32(guard.f32(0 <= d0 - 1 < 10; load.f32 b0[4*d0 + d1 - 4]; f32(0)), guard.f32(0 <= d0 + 1 < 10; load.f32 b0[4*d0 + d1 + 4]; f32(0)))
    }
  }
}
)";

TEST(Footprint, StencilReadsItsNeighbours) {
  const Kernel k = parsed(kRowStencil);
  const std::vector<Touch> t = touches(k, 5);
  ASSERT_EQ(t.size(), 2U);
  EXPECT_FALSE(t[0].write);
  EXPECT_EQ(t[0].shares, (Intervals{{0, 11}, {4, 19}, {12, 27}, {20, 35}, {28, 39}}));
  EXPECT_TRUE(t[1].write);
  EXPECT_EQ(t[1].shares, (Intervals{{0, 7}, {8, 15}, {16, 23}, {24, 31}, {32, 39}}));
  EXPECT_EQ(touches(k, 1)[1].shares, (Intervals{{0, 39}}));
  EXPECT_EQ(touches(k, 99)[1].shares.size(), 10U);
}

// A task number that is decoded into a block of rows and one of columns; all read the table.
constexpr std::string_view kTiles = R"(kernel "tiles" vars=3 {
  buffer b0 "x" f32[32] grid arg=0
  buffer b1 "t" i64[2] grid arg=1
  buffer b2 "y" f32[32] grid arg=2 written
  for grid d0 in 0..8 {
    let d1 = d0/2 in 0..4 {
      for serial d2 in 0..4 {
        b2[8*d1 + 4*(d0%2) + d2] = mul.f32(load.f32 b0[8*d1 + d2], load.f32 b0[0; load.i64 b1[1] : 4 * 2])
      }
    }
  }
}
)";

TEST(Footprint, DecodedTasks) {
  const Kernel k = parsed(kTiles);
  const std::vector<Touch> t = touches(k, 4);
  ASSERT_EQ(t.size(), 3U);
  // The looked-up element may be any of 0, 2, 4, 6.
  EXPECT_EQ(t[0].shares, (Intervals{{0, 6}, {0, 11}, {0, 19}, {0, 27}}));
  EXPECT_EQ(t[1].shares, (Intervals{{1, 1}}));
  EXPECT_EQ(t[2].shares, (Intervals{{0, 7}, {8, 15}, {16, 23}, {24, 31}}));
}

TEST(Footprint, HoldsUnderTheInterpreter) {
  for (const std::string_view text : {kRowStencil, kTiles}) {
    const Kernel k = parsed(text);
    for (const std::int64_t shares : {1, 3, 8}) {
      std::vector<std::vector<std::byte>> memory;
      for (const Buffer& b : k.buffers) memory.emplace_back(b.size * size_of(b.dtype));
      const Status held = check_touches(k, {memory.begin(), memory.end()}, shares);
      EXPECT_TRUE(held.ok()) << held.error().message;
    }
  }
}

std::vector<Touch> without_halo(const Kernel& k, const For& phase, std::int64_t shares) {
  std::vector<Touch> touches = touches_of(k, phase, shares);
  touches[0].shares = touches[1].shares;
  return touches;
}
std::vector<Touch> first_half(const Kernel& k, const For& phase, std::int64_t shares) {
  std::vector<Touch> touches = touches_of(k, phase, shares);
  for (ir::Interval& share : touches[1].shares) share.high = (share.low + share.high) / 2;
  return touches;
}

TEST(Footprint, CheckFindsWhatIsLeftOut) {
  const Kernel k = parsed(kRowStencil);
  std::vector<float> x(40, 1), y(40);
  const auto bytes = [](std::vector<float>& v) { return std::as_writable_bytes(std::span(v)); };
  ASSERT_TRUE(check_touches(k, {bytes(x), bytes(y)}, 3).ok());
  EXPECT_FALSE(check_touches(k, {bytes(x), bytes(y)}, 3, &without_halo).ok());
  EXPECT_FALSE(check_touches(k, {bytes(x), bytes(y)}, 3, &first_half).ok());
}

}  // namespace
}  // namespace heddle::kernel

#include <gtest/gtest.h>

#include <algorithm>

#include "codegen/cuda/cuda.h"

namespace heddle::codegen::cuda {
namespace {

kernel::Kernel parsed(std::string_view text) {
  auto k = kernel::parse_kernel(text);
  EXPECT_TRUE(k.ok()) << (k.ok() ? "" : k.error().message);
  return k.ok() ? *k : kernel::Kernel{};
}

// Two rows of 64 by a block of two warps, in vectors of four.
constexpr std::string_view kRows = R"(kernel "rows" vars=6 {
  buffer b0 "x" f16[130] grid arg=0
  buffer b1 "y" f32[128] grid arg=1 written
  buffer b2 "acc" f32[1] lane
  buffer b3 "first" f32[8] block
  buffer b4 "second" f32[8] block
  for grid d0 in 0..2 {
    for thread d1 in 0..64 {
      let d2 = d0*64 + d1 in 0..127 {
        b2[0] = load.f32 b0[d2]
      }
      if 0 <= d1 < 8 {
        b3[d1] = load.f32 b2[0]
      }
      combine max b2[0..1] over 64 by 1
      if 0 <= d1 < 8 {
        b4[d1] = load.f32 b2[0]
      }
      if 0 <= d1 < 16 {
        for vector d3 in 0..4 {
          b1[d0*64 + d1*4 + d3] = add.f32(load.f32 b0[d0*64 + d1*4 + d3], load.f32 b0[d0*64 + d1*4 + d3 + 2])
        }
      }
    }
  }
}
)";

TEST(CudaText, SaysHowToLaunch) {
  const auto text = to_text(parsed(kRows), "k7");
  ASSERT_TRUE(text.ok()) << text.error().message;
  ASSERT_EQ(text->phases.size(), 1u);
  EXPECT_EQ(text->phases[0].symbol, "k7_0");
  EXPECT_EQ(text->phases[0].tasks, 2);
  EXPECT_EQ(text->phases[0].threads, 64);
  // `first` and `second` share 32 bytes, since the combination is a barrier; 64 floats combine.
  EXPECT_EQ(text->phases[0].shared_bytes, 32 + 64 * 4);
  EXPECT_EQ(to_text(parsed(kRows), "k7")->text, text->text);
}

TEST(CudaText, AccessesVectorsOnlyWhereAligned) {
  const auto text = to_text(parsed(kRows), "k");
  ASSERT_TRUE(text.ok()) << text.error().message;
  EXPECT_NE(text->text.find("hd::load_vec<4>(b0 + (d0 * 64 + d1 * 4))"), std::string::npos)
      << text->text;
  EXPECT_EQ(text->text.find("load_vec<4>(b0 + (d0 * 64 + d1 * 4 + 2)"), std::string::npos);
  EXPECT_NE(text->text.find("hd::store_vec(b1 + (d0 * 64 + d1 * 4)"), std::string::npos);
}

TEST(CudaText, RoundsInRegisters) {
  const auto text = to_text(parsed(R"(kernel "round" vars=2 {
  buffer b0 "x" f32[64] grid arg=0 written
  for grid d0 in 0..2 {
    for thread d1 in 0..32 {
      b0[d0*32 + d1] = round_bf16.f32(round_f16.f32(load.f32 b0[d0*32 + d1]))
    }
  }
}
)"),
                            "k");
  ASSERT_TRUE(text.ok()) << text.error().message;
  EXPECT_NE(text->text.find("hd::round_f16("), std::string::npos) << text->text;
  EXPECT_NE(text->text.find("hd::round_bf16("), std::string::npos);
}

TEST(CudaText, RefusesTasksWithoutThreads) {
  const auto text = to_text(parsed(R"(kernel "cpu" vars=1 {
  buffer b0 "x" f32[2] grid arg=0 written
  for grid d0 in 0..2 {
    b0[d0] = f32(1)
  }
}
)"),
                            "k");
  ASSERT_FALSE(text.ok());
  EXPECT_NE(text.error().message.find("without threads"), std::string::npos);
}

TEST(CudaText, StagesAreFunctionsOverTasks) {
  const auto text = to_stages(parsed(R"(kernel "scale" vars=3 {
  buffer b0 "x" f32[1024] grid arg=0
  buffer b1 "y" f32[1024] grid arg=1 written
  for grid d0 in 0..8 {
    for thread d1 in 0..128 {
      b1[d0*128 + d1] = add.f32(load.f32 b0[d0*128 + d1], load.f32 b0[d0*128 + d1])
    }
  }
}
)"),
                              "s", {4});
  ASSERT_TRUE(text.ok()) << text.error().message;
  const std::string stage = R"(HD_STAGE void s_0(const hd::f32* __restrict__ b0,
    hd::f32* __restrict__ b1,
    int first, int last) {
  hd::assume_global(b0, b1);
  hd::f32 b2[1];  // kept
  hd::f32 b3[1];  // kept
  hd::f32 b4[1];  // kept
  hd::f32 b5[1];  // kept
  int d0 = first;
  for (; d0 + 3 < last; d0 += 4) {
)";
  const std::string call = R"(HD_FN void s_0_stage(void* const* args, int first, int last) {
  s_0(static_cast<const hd::f32*>(args[0]), static_cast<hd::f32*>(args[1]), first, last);
}
)";
  EXPECT_NE(text->text.find(stage), std::string::npos) << text->text;
  // Four tasks: all loads, then all stores; what is left task by task.
  const std::size_t rest = text->text.find("for (; d0 < last; ++d0) {");
  ASSERT_NE(rest, std::string::npos);
  EXPECT_LT(text->text.rfind("b0[", rest), text->text.find("b1[")) << text->text;
  EXPECT_EQ(text->text.find("b0[", rest) > text->text.find("b1["), true) << text->text;
  EXPECT_NE(text->text.find(call), std::string::npos) << text->text;
  EXPECT_EQ(std::ssize(text->origins), std::ranges::count(text->text, '\n'));
  EXPECT_EQ(monolith_text({{"s_0"}}, "m", 256, 2), R"(
extern "C" __global__ void __launch_bounds__(256, 2) m(const __grid_constant__ hd::Monolith m) {
  hd::monolith_walk(m, [](int function, void* const* args, int first, int last) {
    switch (function) {
      case 0:
        return s_0_stage(args, first, last);
    }
  });
}
)");
  // Threads of a stage meet without the others of the block.
  const auto rows = to_stages(parsed(kRows), "r");
  ASSERT_TRUE(rows.ok()) << rows.error().message;
  EXPECT_EQ(rows->text.find("block_sync"), std::string::npos) << rows->text;
  EXPECT_NE(rows->text.find("hd::named_sync(1, 64);"), std::string::npos) << rows->text;
  EXPECT_NE(rows->text.find(", hdk::Threads<64>{}"), std::string::npos) << rows->text;
}

}  // namespace
}  // namespace heddle::codegen::cuda

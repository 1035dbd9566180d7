#include "codegen/cpu/test_util.h"

namespace heddle::codegen::cpu {
namespace {

TEST(Stream, LargeOutputsAlignedOrNot) {
  Machine m = host_machine();
  m.stream_bytes = 4096;
  const std::int64_t lanes = m.vector_bytes / 4;  // only whole registers are streamed
  const kernel::Kernel k = parsed(fmt::format(R"(kernel "stream" vars=3 {{
  buffer b0 "x" f32[4100] grid arg=0
  buffer b1 "y" f32[4100] grid arg=1 written
  for grid d0 in 0..4 {{ for serial d1 in 0..{0} {{ for vector d2 in 0..{1} {{
    b1[d0*1024 + d1*{1} + d2] = add.f32(load.f32 b0[d0*1024 + d1*{1} + d2], f32(1)) }} }} }}
}})",
                                              1024 / lanes, lanes));
#if defined(__x86_64__)
  if (m.vector_bytes >= 32) {
    EXPECT_NE(to_assembly_text(k, m)->find("vmovntps"), std::string::npos);
  }
#endif
  EXPECT_EQ(to_assembly_text(k, host_machine())->find("vmovntps"), std::string::npos);
  const Compiled code(k, m);
  Tensor x({DType::f32, {4200}}), y({DType::f32, {4200}});
  for (std::int64_t i = 0; i < 4200; ++i) x.set(i, static_cast<double>(i));
  for (const std::size_t shift : {0, 4}) {
    code.run({x.mutable_data(), y.mutable_data() + shift});
    const auto* got = reinterpret_cast<const float*>(y.data() + shift);
    for (std::size_t i = 0; i < 4096; ++i) ASSERT_EQ(got[i], static_cast<float>(i + 1));
  }
}

/// Part of a register past the caches, beside ordinary stores to the same line, is slow.
TEST(Stream, OnlyWholeRegisters) {
  const kernel::Kernel k = parsed(R"(kernel "tails" vars=3 {
  buffer b0 "y" f32[4100] grid arg=0 written
  for grid d0 in 0..4 { for serial d1 in 0..128 { for vector d2 in 0..2 {
    b0[d0*1024 + d1*8 + d2] = f32(1) } } }
})");
  for (Machine m : machines()) {
    m.stream_bytes = 4096;
    EXPECT_EQ(to_assembly_text(k, m)->find("movnt"), std::string::npos) << m.cpu;
  }
}

/// Rows read along an unrolled variable while the lanes run down the columns.
TEST(Transpose, BlocksOfEveryTypeAndWidth) {
  for (const char* type : {"f32", "f64", "f16", "bf16", "i64", "i32", "u8", "i16", "b1"})
    for (const int width : {4, 8, 16})
      for (const int begin : {0, 1}) {
        const kernel::Kernel k = parsed(fmt::format(
            R"(kernel "t" vars=4 {{
  buffer b0 "x" {0}[{1}] grid arg=0
  buffer b1 "y" {0}[{1}] grid arg=1 written
  for grid d0 in 0..3 {{ for serial d1 in {3}..2 {{ for unroll d3 in 0..{2} {{ for vector d2 in 0..{2} {{
    b1[d0*{4} + d1*{2} + d3*{5} + d2] = load.{6} b0[d0*{4} + d2*{5} + d1*{2} + d3] }} }} }} }}
}})",
            type, 3 * width * width * 2, width, begin, width * width * 2, width * 2,
            std::string(type) == "f16" || std::string(type) == "bf16" ? "f32" : type));
        for (const Machine& m : machines()) check(k, m, 0, 7);
#if defined(__x86_64__)
        if (std::string(type) != "f32" || width != 8) continue;
        const auto avx2 = machine_named("avx2");
        EXPECT_NE(to_assembly_text(k, *avx2)->find("vunpcklps"), std::string::npos);
#endif
      }
}

/// Rows outside, some of them outside of the buffer, are zeros: a filter's window over an image, of
/// which the lanes are positions and the unrolled variable the channels; whole vectors and tails,
/// conditions on lanes, on loops around and on both.
TEST(Transpose, RowsUnderConditions) {
  for (const int lanes : {8, 16, 5})
    for (const char* inside : {"1 <= d2 + d1 < 9", "1 <= d2 + d1 < 9 & 1 <= d0 + d4 < 3",
                               "0 <= d2 + d1 + d4 < 12 & 1 <= d2 + d1 < 11", "1 <= d0 < 3"}) {
      const kernel::Kernel k = parsed(fmt::format(
          R"(kernel "w" vars=5 {{
  buffer b0 "x" f32[1024] grid arg=0
  buffer b1 "y" f32[8192] grid arg=1 written
  for grid d0 in 0..4 {{ for serial d4 in 0..2 {{ for serial d1 in 0..3 {{
    for unroll d3 in 0..16 {{ for vector d2 in 0..{0} {{
      b1[d0*2048 + d4*1024 + d1*256 + d3*16 + d2] = guard.f32({1} & 0 <= d0*4 + d2 + d1 - 1 < 20 ;
        load.f32 b0[d0*64 + d2*16 + d1*16 + d3 - 16]; f32(0)) }} }} }} }} }}
}})",
          lanes, inside));
      ASSERT_TRUE(kernel::verify(k).ok()) << kernel::verify(k).error().message;
      for (const Machine& m : machines()) check(k, m, 0, 7);
    }
}

/// Blocks of one buffer from one place on, whose rows lie differently far apart; rows that run only
/// where a condition that is decided while unrolling holds, with nothing behind them.
TEST(Transpose, BlocksThatBeginAlike) {
  const kernel::Kernel apart = parsed(R"(kernel "apart" vars=3 {
  buffer b0 "x" f32[1024] grid arg=0
  buffer b1 "y" f32[256] grid arg=1 written
  for grid d0 in 0..1 { for unroll d1 in 0..16 { for vector d2 in 0..16 {
    b1[d1*16 + d2] = sub.f32(load.f32 b0[d2*32 + d1], load.f32 b0[d2*48 + d1]) } } }
})");
  const kernel::Kernel some = parsed(R"(kernel "some" vars=4 {
  buffer b0 "x" f32[520] grid arg=0
  buffer b1 "y" f32[1024] grid arg=1 written
  for grid d0 in 0..2 { for unroll d1 in 0..16 { for vector d2 in 0..16 {
    b1[d0*256 + d1*16 + d2] = guard.f32(0 <= d1 < 8 ; guard.f32(0 <= d0*16 + d2 - 1 < 32 ;
      load.f32 b0[d0*256 + d2*16 + d1]; f32(0)); f32(2)) } } }
})");
  for (const kernel::Kernel* k : {&apart, &some}) {
    ASSERT_TRUE(kernel::verify(*k).ok()) << kernel::verify(*k).error().message;
    for (const Machine& m : machines()) check(*k, m, 0, 7);
  }
}

/// Columns under a condition that are the same each time round the loop are made before it, where
/// its scope is not.
TEST(Transpose, ColumnsBeforeALoop) {
  const kernel::Kernel k = parsed(R"(kernel "before" vars=4 {
  buffer b0 "x" f32[256] grid arg=0
  buffer b1 "z" f32[64] grid arg=1
  buffer b2 "y" f32[1024] grid arg=2 written
  for grid d0 in 0..1 { for serial d1 in 0..4 { for unroll d3 in 0..16 { for vector d2 in 0..16 {
    b2[d1*256 + d3*16 + d2] = add.f32(load.f32 b1[d1*16 + d2],
      guard.f32(1 <= d2 < 9 ; load.f32 b0[d2*16 + d3]; f32(0))) } } } }
})");
  ASSERT_TRUE(kernel::verify(k).ok()) << kernel::verify(k).error().message;
  for (const Machine& m : machines()) check(k, m, 0, 7);
}

/// Rows that are there only where a condition holds, which nothing is read before.
TEST(Transpose, RowsThatAConditionProves) {
  const kernel::Kernel k = parsed(R"(kernel "proven" vars=5 {
  buffer b0 "x" f32[512] grid arg=0
  buffer b1 "y" f32[2048] grid arg=1 written
  for grid d0 in 0..1 { for serial d1 in 0..4 { if 1 <= d1 < 3 { for serial d4 in 0..2 {
    for unroll d3 in 0..16 { for vector d2 in 0..16 {
      b1[d1*512 + d4*256 + d3*16 + d2] = load.f32 b0[d1*256 + d2*16 + d3 - 256] } } } } } }
})");
  ASSERT_TRUE(kernel::verify(k).ok()) << kernel::verify(k).error().message;
  for (const Machine& m : machines()) check(k, m, 0, 7);
#if defined(__x86_64__)
  EXPECT_NE(to_assembly_text(k, *machine_named("avx2"))->find("vunpcklps"), std::string::npos);
#endif
}

/// A loop's rows add the same vector, which is converted once, before it.
TEST(Vectors, SameEachTimeRound) {
  const kernel::Kernel k = parsed(R"(kernel "rows" vars=3 {
  buffer b0 "x" f32[1024] grid arg=0
  buffer b1 "bias" bf16[16] grid arg=1
  buffer b2 "y" f32[1024] grid arg=2 written
  for grid d0 in 0..1 { for serial d1 in 0..64 {
    for vector d2 in 0..16 { b2[d1*16 + d2] = add.f32(load.f32 b0[d1*16 + d2], load.f32 b1[d2]) }
  } }
})");
  for (const Machine& m : machines()) check(k, m, 0);
#if defined(__x86_64__)
  const std::string code = *to_assembly_text(k, *machine_named("x86-64-v4"));
  const std::size_t converts = code.find("vpmovzxwd"), loop = code.find("vaddps");
  ASSERT_NE(converts, std::string::npos);
  const std::string between = code.substr(converts, loop - converts);
  EXPECT_NE(between.find(":"), std::string::npos) << between;  // the label of the loop
#endif
}

}  // namespace
}  // namespace heddle::codegen::cpu

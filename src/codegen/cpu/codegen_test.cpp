#include <chrono>
#include <cmath>
#include <sstream>

#include "codegen/cpu/test_util.h"
#include "ir/philox.h"

namespace heddle::codegen::cpu {
namespace {

struct Case {
  std::string name;
  std::string text;
  double tolerance = 1e-5;
};

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

TEST(Prefetch, ChangesNothingEvenOutsideTheBuffer) {
  const kernel::Kernel k = parsed(R"(kernel "hints" vars=3 {
  buffer b0 "x" f32[256] grid arg=0
  buffer b1 "y" f32[256] grid arg=1 written
  for grid d0 in 0..4 { for serial d1 in 0..8 {
    for vector d2 in 0..8 { b1[d0*64 + d1*8 + d2] = load.f32 b0[d0*64 + d1*8 + d2] }
    prefetch b0[d0*640000 - d1*1000 - 5]
    prefetch b0[d0*640000 - d1*1000 - 5] far page
  } }
})");
  for (const Machine& m : machines()) {
    check(k, m, 0);
#if defined(__x86_64__)
    for (const char* hint : {"prefetcht0", "prefetcht1"})
      EXPECT_NE(to_assembly_text(k, m)->find(hint), std::string::npos);
#endif
  }
}

/// In machine code where the processor has tile registers; the accumulators' buffer grows, too.
TEST(TileProduct, AsTheInterpreterHasIt) {
  for (const auto& [rows, columns] : {std::pair{32, 32}, {17, 32}, {16, 64}, {5, 96}, {33, 16}}) {
    const kernel::Kernel k = parsed(fmt::format(
        R"(kernel "product" vars=7 {{
  buffer b0 "a" f32[6144] grid arg=0
  buffer b1 "b" i32[6144] grid arg=1
  buffer b2 "y" f32[{2}] grid arg=2 written
  buffer b3 "rows" bf16[6144] block
  buffer b4 "acc" f32[{2}] block
  for grid d0 in 0..1 {{
    for serial d1 in 0..384 {{ for vector d2 in 0..16 {{ b3[d1*16 + d2] = load.f32 b0[d1*16 + d2] }} }}
    tiles b4[0] = b3[0 by 512, 2048] * b1[0 by 1536, 256] rows {0} columns {1} depth 96 terms 512 1536, 0 0 fetch b1[64] rows 3 by 48 lines 3 far page fetch b2[0] rows 20 by 16 lines 1
    tiles b4[0] += b3[0 by 512, 2048] * b1[0 by 1536, 256] rows {0} columns {1} depth 64 terms 0 0
    for serial d5 in 0..3 {{
      tiles b4[0] += b3[64 by 512, 2048] * b1[256 by 1536, 256] rows {0} columns {1} depth 96 terms 0 0, 128 0 along d5 fetch b0[32] rows 7 by 16 lines 1
      for serial d6 in 0..2 {{ b2[d5*2 + d6] = load.f32 b0[d5] }}
    }}
    for serial d3 in 0..{3} {{ for vector d4 in 0..16 {{ b2[d3*16 + d4] = load.f32 b4[d3*16 + d4] }} }}
  }}
}})",
        rows, columns, rows * columns, rows * columns / 16));
    ASSERT_TRUE(kernel::verify(k).ok()) << kernel::verify(k).error().message;
#if defined(__x86_64__)
    const auto named = machine_named("sapphirerapids");
    ASSERT_TRUE(named.ok() && named->tiles);
    EXPECT_NE(to_assembly_text(k, *named)->find("tdpbf16ps"), std::string::npos);
#endif
    if (!host_machine().tiles) continue;
    std::mt19937 random(3);
    std::vector<float> a(6144), y(static_cast<std::size_t>(rows * columns)), want(y);
    std::vector<std::uint32_t> b(6144);
    const auto value = [&] { return static_cast<float>(random() % 16) / 8 - 1; };
    for (float& x : a) x = value();
    for (std::uint32_t& x : b)
      x = f32_to_bf16(value()) | static_cast<std::uint32_t>(f32_to_bf16(value())) << 16;
    Compiled(k).run({a.data(), b.data(), y.data()});
    const auto bytes = [](auto& v) { return std::as_writable_bytes(std::span(v)); };
    ASSERT_TRUE(kernel::interpret(k, {bytes(a), bytes(b), bytes(want)}).ok());
    EXPECT_EQ(y, want) << rows << " x " << columns;
  }
}

/// Bytes: each pair of signs, rows where they lie, sums that go on.
TEST(TileProduct, OfBytesAsTheInterpreterHasIt) {
  for (const auto& [a, b] : {std::pair{"u8", "i8"}, {"i8", "u8"}, {"u8", "u8"}, {"i8", "i8"}}) {
    const kernel::Kernel k = parsed(fmt::format(
        R"(kernel "product" vars=5 {{
  buffer b0 "a" {0}[8192] grid arg=0
  buffer b1 "b" i32[2048] grid arg=1
  buffer b2 "y" i32[640] grid arg=2 written
  buffer b3 "acc" i32[640] block
  for grid d0 in 0..1 {{
    tiles b3[0] = {0} b0[3 by 64, 3200] * {1} b1[0 by 512, 256] rows 20 by 200 columns 32 depth 128 terms 0 0
    tiles b3[0] += {0} b0[70 by 64, 3200] * {1} b1[512 by 512, 256] rows 20 by 200 columns 32 depth 192 terms 0 0
    for serial d3 in 0..40 {{ for vector d4 in 0..16 {{ b2[d3*16 + d4] = load.i32 b3[d3*16 + d4] }} }}
  }}
}})",
        a, b));
    ASSERT_TRUE(kernel::verify(k).ok()) << kernel::verify(k).error().message;
#if defined(__x86_64__)
    const auto text = to_assembly_text(k, *machine_named("sapphirerapids"));
    EXPECT_NE(
        text->find(fmt::format("tdpb{}{}d", a[0] == 'u' ? 'u' : 's', b[0] == 'u' ? 'u' : 's')),
        std::string::npos);
#endif
    if (!host_machine().tiles) continue;
    std::vector<std::uint8_t> rows(8192), columns(8192);
    std::mt19937 random(3);
    for (std::uint8_t& x : rows) x = static_cast<std::uint8_t>(random());
    for (std::uint8_t& x : columns) x = static_cast<std::uint8_t>(random());
    std::vector<std::int32_t> y(640), want(640);
    Compiled(k).run({rows.data(), columns.data(), y.data()});
    const auto bytes = [](auto& v) { return std::as_writable_bytes(std::span(v)); };
    ASSERT_TRUE(kernel::interpret(k, {bytes(rows), bytes(columns), bytes(want)}).ok());
    EXPECT_EQ(y, want) << a << " by " << b;
  }
}

/// Buffers x (f32[256], or `in`) and y (f32[256], written), and one grid loop of three tasks d0.
std::string kernel_text(const std::string& buffers, const std::string& body, int vars = 12) {
  return fmt::format("kernel \"case\" vars={} {{\n{}\nfor grid d0 in 0..3 {{\n{}\n}}\n}}", vars,
                     buffers, body);
}
std::string plain(const std::string& body) {
  return kernel_text(
      "buffer b0 \"x\" f32[256] grid arg=0\n"
      "buffer b1 \"y\" f32[256] grid arg=1 written\n"
      "buffer b2 \"acc\" f32[32] lane lanes=8\n"
      "buffer b3 \"s\" f32[4] lane\n"
      "buffer b4 \"tile\" f32[64] block\n"
      "buffer b5 \"i\" i64[64] grid arg=2\n",
      body);
}

const Case kCases[] = {
    {"tails", plain(R"(for vector d1 in 0..8 { b1[d0*64 + d1] = load.f32 b0[d0*64 + d1] }
      for vector d2 in 0..3 { b1[d0*64 + d2 + 8] = mul.f32(load.f32 b0[d2 + 40], load.f32 b0[40]) }
      for vector d3 in 0..5 { b1[d0*64 + d3 + 11] = add.f32(load.f32 b0[d3 + 1], f32(1)) }
      for vector d4 in 0..7 { b1[d0*64 + d4 + 16] = neg.f32(load.f32 b0[d4 + 249]) }
      for vector d5 in 0..1 { b1[d0*64 + d5 + 23] = neg.f32(load.f32 b0[d5 + 255]) }
      for vector d6 in 0..13 { b1[d0*64 + d6 + 24] = load.f32 b0[d6 + 243] }
      for vector d7 in 0..16 { b1[d0*64 + d7 + 40] = load.f32 b0[d7 + 240] })")},
    {"begins", plain(R"(for serial d1 in 3..7 { for vector d2 in 4..12 {
        b1[d0*64 + d1*8 + d2 - 28] = add.f32(load.f32 b0[d1*8 + d2], cast.f32(index.i64(d1*100 + d2*3))) } }
      for serial d3 in 5..5 { b1[0] = f32(9) }
      for unroll d4 in 2..4 { for serial d5 in 1..2 { b1[d0*64 + d4 + d5 + 40] = cast.f32(index.i64(d4*7 + d5)) } })")},
    {"strides", plain(R"(for vector d1 in 0..8 { b1[d0*64 + d1] = load.f32 b0[d0 + d1*2] }
      for vector d2 in 0..8 { b1[d0*64 + d2 + 8] = load.f32 b0[d0 + d2*3] }
      for vector d3 in 0..8 { b1[d0*64 + d3 + 16] = load.f32 b0[d0 - d3 + 7] }
      for vector d4 in 0..8 { b1[d0*64 + d4 + 24] = load.f32 b0[d4 / 2 + 252] }
      for vector d5 in 0..8 { b1[d0*64 + d5 + 32] = load.f32 b0[d5 % 4 * 16 + d0] }
      for vector d6 in 0..8 { b1[d0*64 + d6 + 40] = load.f32 b0[(d6 + d0) / 3 * 7 + (d6 + d0) % 3] }
      for vector d7 in 0..6 { b1[d0*64 + d7 + 48] = load.f32 b0[d7 * 2 + 245] })")},
    {"stores", plain(R"(for vector d1 in 0..8 { b1[d0*64 + d1*2 + 1] = load.f32 b0[d1] }
      for vector d2 in 0..8 { b1[d0*64 - d2 + 31] = load.f32 b0[d2] }
      for vector d3 in 0..8 { b1[d0*64 + 40] = load.f32 b0[d3] }
      for vector d4 in 0..8 { if 2 <= d4 + d0 < 6 { b1[d0*64 + d4 + 41] = load.f32 b0[d4] } }
      for vector d5 in 0..5 { if 1 <= d5 < 4 { b1[d0*64 + d5*2 + 50] = load.f32 b0[d5] } }
      if 1 <= d0 < 2 { b1[d0*64 + 62] = f32(5) })")},
    {"guards",
     plain(
         R"(for vector d1 in 0..8 { b1[d0*64 + d1] = guard.f32(0 <= d0*3 + d1 - 4 < 9; load.f32 b0[d0*3 + d1 - 4]; f32(-1)) }
      for vector d2 in 0..8 { b1[d0*64 + d2 + 8] = guard.f32(1 <= d0 < 2; load.f32 b0[d2 + d0*64 - 64]; f32(2)) }
      for vector d3 in 0..5 { b1[d0*64 + d3 + 16] = guard.f32(0 <= d0 - 1 < 9 & 0 <= d3 - 2 < 9; add.f32(load.f32 b0[d3 - 2], load.f32 b0[d0*255 - 255]); load.f32 b0[d3]) }
      for vector d4 in 0..8 { b1[d0*64 + d4 + 24] = guard.f32(250 <= d4 + 246 + d0 < 254; load.f32 b0[(d4 + 246 + d0 - 250) * 7]; load.f32 b0[d4]) }
      b1[d0*64 + 63] = guard.f32(0 <= d0 - 1 < 5; load.f32 b0[d0 - 1]; f32(7)))")},
    {"guard_in_loop", plain(R"(for vector d1 in 0..8 { b2[d1] = f32(0) }
      for serial d2 in 0..5 { for serial d3 in 0..5 { for vector d4 in 0..8 {
        b2[d4] = add.f32(load.f32 b2[d4], guard.f32(0 <= d2 + d0 - 1 < 4 & 0 <= d3 - 1 < 3; load.f32 b0[d2*8 + d0*8 - 8 + d4 + d3*2 - 2]; f32(0.5))) } } }
      for vector d5 in 0..8 { b1[d0*64 + d5] = load.f32 b2[d5] })")},
    {"gather",
     plain(
         R"(for vector d1 in 0..8 { b1[d0*64 + d1] = load.f32 b0[d1; load.i64 b5[d1 + d0] : 10 * 8] }
      for vector d2 in 0..8 { b1[d0*64 + d2 + 8] = load.f32 b0[d2; load.i64 b5[d0] : 10 * 8] }
      for vector d3 in 0..5 { b1[d0*64 + d3 + 16] = load.f32 b0[0; load.i64 b5[d3] : 4 * 1; load.i64 b5[d0 + 9] : 6 * 20] }
      for vector d4 in 0..8 { b1[d0*64 + d4 + 24] = guard.f32(3 <= d4 < 6; load.f32 b0[d4 - 3; load.i64 b5[d4 - 3] : 10 * 3]; f32(0)) }
      b1[d0*64 + 60] = load.f32 b0[d0; load.i64 b5[d0] : 10 * 8])")},
    {"scatter",
     plain(R"(for vector d1 in 0..8 { b1[d0*64 + d1; load.i64 b5[d1] : 5 * 8] = load.f32 b0[d1] }
      for serial d2 in 0..9 { b1[d0*64 + 50; load.i64 b5[d2] : 3 * 2] = load.f32 b0[d2] })")},
    {"row_norm",
     plain(
         R"(for vector d1 in 0..8 { b2[d1] = f32(0) b2[d1 + 8] = f32(-1000) b2[d1 + 16] = f32(1000) }
      for serial d2 in 0..4 { for vector d3 in 0..8 { let %0 = load.f32 b0[d0*40 + d2*8 + d3]
        b2[d3] = add.f32(load.f32 b2[d3], %0) b2[d3 + 8] = max.f32(load.f32 b2[d3 + 8], %0) b2[d3 + 16] = min.f32(%0, load.f32 b2[d3 + 16]) } }
      for vector d4 in 0..5 { let %1 = load.f32 b0[d0*40 + d4 + 32]
        b2[d4] = add.f32(load.f32 b2[d4], %1) b2[d4 + 8] = max.f32(load.f32 b2[d4 + 8], %1) b2[d4 + 16] = min.f32(%1, load.f32 b2[d4 + 16]) }
      b3[0] = lanes_sum.f32 b2[0] b3[1] = lanes_max.f32 b2[8] b3[2] = lanes_min.f32 b2[16]
      for serial d5 in 0..4 { for vector d6 in 0..8 {
        b1[d0*40 + d5*8 + d6] = add.f32(mul.f32(load.f32 b0[d0*40 + d5*8 + d6], load.f32 b3[0]), sub.f32(load.f32 b3[1], load.f32 b3[2])) } })")},
    {"prefix_sum", plain(R"(b1[d0*64] = load.f32 b0[d0*64]
      for serial d1 in 1..64 { b1[d0*64 + d1] = add.f32(load.f32 b1[d0*64 + d1 - 1], load.f32 b0[d0*64 + d1]) }
      b1[d0*64] = add.f32(load.f32 b1[d0*64], load.f32 b1[d0*64 + 63]))")},
    {"stale_values", plain(R"(let %0 = mul.f32(load.f32 b4[d0], f32(2))
      for unroll d1 in 0..64 { b4[d1] = load.f32 b0[d1] }
      for serial d2 in 0..4 { b1[d0*64 + d2] = %0 b4[d0] = add.f32(%0, f32(1)) b1[d0*64 + d2 + 8] = %0
        if 1 <= d2 < 3 { b4[d0] = f32(3) b1[d0*64 + d2 + 16] = %0 } b1[d0*64 + d2 + 24] = %0 }
      b1[d0*64 + 40] = %0)")},
    {"gemm_tile",
     plain(
         R"(for unroll d1 in 0..2 { for unroll d2 in 0..2 { for vector d3 in 0..8 { b2[d1*16 + d2*8 + d3] = f32(0) } } }
      for serial d4 in 0..12 { for unroll d5 in 0..2 { for unroll d6 in 0..2 { for vector d7 in 0..8 {
        b2[d5*16 + d6*8 + d7] = add.f32(load.f32 b2[d5*16 + d6*8 + d7], mul.f32(load.f32 b0[d0*24 + d5*12 + d4], load.f32 b0[d4*16 + d6*8 + d7])) } } } }
      for unroll d8 in 0..2 { for unroll d9 in 0..2 { for vector d10 in 0..8 { b1[d0*64 + d8*32 + d9*8 + d10] = max.f32(load.f32 b2[d8*16 + d9*8 + d10], f32(0)) } } })")},
    {"index_data", plain(R"(for vector d1 in 0..8 {
        b1[d0*64 + d1] = cast.f32(index.i64((d1 * 5 + d0 - 9) / 4))
        b1[d0*64 + d1 + 8] = cast.f32(index.i64((d1 * 5 + d0 - 9) % 4))
        b1[d0*64 + d1 + 16] = cast.f32(index.i64(min(d1, d0 + 3) + max(d1 - 2, d0))) }
      for serial d2 in 0..8 { b1[d0*64 + d2 + 24] = cast.f32(index.i64((d2 - d0 * 3) / 5 + (d2 - d0 * 3) % 5)) })")},
    {"select", plain(R"(for vector d1 in 0..8 { let %0 = load.f32 b0[d0*64 + d1]
        b1[d0*64 + d1] = select.f32(less.b1(%0, f32(0)), exp.f32(%0), select.f32(greater.b1(%0, load.f32 b0[0]), f32(1), %0)) })")},
    // LLVM 19 takes this for one VPDPBUSD and forgets to add its four sums up.
    {"sixteen_products_of_bytes", R"(kernel "sixteen products of bytes" vars=4 {
  buffer b0 "x" u8[48] grid arg=0
  buffer b1 "w" i8[48] grid arg=1
  buffer b2 "y" i32[3] grid arg=2 written
  buffer b3 "acc" i32[16] lane lanes=16
  for grid d0 in 0..3 {
    for vector d1 in 0..16 { b3[d1] = mul.i32(cast.i32(load.u8 b0[d0*16 + d1]), cast.i32(load.i8 b1[d0*16 + d1])) }
    b2[d0] = lanes_sum.i32 b3[0]
  }
})"},
    {"bound_variables", plain(R"(for serial d1 in 0..3 { let d2 = d0*3 + d1 - 1 in 0..6 {
        b3[0] = f32(0)
        for serial d3 in 0..4 { b3[0] = add.f32(load.f32 b3[0], load.f32 b0[d2*40 + d3]) }
        for serial d4 in 0..2 { for vector d5 in 0..8 {
          b1[d2*16 + d4*8 + d5] = add.f32(load.f32 b3[0], load.f32 b0[d2*32 + d4*8 + d5]) } }
        for unroll d6 in 0..2 { let d7 = d2*2 + d6 in 3..11 { b1[d7 + 128] = cast.f32(index.i64(d7)) } }
      } }
      if 0 <= d0 - 2 < 1 { for vector d8 in 0..5 { b1[d8 + 200] = load.f32 b0[d8] } })")},
    {"two_phases", R"(kernel "two phases" vars=8 {
  buffer b0 "x" f32[64] grid arg=0
  buffer b1 "y" f32[64] grid arg=1 written
  buffer b2 "t" f32[64] grid
  buffer b3 "u" i32[64] grid
  for grid d0 in 0..8 { for vector d1 in 0..8 { b2[d0*8 + d1] = exp.f32(load.f32 b0[d0*8 + d1]) b3[d0*8 + d1] = cast.i32(index.i64(d0)) } }
  barrier grid
  for grid d2 in 2..10 { for vector d3 in 0..8 { b1[d2*8 + d3 - 16] = add.f32(load.f32 b2[79 - d2*8 - d3], cast.f32(load.i32 b3[d2*8 + d3 - 16])) } }
})"},
    {"mixed_lanes", R"(kernel "mixed lanes" vars=8 {
  buffer b0 "x" f32[64] grid arg=0
  buffer b1 "y" f64[64] grid arg=1 written
  buffer b2 "a" f64[8] lane lanes=4
  buffer b3 "b" f32[8] lane lanes=8
  buffer b4 "c" b1[8] lane lanes=8
  for grid d0 in 0..8 {
    for vector d1 in 0..8 { b3[d1] = load.f32 b0[d0*8 + d1] b4[d1] = less.b1(load.f32 b0[d0*8 + d1], f32(1)) }
    for unroll d2 in 0..2 { for vector d3 in 0..4 { b2[d2*4 + d3] = cast.f64(select.f32(load.b1 b4[d2*4 + d3], load.f32 b3[d2*4 + d3], f32(8))) } }
    for vector d4 in 0..3 { b2[d4] = add.f64(load.f64 b2[d4], f64(1)) }
    for unroll d5 in 0..2 { for vector d6 in 0..4 { b1[d0*8 + d5*4 + d6] = load.f64 b2[d5*4 + d6] } }
    b1[d0*8 + 7] = lanes_prod.f64 b2[4]
  }
})"},
};

class Kernels : public testing::TestWithParam<Case> {};
TEST_P(Kernels, AgreeWithTheInterpreter) {
  const kernel::Kernel k = parsed(GetParam().text);
  for (const Machine& m : machines()) {
    SCOPED_TRACE(m.cpu);
    check(k, m, GetParam().tolerance);
  }
}
INSTANTIATE_TEST_SUITE_P(Rows, Kernels, testing::ValuesIn(kCases),
                         [](const auto& info) { return info.param.name; });

constexpr DType kTypes[] = {DType::f32, DType::f64, DType::f16, DType::bf16, DType::i8,
                            DType::i16, DType::i32, DType::i64, DType::u8,   DType::u16,
                            DType::u32, DType::u64, DType::b1};

/// y[i] = expression of %0 = a[i] and %1 = b[i], with tails.
std::string map_text(DType in, DType out, const std::string& expression) {
  const std::string loads =
      fmt::format("let %0 = load.{0} b0[d0*17 + {1}] let %1 = load.{0} b1[d0*17 + {1}]",
                  name_of(compute_type(in)), "{}");
  const auto part = [&](const std::string& at) {
    return fmt::format(fmt::runtime(loads), at, at) +
           fmt::format(" b2[d0*17 + {}] = {}\n", at, expression);
  };
  return kernel_text(fmt::format("buffer b0 \"a\" {0}[51] grid arg=0\nbuffer b1 \"b\" {0}[51] grid "
                                 "arg=1\nbuffer b2 \"y\" {1}[51] grid arg=2 written",
                                 name_of(in), name_of(out)),
                     "for vector d1 in 0..8 { " + part("d1") + "} for vector d2 in 0..7 { " +
                         part("d2 + 8") + "} for serial d3 in 15..17 { " + part("d3") + "}");
}

TEST(Functions, OfEveryType) {
  const std::vector<Machine> all = machines();
  for (const DType type : kTypes) {
    const std::string t(name_of(compute_type(type)));
    for (int i = 0; i < ir::kScalarFnCount; ++i) {
      const auto fn = static_cast<ir::ScalarFn>(i);
      const ir::ScalarFnInfo& f = ir::info(fn);
      const bool bits = f.name.starts_with("bit_") || f.name.starts_with("shift_");
      if (f.name.starts_with("dot") && type != DType::i32) continue;
      if (fn == ir::ScalarFn::random_bits && type != DType::i64) continue;
      if (fn == ir::ScalarFn::cast || fn == ir::ScalarFn::bitcast || (bits && is_float(type)))
        continue;
      if (!is_float(type) && (ir::float_only(fn) || type == DType::b1)) continue;
      const DType out = f.gives_bool ? DType::b1 : type;
      std::string e = fmt::format("{}.{}(%0", f.name, name_of(compute_type(out)));
      if (f.arity == 2) e += ", %1";
      if (fn == ir::ScalarFn::select) e = fmt::format("select.{0}(less.b1(%0, %1), %0, %1", t);
      SCOPED_TRACE(e);
      const double tolerance = type == DType::f16 ? 2e-3 : type == DType::bf16 ? 2e-2 : 1e-5;
      const kernel::Kernel k = parsed(map_text(type, out, e + ")"));
      check(k, all[static_cast<std::size_t>(i) % all.size()], tolerance);
    }
  }
}

TEST(Functions, CastsBetweenAllTypes) {
  for (const DType from : kTypes) {
    for (const DType to : kTypes) {
      const std::string scale =
          is_float(from) ? fmt::format("mul.{0}(%0, {0}(37.25))", name_of(compute_type(from)))
                         : "%0";
      const std::string e = fmt::format("cast.{}({})", name_of(compute_type(to)), scale);
      SCOPED_TRACE(fmt::format("{} to {}", name_of(from), name_of(to)));
      check(parsed(map_text(from, to, e)), host_machine(),
            to == DType::f16    ? 2e-3
            : to == DType::bf16 ? 2e-2
                                : 1e-6);
    }
  }
}

/// In registers, in vectors and alone: exact, to infinity, to denormals.
TEST(Functions, RoundTo16Bits) {
  for (const DType type : {DType::f32, DType::f64})
    for (const char* fn : {"round_f16", "round_bf16"})
      for (const int exponent : {0, 14, 15, -12, -23, 100, 126, -126}) {
        const std::string t(name_of(type));
        const std::string e =
            fmt::format("mul.{0}({1}.{0}(mul.{0}(%0, {0}({2}))), {0}({3}))", t, fn,
                        std::ldexp(1.0, exponent), std::ldexp(1.0, -exponent));
        SCOPED_TRACE(e);
        for (const Machine& m : machines()) check(parsed(map_text(type, type, e)), m, 0);
      }
}

/// Vectors and single elements, beyond every bound, infinite and not a number, bounded or not.
TEST(Functions, CastsToIntegersSaturate) {
  for (const DType from : {DType::f32, DType::f64})
    for (const DType to : kTypes) {
      if (!is_int(to)) continue;
      const std::string f(name_of(from)), t(name_of(to));
      for (const char* x :
           {"mul.{0}(%0, {0}(3e9))", "mul.{0}(%0, {0}(1e20))", "div.{0}(%0, {0}(0))",
            "mul.{0}(div.{0}(%0, {0}(0)), {0}(0))",
            "min.{0}(max.{0}(mul.{0}(%0, {0}(300)), {0}(-128)), {0}(127))",
            "min.{0}(max.{0}(div.{0}(%0, {0}(0)), {0}(0)), {0}(255))",
            "min.{0}(max.{0}(mul.{0}(div.{0}(%0, {0}(0)), {0}(0)), {0}(-1)), {0}(9))",
            "min.{0}(max.{0}(round.{0}(mul.{0}(%0, {0}(256))), {0}(-128)), {0}(127))",
            "min.{0}(max.{0}(round.{0}(div.{0}(%0, {0}(0))), {0}(0)), {0}(255))",
            "max.{0}(min.{0}(round.{0}(mul.{0}(%0, {0}(256))), {0}(200)), {0}(7))",
            "min.{0}(max.{0}(round.{0}(mul.{0}(%0, {0}(256))), {0}(0.5)), {0}(99.5))",
            "min.{0}(max.{0}(round.{0}(mul.{0}(div.{0}(%0, {0}(0)), {0}(0))), {0}(0)), {0}(9))"}) {
        const std::string e = fmt::format("cast.{}({})", t, fmt::format(fmt::runtime(x), f));
        SCOPED_TRACE(e);
        // The interpreter's product is not rounded to f32.
        for (const Machine& m : machines()) check(parsed(map_text(from, to, e)), m, 1e-6);
      }
    }
}

/// Registers of every width: one instruction rounds, halves to even, and NaN is 0.
TEST(Functions, BoundedValuesAreRoundedToBytesAtOnce) {
  for (const char* x : {"%0", "add.f32(%0, f32(0.5))", "div.f32(%0, f32(0))"})
    for (const int lanes : {4, 8, 16, 32}) {
      const std::string e = fmt::format(
          "cast.u8(min.f32(max.f32(round.f32(mul.f32({}, f32(64))), f32(0)), f32(255)))", x);
      const std::string text = fmt::format(R"(kernel "bytes" vars=2 {{
  buffer b0 "x" f32[{0}] grid arg=0
  buffer b1 "y" u8[{0}] grid arg=1 written
  for grid d0 in 0..3 {{ for vector d1 in 0..{1} {{
    let %0 = load.f32 b0[d0*{1} + d1] b1[d0*{1} + d1] = {2} }} }}
}})",
                                           3 * lanes, lanes, e);
      SCOPED_TRACE(text);
      for (const Machine& m : machines()) check(parsed(text), m, 0);
#if defined(__x86_64__)
      Machine m = host_machine();
      if (m.vector_bytes < 4 * lanes) continue;
      const std::string code = *to_assembly_text(parsed(text), m);
      EXPECT_NE(code.find("cvtps2dq"), std::string::npos);
      EXPECT_EQ(code.find("vrndscaleps"), std::string::npos);
      EXPECT_EQ(code.find("vroundps"), std::string::npos);
#endif
    }
}

/// Neighbours as halves of one integer, in vectors, alone, and where they are no neighbours.
TEST(Functions, HalvesOfNeighbours) {
  const auto halves = [](const std::string& low, const std::string& high) {
    return fmt::format(
        "bit_or.i32(bit_and.i32(cast.i32(load.i16 b0[{}]), i32(65535)), "
        "shift_left.i32(cast.i32(load.i16 b0[{}]), i32(16)))",
        low, high);
  };
  const std::string at = "d0*17 + ";
  const auto line = [&](const std::string& i, const std::string& low, const std::string& high) {
    return fmt::format("b1[{}{}] = dot2.i32({}, i32(-65533)) ", at, i, halves(low, high));
  };
  const kernel::Kernel k = parsed(kernel_text(
      "buffer b0 \"a\" i16[120] grid arg=0\nbuffer b1 \"y\" i32[51] grid arg=1 written",
      "for vector d1 in 0..8 { " + line("d1", "d0*34 + d1*2", "d0*34 + d1*2 + 1") +
          "} for vector d2 in 0..5 { " + line("d2 + 8", "d0*34 + d2*2 + 16", "d0*34 + d2*2 + 17") +
          "} for serial d3 in 13..15 { " + line("d3", "d0*34 + d3*2", "d0*34 + d3*2 + 1") +
          "} for serial d4 in 15..17 { " + line("d4", "d0*34 + d4", "d0*34 + d4 + 3") + "}"));
  for (const Machine& m : machines()) check(k, m, 0);
}

/// Products of bf16 in pairs, as vectors of several widths and alone, added to a sum.
TEST(Functions, ProductsOfHalves) {
  const std::string word =
      "bit_or.i32(bit_and.i32(shift_right.i32(bitcast.i32(load.f32 b0[{0}]), i32(16)), "
      "i32(65535)), "
      "shift_left.i32(shift_right.i32(bitcast.i32(load.f32 b0[{1}]), i32(16)), i32(16)))";
  const auto line = [&](const std::string& i, const std::string& low, const std::string& high) {
    const std::string w = fmt::format(fmt::runtime(word), low, high);
    const auto half = [&](const std::string& bits) { return "bitcast.f32(" + bits + ")"; };
    const std::string lo = half("shift_left.i32(" + w + ", i32(16))");
    const std::string hi = half("bit_and.i32(" + w + ", i32(-65536))");
    return fmt::format(
        "b1[d0*17 + {0}] = add.f32(f32(0.5), add.f32(mul.f32({1}, {1}), "
        "mul.f32({2}, {2}))) ",
        i, lo, hi);
  };
  const kernel::Kernel k = parsed(kernel_text(
      "buffer b0 \"a\" bf16[120] grid arg=0\nbuffer b1 \"y\" f32[51] grid arg=1 written",
      "for vector d1 in 0..8 { " + line("d1", "d0*34 + d1*2", "d0*34 + d1*2 + 1") +
          "} for vector d2 in 0..5 { " + line("d2 + 8", "d0*34 + d2*2 + 16", "d0*34 + d2*2 + 17") +
          "} for serial d3 in 13..15 { " + line("d3", "d0*34 + d3*2", "d0*34 + d3*2 + 1") +
          "} for serial d4 in 15..17 { " + line("d4", "d0*34 + d4", "d0*34 + d4 + 3") + "}"));
  for (const Machine& m : machines()) check(k, m, 1e-6);
}

TEST(Functions, BitcastsKeepTheBits) {
  for (const auto& [a, b] : {std::pair{DType::f32, DType::u32}, std::pair{DType::f64, DType::i64}})
    for (const auto& [from, to] : {std::pair{a, b}, std::pair{b, a}}) {
      SCOPED_TRACE(fmt::format("{} to {}", name_of(from), name_of(to)));
      check(parsed(map_text(from, to, fmt::format("bitcast.{}(%0)", name_of(to)))), host_machine(),
            0);
    }
}

TEST(Functions, NansPropagateThroughMinAndMax) {
  for (const char* e :
       {"max.f32(%0, %1)", "min.f32(%0, %1)", "max.f32(%0, f32(0))", "max.f32(f32(0), %0)"}) {
    const Compiled code(parsed(map_text(DType::f32, DType::f32, e)));
    std::vector<float> a(51, 1), b(51, 2), y(51);
    for (std::size_t i = 0; i < 51; i += 3) a[i] = NAN;
    for (std::size_t i = 1; i < 51; i += 3) b[i] = NAN;
    code.run({a.data(), b.data(), y.data()});
    for (std::size_t i = 0; i < 51; ++i) {
      const bool uses_b = std::string_view(e).find("%1") != std::string_view::npos;
      EXPECT_EQ(std::isnan(y[i]), i % 3 == 0 || (uses_b && i % 3 == 1)) << e << " at " << i;
    }
  }
}

TEST(Random, IsThePhiloxOfTheReference) {
  const Compiled code(parsed(
      kernel_text("buffer b0 \"y\" f32[48] grid arg=0 written",
                  "for vector d1 in 0..8 { b0[d0*16 + d1] = random_uniform.f32(42; d0*8 + d1)\n"
                  "b0[d0*16 + d1 + 8] = random_normal.f32(42; d0*8 + d1) }")));
  std::vector<float> y(48);
  code.run({y.data()});
  for (std::uint64_t i = 0; i < 24; ++i) {
    const float* at = y.data() + i / 8 * 16 + i % 8;
    EXPECT_EQ(at[0], static_cast<float>(ir::philox_uniform(42, i)));
    EXPECT_FLOAT_EQ(at[8], static_cast<float>(ir::philox_normal(42, i)));
  }
}

TEST(Routine, SortsStablyWithNanLast) {
  const auto sorted = [](int descending, int count) {
    const Compiled code(parsed(fmt::format(R"(kernel "sort" vars=3 {{
  buffer b0 "x" f32[8] grid arg=0
  buffer b1 "y" i64[8] grid arg=1 written
  buffer b2 "k" f32[8] block
  buffer b3 "p" i64[8] block
  for grid d0 in 0..1 {{
    for serial d1 in 0..8 {{ b2[d1] = load.f32 b0[d1] }}
    routine heddle_sort(b2, b3; 8, {}, {}, 0)
    for serial d2 in 0..{} {{ b1[d2] = load.i64 b3[d2] }}
  }}
}})",
                                           count, descending, count)));
    std::vector<float> x = {2, NAN, 1, 2, -3, INFINITY, 1, 0};
    std::vector<std::int64_t> y(8, -1);
    code.run({x.data(), y.data()});
    return y;
  };
  using P = std::vector<std::int64_t>;
  EXPECT_EQ(sorted(0, 8), (P{4, 7, 2, 6, 0, 3, 5, 1}));
  EXPECT_EQ(sorted(1, 8), (P{1, 5, 0, 3, 2, 6, 7, 4}));
  EXPECT_EQ(sorted(1, 3), (P{1, 5, 0, -1, -1, -1, -1, -1}));
}

TEST(Compile, ManyKernelsInOneObjectFromManyThreads) {
  std::vector<kernel::Kernel> kernels;
  for (const Case& c : kCases) kernels.push_back(parsed(c.text));
  const Machine m = host_machine();
  std::vector<std::string> objects(4);
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < objects.size(); ++t) {
    threads.emplace_back([&, t] {
      auto object = compile(kernels, m, fmt::format("o{}_", t));
      ASSERT_TRUE(object.ok());
      objects[t] = object->bytes;
      EXPECT_EQ(object->kernels.size(), kernels.size());
    });
  }
  for (std::thread& t : threads) t.join();
  auto module = load(objects);
  ASSERT_TRUE(module.ok()) << module.error().message;
  EXPECT_NE((*module)->find("o0_0_case_p0"), nullptr);
  EXPECT_NE((*module)->find("o3_0_case_p0"), nullptr);
  EXPECT_EQ((*module)->find("o4_0_case_p0"), nullptr);
}

TEST(Compile, IsDeterministic) {
  const kernel::Kernel k = parsed(kCases[0].text);
  const Machine m = host_machine();
  EXPECT_EQ(compile({&k, 1}, m, "a")->bytes, compile({&k, 1}, m, "a")->bytes);
  EXPECT_EQ(cache_key({&k, 1}, m), cache_key({&k, 1}, m));
  const kernel::Kernel other = parsed(kCases[1].text);
  EXPECT_NE(cache_key({&k, 1}, m), cache_key({&other, 1}, m));
}

#if defined(__x86_64__)
/// Whether spilled vectors straddle cache lines would else depend on the thread's stack.
TEST(Compile, SpilledVectorsAreAligned) {
  const kernel::Kernel k = parsed(R"(kernel "spills" vars=12 {
  buffer b0 "x" f32[4096] grid arg=0
  buffer b1 "y" f32[2560] grid arg=1 written
  buffer b2 "acc" f32[640] lane lanes=16
  for grid d0 in 0..4 {
    for unroll d1 in 0..40 { for vector d2 in 0..16 { b2[d1*16 + d2] = f32(0) } }
    for serial d3 in 0..64 { for unroll d4 in 0..40 { for vector d5 in 0..16 {
      b2[d4*16 + d5] = add.f32(load.f32 b2[d4*16 + d5],
                               mul.f32(load.f32 b0[d3*16 + d5], load.f32 b0[d3*40 + d4]))
    } } }
    for unroll d6 in 0..40 { for vector d7 in 0..16 {
      b1[d0*640 + d6*16 + d7] = load.f32 b2[d6*16 + d7]
    } }
  } }
)");
  const auto m = machine_named("avx512");
  ASSERT_TRUE(m.ok());
  const auto text = to_assembly_text(k, *m);
  ASSERT_TRUE(text.ok());
  int aligned = 0;
  std::istringstream lines(*text);
  for (std::string line; std::getline(lines, line);) {
    if (line.find("%rsp") == std::string::npos || line.find("%zmm") == std::string::npos) continue;
    EXPECT_EQ(line.find("vmovup"), std::string::npos) << line;
    aligned += line.find("vmovap") != std::string::npos;
  }
  EXPECT_GT(aligned, 0) << *text;
}

/// 28 accumulators of a convolution's tile, through four loops and a second set of steps.
TEST(Compile, AccumulatorsStayInRegisters) {
  const kernel::Kernel k = parsed(R"(kernel "tile" vars=26 {
  buffer b0 "y" f32[802816] grid arg=1 written
  buffer b1 "box" f32[80379] block
  buffer b2 "panels" f32[9408] grid arg=0
  buffer b3 "acc" f32[448] lane lanes=16
  buffer b4 "b" f32[32] lane lanes=16
  buffer b5 "a" f32[1] lane
  for grid d0 in 0..2 {
    for serial d1 in 0..3 { for serial d2 in 115..117 {
      if 227 <= d0*112 + d2 < 229 {
        for serial d3 in 0..14 { for vector d4 in 0..16 {
          b1[d1*26793 + d2*229 + d3*16 + d4] = f32(0)
        } }
      }
    } }
    for serial d5 in 0..2 { for serial d6 in 0..56 { for serial d7 in 0..8 {
      for unroll d8 in 0..14 { for unroll d9 in 0..2 { for vector d10 in 0..16 {
        b3[d8*32 + d9*16 + d10] = f32(0)
      } } }
      for serial d11 in 0..3 { for serial d12 in 0..7 {
        for serial d13 in 0..3 {
          for unroll d14 in 0..2 {
            for unroll d15 in 0..2 { for vector d16 in 0..16 {
              b4[d15*16 + d16] =
                  load.f32 b2[d5*4704 + d11*1568 + d12*224 + d13*64 + d14*32 + d15*16 + d16]
            } }
            for unroll d17 in 0..14 {
              b5[0] = load.f32 b1[d6*458 + d7*28 + d11*26793 + d12*229 + d13*2 + d14 + d17*2]
              for unroll d18 in 0..2 { for vector d19 in 0..16 {
                b3[d17*32 + d18*16 + d19] =
                    add.f32(load.f32 b3[d17*32 + d18*16 + d19],
                            mul.f32(load.f32 b5[0], load.f32 b4[d18*16 + d19]))
              } }
            }
          }
          prefetch b2[d5*4704 + d6*128 + d7*16 + ((d11*49 + d12*7 + d13*2) / 128)*16 + 4704]
        }
        for unroll d20 in 0..14 { for unroll d21 in 0..2 { for vector d22 in 0..16 {
          b3[d20*32 + d21*16 + d22] = add.f32(load.f32 b3[d20*32 + d21*16 + d22],
                                              mul.f32(load.f32 b5[0], load.f32 b4[d21*16 + d22]))
        } } }
      } }
      for unroll d23 in 0..14 { for unroll d24 in 0..2 { for vector d25 in 0..16 {
        b0[d0*401408 + d5*32 + d6*7168 + d7*896 + d23*64 + d24*16 + d25] =
            load.f32 b3[d23*32 + d24*16 + d25]
      } } }
    } } }
  }
}
)");
  const auto m = machine_named("avx512");
  ASSERT_TRUE(m.ok());
  const auto text = to_assembly_text(k, *m);
  ASSERT_TRUE(text.ok());
  int on_stack = 0;
  std::istringstream lines(*text);
  for (std::string line; std::getline(lines, line);)
    on_stack += line.find("%rsp") != std::string::npos && line.find("%zmm") != std::string::npos;
  EXPECT_LT(on_stack, 28) << *text;
}
#endif

TEST(Compile, OtherMachinesCode) {
#if defined(__x86_64__)
  const kernel::Kernel k = parsed(kCases[0].text);
  auto m = machine_named("x86-64-v4");
  ASSERT_TRUE(m.ok());
  EXPECT_EQ(m->vector_bytes, 64);
  EXPECT_EQ(m->vector_registers, 32);
  const auto text = to_assembly_text(k, *m);
  ASSERT_TRUE(text.ok());
  EXPECT_NE(text->find("zmm"), std::string::npos) << "16 lanes of f32 fill one register";
  const std::pair<const char*, int> levels[] = {{"sse", 16}, {"avx2", 32}, {"avx512", 64}};
  for (const auto& [level, bytes] : levels) {
    m = machine_named(level);
    ASSERT_TRUE(m.ok()) << level;
    EXPECT_EQ(m->vector_bytes, bytes);
    EXPECT_TRUE(to_assembly_text(k, *m).ok());
  }
#endif
  EXPECT_FALSE(machine_named("no such processor").ok());
}

TEST(Compile, EveryCaseForEveryVectorWidth) {
#if defined(__x86_64__)
  std::vector<kernel::Kernel> kernels;
  for (const Case& c : kCases) kernels.push_back(parsed(c.text));
  for (const char* name : {"x86-64", "x86-64-v2", "x86-64-v3", "x86-64-v4", "znver4"}) {
    auto m = machine_named(name);
    ASSERT_TRUE(m.ok()) << name;
    EXPECT_TRUE(compile(kernels, *m, "w").ok()) << name;
  }
#endif
}

TEST(Load, HundredKernelsInTime) {
  std::vector<kernel::Kernel> kernels;
  while (kernels.size() < 100)
    kernels.push_back(parsed(kCases[kernels.size() % std::size(kCases)].text));
  auto object = compile(kernels, host_machine(), "h");
  ASSERT_TRUE(object.ok());
  double best = 1e9;
  for (int i = 0; i < 5; ++i) {
    const auto start = std::chrono::steady_clock::now();
    ASSERT_TRUE(load({&object->bytes, 1}).ok());
    best = std::min(
        best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  std::printf("100 kernels, %zu bytes: loaded in %.2f ms\n", object->bytes.size(), best * 1e3);
  EXPECT_LT(best, 0.1);
}

TEST(Load, DamagedObjectsAreErrors) {
  const kernel::Kernel k = parsed(kCases[0].text);
  std::string bytes = compile({&k, 1}, host_machine(), "a")->bytes;
  for (const std::string& bad : {std::string(), std::string("junk"), bytes.substr(0, 100)}) {
    EXPECT_FALSE(load({&bad, 1}).ok());
  }
}

}  // namespace
}  // namespace heddle::codegen::cpu

#include "codegen/cpu/test_util.h"

namespace heddle::codegen::cpu {
namespace {

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
  struct Shape {
    int rows, columns;
    const char* wide = "";
    int terms = 32;  // of a step
  };
  for (const auto& [rows, columns, wide, terms] :
       {Shape{32, 32}, Shape{17, 32}, Shape{16, 64}, Shape{5, 96}, Shape{33, 16},
        Shape{20, 32, "wide 24 ", 12}, Shape{16, 48, "wide 60 ", 30},
        Shape{16, 16, "wide 4 ", 2}}) {
    const kernel::Kernel k = parsed(fmt::format(
        R"(kernel "product" vars=7 {{
  buffer b0 "a" f32[6144] grid arg=0
  buffer b1 "b" i32[6144] grid arg=1
  buffer b2 "y" f32[{2}] grid arg=2 written
  buffer b3 "rows" bf16[6144] block
  buffer b4 "acc" f32[{2}] block
  for grid d0 in 0..1 {{
    for serial d1 in 0..384 {{ for vector d2 in 0..16 {{ b3[d1*16 + d2] = load.f32 b0[d1*16 + d2] }} }}
    tiles b4[0] = b3[0 by 512, 2048] * b1[0 by 1536, 256] rows {0} {4}columns {1} depth {5} terms 512 1536, 0 0 fetch b1[64] rows 3 by 48 lines 3 far page fetch b2[0] rows 20 by 16 lines 1
    tiles b4[0] += b3[0 by 512, 2048] * b1[0 by 1536, 256] rows {0} {4}columns {1} depth {6} terms 0 0
    for serial d5 in 0..3 {{
      tiles b4[0] += b3[64 by 512, 2048] * b1[256 by 1536, 256] rows {0} {4}columns {1} depth {5} terms 0 0, 128 0 along d5 fetch b0[32] rows 7 by 16 lines 1
      for serial d6 in 0..2 {{ b2[d5*2 + d6] = load.f32 b0[d5] }}
    }}
    for serial d3 in 0..{3} {{ for vector d4 in 0..16 {{ b2[d3*16 + d4] = load.f32 b4[d3*16 + d4] }} }}
  }}
}})",
        rows, columns, rows * columns, rows * columns / 16, wide, 3 * terms, 2 * terms));
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

}  // namespace
}  // namespace heddle::codegen::cpu

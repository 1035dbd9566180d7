// Lanes that lie apart, or are chosen by conditions, and elements of tables of bytes.
#include <fmt/format.h>

#include "codegen/cpu/test_util.h"

namespace heddle::codegen::cpu {
namespace {

constexpr const char* kStored[] = {"f32", "f64", "f16", "bf16", "i64", "u8", "i16", "b1"};
std::string computed(std::string_view stored) {
  return stored == "f16" || stored == "bf16" ? "f32" : std::string(stored);
}

/// Distances of a few elements in what is read and in what is written, forwards and backwards,
/// whole vectors and tails. Only the lanes' own elements are written: the other ones keep theirs.
TEST(Lanes, ThatLieApart) {
  for (const char* type : kStored)
    for (const int lanes : {16, 13, 5})
      for (const auto& [read, written] :
           {std::pair{2, 1}, {1, 2}, {2, 2}, {4, 3}, {-3, 4}, {7, -2}, {9, 5}, {0, 3}}) {
        const kernel::Kernel k = parsed(fmt::format(
            R"(kernel "t" vars=3 {{
  buffer b0 "x" {0}[1024] grid arg=0
  buffer b1 "y" {0}[1024] grid arg=1 written
  for grid d0 in 0..3 {{ for serial d1 in 0..2 {{ for vector d2 in 0..{2} {{
    b1[d0*300 + d1*90 + d2*{4} + 100] = load.{1} b0[d0*256 + d1*9 + d2*{3} + 60] }} }} }}
}})",
            type, computed(type), lanes, read, written));
        for (const Machine& m : machines()) check(k, m, 0, 5);
      }
}

/// Lanes that repeat elements of one vector around them (groups of channels), in buffers of whole
/// blocks and others, from the first element to the last, under conditions: nothing outside is
/// read.
TEST(Lanes, ThatAreOfOneVector) {
  for (const char* type : kStored)
    for (const int lanes : {16, 13, 8})
      for (const int group : {4, 8, 16})
        for (const int size : {192, 188, 195}) {
          const int most = (size - lanes / group * group - group) / 16;
          const kernel::Kernel k = parsed(fmt::format(
              R"(kernel "t" vars=4 {{
  buffer b0 "x" {0}[{4}] grid arg=0
  buffer b1 "y" {0}[8192] grid arg=1 written
  for grid d0 in 0..12 {{ if 0 <= d0 < {5} {{ for serial d1 in 0..{3} {{
    for vector d2 in 0..{2} {{
      b1[d0*512 + d1*32 + d2] = load.{1} b0[d0*16 + d2/{3}*{3} + d1] }}
    for vector d3 in 0..{2} {{ if 16 <= d0*16 + d1 < 999 {{
      b1[d0*512 + d1*32 + d3 + 16] = load.{1} b0[d0*16 - 16 + d3/{3}*{3} + d1] }} }}
  }} }} }}
}})",
              type, computed(type), lanes, group, size, most + 1));
          for (const Machine& m : machines()) check(k, m, 0, 5);
        }
}

/// Lanes that conditions choose, which nothing but the lane decides, or loops around only within
/// ranges: pieces of a concatenation that channels are shuffled out of.
TEST(Lanes, ThatConditionsChoose) {
  for (const char* type : kStored)
    for (const int lanes : {16, 13, 7}) {
      const kernel::Kernel k = parsed(fmt::format(
          R"(kernel "t" vars=8 {{
  buffer b0 "x" {0}[512] grid arg=0
  buffer b1 "z" {0}[512] grid arg=1
  buffer b2 "y" {0}[2048] grid arg=2 written
  for grid d0 in 0..3 {{
    for vector d1 in 0..{2} {{
      b2[d0*600 + d1*2] = guard.{1}(0 <= (d1 + 1) / 2 + (d1 + 1) % 2 * 29 < 24; load.{1} b0[d0*40 + (d1 + 1) / 2 + (d1 + 1) % 2 * 29];
        guard.{1}(2 <= d1 < 99; load.{1} b1[d0*20 + d1*3]; load.{1} b1[d0])) }}
    for serial d2 in 0..29 {{ for vector d3 in 0..{2} {{
      b2[d0*600 + d2 + d3*29 + 40] = guard.{1}(0 <= d3*29 + d2 < 232; load.{1} b0[d3*29 + d2];
        guard.{1}(232 <= d3*29 + d2 < 464; load.{1} b1[d3*29 + d2 - 232]; load.{1} b1[d2])) }} }}
    for vector d4 in 0..{2} {{ if 3 <= d4 < 9 {{ b2[d0*600 + d4*3 + 530] = load.{1} b0[d4*2] }} }}
  }}
}})",
          type, computed(type), lanes));
      for (const Machine& m : machines()) check(k, m, 0, 6);
    }
}

/// Words of bytes side by side, the last lanes' beyond what a condition allows: one masked load.
TEST(Lanes, SomeWordsOfBytes) {
  const auto byte = [](int i) {
    const auto element = fmt::format("cast.i32(load.u8 b0[d0*40 + d1*4 + {}])", i);
    return i == 3 ? element : fmt::format("bit_and.i32({}, i32(255))", element);
  };
  std::string word = byte(0);
  for (const int i : {1, 2, 3})
    word = fmt::format("bit_or.i32({}, shift_left.i32({}, i32({})))", word, byte(i), 8 * i);
  const kernel::Kernel k = parsed(fmt::format(R"(kernel "t" vars=2 {{
  buffer b0 "x" u8[100] grid arg=0
  buffer b1 "y" i32[64] grid arg=1 written
  for grid d0 in 0..3 {{ for vector d1 in 0..16 {{
    b1[d0*16 + d1] = guard.i32(0 <= d1 < 5; {}; i32(7)) }} }}
}})",
                                              word));
  for (const Machine& m : machines()) check(k, m, 0, 9);
#if defined(__x86_64__)
  const auto text = to_assembly_text(k, *machine_named("icelake-server"));
  EXPECT_EQ(text->find("vpmovzxbd"), std::string::npos);
#endif
}

/// Positions that are bytes, in whole vectors, tails and conditions, of signed and unsigned
/// elements; and what only looks like it: other sizes, positions of other types.
TEST(Lanes, OfTablesOfBytes) {
  for (const char* type : {"u8", "i8"})
    for (const int lanes : {16, 32, 64, 11})
      for (const char* table : {"b0", "b3"}) {
        const kernel::Kernel k = parsed(fmt::format(
            R"(kernel "t" vars=3 {{
  buffer b0 "table" {0}[256] grid arg=0
  buffer b1 "x" u8[512] grid arg=1
  buffer b2 "y" {0}[1024] grid arg=2 written
  buffer b3 "longer" {0}[300] grid arg=3
  for grid d0 in 0..3 {{
    for vector d1 in 0..{1} {{
      b2[d0*256 + d1] = load.{0} {2}[0; cast.i64(mul.u8(load.u8 b1[d0*64 + d1], u8(17))) : 256 * 1] }}
    for vector d2 in 0..{1} {{ if 3 <= d2 + d0 < 9 {{
      b2[d0*256 + d2 + 64] = load.{0} {2}[0; cast.i64(load.u8 b1[d0*64 + d2]) : 256 * 1] }} }}
  }}
}})",
            type, lanes, table));
        for (const Machine& m : machines()) check(k, m, 0, 8);
#if defined(__x86_64__)
        const auto text = to_assembly_text(k, *machine_named("icelake-server"));
        if (std::string_view(table) != "b0") continue;
        EXPECT_TRUE(text->find("vpermi2b") != std::string::npos ||
                    text->find("vpermt2b") != std::string::npos);
#endif
      }
}

}  // namespace
}  // namespace heddle::codegen::cpu

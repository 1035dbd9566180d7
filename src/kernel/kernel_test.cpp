#include "kernel/kernel.h"

#include <gtest/gtest.h>

#include "kernel/bounds.h"
#include "kernel/test_util.h"

namespace heddle::kernel {
namespace {

template <class T>
std::span<std::byte> bytes(std::vector<T>& v) {
  return {reinterpret_cast<std::byte*>(v.data()), v.size() * sizeof(T)};
}

// y[i] = x[i-1] + x[i] + x[i+1], zero outside.
constexpr std::string_view kStencil = R"(kernel "stencil" vars=2 {
  buffer b0 "x" f32[10] grid arg=0
  buffer b1 "y" f32[10] grid arg=1 written
  for grid d0 in 0..1 {
    for serial d1 in 0..10 {
      b1[d1] = add.f32(add.f32(guard.f32(0 <= d1 - 1 < 10; load.f32 b0[d1 - 1]; f32(0)), load.f32 b0[d1]), guard.f32(0 <= d1 + 1 < 10; load.f32 b0[d1 + 1]; f32(0)))
    }
  }
}
)";

// Row sums over lanes: a vector accumulator, a lane reduction, a shared value.
constexpr std::string_view kRowSum = R"(kernel "row sum" vars=4 {
  buffer b0 "x" f32[24] grid arg=0
  buffer b1 "y" f32[3] grid arg=1 written
  buffer b2 "acc" f32[4] lane lanes=4
  for grid d0 in 0..3 {
    for vector d1 in 0..4 {
      b2[d1] = f32(0)
    }
    for serial d2 in 0..2 {
      for vector d3 in 0..4 {
        let %0 = load.f32 b0[d0*8 + d2*4 + d3]
        b2[d3] = add.f32(load.f32 b2[d3], mul.f32(%0, %0))
      }
    }
    b1[d0] = lanes_sum.f32 b2[0]
  }
}
)";

// Sums of rows of 8 by teams of 4 threads; then each row's sum is spread through shared memory.
constexpr std::string_view kThreads = R"(kernel "threads" vars=6 {
  buffer b0 "x" f32[24] grid arg=0
  buffer b1 "y" f32[24] grid arg=1 written
  buffer b2 "acc" f32[1] lane
  buffer b3 "row" f32[2] block
  for grid d0 in 0..2 {
    for thread d1 in 0..2 {
      for thread d2 in 0..4 {
        let d3 = min(d0*2 + d1, 2) in 0..3 {
          b2[0] = f32(0)
          for serial d4 in 0..2 {
            b2[0] = add.f32(load.f32 b2[0], load.f32 b0[d3*8 + d4*4 + d2])
          }
          combine sum b2[0..1] over 4 by 1
          if 0 <= d2 < 1 {
            b3[d1] = load.f32 b2[0]
          }
          barrier block
          if 0 <= d0*2 + d1 < 3 {
            for serial d5 in 0..2 {
              b1[d3*8 + d5*4 + d2] = load.f32 b3[d1]
            }
          }
        }
      }
    }
  }
}
)";

std::string without(std::string text, const std::string& part) {
  text.erase(text.find(part), part.size());
  return text;
}

TEST(Threads, CombineAndShare) {
  const Kernel k = parsed(kThreads);
  const std::string once = to_string(k);
  EXPECT_EQ(to_string(parsed(once)), once);
  const auto ok = verify(k);
  ASSERT_TRUE(ok.ok()) << ok.error().message;
  std::vector<float> x(24), y(24);
  for (std::size_t i = 0; i < 24; ++i) x[i] = static_cast<float>(i);
  const auto ran = interpret(k, {bytes(x), bytes(y)});
  ASSERT_TRUE(ran.ok()) << ran.error().message;
  for (std::size_t i = 0; i < 24; ++i) EXPECT_EQ(y[i], static_cast<float>(i / 8 * 64 + 28));
}

TEST(Threads, MissingBarrierIsARace) {
  const Kernel k = parsed(without(std::string(kThreads), "barrier block"));
  std::vector<float> x(24), y(24);
  const auto ran = interpret(k, {bytes(x), bytes(y)});
  ASSERT_FALSE(ran.ok());
  EXPECT_NE(ran.error().message.find("race: 'row'"), std::string::npos) << ran.error().message;
}

TEST(Tasks, StoringOneElementIsARace) {
  const auto store = [](int step) {
    Kernel k;
    const BufferId y = k.add_buffer({"y", DType::f32, 8, Scope::grid, 0, true});
    const Var task = k.new_var(), i = k.new_var();
    k.body = {
        loop(task, 0, 4, Binding::grid,
             {loop(i, 0, 2, Binding::serial,
                   {kernel::store(y, Expr(task) * Expr(step) + Expr(i), imm(DType::f32, 1))})})};
    std::vector<float> values(8);
    return interpret(k, {bytes(values)});
  };
  EXPECT_TRUE(store(2).ok());
  const auto ran = store(1);
  ASSERT_FALSE(ran.ok());
  EXPECT_NE(ran.error().message.find("race: 'y'"), std::string::npos) << ran.error().message;
}

TEST(Threads, BarrierThatSomeMissIsRejected) {
  std::string text(kThreads);
  text.replace(text.find("min(d0*2 + d1, 2)"), 17, "d0*2 + d1");
  const auto ok = verify(parsed(text));
  ASSERT_FALSE(ok.ok());
  EXPECT_NE(ok.error().message.find("not all threads reach"), std::string::npos);
}

TEST(Threads, TwoThreadsStoringOneElementAreARace) {
  std::string text(kThreads);
  text.replace(text.find("b1[d3*8 + d5*4 + d2]"), 20, "b1[d3*8 + d5*4]");
  std::vector<float> x(24), y(24);
  const auto ran = interpret(parsed(text), {bytes(x), bytes(y)});
  ASSERT_FALSE(ran.ok());
  EXPECT_NE(ran.error().message.find("race: 'y'"), std::string::npos) << ran.error().message;
}

TEST(Text, RoundTrips) {
  for (std::string_view text : {kStencil, kRowSum}) {
    const std::string once = to_string(parsed(text));
    EXPECT_EQ(to_string(parsed(once)), once);
  }
}

TEST(Text, SharedValuesPrintOnce) {
  Kernel k{"doubling", {}, 0, {}};
  const BufferId y = k.add_buffer({"y", DType::f32, 1, Scope::grid, 0, true, 1});
  Value v = load(y, 0, DType::f32);
  for (int i = 0; i < 200; ++i) v = apply(ir::ScalarFn::add, {v, v}, DType::f32);
  const Var t = k.new_var();
  k.body = {loop(t, 0, 1, Binding::grid, {store(y, 0, v)})};
  const std::string text = to_string(k);
  EXPECT_LT(text.size(), 20000u);
  EXPECT_EQ(to_string(parsed(text)), text);
}

TEST(Text, MalformedIsAnErrorWithItsLine) {
  for (std::string_view text :
       {"", "kernel", "kernel \"x\" vars=1 {", "kernel \"x\" vars=99999999999 {}",
        "kernel \"x\" vars=1 { b0[0] = f32(1) }", "kernel \"x\" vars=1 { for grid d7 in 0..1 {} }",
        "kernel \"x\" vars=1 { buffer b0 \"a\" f99[1] grid }"})
    EXPECT_FALSE(parse_kernel(text).ok()) << text;
  std::string deep = "kernel \"x\" vars=1 { buffer b0 \"a\" f32[1] grid\n b0[";
  for (int i = 0; i < 100000; ++i) deep += '(';
  auto result = parse_kernel(deep);
  ASSERT_FALSE(result.ok());
  EXPECT_NE(result.error().message.find("line 2"), std::string::npos);
}

TEST(Interpret, Stencil) {
  const Kernel k = parsed(kStencil);
  ASSERT_TRUE(verify(k).ok());
  std::vector<float> x{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, y(10);
  ASSERT_TRUE(interpret(k, {bytes(x), bytes(y)}).ok());
  EXPECT_EQ(y, (std::vector<float>{1, 3, 6, 9, 12, 15, 18, 21, 24, 17}));
}

TEST(Interpret, LaneReduction) {
  const Kernel k = parsed(kRowSum);
  auto status = verify(k);
  ASSERT_TRUE(status.ok()) << status.error().message;
  std::vector<float> x(24, 1), y(3);
  x[8] = 3;
  ASSERT_TRUE(interpret(k, {bytes(x), bytes(y)}).ok());
  EXPECT_EQ(y, (std::vector<float>{8, 16, 8}));
}

TEST(Interpret, FindsAccessOutside) {
  const Kernel k = parsed(R"(kernel "bad" vars=1 {
    buffer b0 "y" f32[4] grid arg=0 written
    for grid d0 in 0..5 { b0[d0] = f32(1) } })");
  std::vector<float> y(4);
  auto status = interpret(k, {bytes(y)});
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.error().message.find("outside"), std::string::npos);
}

TEST(Verify, Refuses) {
  struct Row {
    std::string_view why, buffers, body;
  };
  const Row rows[] = {
      {"outside", "", "for grid d0 in 0..9 { b0[d0] = f32(1) }"},
      {"grid loop", "", "for serial d0 in 0..8 { b0[d0] = f32(1) }"},
      {"barrier", "",
       "for grid d0 in 0..8 { b0[d0] = f32(1) } for grid d1 in 0..8 { b0[d1] = f32(1) }"},
      {"bound twice", "", "for grid d0 in 0..2 { for serial d0 in 0..8 { b0[d0] = f32(1) } }"},
      {"outside its loop", "", "for grid d0 in 0..2 { b0[d1] = f32(1) }"},
      {"given i32", "", "for grid d0 in 0..2 { b0[d0] = i32(1) }"},
      {"not marked", "buffer b1 \"z\" f32[8] grid arg=1",
       "for grid d0 in 0..2 { b1[d0] = f32(1) }"},
      {"holds a loop", "",
       "for grid d0 in 0..2 { for vector d1 in 0..8 { for serial d2 in 0..2 { b0[d1] = f32(1) } } "
       "}"},
      {"add of f32 and i32", "", "for grid d0 in 0..2 { b0[d0] = add.f32(f32(1), i32(1)) }"},
      {"lane", "buffer b1 \"z\" f32[8] grid lanes=8", "for grid d0 in 0..2 { b0[d0] = f32(1) }"},
  };
  for (const Row& row : rows) {
    const Kernel k = parsed(
        fmt::format("kernel \"r\" vars=4 {{ buffer b0 \"y\" f32[8] grid arg=0 written\n {}\n {} }}",
                    row.buffers, row.body));
    auto status = verify(k);
    ASSERT_FALSE(status.ok()) << row.why;
    EXPECT_NE(status.error().message.find(row.why), std::string::npos) << status.error().message;
  }
}

/// 20 rows by 16 columns, depth 64, two terms of it; `statement` is the product.
std::string product_of_tiles(std::string_view statement, int acc = 320) {
  return fmt::format(R"(kernel "product" vars=4 {{
  buffer b0 "a" bf16[4096] grid arg=0
  buffer b1 "b" i32[1024] grid arg=1
  buffer b2 "y" f32[320] grid arg=2 written
  buffer b3 "acc" f32[{}] block
  for grid d0 in 0..1 {{
    {}
    for serial d1 in 0..20 {{ for vector d2 in 0..16 {{ b2[d1*16 + d2] = load.f32 b3[d1*16 + d2] }} }}
  }}
}})",
                     acc, statement);
}

TEST(TileProduct, IsASumOverTermsAndDepth) {
  const Kernel k = parsed(product_of_tiles(
      "tiles b3[0] = b0[0 by 1024, 2048] * b1[0 by 512, 256] rows 20 columns 16 depth 64 terms "
      "512 256, 0 0 ahead fetch b1[512] rows 2 by 32 lines 2 far page"));
  ASSERT_TRUE(verify(k).ok()) << verify(k).error().message;
  EXPECT_EQ(to_string(*parse_kernel(to_string(k))), to_string(k));
  std::vector<std::uint16_t> a(4096);
  std::vector<std::uint32_t> b(1024);
  for (std::size_t i = 0; i < a.size(); ++i) a[i] = f32_to_bf16(static_cast<float>(i % 7) - 3);
  for (std::size_t i = 0; i < b.size(); ++i)
    b[i] = f32_to_bf16(static_cast<float>(i % 5)) |
           static_cast<std::uint32_t>(f32_to_bf16(static_cast<float>(i % 3) - 1)) << 16;
  std::vector<float> y(320);
  ASSERT_TRUE(interpret(k, {bytes(a), bytes(b), bytes(y)}).ok());
  for (std::size_t r = 0; r < 20; ++r)
    for (std::size_t c = 0; c < 16; ++c) {
      float want = 0;
      for (const auto& [term_a, term_b] : {std::pair<std::size_t, std::size_t>{512, 256}, {0, 0}})
        for (std::size_t t = 0; t < 64; ++t) {
          const std::uint32_t word = b[term_b + t / 32 * 512 + t % 32 / 2 * 16 + c];
          want += bf16_to_f32(a[term_a + r / 16 * 2048 + t / 32 * 1024 + r % 16 * 32 + t % 32]) *
                  bf16_to_f32(static_cast<std::uint16_t>(t % 2 == 0 ? word : word >> 16));
        }
      EXPECT_EQ(y[r * 16 + c], want) << r << " " << c;
    }
}

/// Of fewer bytes than a tile holds, next to which others lie.
TEST(TileProduct, OfNarrowRows) {
  const Kernel k = parsed(product_of_tiles(
      "tiles b3[0] = b0[0 by 12, 192, 2 skip 176] * b1[0 by 256, 256] rows 20 by 12 wide 24 "
      "columns 16 depth 48 terms 0 0"));
  ASSERT_TRUE(verify(k).ok()) << verify(k).error().message;
  EXPECT_EQ(to_string(*parse_kernel(to_string(k))), to_string(k));
  std::vector<std::uint16_t> a(4096);
  std::vector<std::uint32_t> b(1024, 0x7fc07fc0);  // NaN behind the words that count
  for (std::size_t i = 0; i < a.size(); ++i) a[i] = f32_to_bf16(static_cast<float>(i % 7) - 3);
  for (std::size_t i = 0; i < b.size(); ++i)
    if (i % 256 < 96) b[i] = f32_to_bf16(static_cast<float>(i % 5));
  std::vector<float> y(320);
  ASSERT_TRUE(interpret(k, {bytes(a), bytes(b), bytes(y)}).ok());
  for (std::size_t r = 0; r < 20; ++r)
    for (std::size_t c = 0; c < 16; ++c) {
      float want = 0;
      for (std::size_t t = 0; t < 48; t += 2)  // the odd terms of b are zeros
        want += bf16_to_f32(a[r * 12 + t / 24 * 200 + t % 24]) *
                bf16_to_f32(static_cast<std::uint16_t>(b[t / 12 * 256 + t % 12 / 2 * 16 + c]));
      EXPECT_EQ(y[r * 16 + c], want) << r << " " << c;
    }
}

/// Step by step in a loop, beside something else.
TEST(TileProduct, AlongALoop) {
  const std::string one =
      "tiles b3[0] = b0[0 by 1024, 2048] * b1[0 by 512, 256] rows 20 columns 16 depth 64 terms "
      "512 256, 0 0";
  const Kernel whole = parsed(product_of_tiles(one)),
               steps = parsed(product_of_tiles("for serial d3 in 0..2 { " + one +
                                               " along d3 b2[0] = f32(1) }"));
  ASSERT_TRUE(verify(steps).ok()) << verify(steps).error().message;
  EXPECT_EQ(to_string(*parse_kernel(to_string(steps))), to_string(steps));
  std::vector<std::uint16_t> a(4096);
  std::vector<std::uint32_t> b(1024);
  for (std::size_t i = 0; i < a.size(); ++i) a[i] = f32_to_bf16(static_cast<float>(i % 7) - 3);
  for (std::size_t i = 0; i < b.size(); ++i) b[i] = f32_to_bf16(static_cast<float>(i % 5) - 2);
  std::vector<float> want(320), y(320);
  ASSERT_TRUE(interpret(whole, {bytes(a), bytes(b), bytes(want)}).ok());
  ASSERT_TRUE(interpret(steps, {bytes(a), bytes(b), bytes(y)}).ok());
  EXPECT_EQ(y, want);
}

/// Bytes of either sign, rows where they lie or in words; sums in i32.
TEST(TileProduct, OfBytes) {
  std::vector<std::uint8_t> a(3000), b(2048);
  for (std::size_t i = 0; i < a.size(); ++i) a[i] = static_cast<std::uint8_t>(i * 37 % 256);
  for (std::size_t i = 0; i < b.size(); ++i) b[i] = static_cast<std::uint8_t>(i * 91 % 251);
  const auto value = [](std::string_view type, std::uint8_t x) {
    return type == "u8" ? int{x} : int{static_cast<std::int8_t>(x)};
  };
  for (const std::string_view type_a : {"u8", "i8"})
    for (const std::string_view type_b : {"u8", "i8"})
      for (const bool words : {false, true}) {
        const Kernel k = parsed(fmt::format(
            R"(kernel "product" vars=4 {{
  buffer b0 "a" {} grid arg=0
  buffer b1 "b" i32[512] grid arg=1
  buffer b2 "y" i32[320] grid arg=2 written
  buffer b3 "acc" i32[320] block
  for grid d0 in 0..1 {{
    tiles b3[0] = {} b0[{}] * {} b1[0 by 256, 256] rows 20 by {} columns 16 depth 128 terms 0 0
    for serial d1 in 0..20 {{ for vector d2 in 0..16 {{ b2[d1*16 + d2] = load.i32 b3[d1*16 + d2] }} }}
  }}
}})",
            words ? "i32[750]" : fmt::format("{}[3000]", type_a), type_a,
            words ? "1 by 16, 560" : "4 by 64, 2240", type_b, words ? 35 : 140));
        ASSERT_TRUE(verify(k).ok()) << verify(k).error().message;
        EXPECT_EQ(to_string(*parse_kernel(to_string(k))), to_string(k));
        std::vector<std::int32_t> y(320);
        ASSERT_TRUE(interpret(k, {bytes(a), bytes(b), bytes(y)}).ok());
        for (std::size_t r = 0; r < 20; ++r)
          for (std::size_t c = 0; c < 16; ++c) {
            int want = 0;
            for (std::size_t t = 0; t < 128; ++t)
              want += value(type_a, a[4 + r * 140 + t]) *
                      value(type_b, b[(t / 4 * 16 + c) * 4 + t % 4]);
            EXPECT_EQ(y[r * 16 + c], want) << r << " " << c;
          }
      }
}

TEST(TileProduct, Refuses) {
  for (const auto& [why, statement] : {
           std::pair{
               "not the first",
               "for serial d3 in 0..3 { tiles b3[0] = b0[0 by 1024, 2048] * b1[0 by 512, 256] "
               "rows 20 columns 16 depth 64 terms 0 0 along d3 }"},
           {"not the first",
            "for serial d3 in 0..2 { b2[0] = f32(1) tiles b3[0] = b0[0 by 1024, 2048] * "
            "b1[0 by 512, 256] rows 20 columns 16 depth 64 terms 0 0 along d3 }"},
           {"moves along",
            "for serial d3 in 0..2 { tiles b3[0] = b0[d3*512 by 512, 2048] * b1[0 by 512, 256] "
            "rows 20 columns 16 depth 64 terms 0 0 along d3 }"},
           {"outside",
            "tiles b3[1] = b0[0 by 1024, 2048] * b1[0 by 512, 256] rows 20 columns 16 "
            "depth 64 terms 0 0"},
           {"outside",
            "tiles b3[0] = b0[0 by 1024, 2048] * b1[0 by 512, 256] rows 20 columns 16 "
            "depth 64 terms 2048 0"},
           {"outside",
            "tiles b3[0] = b0[0 by 1024, 2048] * b1[0 by 512, 256] rows 20 columns 16 "
            "depth 96 terms 0 0"},
           {"depth 48",
            "tiles b3[0] = b0[0 by 1024, 2048] * b1[0 by 512, 256] rows 20 columns 16 "
            "depth 48 terms 0 0"},
           {"rows",
            "tiles b3[0] = b0[0 by 1024, 0] * b1[0 by 512, 0] rows 20 columns 64 depth 32 "
            "terms 0 0"},
           {"columns",
            "tiles b3[0] = b0[0 by 1024, 2048] * b1[0 by 512, 256] rows 20 columns 8 "
            "depth 64 terms 0 0"},
           {"fetches",
            "tiles b3[0] = b0[0 by 1024, 2048] * b1[0 by 512, 256] rows 20 columns 16 "
            "depth 64 terms 0 0 fetch b0[0] rows 9 by 32 lines 1000000"},
           {"as the product",
            "tiles b3[0] = u8 b0[0 by 1024, 2048] * u8 b1[0 by 512, 256] rows 20 columns 16 "
            "depth 64 terms 0 0"},
           {"as the product",
            "tiles b3[0] = b0[0 by 1024, 2048] * i8 b1[0 by 512, 256] rows 20 columns 16 "
            "depth 64 terms 0 0"},
           {"as the product",
            "tiles b2[0] = b0[0 by 1024, 2048] * b1[0 by 512, 256] rows 20 "
            "columns 16 depth 64 terms 0 0"},
       }) {
    const Status status = verify(parsed(product_of_tiles(statement)));
    ASSERT_FALSE(status.ok()) << statement;
    EXPECT_NE(status.error().message.find(why), std::string::npos) << status.error().message;
  }
}

TEST(Bounds, UseConditions) {
  const Expr row{Var{0}}, col{Var{1}}, tap{Var{2}};
  const ir::Ranges ranges = ir::ranges_of({7, 7, 3});
  // A padded 7×7 image: offset (row+tap-1)*7 + col*2+tap-1 where both coordinates are inside.
  const Expr y = row + tap - Expr(1), x = col * Expr(2) + tap - Expr(1);
  const auto b = bounds_under(y * Expr(7) + x, {{y, 0, 7}, {x, 0, 7}}, ranges);
  ASSERT_TRUE(b);
  EXPECT_GE(b->low, 0);
  EXPECT_LE(b->high, 48);
}

TEST(Bounds, UseConditionsOnRemainders) {
  // Taps of a 9×11 image, five channels, in vectors: d0 is their number, d1 the lane.
  const Expr x = Expr(Var{0}) * Expr(8) + Expr(Var{1});
  const ir::Ranges ranges = ir::ranges_of({6, 8});
  const Expr column = ir::floor_mod(x, 3), row = ir::floor_mod(ir::floor_div(x, 3), 3);
  const Expr offset = ir::floor_div(x, 9) * Expr(99) + row * Expr(11) + column - Expr(12);
  const auto b = bounds_under(
      ir::simplify(offset, ranges),
      {{ir::simplify(column, ranges), 1, 3}, {ir::simplify(row, ranges), 1, 3}, {x, 0, 45}},
      ranges);
  ASSERT_TRUE(b);
  EXPECT_GE(b->low, 0);
  EXPECT_LE(b->high, 494);
}

/// A variable that is divided is its digits, which together stay in its range.
TEST(Bounds, DigitsTogether) {
  const ir::Ranges ranges{ir::Interval{3, 4}, ir::Interval{0, 24}};
  const Expr x{Var{0}}, y{Var{1}};
  const Expr place = y * Expr(768) + ir::floor_div(x * Expr(3), 2) * Expr(1536) -
                     ir::floor_mod(y, 16) * Expr(736) + ir::floor_mod(x, 2) * Expr(16);
  const auto b = bounds_under(place, {}, ranges);
  EXPECT_LE(b->high, 9216 + 16 + 24 * 768 - 8 * 736 + 7 * 32);
  EXPECT_GE(b->low, 0);
}

TEST(Bounds, UnprovenAccessesAreKeptInside) {
  // The two remainders add up to 0 or 8.
  const Kernel k = parsed(R"(kernel "inverse" vars=2 {
    buffer b0 "x" f32[9] grid arg=0
    buffer b1 "y" f32[9] grid arg=1 written
    for grid d0 in 0..1 { for serial d1 in 0..8 {
      b1[(d1*5) % 8 + (d1*3) % 8] = load.f32 b0[(d1*5) % 8 + (d1*3) % 8]
    } } })");
  EXPECT_FALSE(verify(k).ok());
  const auto safe = with_proven_bounds(k);
  ASSERT_TRUE(safe.ok()) << safe.error().message;
  EXPECT_TRUE(verify(*safe).ok());
  EXPECT_NE(to_string(*safe).find("min("), std::string::npos);
  std::vector<float> x{1, 2, 3, 4, 5, 6, 7, 8, 9}, y(9);
  ASSERT_TRUE(interpret(*safe, {bytes(x), bytes(y)}).ok());
  EXPECT_EQ(y, (std::vector<float>{1, 0, 0, 0, 0, 0, 0, 0, 9}));
}

// A store in the type itself is a rounding, one in another type is none.
TEST(Simplify, StoresRoundOnce) {
  const Kernel k = simplify(parsed(R"(kernel "halves" vars=1 {
    buffer b0 "x" f32[3] grid arg=0
    buffer b1 "y" f16[3] grid arg=1 written
    buffer b2 "z" f32[3] grid arg=2 written
    for grid d0 in 0..3 {
      b1[d0] = round_f16.f32(load.f32 b0[d0])
      b2[d0] = round_f16.f32(load.f32 b0[d0])
    } })"));
  const std::string text = to_string(k);
  EXPECT_EQ(text.find("round_f16"), text.rfind("round_f16")) << text;
  std::vector<float> x{65520, 4097, 1e-9f}, z(3);
  std::vector<std::uint16_t> y(3);
  ASSERT_TRUE(interpret(k, {bytes(x), bytes(y), bytes(z)}).ok());
  EXPECT_EQ(y, (std::vector<std::uint16_t>{0x7c00, 0x6c00, 0}));
  EXPECT_EQ(z, (std::vector<float>{INFINITY, 4096, 0}));
}

TEST(Partition, LeavesNoTestInside) {
  const Kernel k = partition_loops(parsed(kStencil));
  ASSERT_TRUE(verify(k).ok()) << verify(k).error().message;
  const std::string text = to_string(k);
  EXPECT_EQ(text.find("guard"), std::string::npos) << text;
  std::vector<float> x{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, y(10);
  ASSERT_TRUE(interpret(k, {bytes(x), bytes(y)}).ok());
  EXPECT_EQ(y, (std::vector<float>{1, 3, 6, 9, 12, 15, 18, 21, 24, 17}));
}

TEST(Partition, SingleIterationsKeepTheirOwnValues) {
  const Kernel k = parsed(R"(kernel "pieces" vars=2 {
    buffer b0 "x" f32[8] grid arg=0
    buffer b1 "y" f32[4] grid arg=1 written
    for grid d0 in 0..1 { for serial d1 in 0..3 {
      b1[d1] = guard.f32(1 <= d1 < 2; load.f32 b0[d1*2]; f32(0))
    } } })");
  std::vector<float> x{1, 2, 3, 4, 5, 6, 7, 8}, y(4), z(4);
  const Kernel p = partition_loops(k);
  ASSERT_TRUE(interpret(k, {bytes(x), bytes(y)}).ok());
  ASSERT_TRUE(interpret(p, {bytes(x), bytes(z)}).ok());
  EXPECT_EQ(y, z) << to_string(p);
}

// A padded two-dimensional window sum: partitioning keeps the numbers and makes a clean interior.
TEST(Partition, NestedLoops) {
  const Kernel k = parsed(R"(kernel "window" vars=5 {
    buffer b0 "x" f32[42] grid arg=0
    buffer b1 "y" f32[42] grid arg=1 written
    for grid d0 in 0..1 { for serial d1 in 0..6 { for serial d2 in 0..7 {
      b1[d1*7 + d2] = f32(0)
      for serial d3 in 0..3 { for serial d4 in 0..3 {
        b1[d1*7 + d2] = add.f32(load.f32 b1[d1*7 + d2], guard.f32(0 <= d1 + d3 - 1 < 6 & 0 <= d2 + d4 - 1 < 7; load.f32 b0[d1*7 + d2 + d3*7 + d4 - 8]; f32(0)))
      } } } } } })");
  auto status = verify(k);
  ASSERT_TRUE(status.ok()) << status.error().message;
  const Kernel p = partition_loops(k);
  status = verify(p);
  ASSERT_TRUE(status.ok()) << status.error().message << to_string(p);
  std::vector<float> x(42), y(42), z(42);
  for (int i = 0; i < 42; ++i) x[static_cast<std::size_t>(i)] = static_cast<float>(i * i % 17);
  ASSERT_TRUE(interpret(k, {bytes(x), bytes(y)}).ok());
  ASSERT_TRUE(interpret(p, {bytes(x), bytes(z)}).ok());
  EXPECT_EQ(y, z);
}

}  // namespace
}  // namespace heddle::kernel

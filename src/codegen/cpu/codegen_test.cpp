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

/// Where accumulators fill registers, numbers of what follows stay in memory: without AVX-512 whole
/// vectors, which instructions read themselves.
TEST(Compile, NumbersBehindCrowdedLoopsAreOperandsInMemory) {
  const kernel::Kernel k = parsed(R"(kernel "crowded" vars=8 {
  buffer b0 "x" f32[4096] grid arg=0
  buffer b1 "y" f32[384] grid arg=1 written
  buffer b2 "acc" f32[96] lane lanes=8
  for grid d0 in 0..4 {
    for unroll d1 in 0..12 { for vector d2 in 0..8 { b2[d1*8 + d2] = f32(0) } }
    for serial d3 in 0..64 { for unroll d4 in 0..12 { for vector d5 in 0..8 {
      b2[d4*8 + d5] = add.f32(load.f32 b2[d4*8 + d5],
                              mul.f32(load.f32 b0[d3*8 + d5], load.f32 b0[d3*12 + d4]))
    } } }
    for unroll d6 in 0..12 { for vector d7 in 0..8 {
      b1[d0*96 + d6*8 + d7] =
          max.f32(mul.f32(add.f32(load.f32 b2[d6*8 + d7], f32(0.3)), f32(0.7)), f32(-0.1))
    } }
  } }
)");
  const auto m = machine_named("avx2");
  ASSERT_TRUE(m.ok());
  const std::string text = *to_assembly_text(k, *m);
  for (const std::string_view instruction : {"vaddps\t", "vmulps\t"}) {
    int folded = 0;
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);)
      folded += line.find(instruction) != std::string::npos &&
                line.find("(%rip), %ymm") != std::string::npos;
    EXPECT_EQ(folded, 12) << instruction << text;
  }
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

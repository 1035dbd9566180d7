#include "kernel/loads_first.h"

#include <gtest/gtest.h>

#include <random>

#include "kernel/traverse.h"
#include "support/tensor.h"

namespace heddle::kernel {
namespace {

/// y = x·s + 1 by vectors, z = the last of them; what s is, is computed in registers.
constexpr std::string_view kScale = R"(kernel "scale" vars=4 {
  buffer b0 "x" f32[1536] grid arg=0
  buffer b1 "y" bf16[1536] grid arg=1 written
  buffer b2 "z" f32[384] grid arg=2 written
  buffer b3 "s" f32[1] lane
  for grid d0 in 0..12 {
    for thread d1 in 0..32 {
      b3[0] = load.f32 b0[d0*128 + d1*4]
      combine sum b3[0..1] over 32 by 1
      for vector d2 in 0..4 {
        b1[d0*128 + d1*4 + d2] = add.f32(mul.f32(load.f32 b0[d0*128 + d1*4 + d2], load.f32 b3[0]), f32(1))
      }
      if 0 <= d1 < 30 {
        b2[d0*32 + d1] = load.f32 b0[d0*128 + d1*4 + 3]
      }
    }
  }
}
)";

std::string scale_with(std::string_view from, std::string_view to) {
  std::string text(kScale);
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

/// What a kernel makes of random numbers.
std::vector<Tensor> results(const Kernel& k) {
  Tensor x({DType::f32, {1536}}), y({DType::bf16, {1536}}), z({DType::f32, {384}});
  std::mt19937 rng(3);
  std::normal_distribution<double> normal;
  for (std::int64_t i = 0; i < x.count(); ++i) x.set(i, normal(rng));
  const auto bytes = [](Tensor& t) {
    return std::span(t.mutable_data(), static_cast<std::size_t>(t.bytes()));
  };
  const Status done = interpret(k, {bytes(x), bytes(y), bytes(z)});
  EXPECT_TRUE(done.ok()) << done.error().message;
  return {y, z};
}

std::optional<TasksTogether> together(const Kernel& k, int count) {
  return loads_first(k, std::get<For>(k.body[0].op), count);
}

TEST(LoadsFirst, ComputesTheSame) {
  const auto k = parse_kernel(kScale);
  ASSERT_TRUE(k.ok()) << k.error().message;
  const std::vector<Tensor> want = results(*k);
  for (const int count : {2, 3, 4}) {
    auto made = together(*k, count);
    ASSERT_TRUE(made) << count;
    // Tasks t to t + count - 1 for t = count·g.
    const Var task = std::get<For>(k->body[0].op).var, group = made->kernel.new_var();
    Kernel all = made->kernel;
    all.body = {loop(group, 0, 12 / count, Binding::grid,
                     substitute(made->body, [&](Var v) -> std::optional<Expr> {
                       if (v != task) return std::nullopt;
                       return Expr(group) * count;
                     }))};
    const Status sound = verify(all);
    ASSERT_TRUE(sound.ok()) << sound.error().message << to_string(all);
    const std::vector<Tensor> found = results(all);
    for (std::size_t o = 0; o < want.size(); ++o)
      for (std::int64_t i = 0; i < want[o].count(); ++i)
        ASSERT_EQ(found[o].at(i), want[o].at(i)) << count << " " << o << " " << i;
    const std::string text = to_string(all);
    EXPECT_LT(text.rfind(" b0["), std::min(text.find(" b1["), text.find(" b2["))) << text;
  }
}

TEST(LoadsFirst, LeavesAloneWhatDoesMore) {
  for (const auto& [from, to] :
       {std::pair{"for vector d2", "for serial d2"}, std::pair{"over 32 by 1", "over 64 by 1"},
        std::pair{"load.f32 b0[d0*128 + d1*4 + 3]", "load.f32 b1[d0*128 + d1*4 + 3]"}}) {
    std::string text = scale_with(from, to);
    if (std::string(to).find("64") != std::string::npos) {
      const std::size_t at = text.find("0..32");
      text.replace(at, 5, "0..64");
    }
    const auto k = parse_kernel(text);
    ASSERT_TRUE(k.ok()) << to << ": " << k.error().message;
    EXPECT_FALSE(together(*k, 2)) << to;
  }
  const auto k = parse_kernel(kScale);
  EXPECT_FALSE(together(*k, 11));  // 6 registers each
}

}  // namespace
}  // namespace heddle::kernel

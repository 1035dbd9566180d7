// Threads that do different things: events, tile copies, roles.
#include <gtest/gtest.h>

#include <random>

#include "kernel/kernel.h"
#include "support/tensor.h"

namespace heddle::kernel {
namespace {

/// y[thread][element] = the first 64 rows of x times the last 64.
constexpr std::string_view kProduct = R"(kernel "roles" vars=4 {
  buffer b0 "x" bf16[8192] grid arg=0
  buffer b1 "y" f32[4096] grid arg=1 written
  buffer b2 "acc" f32[32] lane
  buffer b3 "tiles" bf16[8192] block tiles
  buffer b4 "full" i64[2] block events
  for grid d0 in 0..1 {
    for thread d1 in 0..256 {
      if 0 <= d1 < 1 {
        event init b4 for 1
      }
      barrier block
      role 128 registers 0 {
        for unroll d2 in 0..32 {
          b2[d2] = f32(0)
        }
        event wait b4[1] parity 0
        mma b2 += b3[0 by 64, 1] * b3[4096 by 64, 1] warps 4 x 1 tiles 1 x 8 k 64 warpgroup
        products wait 0
        for unroll d3 in 0..32 {
          b1[d1*32 + d3] = load.f32 b2[d3]
        }
      }
      beside 128 registers 0 {
        if 128 <= d1 < 129 {
          event arrive b4[1] bytes 16384
          tile b3[0] <- b0 extents 64, 128 strides 1, 64 box 64, 64 at 0, 0 event b4[1]
          tile b3[4096] <- b0 extents 64, 100 strides 1, 64 box 64, 64 at 0, 64 event b4[1]
        }
      }
    }
  }
}
)";

std::string replaced(std::string_view from, std::string_view to) {
  std::string text(kProduct);
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

/// "" or what the verifier or the interpreter says.
std::string said(const std::string& text) {
  const auto k = parse_kernel(text);
  if (!k) return k.error().message;
  if (const Status sound = verify(*k); !sound) return "verify: " + sound.error().message;
  Tensor x({DType::bf16, {8192}});
  std::vector<float> y(4096);
  std::mt19937 random(1);
  for (std::int64_t i = 0; i < 8192; ++i) x.set(i, static_cast<double>(random() % 17) - 8);
  const Status ran = interpret(*k, {{x.mutable_data(), static_cast<std::size_t>(x.bytes())},
                                    std::as_writable_bytes(std::span(y))});
  if (!ran) return ran.error().message;
  Mma product;
  product.warps_m = 4;
  product.tiles_n = 8;
  for (int t = 0; t < 128; ++t)
    for (int e = 0; e < 32; ++e) {
      const std::int64_t row = fragment_row(product, t, e), column = fragment_column(product, t, e);
      double want = 0;
      for (std::int64_t i = 0; i < 64 && column < 36; ++i)
        want += x.at(row * 64 + i) * x.at((column + 64) * 64 + i);
      const auto got = static_cast<double>(y[static_cast<std::size_t>(t * 32 + e)]);
      if (got != want) return fmt::format("thread {} element {}: {}, not {}", t, e, got, want);
    }
  return "";
}

TEST(Roles, MultiplyTilesThatOthersBring) {
  EXPECT_EQ(said(std::string(kProduct)), "");
  const auto k = parse_kernel(kProduct);
  ASSERT_TRUE(k.ok()) << k.error().message;
  EXPECT_EQ(to_string(*k), kProduct);
}

TEST(Roles, MisuseIsFound) {
  const std::pair<std::string, const char*> rows[] = {
      {replaced("bytes 16384", "bytes 8192"), "deadlock"},
      {replaced("event arrive b4[1] bytes 16384", ""), "deadlock"},
      {replaced("event wait b4[1] parity 0", "event wait b4[1] parity 1"), "deadlock"},
      {replaced("event wait b4[1] parity 0", "event wait b4[0] parity 0"), "deadlock"},
      {replaced("products wait 0", ""), "thread"},
      {replaced("barrier block\n", "\n"), "while thread 0 makes it"},
      {replaced("products wait 0", "barrier block"), "a barrier of the block in a role"},
      {replaced("products wait 0", "products wait 0\n combine sum b2[0..1] over 64 by 1"),
       "combined where not all are"},
      // Warps of a role may: what they combine is no longer the product.
      {replaced("products wait 0", "products wait 0\n combine sum b2[0..1] over 32 by 1"),
       "thread 0 element 0"},
      {replaced("for 1", "for 2"), "deadlock"},
      {replaced("load.f32 b2[d3]", "load.f32 b3[d3]"), "which is for tiles"},
      {replaced("b4[1] parity 0", "b4[2] parity 0"), "may reach 2..2"},
      {replaced("b4[1] parity 0", "b4[1] parity 2"), "a wait for parity"},
      {replaced("box 64, 64", "box 64, 257"), "in boxes of 257"},
      {replaced("box 64, 64", "box 32, 64"), "in 2 dimensions"},
      {replaced("strides 1, 64", "strides 1, 60"), "with stride 60"},
      {replaced("extents 64, 128", "extents 64, 129"), "ends behind"},
      {replaced("tile b3[0]", "tile b3[64]"), "not aligned"},
      {replaced("beside 128", "beside 64"), "a role of 64 threads"},
      {replaced("role 128 registers 0", "role 128 registers 240"), "with and without"},
      {replaced("i64[2] block events", "i64[2] grid events"), "not a block buffer"},
  };
  for (const auto& [text, why] : rows)
    EXPECT_NE(said(text).find(why), std::string::npos) << why << ": " << said(text);
}

}  // namespace
}  // namespace heddle::kernel

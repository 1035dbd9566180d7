// Each helper of the prelude against plain C++. The texts and data do not know that they are
// emulated: another TextDevice runs them on a GPU.
#include "cuda_emulation/gpu_device.h"
#include "cuda_emulation/text_cases.h"
#include "support/dtype.h"

namespace heddle {
namespace {

using emulation::Launch;
using std::size_t;

class Helpers : public testing::Test {
 protected:
  void run_on_device(const std::string& symbol, const Launch& how,
                     const std::vector<Argument>& arguments) {
    static const std::unique_ptr<TextDevice> device = text_device({.races = true});
    static const std::string text = read_text("helpers");
    const Status status = device->run(text, symbol, how, arguments);
    ASSERT_TRUE(status) << status.error().message;
  }
};

// Nothing is compared after a failed launch.
#define RUN(...)                   \
  do {                             \
    run_on_device(__VA_ARGS__);    \
    if (HasFatalFailure()) return; \
  } while (false)

std::vector<float> interesting() {
  std::vector<float> x = {0.0f,       -0.0f,    1.0f,     1.0009766f, 1.0004883f,
                          1.0014648f, 65504.0f, 65519.0f, 65520.0f,   -70000.0f,
                          6.1e-5f,    5.96e-8f, 2.98e-8f, 2.99e-8f,   1e-10f,
                          3e38f,      1e-40f,   INFINITY, -INFINITY,  0.33333f};
  std::mt19937 rng(1);
  while (x.size() < 100) x.push_back(std::ldexp(static_cast<float>(rng() % 65536) - 32768, -14));
  return x;
}

/// Nearest tf32 value, ties away from zero: by a step of the last of 10 bits.
std::uint32_t tf32_of(float x) {
  if (!std::isfinite(x)) return std::bit_cast<std::uint32_t>(x);
  int exponent = 0;
  (void)std::frexp(x, &exponent);
  const double unit = std::ldexp(1.0, std::max(exponent, -125) - 11);
  return std::bit_cast<std::uint32_t>(static_cast<float>(std::round(x / unit) * unit));
}

TEST_F(Helpers, Conversions) {
  const std::vector<float> x = interesting();
  const size_t n = x.size();
  Buffer X(x), half = Buffer::zeros<std::uint16_t>(n), brain = half,
               tensor = Buffer::zeros<std::uint32_t>(n),
               pairs = Buffer::zeros<std::uint32_t>(2 * n), back = Buffer::zeros<float>(3 * n);
  RUN("convert", {.grid = {4}, .block = {32}},
      {&X, &half, &brain, &tensor, &pairs, &back, static_cast<int>(n)});
  for (size_t i = 0; i < n; ++i) {
    EXPECT_EQ(half.as<std::uint16_t>()[i], f32_to_f16(x[i])) << x[i];
    EXPECT_EQ(brain.as<std::uint16_t>()[i], f32_to_bf16(x[i])) << x[i];
    EXPECT_EQ(tensor.as<std::uint32_t>()[i], tf32_of(x[i])) << x[i];
    const float other = x[n - 1 - i];
    EXPECT_EQ(pairs.as<std::uint32_t>()[2 * i],
              f32_to_f16(x[i]) | std::uint32_t{f32_to_f16(other)} << 16);
    EXPECT_EQ(pairs.as<std::uint32_t>()[2 * i + 1],
              f32_to_bf16(x[i]) | std::uint32_t{f32_to_bf16(other)} << 16);
    EXPECT_EQ(back.as<float>()[3 * i], f16_to_f32(f32_to_f16(x[i])));
    EXPECT_EQ(back.as<float>()[3 * i + 1], f16_to_f32(f32_to_f16(x[i])));
    EXPECT_EQ(back.as<float>()[3 * i + 2], bf16_to_f32(f32_to_bf16(other)));
  }
}

TEST_F(Helpers, Functions) {
  std::vector<float> x;
  for (int i = -40; i < 40; ++i) x.push_back(static_cast<float>(i) * 0.137f + 0.01f);
  Buffer X(x), out = Buffer::zeros<float>(16 * x.size());
  RUN("functions", {.grid = {3}, .block = {32}}, {&X, &out, static_cast<int>(x.size())});
  for (size_t i = 0; i < x.size(); ++i) {
    const double v = x[i], a = std::abs(v), rest = std::fmod(x[i], 0.7f);
    const double hundred = std::trunc(static_cast<double>(x[i] * 100.0f));
    const double want[] = {std::exp(v),
                           std::log(a),
                           std::sqrt(a),
                           1 / std::sqrt(a),
                           std::sin(v),
                           std::cos(v),
                           std::tanh(v),
                           std::erf(v),
                           std::floor(v),
                           std::nearbyint(v),
                           std::pow(a, 1.5),
                           rest,
                           rest < 0 ? rest + 0.7f : rest,
                           NAN,
                           std::clamp(hundred, -128.0, 127.0),
                           std::atan2(v, 0.5)};
    for (size_t f = 0; f < 16; ++f) {
      const float got = out.as<float>()[16 * i + f];
      if (std::isnan(want[f]))
        EXPECT_TRUE(std::isnan(got));
      else
        EXPECT_NEAR(got, want[f], 4e-7 * std::max(std::abs(want[f]), 1e-2)) << f << " of " << x[i];
    }
  }
}

TEST_F(Helpers, Lanes) {
  std::vector<std::uint32_t> x(32);
  std::mt19937 rng(2);
  for (auto& v : x) v = rng() % 1000;
  Buffer X(x), out = Buffer::zeros<std::uint32_t>(256);
  RUN("lanes", {.block = {32}}, {&X, &out});
  std::uint32_t odd = 0;
  for (unsigned i = 0; i < 32; ++i) odd |= (x[i] & 1) << i;
  for (size_t i = 0; i < 32; ++i) {
    const auto group = [&](size_t width) {
      return x.begin() + static_cast<long>(i / width * width);
    };
    const std::uint32_t want[] = {x[3],
                                  x[i ^ 5],
                                  x[i + 4 < 32 ? i + 4 : i],
                                  x[i >= 4 ? i - 4 : i],
                                  odd,
                                  std::accumulate(group(8), group(8) + 8, 0u),
                                  *std::max_element(x.begin(), x.end()),
                                  *std::min_element(group(4), group(4) + 4)};
    for (size_t f = 0; f < 8; ++f) EXPECT_EQ(out.as<std::uint32_t>()[8 * i + f], want[f]) << f;
  }
}

TEST_F(Helpers, Blocks) {
  std::vector<float> x(96);
  std::mt19937 rng(3);
  for (auto& v : x) v = static_cast<float>(rng() % 30);
  Buffer X(x), out = Buffer::zeros<double>(3 * 96);
  RUN("blocks", {.block = {96}}, {&X, &out});
  const auto most = std::max_element(x.begin(), x.end());
  for (size_t i = 0; i < 96; ++i) {
    EXPECT_EQ(out.as<double>()[3 * i], std::accumulate(x.begin(), x.end(), 0.0));
    EXPECT_EQ(out.as<double>()[3 * i + 1], *most);
    EXPECT_EQ(out.as<double>()[3 * i + 2], most - x.begin());
  }
}

TEST_F(Helpers, Atomics) {
  Buffer count = Buffer::zeros<std::uint32_t>(3), sum = Buffer::zeros<float>(1),
         extremes = Buffer::zeros<int>(2), slots = Buffer::zeros<std::uint32_t>(192);
  RUN("atomics", {.grid = {3}, .block = {64}}, {&count, &sum, &extremes, &slots});
  EXPECT_EQ(count.as<std::uint32_t>()[0], 192u);
  EXPECT_EQ(count.as<std::uint32_t>()[2], 3 * 192u);
  EXPECT_EQ(sum.as<float>()[0], 96);
  EXPECT_EQ(extremes.as<int>(), (std::vector<int>{100, -50}));
  int won = 0;
  for (std::uint32_t v : slots.as<std::uint32_t>()) {
    won += v & 1;
    EXPECT_TRUE(v & 2);
  }
  EXPECT_EQ(won, 1);
  EXPECT_EQ(slots.as<std::uint32_t>()[count.as<std::uint32_t>()[1] - 1] & 1, 1u);
}

TEST_F(Helpers, AsynchronousCopies) {
  std::vector<float> x(224);
  std::iota(x.begin(), x.end(), 1.0f);
  Buffer X(x), out = Buffer::zeros<float>(224);
  RUN("copies", {.block = {32}, .shared_bytes = 224 * 4}, {&X, &out});
  for (size_t i = 0; i < 224; ++i) {
    const size_t from = i < 128 ? 127 - i : 351 - i;
    const bool absent = from < 128 ? from / 4 % 3 == 0 : from == 197;
    EXPECT_EQ(out.as<float>()[i], absent ? 0 : x[from]) << i;
  }
}

TEST_F(Helpers, MatrixLoads) {
  std::vector<std::uint16_t> x(256);
  std::iota(x.begin(), x.end(), std::uint16_t{100});
  Buffer X(x), out = Buffer::zeros<std::uint32_t>(12 * 32);
  RUN("matrices", {.block = {32}}, {&X, &out});
  const auto got = out.as<std::uint32_t>();
  const auto at = [&](size_t row, size_t column) { return std::uint32_t{x[8 * row + column]}; };
  for (size_t t = 0; t < 32; ++t) {
    const size_t r = t / 4, c = t % 4 * 2;
    for (size_t m = 0; m < 4; ++m) {
      EXPECT_EQ(got[12 * t + m], at(8 * m + r, c) | at(8 * m + r, c + 1) << 16);
      EXPECT_EQ(got[12 * t + 4 + m], at(31 - 8 * m - c, r) | at(31 - 8 * m - c - 1, r) << 16);
    }
    for (size_t m = 0; m < 2; ++m) {
      EXPECT_EQ(got[12 * t + 8 + m], at(8 * m + r, c) | at(8 * m + r, c + 1) << 16);
      EXPECT_EQ(got[12 * t + 10 + m], at(8 * m + c, r) | at(8 * m + c + 1, r) << 16);
    }
  }
}

enum class Kind { bf16, f16, tf32 };
size_t bytes_of(Kind kind) { return kind == Kind::tf32 ? 4 : 2; }
/// A row-major matrix in the storage of tensor cores; values are small multiples of 1/8.
struct Operand {
  size_t columns;
  std::vector<double> values;
  std::vector<std::uint32_t> words;  ///< row-major, packed
  Operand(size_t rows, size_t columns, Kind kind, std::mt19937& rng) : columns(columns) {
    std::vector<std::uint16_t> halves;
    for (size_t i = 0; i < rows * columns; ++i) {
      const float v = (static_cast<float>(rng() % 64) - 32) / 8;
      values.push_back(v);
      if (kind == Kind::tf32)
        words.push_back(std::bit_cast<std::uint32_t>(v) | 0x1abcu);  // low bits are dropped
      else
        halves.push_back(kind == Kind::bf16 ? f32_to_bf16(v) : f32_to_f16(v));
    }
    for (size_t i = 0; i + 1 < halves.size(); i += 2)
      words.push_back(halves[i] | std::uint32_t{halves[i + 1]} << 16);
  }
  double at(size_t row, size_t column) const { return values[row * columns + column]; }
};
/// c + a b^T
std::vector<double> product(const Operand& a, const Operand& b, const std::vector<float>& c) {
  const size_t columns = b.values.size() / b.columns;
  std::vector<double> out(c.begin(), c.end());
  for (size_t i = 0; i < out.size(); ++i)
    for (size_t k = 0; k < a.columns; ++k) out[i] += a.at(i / columns, k) * b.at(i % columns, k);
  return out;
}
std::vector<float> start(size_t n) {
  std::vector<float> c(n);
  for (size_t i = 0; i < n; ++i) c[i] = static_cast<float>(i % 17);
  return c;
}
std::vector<double> doubles(const Buffer& b) {
  const auto values = b.as<float>();
  return {values.begin(), values.end()};
}

TEST_F(Helpers, WarpProducts) {
  const std::pair<const char*, Kind> kinds[] = {
      {"multiply_bf16", Kind::bf16}, {"multiply_f16", Kind::f16}, {"multiply_tf32", Kind::tf32}};
  for (const auto& [symbol, kind] : kinds) {
    std::mt19937 rng(4);
    const size_t depth = 32 / bytes_of(kind), words = 8;  // a row is 8 words
    const Operand a(16, depth, kind, rng), b(8, depth, kind, rng);
    // Lane 4r + c has words c and c + 4 of rows r and r + 8 (PTX manual).
    std::vector<std::uint32_t> fa, fb;
    for (size_t t = 0; t < 32; ++t) {
      const size_t r = t / 4, c = t % 4;
      for (size_t i = 0; i < 4; ++i) fa.push_back(a.words[(r + i % 2 * 8) * words + c + i / 2 * 4]);
      for (size_t i = 0; i < 2; ++i) fb.push_back(b.words[r * words + c + i * 4]);
    }
    const auto c = start(128);
    Buffer A(fa), B(fb), C(c);
    RUN(symbol, {.block = {32}}, {&A, &B, &C});
    EXPECT_EQ(compare(doubles(C), product(a, b, c), 0), "") << symbol;
  }
}

TEST_F(Helpers, WarpgroupProducts) {
  const std::tuple<const char*, Kind, size_t> kinds[] = {{"product_bf16_8", Kind::bf16, 8},
                                                         {"product_bf16_96", Kind::bf16, 96},
                                                         {"product_f16_64", Kind::f16, 64},
                                                         {"product_tf32_32", Kind::tf32, 32}};
  for (const auto& [symbol, kind, n] : kinds) {
    std::mt19937 rng(5);
    const Operand a(64, 128 / bytes_of(kind), kind, rng), b(n, 128 / bytes_of(kind), kind, rng);
    const auto c = start(64 * n);
    Buffer A(a.words), B(b.words), C(c);
    RUN(symbol, {.block = {128}, .shared_bytes = 8192 + 128 * n}, {&A, &B, &C});
    EXPECT_EQ(compare(doubles(C), product(a, b, c), 0), "") << symbol;
  }
}

/// Where byte i of a tile lies with a swizzle of `width` bytes: line i / width, whose 16-byte units
/// are exchanged (CUDA driver API manual, CUtensorMapSwizzle).
size_t swizzled_byte(size_t i, size_t width) {
  if (width == 0) return i;
  const size_t line = i / 128 % (width / 16), unit = i / 16 % 8;
  return i / 128 * 128 + (unit ^ line) * 16 + i % 16;
}

TEST_F(Helpers, Tiles) {
  // 70 columns and 50 rows, in rows of 72.
  std::vector<std::uint16_t> x(72 * 50);
  std::iota(x.begin(), x.end(), std::uint16_t{1});
  for (int swizzle : {0, 32, 64, 128})
    for (const auto& [x0, y0] :
         {std::pair{0, 0}, std::pair{5, 3}, std::pair{48, 40}, std::pair{-3, -2}}) {
      const int columns = swizzle ? swizzle / 2 : 64, rows = 2048 / columns;
      Buffer X(x), out = Buffer::zeros<std::uint16_t>(2048);
      const Tiles tiles{&X,
                        {nullptr,
                         2,
                         {70, 50},
                         {144},
                         {static_cast<unsigned>(columns), static_cast<unsigned>(rows)},
                         swizzle}};
      RUN("tile_2d", {.block = {64}, .shared_bytes = 4096}, {tiles, &out, x0, y0});
      const auto got = out.as<std::uint16_t>();
      for (int i = 0; i < 2048; ++i) {
        const int column = x0 + i % columns, row = y0 + i / columns;
        const bool inside = column >= 0 && column < 70 && row >= 0 && row < 50;
        const size_t place =
            swizzled_byte(static_cast<size_t>(2 * i), static_cast<size_t>(swizzle)) / 2;
        ASSERT_EQ(got[place], inside ? x[static_cast<size_t>(row * 72 + column)] : 0)
            << swizzle << ": " << column << ", " << row;
      }
    }
}

TEST_F(Helpers, TilesOfThreeDimensions) {
  std::vector<std::uint16_t> x(24 * 9 * 5);
  std::iota(x.begin(), x.end(), std::uint16_t{1});
  Buffer X(x), out = Buffer::zeros<std::uint16_t>(512);
  const Tiles tiles{&X, {nullptr, 2, {24, 9, 5}, {48, 48 * 9}, {16, 8, 4}, 0}};
  RUN("tile_3d", {.block = {32}, .shared_bytes = 1024}, {tiles, &out, 9, 2, 3});
  const auto got = out.as<std::uint16_t>();
  for (int i = 0; i < 512; ++i) {
    const int a = 9 + i % 16, b = 2 + i / 16 % 8, c = 3 + i / 128;
    EXPECT_EQ(got[static_cast<size_t>(i)],
              a < 24 && b < 9 && c < 5 ? x[static_cast<size_t>((c * 9 + b) * 24 + a)] : 0);
  }
}

TEST_F(Helpers, BulkCopies) {
  std::vector<std::uint8_t> x(2064);
  std::mt19937 rng(4);
  for (auto& v : x) v = static_cast<std::uint8_t>(rng());
  for (const int bytes : {32, 48, 2064}) {
    Buffer X(x), out = Buffer::zeros<std::uint8_t>(static_cast<size_t>(bytes));
    RUN("bulk", {.block = {64}, .shared_bytes = 2064}, {&X, &out, bytes});
    const auto got = out.as<std::uint8_t>();
    for (int i = 0; i < bytes; ++i)
      ASSERT_EQ(got[static_cast<size_t>(i)], x[static_cast<size_t>((i + 16) % bytes)]) << i;
  }
}

TEST(TensorMaps, WhatTheDriverRefusesIsRefused) {
  alignas(16) static std::byte memory[64];
  const emulation::TensorMapRequest fine{memory, 2, {64, 64}, {128}, {64, 8}, 128};
  EXPECT_TRUE(emulation::encode(fine));
  const auto refused = [&](auto change) {
    auto request = fine;
    change(request);
    const auto map = emulation::encode(request);
    return !map && map.error().code == ErrorCode::usage;
  };
  EXPECT_TRUE(refused([](auto& r) { r.base = memory + 8; }));
  EXPECT_TRUE(refused([](auto& r) { r.stride_bytes = {120}; }));
  EXPECT_TRUE(refused([](auto& r) { r.box = {64, 257}; }));
  EXPECT_TRUE(refused([](auto& r) { r.box = {128, 8}; }));
  EXPECT_TRUE(refused([](auto& r) { r.box = {4, 8}; }));
  EXPECT_TRUE(refused([](auto& r) { r.extents = {64, 0}; }));
  EXPECT_TRUE(refused([](auto& r) { r.extents = {}; }));
  EXPECT_TRUE(refused([](auto& r) { r.swizzle = 16; }));
  EXPECT_TRUE(refused([](auto& r) { r.element_bytes = 3; }));
}

}  // namespace
}  // namespace heddle

#pragma once
// Hand-written kernels with all kinds of synchronisation (texts/), their data, and what they
// compute.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <numeric>
#include <random>
#include <sstream>

#include "cuda_emulation/device.h"

namespace heddle {

/// Tests run in the root of the project.
inline std::string read_text(const std::string& name) {
  std::ifstream file("tests/cuda_emulation/texts/" + name + ".cu");
  std::stringstream out;
  out << file.rdbuf();
  EXPECT_FALSE(out.str().empty()) << name;
  return out.str();
}

inline float from_bf16(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}
/// Values that bf16 holds exactly: multiples of 1/64 below 2.
inline std::vector<std::uint16_t> random_bf16(std::size_t n, std::mt19937& rng) {
  std::vector<std::uint16_t> out(n);
  for (auto& v : out) {
    const float x = (static_cast<float>(rng() % 256) - 128) / 64;
    v = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(x) >> 16);
  }
  return out;
}

/// One kernel text with data: "" or what is wrong.
struct TextCase {
  std::string text, symbol;
  std::string (*run)(TextDevice& device, const std::string& text, const std::string& symbol,
                     emulation::Order order);
};

inline std::string compare(const std::vector<double>& got, const std::vector<double>& want,
                           double tolerance) {
  for (std::size_t i = 0; i < want.size(); ++i)
    if (!(std::abs(got[i] - want[i]) <= tolerance * std::max(1.0, std::abs(want[i]))))
      return fmt::format("element {}: {} instead of {}", i, got[i], want[i]);
  return "";
}

/// C = A B^T with odd M and N, by gemm.cu or hopper_gemm.cu.
inline std::string run_gemm(TextDevice& device, const std::string& text, const std::string& symbol,
                            emulation::Order order) {
  std::mt19937 rng(3);
  const bool hopper = symbol.starts_with("hopper");
  const int M = 75, N = 71, K = hopper ? 64 * 7 - 8 : 32 * 5 + 8;
  const auto a = random_bf16(static_cast<std::size_t>(M * K), rng);
  const auto b = random_bf16(static_cast<std::size_t>(N * K), rng);
  Buffer A(a), B(b), C = Buffer::zeros<std::uint16_t>(static_cast<std::size_t>(M * N));
  emulation::Launch how{
      .grid = {2, 2}, .block = {128}, .shared_bytes = 3 * 128 * 40 * 2, .order = order};
  Status status = Ok{};
  if (hopper) {
    how.block.x = 160;
    how.shared_bytes = 4 * 2 * 8192 + 64;
    const auto tiles = [&](Buffer& buffer, int rows) {
      return Tiles{&buffer,
                   {nullptr,
                    2,
                    {static_cast<std::uint64_t>(K), static_cast<std::uint64_t>(rows)},
                    {static_cast<std::uint64_t>(K) * 2},
                    {64, 64},
                    128}};
    };
    status = device.run(text, symbol, how, {tiles(A, M), tiles(B, N), &C, M, N, K});
  } else {
    status = device.run(text, symbol, how, {&A, &B, &C, M, N, K});
  }
  if (!status) return status.error().message;
  std::vector<double> got, want;
  for (std::uint16_t v : C.as<std::uint16_t>()) got.push_back(from_bf16(v));
  for (int i = 0; i < M; ++i)
    for (int j = 0; j < N; ++j) {
      double sum = 0;
      for (int k = 0; k < K; ++k)
        sum += static_cast<double>(from_bf16(a[static_cast<std::size_t>(i * K + k)])) *
               from_bf16(b[static_cast<std::size_t>(j * K + k)]);
      want.push_back(sum);
    }
  return compare(got, want, 1e-2);
}

inline std::string run_persistent(TextDevice& device, const std::string& text,
                                  const std::string& symbol, emulation::Order order) {
  std::mt19937 rng(5);
  const int d = 37, layers = 3;
  auto w = random_bf16(static_cast<std::size_t>(layers * d * d), rng);
  std::vector<float> h(static_cast<std::size_t>(2 * d));
  for (float& x : h) x = (static_cast<float>(rng() % 256) - 128) / 64;
  std::vector<double> now(h.begin(), h.begin() + d), next(static_cast<std::size_t>(d));
  for (int l = 0; l < layers; ++l) {
    double squares = 0;
    for (double x : now) squares += x * x;
    for (int r = 0; r < d; ++r) {
      double a = now[static_cast<std::size_t>(r)];
      for (int i = 0; i < d; ++i)
        a += static_cast<double>(from_bf16(w[static_cast<std::size_t>((l * d + r) * d + i)])) *
             now[static_cast<std::size_t>(i)];
      next[static_cast<std::size_t>(r)] = a / std::sqrt(squares / d + 1e-5);
    }
    std::swap(now, next);
  }
  Buffer W(w), H(h), counter = Buffer::zeros<unsigned>(1);
  const Status status =
      device.run(text, symbol, {.grid = {3}, .block = {64}, .cooperative = true, .order = order},
                 {&W, &H, &counter, d, layers});
  if (!status) return status.error().message;
  const auto out = H.as<float>();
  return compare({out.begin() + (layers & 1) * d, out.begin() + (layers & 1) * d + d}, now, 1e-4);
}

inline std::string run_cluster(TextDevice& device, const std::string& text,
                               const std::string& symbol, emulation::Order order) {
  std::mt19937 rng(7);
  std::vector<float> x(256);
  for (float& v : x) v = static_cast<float>(rng() % 64);
  Buffer X(x), sums = Buffer::zeros<float>(4), turned = Buffer::zeros<float>(256);
  const Status status =
      device.run(text, symbol, {.grid = {4}, .block = {64}, .cluster = {2}, .order = order},
                 {&X, &sums, &turned});
  if (!status) return status.error().message;
  std::vector<double> got, want;
  for (float v : sums.as<float>()) got.push_back(v);
  for (float v : turned.as<float>()) got.push_back(v);
  for (int b = 0; b < 4; ++b) {
    double sum = 0;
    for (int i = 0; i < 128; ++i) sum += x[static_cast<std::size_t>(b / 2 * 128 + i)];
    want.push_back(sum);
  }
  for (int i = 0; i < 256; ++i)
    want.push_back(x[static_cast<std::size_t>(i / 32 * 32 + 31 - i % 32)]);
  return compare(got, want, 0);
}

inline std::vector<TextCase> text_cases() {
  return {{read_text("gemm"), "gemm", run_gemm},
          {read_text("hopper_gemm"), "hopper_gemm", run_gemm},
          {read_text("persistent"), "persistent", run_persistent},
          {read_text("cluster"), "cluster", run_cluster}};
}

}  // namespace heddle

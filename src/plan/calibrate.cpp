#include "plan/calibrate.h"

#include <fmt/format.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <numeric>
#include <utility>
#include <vector>

#include "support/tensor.h"

namespace heddle::plan {
namespace {

double seconds_of(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/// Best of as many as fit into this long, and of `repeats` at least: what is over in less meets a
/// core that has not reached its clock, or whose other thread belongs to somebody else.
constexpr double kLongEnough = 0.03;

template <class F>
double best_of(int repeats, F&& work) {
  double best = 1e30, total = 0;
  for (int i = 0; i < repeats || total < kLongEnough; ++i) {
    const double s = seconds_of(work);
    best = std::min(best, s);
    total += s;
  }
  return best;
}

/// For each thread bytes that it has touched, on huge pages as what programs read and write.
std::vector<Tensor> blocks_of(ThreadPool& pool, std::size_t bytes) {
  std::vector<Tensor> blocks(static_cast<std::size_t>(pool.threads()));
  pool.run([&](int t) {
    Tensor& block = blocks[static_cast<std::size_t>(t)];
    block = Tensor::workspace(static_cast<std::int64_t>(bytes));
    std::memset(block.mutable_data(), 1, bytes);
  });
  return blocks;
}

/// GB/s (read plus written, all threads) of copying `bytes` per thread back and forth.
double copy_gbs(ThreadPool& pool, std::size_t bytes) {
  const auto threads = static_cast<std::size_t>(pool.threads());
  // One block for both: a copy to some bytes further within a page runs at a twentieth on a Zen 3.
  std::vector<Tensor> blocks = blocks_of(pool, 2 * bytes);
  const int rounds =
      static_cast<int>(std::clamp<std::size_t>((std::size_t{4} << 20) / bytes, 1, 64));
  // Each thread times itself, so that one that has to wait for a core does not spoil the others.
  std::vector<double> best(threads, 1e30);
  best_of(12, [&] {
    pool.run([&](int t) {
      std::byte* const from = blocks[static_cast<std::size_t>(t)].mutable_data();
      double& mine = best[static_cast<std::size_t>(t)];
      mine = std::min(mine, seconds_of([&] {
                        for (int r = 0; r < rounds; ++r) {
                          std::memcpy(from + bytes, from, bytes);
                          from[static_cast<std::size_t>(r) % bytes] =
                              from[bytes];  // keeps the rounds apart
                        }
                      }));
    });
  });
  double sum = 0;
  for (double s : best) sum += 2.0 * static_cast<double>(bytes) * rounds / s * 1e-9;
  return sum;
}

constexpr int kChains = 12, kSteps = 20000;

#if defined(__x86_64__)
/// Intrinsics, because compilers need not contract a product and a sum; a pack of indices, so that
/// the accumulators stay in registers at any optimisation level.
template <std::size_t... C>
[[gnu::target("avx512f")]] float adds_avx512(float seed, std::index_sequence<C...>) {
  __m512 a[sizeof...(C)], x = _mm512_set1_ps(seed), y = _mm512_set1_ps(1e-9f);
  ((a[C] = _mm512_set1_ps(static_cast<float>(C))), ...);  // distinct chains
  for (int s = 0; s < kSteps; ++s) ((a[C] = _mm512_fmadd_ps(a[C], x, y)), ...);
  ((a[0] = _mm512_add_ps(a[0], a[C])), ...);
  float out[16];
  _mm512_storeu_ps(out, a[0]);
  return out[0];
}
template <std::size_t... C>
[[gnu::target("avx2,fma")]] float adds_avx2(float seed, std::index_sequence<C...>) {
  __m256 a[sizeof...(C)], x = _mm256_set1_ps(seed), y = _mm256_set1_ps(1e-9f);
  ((a[C] = _mm256_set1_ps(static_cast<float>(C))), ...);
  for (int s = 0; s < kSteps; ++s) ((a[C] = _mm256_fmadd_ps(a[C], x, y)), ...);
  ((a[0] = _mm256_add_ps(a[0], a[C])), ...);
  float out[8];
  _mm256_storeu_ps(out, a[0]);
  return out[0];
}

/// GFLOP/s of one core in independent multiply-adds, or 0 where it cannot be measured.
double multiply_add_gflops(int vector_bytes) {
  const bool wide = vector_bytes >= 64 && __builtin_cpu_supports("avx512f");
  if (!wide && !(vector_bytes >= 32 && __builtin_cpu_supports("fma"))) return 0;
  constexpr auto kChainIndices = std::make_index_sequence<kChains>();
  volatile float sink = 0;
  const double s = best_of(
      7, [&] { sink = wide ? adds_avx512(0.5f, kChainIndices) : adds_avx2(0.5f, kChainIndices); });
  return 2.0 * (wide ? 16 : 8) * kChains * kSteps / s * 1e-9;
}

/// The same of an instruction of three registers, which compilers may not surround with copies.
#define HEDDLE_RATE(name, features, instruction)                     \
  template <std::size_t... C>                                        \
  [[gnu::target(features)]] float name(std::index_sequence<C...>) {  \
    __m512 a[sizeof...(C)], x = _mm512_setzero_ps();                 \
    ((a[C] = _mm512_setzero_ps()), ...);                             \
    for (int s = 0; s < kSteps; ++s)                                 \
      (({ asm volatile(instruction : "+v"(a[C]) : "v"(x)); }), ...); \
    ((a[0] = _mm512_add_ps(a[0], a[C])), ...);                       \
    float out[16];                                                   \
    _mm512_storeu_ps(out, a[0]);                                     \
    return out[0];                                                   \
  }
HEDDLE_RATE(fours_of_bytes, "avx512f,avx512vnni", "vpdpbusd %1, %1, %0")
HEDDLE_RATE(pairs_of_bf16, "avx512f,avx512bf16", "vdpbf16ps %1, %1, %0")
#undef HEDDLE_RATE

/// Products in tile registers of 16 rows of 64 bytes: four independent sums, so many times.
#define HEDDLE_TILE_RATE(name, features, instruction)                    \
  [[gnu::target(features)]] void name() {                                \
    for (int s = 0; s < kSteps; ++s)                                     \
      asm volatile(instruction " %%tmm5, %%tmm4, %%tmm0\n\t" instruction \
                               " %%tmm5, %%tmm4, %%tmm1\n\t" instruction \
                               " %%tmm5, %%tmm4, %%tmm2\n\t" instruction \
                               " %%tmm5, %%tmm4, %%tmm3" ::);            \
  }
HEDDLE_TILE_RATE(tiles_of_bf16, "amx-tile,amx-bf16", "tdpbf16ps")
HEDDLE_TILE_RATE(tiles_of_bytes, "amx-tile,amx-int8", "tdpbssd")
#undef HEDDLE_TILE_RATE

struct alignas(64) TileConfiguration {
  std::uint8_t palette = 1, rest[15] = {};
  std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64};
  std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16};
};

[[gnu::target("amx-tile")]] void add_tile_rates(NarrowPeaks& peaks) {
  constexpr double kTiles = 4, kRows = 16, kColumns = 16;
  const TileConfiguration configuration;
  asm volatile("ldtilecfg %0" ::"m"(configuration));
  asm volatile("tilezero %%tmm4\n\ttilezero %%tmm5" ::: "memory");
  const auto rate = [&](int terms, auto&& work) {
    return 2.0 * kTiles * kRows * kColumns * terms * kSteps / best_of(7, work) * 1e-9;
  };
  peaks.bf16 = std::max(peaks.bf16, rate(32, tiles_of_bf16));
  peaks.bytes = std::max(peaks.bytes, rate(64, tiles_of_bytes));
  asm volatile("tilerelease" ::);
}

NarrowPeaks narrow_rates(int vector_bytes, bool tiles) {
  NarrowPeaks peaks;
  if (tiles) add_tile_rates(peaks);
  if (vector_bytes < 64) return peaks;
  constexpr int kInFlight = 20, kLanes = 16;  // more than two units' latency
  constexpr auto kIndices = std::make_index_sequence<kInFlight>();
  const auto rate = [&](int products, auto&& work) {
    return 2.0 * products * kLanes * kInFlight * kSteps / best_of(7, work) * 1e-9;
  };
  volatile float sink = 0;
  if (__builtin_cpu_supports("avx512bf16"))
    peaks.bf16 = std::max(peaks.bf16, rate(2, [&] { sink = pairs_of_bf16(kIndices); }));
  if (__builtin_cpu_supports("avx512vnni"))
    peaks.bytes = std::max(peaks.bytes, rate(4, [&] { sink = fours_of_bytes(kIndices); }));
  return peaks;
}
#else
double multiply_add_gflops(int) { return 0; }
NarrowPeaks narrow_rates(int, bool) { return {}; }
#endif

double launch_us(ThreadPool& pool) {
  constexpr int kRegions = 20;
  const double s = best_of(100, [&] {
    for (int i = 0; i < kRegions; ++i) pool.run([](int) {});
  });
  return s / kRegions * 1e6;
}

/// Bytes of the first core's data or unified cache of a level. The system's own tables: sysconf
/// reports the sum over the socket for shared levels.
std::int64_t cache_size(int level, std::int64_t otherwise) {
  for (int index = 0; index < 8; ++index) {
    const std::string folder = fmt::format("/sys/devices/system/cpu/cpu0/cache/index{}/", index);
    int found = 0;
    std::string type, size;
    if (!(std::ifstream(folder + "level") >> found)) break;
    std::ifstream(folder + "type") >> type;
    std::ifstream(folder + "size") >> size;
    if (found != level || type == "Instruction" || size.empty()) continue;
    const std::int64_t unit = size.back() == 'K' ? 1 << 10 : size.back() == 'M' ? 1 << 20 : 1;
    const std::int64_t bytes = std::strtoll(size.c_str(), nullptr, 10) * unit;
    if (bytes > 0) return bytes;
  }
  return otherwise;
}

std::string processor() {
  std::ifstream in("/proc/cpuinfo");
  std::string line;
  while (std::getline(in, line)) {
    if (line.rfind("model name", 0) == 0 && line.find(':') != std::string::npos) {
      return line.substr(std::min(line.size(), line.find(':') + 2));
    }
  }
  return "unknown processor";
}

}  // namespace

std::string machine_name(int threads, int vector_bytes) {
  const MachineModel m = default_machine(threads, vector_bytes);
  return fmt::format("{}, {} KB L2, {} KB L3, {}-bit vectors, {} threads", processor(),
                     m.l2_bytes >> 10, m.l3_bytes >> 10, vector_bytes * 8, threads);
}

MachineModel default_machine(int threads, int vector_bytes) {
  MachineModel m;
  m.threads = threads;
  m.vector_bytes = vector_bytes;
  m.peak_gflops *= static_cast<double>(vector_bytes) / 32;
  m.l1_bytes = cache_size(1, m.l1_bytes);
  m.l2_bytes = cache_size(2, m.l2_bytes);
  m.l3_bytes = cache_size(3, m.l3_bytes);
  return m;
}

double reading_gbs(ThreadPool& pool, double bytes) {
  constexpr double kMost = 512 << 20;
  const auto words =
      static_cast<std::size_t>(std::clamp(bytes, 4096.0, kMost) / 8 / pool.threads());
  const std::vector<Tensor> blocks = blocks_of(pool, 8 * words);
  std::vector<std::uint64_t> sums(blocks.size());
  const double seconds = best_of(5, [&] {
    pool.run([&](int thread) {
      const auto t = static_cast<std::size_t>(thread);
      const auto* const begin = reinterpret_cast<const std::uint64_t*>(blocks[t].data());
      sums[t] += std::accumulate(begin, begin + words, std::uint64_t{0});
    });
  });
  asm volatile("" ::"r"(sums.data()) : "memory");  // keeps them
  return static_cast<double>(words * 8 * blocks.size()) / seconds / 1e9;
}

NarrowPeaks narrow_peaks(int vector_bytes, bool tiles) { return narrow_rates(vector_bytes, tiles); }

MachineModel calibrate(ThreadPool& pool, int vector_bytes) {
  MachineModel m = default_machine(pool.threads(), vector_bytes);
  const auto t = static_cast<double>(pool.threads());
  m.l2_gbs = copy_gbs(pool, static_cast<std::size_t>(m.l2_bytes / 4)) / t;
  // Twice L2 and well inside L3, or beyond it.
  const auto inside_l3 = std::min<std::int64_t>(m.l2_bytes * 2, m.l3_bytes / 4 / pool.threads());
  m.l3_gbs = copy_gbs(pool, static_cast<std::size_t>(std::max(inside_l3, m.l2_bytes))) / t;
  const auto beyond = std::min<std::int64_t>(m.l3_bytes * 2, std::int64_t{96} << 20);
  m.dram_gbs = copy_gbs(
      pool, static_cast<std::size_t>(std::max<std::int64_t>(beyond / pool.threads(), 8 << 20)));
  if (const double peak = multiply_add_gflops(vector_bytes); peak > 0) m.peak_gflops = peak;
  // A kernel costs a little more than waking and meeting: its first cache misses.
  m.launch_us = launch_us(pool) + 0.3;
  return m;
}

}  // namespace heddle::plan

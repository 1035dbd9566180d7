#include "lower/contract/gpu/tiles.h"

#include <algorithm>
#include <cmath>

namespace heddle::lower::contract::gpu {
namespace {

struct Shape2 {
  int bm, bn, bk, a, b;  // a, b: warps (mma) or a thread's results (scalar)
};
/// Blocks of 32 to 256 threads; large ones reuse operands more, small ones fill the machine.
constexpr Shape2 kMma[] = {{128, 256, 32, 2, 4}, {256, 128, 32, 4, 2}, {128, 128, 32, 2, 2},
                           {128, 128, 64, 2, 4}, {128, 64, 32, 2, 2},  {64, 128, 32, 2, 2},
                           {64, 64, 64, 2, 2},   {64, 32, 64, 2, 2},   {32, 64, 64, 2, 2},
                           {32, 128, 64, 1, 4},  {16, 128, 64, 1, 4},  {16, 64, 64, 1, 4},
                           {32, 32, 64, 2, 2}};
constexpr Shape2 kWgmma[] = {{128, 256, 64, 8, 1},
                             {128, 128, 64, 8, 1},
                             {128, 64, 64, 8, 1},
                             {64, 128, 64, 4, 1},
                             {64, 64, 64, 4, 1}};
constexpr Shape2 kScalar[] = {{128, 128, 16, 8, 8}, {128, 64, 16, 8, 8}, {64, 128, 16, 8, 8},
                              {64, 64, 16, 8, 4},   {64, 32, 16, 4, 4},  {32, 64, 16, 4, 4},
                              {32, 32, 16, 4, 2},   {16, 64, 16, 2, 4},  {16, 32, 16, 2, 2}};

/// Microseconds: waves of blocks, each as long as its arithmetic or its loads from the second-level
/// cache, and the bytes that the whole machine moves.
double estimate(const Gemm& g, const Target& target, const Tiles& t) {
  // Of a multiprocessor in a microsecond, by unit: assumed, but for what peers reach on an H200.
  constexpr double kFlops[] = {0.38e6, 3.0e6, 4.6e6, 5.6e6, 0};
  constexpr double kStartUs = 2.0;
  // Threads that copy issue instructions that the copy engine saves.
  const double cache_bytes = g.unit == Unit::tma ? 50e3 : 40e3;
  const double tiles = static_cast<double>(g.batch_extent * ceil_div(g.m.extent, t.bm) *
                                           ceil_div(g.n.extent, t.bn) * t.splits);
  const double k = static_cast<double>(ceil_div(ceil_div(g.k_extent, t.splits), t.bk) * t.bk);
  // Few warps hide less latency; a block alone has at most a share of its multiprocessor.
  const double area = static_cast<double>(t.bm) * t.bn;
  const double most = g.unit == Unit::scalar ? 64.0 * 64 : 128.0 * 128;
  const double share = std::min(1.0, 0.35 + 0.65 * area / most);
  const double flops = kFlops[static_cast<int>(g.unit)] * share;
  const double size = static_cast<double>(size_of(g.m.stored));
  const double math = 2 * area * k / flops;
  const double bytes = (t.bm + t.bn) * k * size;
  const double narrow = (g.m.async && g.n.async) ? 1.0 : 3.0;
  const double each = std::max(math, narrow * bytes / cache_bytes);
  const double waves = std::max(1.0, tiles / target.multiprocessors);
  const double rounded =
      tiles <= target.multiprocessors ? 1.0 : 0.5 * waves + 0.5 * std::ceil(waves);
  double us = kStartUs + rounded * (each + 0.5);
  if (t.splits > 1)
    us += 2.5 + static_cast<double>(g.batch_extent * g.m.extent * g.n.extent) * 8 * t.splits / 3e6;
  return us;
}

/// Operands on their way through registers leave less room for results.
bool fits(const Gemm& g, const Target& target, const Tiles& t) {
  constexpr int kResults = 64;
  if ((!g.m.async || !g.n.async) && t.bm * t.bn > kResults * threads_of(g, t)) return false;
  return shared_bytes(g, t) <= target.shared_bytes;
}

constexpr int kStreamThreads = 256;

/// Few rows against many that are read once: what counts are bytes on their way, so threads enough
/// to fill the machine before much work for each.
Tiles stream_tiles(const Gemm& g, const Target& target, int team) {
  constexpr std::int64_t kResults = 32, kThreadsEach = 1024;  // of a thread; of a multiprocessor
  const Side& s = g.longer();
  const std::int64_t few = g.shorter().extent;
  Tiles t;
  t.stages = 1;
  t.team = team;
  t.each = s.along_k ? (few <= 2 ? 2 : 4) : s.vector;
  while (t.each > 1 && t.each * few > kResults) t.each /= 2;
  const std::int64_t wanted = target.multiprocessors * kThreadsEach;
  if (s.along_k)
    while (t.each > 1 && g.batch_extent * s.extent / t.each * team < wanted) t.each /= 2;
  const int rows = kStreamThreads / team * t.each;
  (&s == &g.m ? t.bm : t.bn) = rows;
  (&s == &g.m ? t.bn : t.bm) = static_cast<int>(few);
  const double threads = static_cast<double>(g.batch_extent * s.extent / t.each * team);
  const double bytes = static_cast<double>(g.batch_extent * s.extent * g.k_extent) *
                       static_cast<double>(size_of(s.stored));
  // Each thread keeps a few accesses on their way.
  const double rate = std::min(3.8e6, 3.8e6 * threads / static_cast<double>(wanted));
  const double narrow =
      16.0 / (static_cast<double>(s.vector) * static_cast<double>(size_of(s.stored)));
  t.us = 2 + bytes * std::sqrt(narrow) / rate + 0.2 * std::log2(team) +
         (s.along_k ? 0.0 : 0.3 * team / 32);
  return t;
}

std::vector<Tiles> stream_space(const Gemm& g, const Target& target, const Tuning& fixed) {
  std::vector<Tiles> out;
  const bool along_k = g.longer().along_k;
  for (int team = along_k ? 32 : 8; team <= (along_k ? 256 : 64); team *= 2) {
    const std::int64_t steps = g.k_extent / (along_k ? g.longer().vector : 1);
    if (pinned(fixed, "team").value_or(team) != team || (!out.empty() && team * 2 > steps))
      continue;
    out.push_back(stream_tiles(g, target, team));
  }
  if (out.empty()) out.push_back(stream_tiles(g, target, 32));
  return out;
}

}  // namespace

std::optional<std::int64_t> pinned(const Tuning& tuning, std::string_view name) {
  for (const auto& [key, value] : tuning)
    if (key == name) return value;
  return std::nullopt;
}

int threads_of(const Gemm& g, const Tiles& t) {
  if (g.unit == Unit::stream) return kStreamThreads;
  if (g.unit == Unit::tma) return t.warps_m * kernel::kWarp + kCopyThreads;
  return g.unit != Unit::scalar ? t.warps_m * t.warps_n * kernel::kWarp
                                : (t.bm / t.tm) * (t.bn / t.tn);
}

std::int64_t pitch(const Gemm& g, const Side& s, const Tiles& t, bool is_m) {
  // [k / 8][row][k % 8]; neighbouring steps lie in different banks.
  if (g.unit == Unit::wgmma) return (is_m ? t.bm : t.bn) * 8 + 8;
  // Rows of 16 bytes more than a power of two: neighbouring rows lie in different banks.
  const std::int64_t rows = is_m ? t.bm : t.bn;
  const std::int64_t pad = 16 / size_of(s.stored);
  if (g.unit == Unit::mma && s.stored == DType::f32) return s.k_inside ? t.bk + 4 : rows + 8;
  return (s.k_inside ? t.bk : rows) + pad;
}

std::int64_t stage_size(const Gemm& g, const Side& s, const Tiles& t, bool is_m) {
  if (g.unit == Unit::tma) return std::int64_t{is_m ? t.bm : t.bn} * t.bk;
  if (g.unit == Unit::wgmma) return pitch(g, s, t, is_m) * (t.bk / 8);
  return pitch(g, s, t, is_m) * (s.k_inside ? (is_m ? t.bm : t.bn) : t.bk);
}

int store_width(const Gemm& g, const Tiles& t) {
  int width = 16;
  for (const Output& o : g.product.outputs)
    if (!o.sum)
      width =
          std::min(width, 16 / static_cast<int>(size_of(g.product.kernel.buffers[o.buffer].dtype)));
  width = std::max(width, 16 / static_cast<int>(size_of(g.product.problem.type)));
  while (t.bn % width != 0) width /= 2;
  return width;
}

namespace {
/// In which the warps of a block combine their sums over rows.
std::int64_t bytes_of_sums(const Gemm& g, const Tiles& t) {
  if (!g.product.sums() || g.unit == Unit::tma) return 0;
  const int columns = g.unit == Unit::scalar ? t.tn : store_width(g, t);
  return std::int64_t{threads_of(g, t)} * columns * size_of(g.product.problem.type);
}
}  // namespace

std::int64_t shared_bytes(const Gemm& g, const Tiles& t) {
  if (g.unit == Unit::stream)
    return std::int64_t{t.bm} * t.bn * size_of(g.product.problem.type) +
           std::max(std::int64_t{kStreamThreads} * t.each * g.shorter().extent *
                        size_of(g.product.problem.type),
                    bytes_of_sums(g, t));
  if (g.unit == Unit::tma)
    return std::int64_t{t.stages} * ((t.bm + t.bn) * t.bk * 2 + 2 * 8) +
           std::int64_t{t.bm} * results_pitch(t) * 4 + 64;
  const std::int64_t loop = t.stages * (stage_size(g, g.m, t, true) * size_of(g.m.stored) +
                                        stage_size(g, g.n, t, false) * size_of(g.n.stored));
  const std::int64_t staged = g.unit != Unit::scalar ? std::int64_t{4} * t.bm * (t.bn + 8) : 0;
  return std::max(loop, staged) + bytes_of_sums(g, t);
}

int blocks_together(const Gemm& g, const Target& target, const Tiles& t) {
  constexpr std::int64_t kReserved = 1024, kMost = 2;
  const std::int64_t room = (target.shared_bytes + kReserved) / (shared_bytes(g, t) + kReserved);
  return static_cast<int>(std::clamp<std::int64_t>(room, 1, t.warps_m > 4 ? 1 : kMost));
}

std::string to_string(const Gemm& g, const Tiles& t) {
  constexpr std::string_view kUnits[] = {"scalar", "mma", "wgmma", "tma", "stream"};
  std::string text =
      fmt::format("contract {} {}x{}x{} stages={} threads={}", kUnits[static_cast<int>(g.unit)],
                  t.bm, t.bn, t.bk, t.stages, threads_of(g, t));
  if (g.unit == Unit::stream)
    text = fmt::format("contract stream {}x{} team={} threads={}", t.bm, t.bn, t.team,
                       threads_of(g, t));
  if (t.splits > 1) text += fmt::format(" splits={}", t.splits);
  return text;
}

std::vector<Tiles> choose_tiles(const Gemm& g, const Target& target, const Tuning& fixed,
                                std::size_t count) {
  std::vector<Tiles> out;
  const auto fits_pins = [&](const Tiles& t) {
    const std::pair<std::string_view, std::int64_t> own[] = {
        {"bm", t.bm}, {"bn", t.bn}, {"bk", t.bk}, {"splits", t.splits}};
    return std::all_of(std::begin(own), std::end(own), [&](const auto& one) {
      const auto pin = pinned(fixed, one.first);
      return !pin || *pin == one.second;
    });
  };
  const bool mma = g.unit != Unit::scalar;
  const bool groups = g.unit == Unit::wgmma || g.unit == Unit::tma;
  const bool resident = target.grid_barriers && pinned(fixed, "resident").value_or(1) == 1;
  const auto add = [&](const Shape2& s, int splits) {
    Tiles t;
    t.bm = s.bm, t.bn = s.bn, t.bk = s.bk;
    if (mma && g.m.stored == DType::f32) t.bk /= 2;
    (mma ? t.warps_m : t.tm) = s.a;
    (mma ? t.warps_n : t.tn) = s.b;
    t.splits = splits;
    t.resident = resident;
    const int least = groups ? 3 : 2, usual = groups || (mma && s.bk < 64) ? 4 : 3;
    t.stages = std::max(least, static_cast<int>(pinned(fixed, "stages").value_or(usual)));
    while (t.stages > least && !fits(g, target, t)) --t.stages;
    if (!fits(g, target, t) || !fits_pins(t)) return;
    t.us = estimate(g, target, t);
    out.push_back(t);
  };
  if (g.unit == Unit::stream) out = stream_space(g, target, fixed);
  for (Tiles& t : out) t.resident = resident;
  const std::span<const Shape2> shapes = groups ? std::span<const Shape2>(kWgmma)
                                         : mma  ? std::span<const Shape2>(kMma)
                                                : kScalar;
  constexpr int kMaxSplits = 32;
  if (g.unit != Unit::stream)
    for (const Shape2& s : shapes)
      for (int splits = 1; splits <= kMaxSplits; splits *= 2)
        if (splits == 1 || splits * 4 * s.bk <= g.k_extent) add(s, splits);
  // Tiles that were chosen for another target may not exist here.
  if (out.empty() && !fixed.empty()) return choose_tiles(g, target, {}, count);
  HEDDLE_CHECK(!out.empty(), "no tiles fit");
  std::stable_sort(out.begin(), out.end(),
                   [](const Tiles& a, const Tiles& b) { return a.us < b.us; });
  if (out.size() > count) out.resize(count);
  return out;
}

}  // namespace heddle::lower::contract::gpu

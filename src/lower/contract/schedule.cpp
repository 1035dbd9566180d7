#include "lower/contract/schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "support/math.h"

namespace heddle::lower::contract {

std::optional<std::int64_t> pinned(const Tuning& tuning, std::string_view name) {
  for (const auto& [key, value] : tuning)
    if (key == name) return value;
  return std::nullopt;
}

/// Cycles of one reduction step of a tile: the target's multiply-adds, two loads a cycle, each
/// accumulator waits four cycles for itself, and a panel that does not stay in the first-level
/// cache comes anew for every tile.
double step_cycles(const Extents& e, const Target& t, std::int64_t mr, std::int64_t nv) {
  const double fma = static_cast<double>(mr * nv) / t.fma_rate,
               loads = static_cast<double>(mr + nv) / 2;
  const double vectors = static_cast<double>(nv * t.vector_bytes);
  const double panel = static_cast<double>(e.k) * vectors;
  const double per_cycle = panel <= 0.6 * static_cast<double>(t.l1_bytes)   ? 64
                           : panel <= 0.9 * static_cast<double>(t.l2_bytes) ? 18
                                                                            : 14;
  return std::max({fma, loads, 4.0, vectors / per_cycle});
}

std::vector<Schedule> best_first(std::vector<Schedule> all, std::size_t count) {
  std::stable_sort(all.begin(), all.end(),
                   [](const Schedule& a, const Schedule& b) { return a.cycles < b.cycles; });
  if (all.size() > count) all.resize(count);
  return all;
}

std::vector<std::int64_t> block_sizes(std::int64_t count, std::optional<std::int64_t> pin) {
  if (pin) return {std::clamp<std::int64_t>(*pin, 1, count)};
  std::vector<std::int64_t> out;
  for (std::int64_t q = 1; q <= count; q = q < 16 ? q + 1 : q + q / 4) {
    const std::int64_t size = ceil_div(count, q);
    if (out.empty() || out.back() != size) out.push_back(size);
  }
  if (out.back() != 1) out.push_back(1);
  return out;
}

namespace {

/// Whether more rows of a tile share sets of the first-level cache than it has ways: their lines
/// then come from the second for every step.
bool rows_collide(const Extents& e, const Target& t, std::int64_t mr) {
  constexpr std::int64_t kWay = 4096;  // bytes of a way; more would need bits of translated pages
  if (e.a_apart == 0) return false;
  return ceil_div(mr, kWay / std::gcd(e.a_apart, kWay)) > t.l1_bytes / kWay;
}

double tile_cycles(const Extents& e, const Target& t, std::int64_t mr, std::int64_t nv) {
  constexpr double kColliding = 1.3;
  const double steps = e.inside * static_cast<double>(e.k) * step_cycles(e, t, mr, nv) *
                       (rows_collide(e, t, mr) ? kColliding : 1);
  // A row's results (vector operations) are written out; of long ones (sums of resized images)
  // registers spill.
  constexpr double kLongRow = 400, kSpilling = 1.5;
  const double vectors = static_cast<double>(mr * nv) * e.epilogue;
  const bool spills = static_cast<double>(nv) * e.epilogue > kLongRow;
  return steps + vectors * (spills ? kSpilling : 1) + 30;
}

/// One row of tiles against all panels.
double row_cycles(const Extents& e, const Target& t, const Schedule& s, int lanes,
                  std::int64_t panels) {
  const std::int64_t width = s.nv * lanes, full = std::min(panels, e.n / width);
  double cycles = static_cast<double>(full) *
                  (static_cast<double>(s.big) * tile_cycles(e, t, s.mr, s.nv) +
                   static_cast<double>(s.small) * tile_cycles(e, t, s.mr - 1, s.nv));
  if (panels > full) {
    const std::int64_t nv = ceil_div(e.n - (e.n / width) * width, lanes);
    cycles += static_cast<double>(s.big) * tile_cycles(e, t, s.mr, nv) +
              static_cast<double>(s.small) * tile_cycles(e, t, s.mr - 1, nv);
  }
  return cycles;
}

/// Cycles of all tasks on all threads: arithmetic, operands coming in, and rows that do not stay in
/// the second-level cache between panels.
double total_cycles(const Extents& e, const Schedule& s, const Target& t, int lanes) {
  const double tile_share = static_cast<double>(s.tiles_per_task) / static_cast<double>(s.tiles());
  const double rows = static_cast<double>(s.rows_per_task);
  double task = rows * tile_share * row_cycles(e, t, s, lanes, s.panels_per_task);
  const double a_rows = e.rows > 1 ? rows : tile_share * static_cast<double>(e.tile);
  const double a_bytes =
      a_rows * static_cast<double>(e.a_row_bytes) + static_cast<double>(e.a_halo_bytes);
  const double b_bytes =
      static_cast<double>(s.panels_per_task * s.nv * lanes * e.k * e.element_bytes);
  const double a_copy = s.a == ASource::in_place ? a_bytes / 16 : a_bytes / e.a_copy_rate;
  // The next task's columns come while this one computes, of this product or the next one
  // (Emitter::fetch_operand).
  const std::int64_t next = s.panel_blocks() > 1 ? s.panel_blocks() : e.outer;
  const bool fetched = s.b == BSource::task && s.a == ASource::in_place && next > t.threads;
  task += (a_copy + b_bytes / 12) / (fetched ? 3 : 1) + 400;
  const double budget = 0.55 * static_cast<double>(t.l2_bytes);
  // Copies are written there, and the first panel reads them, too.
  const std::int64_t passes = s.panels_per_task + (s.a == ASource::in_place ? -1 : 1);
  if (a_bytes > budget)
    task += std::min(1.0, (a_bytes - budget) / budget) * a_bytes / 12 * static_cast<double>(passes);
  // Columns that several tasks want are packed before, once (contract.cpp, prepared()). Where the
  // rows are not copied either, a task for all rows that packs its own columns measures better.
  const bool once = s.a != ASource::in_place && s.row_blocks(e) * s.tile_blocks() > 1;
  double before = 0;
  if (s.b == BSource::task) (once ? before : task) += b_bytes / 4;
  const double blocks = static_cast<double>(e.outer * s.panel_blocks());
  const std::int64_t tasks = s.tasks(e);
  return static_cast<double>(ceil_div(tasks, t.threads)) * task +
         before * blocks / static_cast<double>(t.threads);
}

/// Tasks whose rows stay in the second-level cache: the next kernel's tasks may read them there,
/// most of all where a program runs depth first (runtime/schedule.h). It costs nothing but the
/// columns once more for each task, if these stay in the first-level cache.
void keep_rows_near(const Extents& e, const Target& t, int lanes, Schedule& s) {
  const std::int64_t b_bytes = s.panels * s.nv * lanes * e.k * e.element_bytes;
  if (s.a != ASource::in_place || s.b != BSource::constant || s.panels_per_task < s.panels ||
      b_bytes > t.l1_bytes)
    return;
  const std::int64_t tile_bytes = s.mr * (e.a_row_bytes + e.n * e.element_bytes);
  if (s.tiles_per_task * tile_bytes <= t.l2_bytes / 2) return;
  // Equal tasks, as many for each thread: what each writes is then told apart, and nothing waits.
  for (std::int64_t n = t.l2_bytes / 4 / tile_bytes; n > t.l2_bytes / 16 / tile_bytes; --n)
    if (s.tiles() % n == 0 && s.tiles() / n % t.threads == 0) {
      s.tiles_per_task = n;
      return;
    }
}

void blockings(const Extents& e, const Target& t, int lanes, Schedule s, const Tuning& fixed,
               std::vector<Schedule>& out) {
  const bool by_rows = e.rows > 1;
  // A box must have one row distance, so it is cut only where all tiles are equal.
  const bool cut_tiles = !by_rows && !e.whole && !(s.a == ASource::box && s.small > 0);
  std::vector<std::int64_t> m_blocks{by_rows ? e.rows : s.tiles()};
  if (by_rows) m_blocks = block_sizes(e.rows, pinned(fixed, "rows"));
  if (cut_tiles) m_blocks = block_sizes(s.tiles(), pinned(fixed, "tiles"));
  std::optional<Schedule> best;
  for (std::int64_t m : m_blocks) {
    s.rows_per_task = by_rows ? m : 1;
    s.tiles_per_task = by_rows ? s.tiles() : m;
    for (std::int64_t p : block_sizes(s.panels, pinned(fixed, "panels"))) {
      s.panels_per_task = p;
      s.cycles = total_cycles(e, s, t, lanes);
      if (!best || s.cycles < best->cycles) best = s;
    }
  }
  if (cut_tiles && !pinned(fixed, "tiles")) keep_rows_near(e, t, lanes, *best);
  out.push_back(*best);
}

}  // namespace

std::string to_string(const Schedule& s) {
  constexpr std::string_view kA[] = {"in-place", "box", "matrix", "tiles"};
  constexpr std::string_view kB[] = {"packed", "in-place", "task-packed", "phase-packed"};
  return fmt::format(
      "{} mr={} nv={} tiles={}+{} rows={}{} tiles/task={} panels={}/{} a={} b={}{}{}{}{}",
      s.winograd > 0 ? fmt::format("winograd F({0}x{0},3x3)", s.winograd)
      : s.strassen   ? "strassen"
      : s.dots       ? "dots"
      : s.pieces     ? "pieces"
                     : "contract",
      s.mr, s.nv, s.big, s.small, s.rows_per_task,
      s.column_blocks > 1 ? fmt::format(" columns=1/{}", s.column_blocks) : "", s.tiles_per_task,
      s.panels_per_task, s.panels, kA[static_cast<int>(s.a)], kB[static_cast<int>(s.b)],
      s.staged ? " staged" : "", s.depth > 1 ? fmt::format(" depth={}", s.depth) : "",
      s.slices > 1 ? fmt::format(" slices={}", s.slices) : "", s.beside ? " beside" : "");
}

std::vector<Schedule> schedules(const Extents& e, const Target& target, int lanes,
                                const Schedule& base, const Tuning& fixed, std::size_t count) {
  std::vector<Schedule> out;
  const std::int64_t vectors = ceil_div(e.n, lanes);
  const auto mr_pin = pinned(fixed, "mr"), nv_pin = pinned(fixed, "nv");
  for (std::int64_t nv = 1; nv <= 12; ++nv) {
    if (nv_pin && nv != *nv_pin) continue;
    for (std::int64_t mr = 1; mr <= 14; ++mr) {
      if (mr_pin && mr != *mr_pin) continue;
      if (!(mr_pin && nv_pin) && mr * nv + nv + 1 + e.spare > target.vector_registers) continue;
      Schedule s = base;
      const std::int64_t tiles = ceil_div(e.tile, mr);
      s.mr = ceil_div(e.tile, tiles);
      s.panels = ceil_div(vectors, nv);
      s.nv = ceil_div(vectors, s.panels);
      if (!(mr_pin || nv_pin) && (s.mr != mr || s.nv != nv)) continue;  // met at its own size
      s.small = tiles * s.mr - e.tile;
      s.big = tiles - s.small;
      if (!mr_pin && !nv_pin && e.tile_step > 1 && (s.small > 0 || s.mr % e.tile_step != 0))
        continue;
      blockings(e, target, lanes, s, fixed, out);
    }
  }
  return best_first(std::move(out), count);
}

}  // namespace heddle::lower::contract

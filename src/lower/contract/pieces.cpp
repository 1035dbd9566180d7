#include "lower/contract/pieces.h"

#include <algorithm>
#include <cmath>

#include "kernel/traverse.h"
#include "lower/contract/direct.h"
#include "lower/contract/pieces_cost.h"
#include "support/math.h"

namespace heddle::lower::contract {
namespace {

using ir::Expr;
using Tile = kernel::TileProduct;

constexpr std::int64_t kLeastBlock = 256;  // terms of a block
constexpr std::int64_t kLeastSteps = 6;    // of a slice, which has to load and store its sums

std::optional<int> pieces_in(DType t) {
  if (t == DType::f32) return 3;
  if (t == DType::bf16) return 1;
  return std::nullopt;
}

/// By the types alone.
std::optional<Pieces> pieces_of(const prim::Graph& g, const Problem& p) {
  const bool bytes = p.parts && p.parts->count == 4 && p.type == DType::i32;
  const auto a = bytes ? 1 : pieces_in(g[p.a].type.dtype),
             b = bytes ? 1 : pieces_in(g[p.b].type.dtype);
  if (!bytes && (!a || !b || p.parts || p.type != DType::f32)) return std::nullopt;
  if (p.of(Role::k).empty()) return std::nullopt;
  Pieces out{*a, *b, 1, bytes};
  out.steps = ceil_div(p.count(Role::k), out.depth());
  return out;
}

/// Blocks of the reduction.
std::vector<std::int64_t> depths(const Product& p, const Pieces& shape, const Tuning& fixed) {
  const std::vector<Axis> terms = merged_reductions(p, expressions_of(p.a));
  std::vector<std::int64_t> out;
  for (const std::int64_t depth : {1, 2, 3, 4, 6, 8, 9, 16, 18}) {
    if (pinned(fixed, "depth").value_or(depth) != depth) continue;
    const bool even =
        blocks_of(terms, depth) && shape.line == 1 && p.extents.k % (depth * shape.depth()) == 0;
    if (depth == 1 || (even && p.extents.k / depth >= kLeastBlock)) out.push_back(depth);
  }
  return out;
}

/// Whether slices of so many steps begin where runs of rows that are read where they lie do, or
/// within one.
bool can_slice(const Product& p, const Pieces& shape, const Schedule& s, std::int64_t steps) {
  if (s.a == ASource::matrix) return true;
  std::int64_t terms = 1;
  for (std::size_t i = p.k.size(); i-- > 0;)
    for (std::size_t j = p.k[i].axes.size(); j-- > 0;) {
      terms *= p.k[i].axes[j].extent;
      if (terms % shape.line != 0 || shape.place_of(terms) % shape.depth() != 0) continue;
      const std::int64_t run = shape.place_of(terms) / shape.depth();
      if (run % steps != 0 && steps % run != 0) return false;
    }
  return true;
}

/// Slices of the reduction: of those whose columns fit the first-level cache the two longest.
std::vector<std::int64_t> slices(const Product& p, const Pieces& shape, const Schedule& s,
                                 const Target& t, const Tuning& fixed) {
  const auto pin =
      pinned(fixed, "mr") ? pinned(fixed, "slices").value_or(1) : pinned(fixed, "slices");
  std::vector<std::int64_t> out;
  if (pin.value_or(1) == 1) out.push_back(1);
  if (s.beside || s.depth > 1 || shape.a > 1 || s.b == BSource::task ||
      s.tiles_per_task * s.rows_per_task < 2)
    return out;
  const std::int64_t bytes = shape.b * s.nv * Tile::kRows * Tile::kRowBytes;  // of a step
  const std::size_t most = out.size() + 2;
  for (std::int64_t n = 2; n <= shape.steps && out.size() < most; ++n)
    if (shape.steps % n == 0 && pin.value_or(n) == n && can_slice(p, shape, s, shape.steps / n) &&
        (pin || (shape.steps / n >= kLeastSteps && bytes * (shape.steps / n) <= t.l1_bytes / 2)))
      out.push_back(n);
  return out;
}

/// Panels inside tiles: each task has as many, and rows are read alike everywhere.
bool can_be_beside(const Product& p, const Pieces& shape, const Schedule& s) {
  bool tests = false;
  kernel::for_each_value(
      p.a, [&](const kernel::Value& v) { tests |= std::holds_alternative<kernel::Guard>(v->op); });
  return !tests && s.depth == 1 && shape.steps > 1 && s.b != BSource::task && p.extents.rows == 1 &&
         s.panels % s.panels_per_task == 0 && s.tiles_per_task > 1 && !p.a_across &&
         merged_reductions(p, expressions_of(p.a)).size() == 1;
}

void add_blockings(const Product& p, const Pieces& shape, Schedule s, const Target& target,
                   int lanes, const Tuning& fixed, std::vector<Schedule>& out) {
  const Extents& e = p.extents;
  const bool by_rows = e.rows > 1;
  std::vector<std::int64_t> blocks{s.tiles()};
  if (by_rows)
    blocks = block_sizes(e.rows, pinned(fixed, "rows"));
  else if (!e.whole && !(s.a == ASource::box && s.small > 0))  // a box has one row distance
    blocks = block_sizes(s.tiles(), pinned(fixed, "tiles"));
  for (const std::int64_t depth : depths(p, shape, fixed))
    for (const std::int64_t m : blocks) {
      if (depth > 1 && s.a != ASource::matrix) continue;
      s.depth = depth;
      s.rows_per_task = by_rows ? m : 1;
      s.tiles_per_task = by_rows ? s.tiles() : m;
      if (s.b != BSource::constant) s.b = row_tasks(p, s) > 1 ? BSource::phase : BSource::task;
      if (s.b == BSource::task && depth > 1) continue;
      for (const std::int64_t panels : block_sizes(s.panels, pinned(fixed, "panels"))) {
        s.panels_per_task = panels;
        for (const bool beside : {false, true}) {
          s.beside = beside;
          if (pinned(fixed, "beside").value_or(beside) != beside) continue;
          if (beside && !can_be_beside(p, shape, s)) continue;
          for (const std::int64_t n : slices(p, shape, s, target, fixed)) {
            s.slices = n;
            s.cycles = pieces_cycles(p, shape, s, target, lanes);
            out.push_back(s);
          }
        }
      }
    }
}

}  // namespace

std::vector<std::pair<int, int>> Pieces::products() const {
  if (a == 3 && b == 3) return {{2, 0}, {1, 0}, {1, 1}, {0, 1}, {0, 2}, {0, 0}};
  std::vector<std::pair<int, int>> out;
  for (int i = std::max(a, b); i-- > 0;) out.emplace_back(a > 1 ? i : 0, b > 1 ? i : 0);
  return out;
}

std::optional<std::vector<std::int64_t>> blocks_of(const std::vector<Axis>& terms,
                                                   std::int64_t blocks) {
  std::vector<std::int64_t> out;
  for (const Axis& axis : terms) {
    const bool part = axis.extent % blocks == 0;
    if (!part && blocks % axis.extent != 0) return std::nullopt;
    out.push_back(part ? blocks : axis.extent);
    blocks /= out.back();
  }
  return blocks == 1 ? std::optional(out) : std::nullopt;
}

bool Pieces::cut_lines(std::int64_t taps, std::int64_t channels, bool box) {
  const std::int64_t unit = bytes ? 1 : 2, fewest = ceil_div(taps * channels, depth()),
                     whole = ceil_div(channels, depth()) * depth();
  const auto into = [&](std::int64_t count, std::int64_t apart) {
    const std::int64_t all = taps * apart;
    if (all % count != 0 || all / count % unit != 0 || all / count > depth()) return false;
    line = taps * channels;
    padded = count * depth();
    cut = Cut{channels, apart, all / count};
    return true;
  };
  if (!box) {
    for (std::int64_t count = fewest; 2 * count <= 3 * fewest; ++count)
      if (into(count, channels)) return true;
    return false;
  }
  // Of as many steps as whole tiles make, those are best, unless most of them is zeros.
  const std::int64_t most = taps * whole / depth();
  for (std::int64_t count = fewest; count <= most; ++count)
    for (std::int64_t apart = channels; apart < (count < most ? whole : 2 * whole / 3); ++apart)
      if (apart % kSpread != 0 && into(count, apart)) return true;
  if (whole % kSpread == 0) taps = 1;  // something lies between them
  return into(taps * whole / depth(), whole);
}

std::optional<Pieces> pieces_of(const Product& p, ASource rows) {
  auto shape = pieces_of(*p.request.graph, p.problem);
  if (!shape || !p.tile || !p.n || p.k.empty()) return std::nullopt;
  // Rows that are copied begin in the middle of a tile; others are cut into steps.
  const bool copied = rows == ASource::matrix;
  Line line{1, 1};
  if (rows == ASource::box) {
    line = line_in_box(p);
  } else {
    const std::vector<Axis> k = merged_reductions(p, expressions_of(p.a));
    if (copied && k.size() == 1) return shape;
    line.channels = k.back().extent;
  }
  if (line.channels % (copied ? kHalf : shape->depth()) == 0) return shape;
  if (p.base.b != BSource::constant) return std::nullopt;
  if (copied) {
    shape->line = line.channels;
    shape->padded = ceil_div(shape->line, kHalf) * kHalf;
  } else if (!shape->cut_lines(line.taps, line.channels, rows == ASource::box)) {
    return std::nullopt;
  }
  shape->steps = ceil_div(shape->place_of(p.extents.k), shape->depth());
  return shape;
}

std::optional<Algorithm> pieces_algorithm(const prim::Graph& g, const Problem& p,
                                          const Target& target) {
  if (!target.tiles) return std::nullopt;
  Problem joined = p;
  join_bytes(g, joined);
  const auto shape = pieces_of(g, joined);
  if (!shape) return std::nullopt;
  const auto rows = static_cast<double>(p.count(Role::m)),
             columns = static_cast<double>(p.count(Role::n)),
             terms = static_cast<double>(p.count(Role::k));
  const auto padded = [](double n, double to) { return std::ceil(n / to) * to; };
  const bool halves = target.bf16_pairs && shape->a == 1 && shape->b == 1;
  const double together = shape->bytes ? (target.quads ? 4 : 2) : halves ? 2 : 1;
  const double written = rows * columns * terms / (16 * target.fma_rate * together);
  const double steps = static_cast<double>(shape->steps),
               vectors = steps * static_cast<double>(shape->vectors());
  const double multiply = padded(rows, 4) * padded(columns, 16) * steps / 16 *
                          static_cast<double>(shape->products().size()) / 0.85;
  const auto batch = static_cast<double>(p.count(Role::batch));
  const double times = times_copied(g, p.a, batch * rows, terms);
  const std::vector<Axis> reductions = joined.of(Role::k);
  const bool direct = shape->a == 1 && std::ranges::any_of(reductions, [&](const Axis& axis) {
                        return axis.extent % shape->depth() == 0;
                      });
  const double copy_a =
      direct ? rows * vectors / times * (times > 1 ? kBoxVector + 8 : 2)
             : rows * vectors * (kRowPiece * shape->a + 4 + 16 * 4 / kCopiedBytes / times);
  const bool constant = g.constant_of(p.b) != nullptr;
  const double apart = times_copied(g, p.b, batch * columns, terms);
  const double copy_b = constant ? 0
                                 : padded(columns, 16) / 16 * vectors *
                                       (kColumnBlock + 16 * 16 * 4 / kCopiedBytes / apart +
                                        (apart > 1 ? kGatheredBlock : 0));
  const double work = (multiply + copy_a + copy_b) / written;
  if (work > 0.95) return std::nullopt;
  const auto products = static_cast<double>(shape->products().size());
  const auto stored = static_cast<double>(size_of(g[p.b].type.dtype));
  return Algorithm{work, shape->bytes ? 1 : 2.0 * shape->b / stored, products, true};
}

std::vector<Schedule> pieces_schedules(const Product& p, Form form, const Target& target, int lanes,
                                       const Tuning& fixed, std::size_t count) {
  std::vector<Schedule> out;
  if (lanes != Tile::kColumns) return out;
  const Extents& e = p.extents;
  const auto mr_pin = pinned(fixed, "mr"), nv_pin = pinned(fixed, "nv");
  // Schedules of before rows were read where they lie do not name it.
  const auto direct = mr_pin ? pinned(fixed, "direct").value_or(0) : pinned(fixed, "direct");
  std::vector<std::pair<ASource, Pieces>> sources;
  const auto add = [&](ASource rows, const auto& can) {
    const auto shape = pieces_of(p, rows);
    if (shape && can(*shape)) sources.emplace_back(rows, *shape);
  };
  if (form == Form::copied && direct.value_or(0) == 0)
    add(ASource::matrix, [](const Pieces&) { return true; });
  if (direct.value_or(1) == 1) {
    if (form == Form::boxed && p.base.a == ASource::box)
      add(ASource::box, [&](const Pieces& shape) { return rows_in_box(p, shape); });
    const bool twice = form == Form::boxed && p.k.size() == 1;  // the copied form has them
    if (p.base.a != ASource::box && !twice)
      add(ASource::in_place, [&](const Pieces& shape) { return !!rows_in_place(p, shape); });
  }
  const std::int64_t vectors = ceil_div(e.n, lanes);
  for (std::int64_t nv = 1; nv <= 6; ++nv)
    for (std::int64_t rows = 1; rows <= 3; ++rows) {
      if (rows * nv + rows + 1 > Tile::kRegisters || (nv_pin && nv != *nv_pin)) continue;
      const std::int64_t height = height_of(p);
      if (mr_pin && ceil_div(*mr_pin, height) != rows) continue;
      Schedule s = p.base;
      s.pieces = true;
      const std::int64_t tiles = ceil_div(e.tile, mr_pin ? *mr_pin : rows * height);
      s.mr = ceil_div(e.tile, tiles);
      if (e.tile_step > 1 && (s.mr % height != 0 || e.tile % s.mr != 0)) continue;  // whole lines
      s.panels = ceil_div(vectors, nv);
      s.nv = ceil_div(vectors, s.panels);
      if (!nv_pin && s.nv != nv) continue;
      s.small = tiles * s.mr - e.tile;
      s.big = tiles - s.small;
      for (const auto& [source, shape] : sources) {
        s.a = source;
        add_blockings(p, shape, s, target, lanes, fixed, out);
      }
    }
  return best_first(std::move(out), count);
}

}  // namespace heddle::lower::contract

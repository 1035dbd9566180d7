#include "lower/contract/pieces.h"

#include <algorithm>
#include <cmath>

#include "kernel/bounds.h"
#include "kernel/traverse.h"
#include "lower/contract/direct.h"
#include "support/math.h"

namespace heddle::lower::contract {
namespace {

using ir::Expr;
using Tile = kernel::TileProduct;

// Cycles, measured on a Xeon with AMX: from a product of tiles to the next one on the same
// accumulator, a tile's load, a register tile's configuration and results; bytes in a cycle from
// the second-level cache, from behind it and from memory; splitting a vector of 16 terms of a row
// into a piece, or copying one of a window's line, and splitting 16 terms of a vector of columns.
constexpr double kLatency = 20, kTileLoad = 9, kAround = 120, kTileBytes = 1024, kL2Bytes = 30,
                 kFarBytes = 9, kColdBytes = 3.6, kCopiedBytes = 5, kRowPiece = 2.5, kLineCopy = 3,
                 kColumnBlock = 160;

// Besides, where memory runs along neither rows nor terms, or not along columns.
constexpr double kGatheredPiece = 8, kGatheredBlock = 250;

/// A vector of terms that is copied to a box.
constexpr double kBoxVector = 6;

/// A row of a panel's results that is not written with its neighbours of the next panel.
constexpr double kStrip = 6;

/// What is left of copying rows where they are fetched while the products before them are computed,
/// and of splitting them where that is done meanwhile, too.
constexpr double kAhead = 0.3, kBeside = 0.3;

constexpr std::int64_t kLeastBlock = 256;  // terms of a block

/// A tile of sums that waits for the next slice; shares of the first-level cache: slices of columns
/// that stay there for certain, and those that do not.
constexpr double kSums = 85, kLeastSlice = 0.33, kMostSlice = 0.85;

/// Of the first-level cache: what may lie between two taps of a window that read the same rows.
constexpr double kTapStays = 0.5;

/// How often an element of an operand is copied: where rows or columns overlap (a convolution's
/// windows), for each tap.
double times_copied(const prim::Graph& g, NodeId operand, double rows, double terms) {
  double elements = 1;
  for (const std::int64_t extent : g[operand].type.shape) elements *= static_cast<double>(extent);
  return std::max(1.0, rows * terms / std::max(1.0, elements));
}

double times_copied(const Product& p, NodeId operand, Role role) {
  const Problem& x = p.problem;
  return times_copied(*p.request.graph, operand,
                      static_cast<double>(x.count(Role::batch) * x.count(role)),
                      static_cast<double>(x.count(Role::k) * (x.parts ? x.parts->count : 1)));
}

bool runs_along(const kernel::Value& v, ir::Var x) {
  bool along = false;
  kernel::for_each_value(v, [&](const kernel::Value& part) {
    const auto* load = std::get_if<kernel::Load>(&part->op);
    along |= load && ir::coefficient_of(load->offset, x) == 1;
  });
  return along;
}

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

/// Shares of a step's tiles that come from the second-level cache, not the first.
struct Fresh {
  double rows = 1, columns = 1;
};

/// Cycles of one step of a register tile: products, tiles from the first-level cache, and what of
/// them comes from the second.
double step_cycles(const Pieces& shape, std::int64_t mr, std::int64_t height, std::int64_t columns,
                   const Fresh& fresh_share) {
  const std::int64_t rows = ceil_div(mr, height);
  const auto products = static_cast<double>(shape.products().size());
  const auto tiles = static_cast<double>(rows * columns);
  const bool again = columns > Tile::kRegisters - rows * columns - rows;  // columns' registers
  const double loads =
      static_cast<double>(rows) * (products > 1 ? 3 : 1) +
      static_cast<double>(columns) * (again ? products : static_cast<double>(shape.b));
  const double fresh = static_cast<double>(rows * shape.a) * fresh_share.rows +
                       static_cast<double>(columns * shape.b) * fresh_share.columns;
  const double near = std::max({products * static_cast<double>(height) * tiles, products * kLatency,
                                loads * kTileLoad}),
               far = fresh * kTileBytes / kL2Bytes;
  // What comes from afar is not hidden altogether: with 64 cycles of products 70 without, 97 where
  // it takes 68 and 150 where it takes 136 were measured. With more products of f32's pieces it is.
  const double both =
      shape.a > 1 ? std::max(near, far) : std::cbrt(near * near * near + far * far * far);
  return both * (again ? 1.35 : 1.1);  // a product waits for its columns' tile
}

/// Bytes of a term of the rows in memory; terms of bytes are words of four.
double stored_bytes(const Product& p, const Pieces& shape) {
  return shape.bytes ? 4 : static_cast<double>(size_of((*p.request.graph)[p.problem.a].type.dtype));
}

/// Splitting a task's rows.
double row_cycles(const Product& p, const Pieces& shape, const Schedule& s, double rows) {
  const Extents& e = p.extents;
  const double vectors = rows * static_cast<double>(shape.steps * shape.vectors());
  double split = vectors * (shape.a == 1 && shape.line > 1 ? kLineCopy : kRowPiece * shape.a + 4);
  if (p.a_across)
    split *= 2;
  else if (!runs_along(p.a, merged_reductions(p, expressions_of(p.a)).back().var))
    split += vectors * kGatheredPiece;
  // Nothing hides that operands come from afar while they are split, but those of the next tile.
  double come = rows * static_cast<double>(e.k) * stored_bytes(p, shape) / kCopiedBytes /
                times_copied(p, p.problem.a, Role::m);
  const double first = 1 / static_cast<double>(s.tiles_per_task);
  if (s.beside) {
    // Results that take long are computed beside the products already.
    if (e.epilogue <= kFewOperations) split *= first + kBeside * (1 - first);
    come *= first + kAhead * (1 - first);
  } else if (s.tiles_per_task == 1 && e.rows == 1 && s.panel_blocks() == 1 && !p.a_across) {
    come *= kAhead;
  }
  return split + come;
}

/// Terms of the operand that a task has in its box, of bytes words of four.
double terms_of_box(const Product& p, const Schedule& s) {
  const Extents& e = p.extents;
  if (e.whole) {
    double terms = 1;
    ir::Ranges ranges = p.problem.ranges();
    kernel::set_range(ranges, p.tile->var, ir::Interval{0, e.tile - 1});
    for (const Box::Dim& dim : p.box->dims)
      terms *= static_cast<double>(ir::bounds(dim.local, ranges)->high + 1);
    return terms;
  }
  const std::int64_t rows =
      e.rows > 1 ? s.rows_per_task : std::min(s.tiles_per_task * s.mr, e.tile);
  return static_cast<double>(rows * e.a_row_bytes + e.a_halo_bytes) /
         static_cast<double>(e.element_bytes);
}

/// Whatever brings a task's rows to where tiles are loaded from.
double copy_cycles(const Product& p, const Pieces& shape, const Schedule& s, double rows) {
  const double bytes = stored_bytes(p, shape);
  if (s.a == ASource::matrix) return row_cycles(p, shape, s, rows);
  if (s.a == ASource::in_place)  // the next ones come while products are computed
    return kAhead * rows * static_cast<double>(p.extents.k) * bytes / kCopiedBytes;
  const double terms = terms_of_box(p, s);
  return terms / static_cast<double>(kHalf) * kBoxVector + terms * bytes / kCopiedBytes;
}

/// `a_bytes`, `b_bytes`: of the task's rows and of a panel's columns, in a block of the reduction.
Fresh fresh_of(const Product& p, const Pieces& shape, const Schedule& s, const Target& t,
               double a_bytes, double b_bytes) {
  const auto l1 = static_cast<double>(t.l1_bytes);
  const auto tiles = static_cast<double>(s.tiles_per_task * s.rows_per_task);
  // Rows that a task has copied, and panels of a constant which it has for more than one tile, or
  // all of which are near: what the first-level cache holds besides is little.
  if (shape.a == 1 && !shape.bytes && s.a == ASource::matrix && s.b == BSource::constant &&
      s.depth == 1 && !s.beside &&
      a_bytes + b_bytes * (tiles > 1 ? 1 : static_cast<double>(s.panels)) <= 0.75 * l1)
    return {0, 0};
  Fresh out;
  // The next tap of a line reads what this one did, if it does so soon.
  if (s.a == ASource::box) {
    const double tap = std::max(1.0, static_cast<double>(p.k.back().extent / shape.depth())),
                 taps = static_cast<double>(shape.steps) / tap / static_cast<double>(s.slices),
                 step = kTileBytes * static_cast<double>(ceil_div(s.mr, height_of(p)) + s.nv);
    const double times = tap * step <= kTapStays * l1 ? std::min(3.0, taps) : 1;
    out.rows = 1 / std::clamp(times_copied(p, p.problem.a, Role::m), 1.0, std::max(1.0, times));
  }
  // A slice of the columns stays for all tiles, if the rest leaves it there.
  if (s.slices > 1 || s.a == ASource::box) {
    const double slice = b_bytes / static_cast<double>(s.slices) / l1,
                 leaves = std::clamp((slice - kLeastSlice) / (kMostSlice - kLeastSlice), 0.0, 1.0);
    out.columns = leaves + (1 - leaves) / tiles;
  }
  return out;
}

double total_cycles(const Product& p, const Pieces& shape, const Schedule& s, const Target& t,
                    int lanes) {
  const Extents& e = p.extents;
  const auto steps = static_cast<double>(shape.steps);
  const double share = static_cast<double>(s.tiles_per_task) / static_cast<double>(s.tiles());
  const auto blocks = static_cast<double>(s.rows_per_task);
  const double rows = share * blocks * static_cast<double>(e.tile);
  const double l2 = static_cast<double>(t.l2_bytes);
  const auto depth = static_cast<double>(s.depth);
  const auto tiles = static_cast<double>(s.tiles_per_task);
  double a_bytes =
      rows * steps / depth * Tile::kRowBytes * shape.a * (s.beside ? std::min(1.0, 2 / tiles) : 1);
  if (s.a == ASource::box)
    a_bytes = terms_of_box(p, s) * Tile::kRowBytes / static_cast<double>(shape.depth());
  const double b_bytes =
      steps / depth * Tile::kRowBytes * static_cast<double>(s.nv * lanes) * shape.b;
  const double all_b = depth * b_bytes * static_cast<double>(s.panels);
  const Fresh fresh = fresh_of(p, shape, s, t, a_bytes, b_bytes);
  const auto slices = static_cast<double>(s.slices);
  const std::int64_t height = height_of(p);
  const auto tile = [&](std::int64_t mr) {
    const double products = steps * step_cycles(shape, mr, height, s.nv, fresh) +
                            (slices - 1) * static_cast<double>(ceil_div(mr, height) * s.nv) * kSums,
                 each = shape.bytes ? 4 + 0.5 * e.epilogue
                                    : 2 + 0.7 * e.epilogue + (e.epilogue > kFewOperations ? 10 : 0),
                 results = static_cast<double>(mr * s.nv) * each;
    if (e.epilogue <= kFewOperations || s.depth > 1) return products + kAround + results;
    const double last = products / slices;  // the slice beside whose products results are made
    return products - last + std::max(last, results) + kAround +
           (s.slices > 1 ? 0.6 : 0.4) * std::min(last, results);
  };
  double panel = static_cast<double>(s.big) * tile(s.mr);
  if (s.small > 0) panel += static_cast<double>(s.small) * tile(s.mr - 1);
  panel *= share * blocks;
  // Rows and one panel stay in the second-level cache, or come anew for every panel. Panels come
  // for every task, those of a constant from memory, while the tiles of the one before compute.
  double far = 0;                                                       // cycles
  const double results = rows * static_cast<double>(s.nv * lanes * 4);  // of a panel
  if (a_bytes + 2 * b_bytes + 2 * results > 0.6 * l2) far += depth * a_bytes / kFarBytes;
  // A panel that does not stay either comes anew for every tile of rows.
  if (b_bytes > 0.7 * l2) far += (tiles * blocks - 1) * depth * b_bytes / kFarBytes;
  const bool stay = a_bytes + all_b <= 0.6 * l2;
  if (s.b == BSource::constant)
    far += depth * b_bytes / kColdBytes /
           (stay ? std::max(1.0, static_cast<double>(row_tasks(p, s)) / t.threads) : 1);
  else if (s.b == BSource::phase && !stay)
    far += depth * b_bytes / kFarBytes;
  if (s.beside && !stay) far += (tiles - 1) * b_bytes / kFarBytes;
  // What comes from memory is not hidden altogether.
  panel = std::max(panel, far) + (s.b == BSource::constant ? 0.5 * std::min(panel, far) : 0);
  // Rows of results are written strip by strip; of f32 this has not been seen to count, nor next
  // to the copies of rows.
  if (!s.beside && s.panels_per_task > 1 && shape.a == 1 && s.a != ASource::matrix)
    panel += rows * kStrip;
  // Sums that are kept from block to block.
  if (depth > 1) panel += rows * static_cast<double>(s.nv) * (depth * 2 + 1);
  double copy = copy_cycles(p, shape, s, rows);
  if (a_bytes > 0.6 * l2 && s.a != ASource::in_place) copy += 2 * depth * a_bytes / kFarBytes;
  double task = copy + static_cast<double>(s.panels_per_task) * panel + 150;
  const double apart = times_copied(p, p.problem.b, Role::n);
  const double split =
      static_cast<double>(s.nv) * steps * static_cast<double>(shape.vectors()) *
      (kColumnBlock + 16.0 * lanes * 4 / kCopiedBytes / apart + (apart > 1 ? kGatheredBlock : 0));
  if (s.b == BSource::task) task += static_cast<double>(s.panels_per_task) * split;
  double before = 0;  // pieces of all columns, which go through memory
  if (s.b == BSource::phase)
    before = static_cast<double>(e.outer * s.panels) * (split + 2 * depth * b_bytes / kFarBytes) /
             t.threads;
  return static_cast<double>(ceil_div(s.tasks(e), t.threads)) * task + before;
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
      if (terms % shape.depth() != 0) continue;
      const std::int64_t run = terms / shape.depth();
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
        (pin || bytes * (shape.steps / n) <= t.l1_bytes / 2))
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
          s.slices = 1;
          if (pinned(fixed, "beside").value_or(beside) != beside) continue;
          if (beside && !can_be_beside(p, shape, s)) continue;
          for (const std::int64_t n : slices(p, shape, s, target, fixed)) {
            s.slices = n;
            s.cycles = total_cycles(p, shape, s, target, lanes);
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

std::optional<Pieces> pieces_of(const Product& p) {
  auto shape = pieces_of(*p.request.graph, p.problem);
  if (!shape || !p.tile || !p.n || p.k.empty()) return std::nullopt;
  const std::vector<Axis> k = merged_reductions(p, expressions_of(p.a));
  if (k.size() == 1 || k.back().extent % kHalf == 0) return shape;
  if (shape->bytes || p.base.b != BSource::constant) return std::nullopt;
  shape->line = k.back().extent;
  shape->padded = ceil_div(shape->line, kHalf) * kHalf;
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
  if (shape->bytes) return Algorithm{work, 1};
  const auto stored = static_cast<double>(size_of(g[p.b].type.dtype));
  return Algorithm{work, 2.0 * shape->b / stored};
}

std::vector<Schedule> pieces_schedules(const Product& p, Form form, const Target& target, int lanes,
                                       const Tuning& fixed, std::size_t count) {
  std::vector<Schedule> out;
  const auto shape = pieces_of(p);
  if (!shape || lanes != Tile::kColumns) return out;
  const Extents& e = p.extents;
  const auto mr_pin = pinned(fixed, "mr"), nv_pin = pinned(fixed, "nv");
  // Schedules of before rows were read where they lie do not name it.
  const auto direct = mr_pin ? pinned(fixed, "direct").value_or(0) : pinned(fixed, "direct");
  std::vector<ASource> sources;
  if (form == Form::copied && direct.value_or(0) == 0) sources.push_back(ASource::matrix);
  if (direct.value_or(1) == 1) {
    if (form == Form::boxed && p.base.a == ASource::box && rows_in_box(p, *shape))
      sources.push_back(ASource::box);
    const bool twice = form == Form::boxed && p.k.size() == 1;  // the copied form has them
    if (p.base.a != ASource::box && !twice && rows_in_place(p, *shape))
      sources.push_back(ASource::in_place);
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
      for (const ASource source : sources) {
        s.a = source;
        add_blockings(p, *shape, s, target, lanes, fixed, out);
      }
    }
  return best_first(std::move(out), count);
}

}  // namespace heddle::lower::contract

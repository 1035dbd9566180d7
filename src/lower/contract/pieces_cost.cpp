#include "lower/contract/pieces_cost.h"

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

/// From a product of tiles to the next one on the same accumulator, a tile's load, a register
/// tile's configuration, a task; bytes in a cycle from the second-level cache, from behind it and
/// from memory; copying a vector of a window's line.
constexpr double kLatency = 20, kTileLoad = 9, kAround = 120, kTask = 150, kTileBytes = 1024,
                 kL2Bytes = 30, kFarBytes = 9, kColdBytes = 3.6, kLineCopy = 3;

/// Besides, of a vector of a row's terms where memory runs along neither rows nor terms.
constexpr double kGatheredPiece = 8;

/// A row of a panel's results that is not written with its neighbours of the next panel.
constexpr double kStrip = 6;

/// The first row of a task from each line of a window.
constexpr double kLineStart = 200;

/// What is left of copying rows where they are fetched while the products before them are computed,
/// and of splitting them where that is done meanwhile, too.
constexpr double kAhead = 0.3, kBeside = 0.3;

/// A tile of sums that waits for the next slice in the first-level cache, and in the second; shares
/// of the first: sums and slices that stay there for certain, and those that do not; slices of
/// columns beside all else.
constexpr double kSums = 35, kFarSums = 110, kLeastSums = 0.6, kMostSums = 1, kLeastSlice = 0.67,
                 kMostSlice = 1.67;

/// Rows that lie apart in memory come slower than tiles of neighbours from the second-level cache.
constexpr double kApart = 1.2;

/// Shares of the second-level cache: what is read again and again that stays, and that does not.
constexpr double kLeastStays = 0.75, kMostStays = 1.35;

/// Of the first-level cache: what may lie between two taps of a window that read the same rows.
constexpr double kTapStays = 0.5;

double copies_of(const Product& p, NodeId operand, Role role) {
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
  const std::int64_t left = Tile::kRegisters - rows * columns - rows;  // columns' registers
  const bool again = columns > left;
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
  // A product waits for its columns' tile, long where all take turns in one register.
  const double waits = !again ? 1.1 : left >= 2 ? 1.3 : shape.steps > 1 ? 2.5 : 1.35;
  return both * waits;
}

/// Bytes of a term of the rows in memory; terms of bytes are words of four.
double stored_bytes(const Product& p, const Pieces& shape) {
  return shape.bytes ? 4 : static_cast<double>(size_of((*p.request.graph)[p.problem.a].type.dtype));
}

/// Splitting a task's rows.
double row_cycles(const Product& p, const Pieces& shape, const Schedule& s, double rows) {
  const Extents& e = p.extents;
  const double vectors = rows * static_cast<double>(shape.steps * shape.vectors());
  const std::vector<Axis> reductions = merged_reductions(p, expressions_of(p.a));
  double split = vectors * (shape.a == 1 && shape.line > 1 ? kLineCopy : kRowPiece * shape.a + 4);
  if (p.a_across)
    split *= 2;
  else if (!runs_along(p.a, reductions.back().var))
    split += vectors * kGatheredPiece;
  // Nothing hides that operands come from afar while they are split, but those of the next tile.
  double come = rows * static_cast<double>(e.k) * stored_bytes(p, shape) / kCopiedBytes /
                copies_of(p, p.problem.a, Role::m);
  const double first = 1 / static_cast<double>(s.tiles_per_task);
  if (s.beside) {
    // Results that take long are computed beside the products already.
    if (e.epilogue <= kFewOperations) split *= first + kBeside * (1 - first);
    come *= first + kAhead * (1 - first);
  } else if (s.tiles_per_task == 1 && e.rows == 1 && s.panel_blocks() == 1 && !p.a_across) {
    come *= kAhead;
  }
  const double lines = reductions.size() < 2 ? 0 : static_cast<double>(reductions[0].extent);
  return split + come + lines * kLineStart;
}

/// Terms of the operand that a task has in its box, of bytes words of four.
double terms_of_box(const Product& p, const Pieces& shape, const Schedule& s) {
  const Extents& e = p.extents;
  const double wide =
      shape.cut ? static_cast<double>(shape.cut->apart) / static_cast<double>(shape.cut->channels)
                : 1;
  if (e.whole) {
    double terms = 1;
    ir::Ranges ranges = p.problem.ranges();
    kernel::set_range(ranges, p.tile->var, ir::Interval{0, e.tile - 1});
    for (const Box::Dim& dim : p.box->dims)
      terms *= static_cast<double>(ir::bounds(dim.local, ranges)->high + 1);
    return terms * wide;
  }
  const std::int64_t rows =
      e.rows > 1 ? s.rows_per_task : std::min(s.tiles_per_task * s.mr, e.tile);
  return wide * static_cast<double>(rows * e.a_row_bytes + e.a_halo_bytes) /
         static_cast<double>(e.element_bytes);
}

/// Whatever brings a task's rows to where tiles are loaded from.
double copy_cycles(const Product& p, const Pieces& shape, const Schedule& s, double rows) {
  const double bytes = stored_bytes(p, shape);
  if (s.a == ASource::matrix) return row_cycles(p, shape, s, rows);
  if (s.a == ASource::in_place)  // the next ones come while products are computed
    return kAhead * rows * static_cast<double>(p.extents.k) * bytes / kCopiedBytes;
  const double terms = terms_of_box(p, shape, s);
  return terms / static_cast<double>(kHalf) * kBoxVector + terms * bytes / kCopiedBytes;
}

/// The costs of one schedule.
class Cost {
 public:
  Cost(const Product& p, const Pieces& shape, const Schedule& s, const Target& t, int lanes)
      : p_(p), shape_(shape), s_(s), t_(t), lanes_(lanes) {
    const double steps = static_cast<double>(shape.steps) / depth_;
    a_bytes_ = rows_ * steps * Tile::kRowBytes * shape.a *
               (s.beside ? std::min(1.0, 2 / static_cast<double>(s.tiles_per_task)) : 1);
    if (s.a == ASource::box)
      a_bytes_ = terms_of_box(p, shape, s) * Tile::kRowBytes / static_cast<double>(shape.depth());
    b_bytes_ = steps * Tile::kRowBytes * static_cast<double>(s.nv * lanes) * shape.b;
    stay_ = a_bytes_ + depth_ * b_bytes_ * static_cast<double>(s.panels) <= 0.6 * l2_;
    fresh_ = fresh();
  }

  double total() const {
    double copy = copy_cycles(p_, shape_, s_, rows_);
    if (s_.a != ASource::in_place) {
      if (a_bytes_ > 0.6 * static_cast<double>(t_.l1_bytes)) copy += depth_ * a_bytes_ / kL2Bytes;
      if (a_bytes_ > 0.6 * l2_) copy += 2 * depth_ * a_bytes_ / kFarBytes;
    }
    double each = panel();
    if (s_.b == BSource::task) each += columns();
    const double task = copy + static_cast<double>(s_.panels_per_task) * each + kTask;
    double before = 0;  // pieces of all columns, which go through memory
    if (s_.b == BSource::phase)
      before = static_cast<double>(p_.extents.outer * s_.panels) *
               (columns() + 2 * depth_ * b_bytes_ / kFarBytes) / t_.threads;
    return static_cast<double>(ceil_div(s_.tasks(p_.extents), t_.threads)) * task + before;
  }

 private:
  /// Steps of a tap of a window.
  double tap() const {
    if (shape_.cut)
      return static_cast<double>(shape_.padded * shape_.cut->channels) /
             static_cast<double>(shape_.line * shape_.depth());
    return static_cast<double>(ceil_div(p_.k.back().axes.back().extent, shape_.depth()));
  }

  Fresh fresh() const {
    const auto l1 = static_cast<double>(t_.l1_bytes);
    // Rows that a task has copied, and panels of a constant which it has for more than one tile, or
    // all of which are near: what the first-level cache holds besides is little.
    if (shape_.a == 1 && !shape_.bytes && s_.a == ASource::matrix && s_.b == BSource::constant &&
        s_.depth == 1 && !s_.beside &&
        a_bytes_ + b_bytes_ * (tiles_ > 1 ? 1 : static_cast<double>(s_.panels)) <= 0.75 * l1)
      return {0, tiles_ > 1 ? 1 / tiles_ : 0};
    Fresh out;
    // Panels inside tiles: rows stay and all columns come, about as much as was measured so.
    if (s_.beside) return out;
    if (s_.a == ASource::in_place) out.rows = kApart;
    // The next tap of a line reads what this one did, if it does so soon.
    if (s_.a == ASource::box) {
      const double taps = static_cast<double>(shape_.steps) / tap() / slices_,
                   step = kTileBytes * static_cast<double>(ceil_div(s_.mr, height_of(p_)) + s_.nv);
      const double times = tap() * step <= kTapStays * l1 ? std::min(3.0, taps) : 1;
      out.rows = 1 / std::clamp(copies_of(p_, p_.problem.a, Role::m), 1.0, std::max(1.0, times));
    }
    // A slice of the columns stays for all tiles, if the rest leaves it there.
    if (shape_.a == 1 || s_.a == ASource::box) {
      const double rows = static_cast<double>(s_.mr * Tile::kRowBytes) * out.rows *
                          static_cast<double>(shape_.steps * shape_.a) / depth_;
      const double leaves = std::clamp(
          ((b_bytes_ + rows) / slices_ / l1 - kLeastSlice) / (kMostSlice - kLeastSlice), 0.0, 1.0);
      out.columns = leaves + (1 - leaves) / tiles_;
    }
    return out;
  }

  /// Loading and storing a tile of sums for another slice.
  double sums() const {
    const double near = (rows_ * static_cast<double>(s_.nv * lanes_ * 4) + b_bytes_ / slices_) /
                        static_cast<double>(t_.l1_bytes);
    const double far = std::clamp((near - kLeastSums) / (kMostSums - kLeastSums), 0.0, 1.0);
    return kSums + far * (kFarSums - kSums);
  }

  /// A register tile of so many rows: products and results.
  double tile(std::int64_t mr) const {
    const double epilogue = p_.extents.epilogue;
    const std::int64_t height = height_of(p_);
    const double products =
        static_cast<double>(shape_.steps) * step_cycles(shape_, mr, height, s_.nv, fresh_) +
        (slices_ - 1) * static_cast<double>(ceil_div(mr, height) * s_.nv) * sums();
    const double each = shape_.bytes ? 4 + 0.5 * epilogue
                                     : 2 + 0.7 * epilogue + (epilogue > kFewOperations ? 10 : 0),
                 results = static_cast<double>(mr * s_.nv) * each;
    if (epilogue <= kFewOperations || s_.depth > 1) return products + kAround + results;
    const double last = products / slices_;  // the slice beside whose products results are made
    return products - last + std::max(last, results) + kAround +
           (s_.slices > 1 ? 0.6 : 0.4) * std::min(last, results);
  }

  /// What comes from behind the second-level cache for a panel: rows and one panel stay there, or
  /// come anew for every panel, as far as they do not fit; panels come for every task, those of a
  /// constant from memory, while the tiles of the one before compute.
  double far() const {
    double out = 0;
    const double results = rows_ * static_cast<double>(s_.nv * lanes_ * 4);
    // Slices of a window pass over the same rows.
    const double passes =
        s_.a == ASource::box
            ? std::min(slices_, std::max(1.0, static_cast<double>(shape_.steps) / tap()))
            : 1;
    out += beyond(a_bytes_ + 2 * b_bytes_ + 2 * results) * passes * depth_ * a_bytes_ / kFarBytes;
    // A panel that does not stay either comes anew for every tile of rows.
    if (b_bytes_ > 0.7 * l2_) out += (tiles_ - 1) * depth_ * b_bytes_ / kFarBytes;
    if (s_.b == BSource::constant)
      out += depth_ * b_bytes_ / kColdBytes /
             (stay_ ? std::max(1.0, static_cast<double>(row_tasks(p_, s_)) / t_.threads) : 1);
    else if (s_.b == BSource::phase && !stay_)
      out += depth_ * b_bytes_ / kFarBytes;
    if (s_.beside && !stay_)
      out += static_cast<double>(s_.tiles_per_task - 1) * b_bytes_ / kFarBytes;
    return out;
  }

  double panel() const {
    double tiles = static_cast<double>(s_.big) * tile(s_.mr);
    if (s_.small > 0) tiles += static_cast<double>(s_.small) * tile(s_.mr - 1);
    const double near = tiles * share_ * static_cast<double>(s_.rows_per_task), far = this->far();
    // What comes from memory is not hidden altogether.
    double out = std::max(near, far) + (s_.b == BSource::constant ? 0.5 * std::min(near, far) : 0);
    // Rows of results are written strip by strip; of f32 this has not been seen to count, nor next
    // to the copies of rows.
    if (!s_.beside && s_.panels_per_task > 1 && shape_.a == 1 && s_.a != ASource::matrix)
      out += rows_ * kStrip;
    return out + kept();
  }

  /// Sums of a panel that are kept from block to block of the reduction, as those of all panels
  /// are.
  double kept() const {
    if (s_.depth == 1) return 0;
    const double bytes = rows_ * static_cast<double>(s_.nv * lanes_ * 4);
    const double all = static_cast<double>(s_.panels_per_task) * bytes;
    return 2 * depth_ * bytes * (1 / kL2Bytes + beyond(a_bytes_ + 2 * b_bytes_ + all) / kFarBytes);
  }

  /// The share of as many bytes that does not stay in the second-level cache.
  double beyond(double bytes) const {
    return std::clamp((bytes / l2_ - kLeastStays) / (kMostStays - kLeastStays), 0.0, 1.0);
  }

  /// Splitting a panel's columns.
  double columns() const {
    const double apart = copies_of(p_, p_.problem.b, Role::n);
    return static_cast<double>(s_.nv) * static_cast<double>(shape_.steps * shape_.vectors()) *
           (kColumnBlock + 16.0 * lanes_ * 4 / kCopiedBytes / apart +
            (apart > 1 ? kGatheredBlock : 0));
  }

  const Product& p_;
  const Pieces& shape_;
  const Schedule& s_;
  const Target& t_;
  const int lanes_;
  const double l2_ = static_cast<double>(t_.l2_bytes);
  const double depth_ = static_cast<double>(s_.depth), slices_ = static_cast<double>(s_.slices);
  const double share_ = static_cast<double>(s_.tiles_per_task) / static_cast<double>(s_.tiles());
  /// Of a task: its tiles of a panel, its rows.
  const double tiles_ = static_cast<double>(s_.tiles_per_task * s_.rows_per_task),
               rows_ = share_ * static_cast<double>(s_.rows_per_task * p_.extents.tile);
  double a_bytes_ = 0, b_bytes_ = 0;  ///< of a task's rows and of a panel, in a block
  bool stay_ = false;                 ///< rows and all panels, in the second-level cache
  Fresh fresh_;
};

}  // namespace

double times_copied(const prim::Graph& g, NodeId operand, double rows, double terms) {
  double elements = 1;
  for (const std::int64_t extent : g[operand].type.shape) elements *= static_cast<double>(extent);
  return std::max(1.0, rows * terms / std::max(1.0, elements));
}

double pieces_cycles(const Product& p, const Pieces& shape, const Schedule& s, const Target& target,
                     int lanes) {
  return Cost(p, shape, s, target, lanes).total();
}

}  // namespace heddle::lower::contract

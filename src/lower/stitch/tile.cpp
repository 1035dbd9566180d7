// Tiles inside a nest: blocks of the axis that runs the other way, and weights kept in registers.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <unordered_map>

#include "kernel/traverse.h"
#include "lower/stitch/nest.h"

namespace heddle::lower::stitch {

using kernel::Store;

namespace {

constexpr std::int64_t kTransposeTile = 64;  // elements read in one run: few pages at a time

/// Cache lines at a distance of `step` bytes that an L1 cache of 64 sets and 8 ways keeps: a step
/// of a power of two falls into few sets.
double lines_kept(std::int64_t step) {
  constexpr std::int64_t kSets = 64, kWays = 8;
  if (step < kLine) return static_cast<double>(kSets * kWays * kLine / step);
  return static_cast<double>(kSets / std::gcd(kSets, step / kLine) * kWays);
}

}  // namespace

/// A transpose: what is contiguous to one side is not to the other. Blocks of the other side's
/// contiguous axis run inside the vectors, so that whole cache lines are used on both sides.
void Nest::tile_transpose() {
  if (!vector_ || !hoisted_.empty()) return;
  const Var lane = axes_.loops[*vector_].var;
  const bool strided = std::any_of(axes_.touches.begin(), axes_.touches.end(), [&](const Touch& t) {
    const auto c = ir::coefficient_of(t.offset, lane);
    return t.kind != Touch::Kind::other && c && *c > 1;
  });
  if (!strided) return;
  for (std::size_t i = 0; i < axes_.loops.size(); ++i) {
    if (i == *vector_) continue;
    const Axis axis = axes_.loops[i];
    const bool contiguous =
        std::any_of(axes_.touches.begin(), axes_.touches.end(), [&](const Touch& t) {
          return t.kind != Touch::Kind::other && ir::coefficient_of(t.offset, axis.var) == 1 &&
                 ir::coefficient_of(t.offset, lane) != 1;
        });
    std::int64_t tile = divisor_below(axis.extent, kTransposeTile);
    const bool far = are_far(axis.var);
    if (width_ >= 4 && axis.extent % width_ == 0)
      tile = width_ * (far ? 1 : divisor_below(axis.extent / width_, kTransposeTile / width_));
    if (!contiguous || tile < 4) continue;
    if (axis.extent % width_ != 0 && axis.extent >= 2 * width_)
      for (std::size_t d = 0; d < dims_.size(); ++d)
        if (original_of(d) == Expr(axis.var)) cut_ = d;
    const auto [outer, inner] = split(axis, tile);
    axes_.loops[i] = outer;
    axes_.loops.push_back(inner);
    tiled_ = axes_.loops.size() - 1;
    transposes_ = true;
    in_registers_ = width_ >= 4 && tile % width_ == 0 &&
                    std::none_of(axes_.touches.begin(), axes_.touches.end(), [&](const Touch& t) {
                      const auto c = ir::coefficient_of(t.offset, lane);
                      return t.kind == Touch::Kind::store && (!c || *c > 1);
                    });
    if (in_registers_ && far) split_far_columns();
    return;
  }
}

/// An axis as two, outer · length + inner, in all that is known of it.
std::pair<Axis, Axis> Nest::split(const Axis& axis, std::int64_t length) {
  const Axis outer{out_.fresh(axis.extent / length), axis.extent / length};
  const Axis inner{out_.fresh(length), length};
  const Expr whole = Expr(outer.var) * Expr(length) + Expr(inner.var);
  const auto rule = [&](Var v) { return v == axis.var ? std::optional(whole) : std::nullopt; };
  for (auto& [original, e] : axes_.originals) e = ir::substitute(e, rule);
  for (Touch& t : axes_.touches) t.offset = ir::substitute(t.offset, rule);
  return {outer, inner};
}

/// Whether few lines of neighbouring columns of the result, each a store's run, stay in the cache.
bool Nest::are_far(Var column) const {
  return std::ranges::any_of(axes_.touches, [&](const Touch& t) {
    const auto step = ir::coefficient_of(t.offset, column);
    return t.kind == Touch::Kind::store && step &&
           lines_kept(std::abs(*step) * t.bytes) < static_cast<double>(kTransposeTile);
  });
}

/// Such columns are written a few lines at a time: blocks of rows around the tiles.
void Nest::split_far_columns() {
  constexpr std::int64_t kLines = 8;
  Axis& rows = axes_.loops[*vector_];
  const std::int64_t vectors = rows.extent / width_, lines = divisor_below(vectors, kLines);
  if (rows.extent % width_ != 0 || lines < 4 || lines == vectors) return;
  const auto [outer, inner] = split(rows, lines * width_);
  rows = inner;
  blocked_ = axes_.loops.size();
  axes_.loops.push_back(outer);
}

/// The nest, or two of them where it transposes what is no whole number of vectors: those that are,
/// in registers, and the last one of them once more, of which the elements that are left are
/// stored.
std::vector<Nest> Nest::parts(const std::vector<NestOutput>& outputs) const {
  if (!cut_ || width_ < 4) return {*this};
  std::size_t dim = 0;
  for (std::size_t left = *cut_; domain_.extent[dim] == 1 || left-- > 0;) ++dim;
  const std::int64_t extent = domain_.extent[dim], whole = extent / width_ * width_;
  Domain head = domain_, last = domain_;
  head.extent[dim] = whole;
  last.begin[dim] += extent - width_;
  last.extent[dim] = width_;
  std::vector<Nest> out{{out_, outputs, head}, {out_, outputs, last}};
  const Nest& again = out[1];
  if (!out[0].in_registers_ || !again.in_registers_) return {*this};
  // Its tile is the dimension that is cut, whole.
  const Axis& tile = again.axes_.loops[*again.tiled_];
  if (tile.extent != width_ || ir::coefficient_of(again.original_of(*cut_), tile.var) != 1)
    return {*this};
  out[1].stored_before_ = whole - (extent - width_);
  return out;
}

/// A sum of a few products (depthwise convolution): inside the vectors goes the axis along which
/// one factor does not change, so that it stays in registers.
void Nest::keep_weights() {
  constexpr double kSeveral = 4;
  if (!vector_ || tiled_ || !hoisted_.empty()) return;
  const Var lane = axes_.loops[*vector_].var;
  for (std::size_t i = axes_.loops.size(); i-- > 0;) {
    if (i == *vector_ || axes_.loops[i].extent < 4) continue;
    const Var var = axes_.loops[i].var;
    bool fixed = false, moves = false, fits = true;
    for (const Touch& t : axes_.touches) {
      if (t.kind != Touch::Kind::load || t.weight < kSeveral) continue;
      const auto along = ir::coefficient_of(t.offset, var);
      const bool laned = ir::coefficient_of(t.offset, lane) != 0;
      fixed |= laned && along == 0;
      if (!laned || !along || *along == 0) continue;
      moves = true;
      // The window slides along the axis; what it leaves behind is wanted again a row later.
      const double rows = std::sqrt(t.weight) + 1;
      fits &= rows * static_cast<double>(axes_.loops[i].extent) <=
              lines_kept(std::abs(*along) * t.bytes);
    }
    if (!fixed || !moves || !fits) continue;
    tiled_ = i;
    return;
  }
}

/// The same for stores: the tile is collected in scratch memory and written row by row afterwards.
void Nest::stage_stores(std::vector<Store>& stores, const Lanes& l, Var tile, std::int64_t rows,
                        std::int64_t length) {
  const Expr in_block = out_.values().simplified(l.place(width_));
  for (Store& s : stores) {
    const auto step = ir::coefficient_of(s.offset, l.lane);
    const bool blocks =
        l.count == 1 || (step && ir::coefficient_of(s.offset, l.unroll) == *step * width_);
    if (!step || *step <= 1 || !blocks || ir::coefficient_of(s.offset, tile) != 1) continue;
    const Expr base = s.offset - in_block * Expr(*step) - Expr(tile);
    const kernel::BufferId to = s.buffer;
    s.buffer = out_.tile_like(to, rows * length);
    s.offset = Expr(tile) * Expr(rows) + in_block;
    after_lanes_.push_back([=, this, from = s.buffer, step = *step] {
      out_.write_columns(from, to, base, step, rows, length);
    });
  }
}

/// Hints, after each `width_` columns of a tile, that fetch a share of the next one: the rows that
/// follow along the lanes. Too far apart for the machine to guess them, they would be waited for.
kernel::Body Nest::next_tile(const Expr& block) const {
  const Lanes& l = *out_.current_lanes();
  const std::int64_t rows = static_cast<std::int64_t>(l.width) * l.count;
  const std::int64_t length = axes_.loops[*tiled_].extent;
  const std::int64_t share = (rows * width_ + length - 1) / length;
  const Var tile = *position_[*tiled_]->variable();
  kernel::Body hints;
  for (const auto& [buffer, offset] : tile_reads_) {
    const kernel::Buffer& b = out_.kernel().buffers[buffer];
    const std::int64_t size = size_of(b.dtype);
    if (b.size * size < out_.target().l3_bytes) continue;
    for (std::int64_t row = 0; row < share; ++row)
      for (std::int64_t column = 0; column < length; column += kLine / size)
        hints.push_back(
            {kernel::Prefetch{buffer, ir::substitute(offset, [&](Var v) -> std::optional<Expr> {
                                if (v == l.unroll) return Expr(0);
                                if (v == l.lane) return block * Expr(share) + Expr(rows + row);
                                if (v == tile) return Expr(column);
                                return std::nullopt;
                              })}});
  }
  return hints;
}

/// Loads that are strided along the lanes but contiguous along the tile's axis are transposed in
/// registers, or read a copy of their tile, made row by row: each cache line is used whole at once.
void Nest::stage_tile(std::vector<Store>& stores) {
  const Lanes* l = out_.current_lanes();
  const auto tile = transposes_ ? position_[*tiled_]->variable() : std::nullopt;
  if (!tile || !l) return;
  const std::int64_t length = axes_.loops[*tiled_].extent;
  const std::int64_t rows = l->count == 1 ? l->width : static_cast<std::int64_t>(width_) * l->count;
  std::map<std::pair<kernel::BufferId, Expr>, Value> staged;
  bool guarded = false;
  for (const Store& s : stores)
    kernel::for_each_value(s.value, [&](const Value& v) {
      guarded |= std::holds_alternative<kernel::Guard>(v->op);
      const auto* load = std::get_if<kernel::Load>(&v->op);
      if (!load || !load->dynamic.empty()) return;
      const auto step = ir::coefficient_of(load->offset, l->lane);
      const bool blocks =
          l->count == 1 || (step && ir::coefficient_of(load->offset, l->unroll) == *step * width_);
      if (!step || *step <= 1 || !blocks || ir::coefficient_of(load->offset, *tile) != 1) return;
      staged.try_emplace({load->buffer, load->offset});
    });
  stage_stores(stores, *l, *tile, rows, length);
  if (guarded || staged.empty()) return;
  if (in_registers_ && l->width == width_) {
    for (const auto& [key, value] : staged) tile_reads_.push_back(key);
    return;
  }
  for (auto& [key, value] : staged) {
    const auto& [buffer, offset] = key;
    const std::int64_t step = *ir::coefficient_of(offset, l->lane);
    const Expr in_block = out_.values().simplified(l->place(width_));
    const Expr base = offset - in_block * Expr(step) - Expr(*tile);
    const kernel::BufferId copy = out_.copy_rows(buffer, base, step, rows, length);
    value = kernel::load(copy, in_block * Expr(length) + Expr(*tile),
                         compute_type(out_.kernel().buffers[buffer].dtype));
  }
  std::unordered_map<const kernel::ValueNode*, Value> memo;
  kernel::Mapper mapper;
  mapper.value = [&](const Value& v) -> Value {
    if (const auto found = memo.find(v.get()); found != memo.end()) return found->second;
    const auto* load = std::get_if<kernel::Load>(&v->op);
    const auto copy = load ? staged.find({load->buffer, load->offset}) : staged.end();
    Value out = copy == staged.end() ? kernel::map_children(v, mapper) : copy->second;
    memo.emplace(v.get(), out);
    return out;
  };
  for (Store& s : stores) s.value = mapper.value(s.value);
}

}  // namespace heddle::lower::stitch

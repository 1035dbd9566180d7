#include "kernel/traverse.h"
#include "lower/contract/emit.h"
#include "support/math.h"

namespace heddle::lower::contract {

using ir::Expr;
using ir::Var;
using kernel::Binding;
using kernel::Body;
using kernel::Scope;
using kernel::Value;
using Tile = kernel::TileProduct;

/// Buffers: of a task's rows [tile of rows][step][piece] tiles; of all columns, or of one panel of
/// them, [panel][step][piece][vector] tiles of words.
void Emitter::plan_pieces() {
  for (const Axis& axis : k_axes_) set(env_, axis.var, Expr(0));  // those that are merged
  a_terms_ = merged_reductions(p_, expressions_of(p_.a));
  blocks_ = blocks_of(a_terms_, s_.depth).value();
  for (std::size_t i = 0; i < blocks_.size(); ++i) a_terms_[i].extent /= blocks_[i];
  plan_column_terms();
  slot_ = k_.new_var();
  const std::int64_t slots = s_.beside ? 2 : s_.rows_per_task * s_.tiles_per_task;
  row_steps_ = pieces_->steps / s_.depth;
  steps_ = row_steps_ / s_.slices;
  a_block_ = row_steps_ * pieces_->a * pieces_->elements();
  if (s_.a == ASource::in_place) {
    direct_ = rows_in_place(p_, *pieces_);
  } else if (s_.a == ASource::box) {
    plan_box();
    direct_ = direct_rows(p_, *pieces_, a_buffer_, box_offset(), 1);
  } else {
    a_buffer_ = scratch("pieces", slots * ((s_.mr + Tile::kRows - 1) / Tile::kRows) * a_block_,
                        Scope::block, 1, pieces_->type());
  }
  HEDDLE_CHECK(direct_.has_value() == (s_.a != ASource::matrix), "{}: rows", to_string(s_));
  panel_size_ = pieces_->steps * pieces_->b * s_.nv * kWords;
  std::int64_t batches = 1;
  for (const Axis& axis : b_batch_) batches *= axis.extent;
  const bool task = s_.b == BSource::task;
  b_buffer_ = scratch("panels", (task ? 1 : batches * s_.panels) * panel_size_,
                      task ? Scope::block : Scope::grid, 1, DType::i32);
  overlap_ = can_overlap();
  const std::int64_t tiles = s_.depth > 1    ? slots * s_.panels_per_task
                             : overlap_      ? sums_in_turn()
                             : s_.slices > 1 ? tiles_of_panel()
                                             : 1;
  acc_ = scratch("tile", tiles * s_.mr * s_.nv * lanes_, Scope::block);
}

Value Emitter::zero() const {
  return pieces_->bytes ? kernel::imm_int(DType::i32, 0) : kernel::imm(DType::f32, 0);
}

/// Where a row has the first term of a vector of `kHalf`.
Expr Emitter::piece_place(const Expr& slot, const Expr& vector) const {
  const std::int64_t blocks = (s_.mr + Tile::kRows - 1) / Tile::kRows;
  const Expr tile = ir::floor_div(slot, s_.mr), row = ir::floor_mod(slot, s_.mr);
  return (tile * Expr(blocks) + ir::floor_div(row, Tile::kRows)) * Expr(a_block_) +
         ir::floor_mod(row, Tile::kRows) * Expr(pieces_->depth()) +
         ir::floor_div(vector, pieces_->vectors()) * Expr(pieces_->a * pieces_->elements()) +
         ir::floor_mod(vector, pieces_->vectors()) * Expr(kHalf);
}

/// Splits `lanes` terms of a row, from the first lane of `vector`; the rest of the vector becomes
/// zeros. More than its lanes are of two of them, which share a row of a tile. Bytes are copied.
Body Emitter::split_terms(const Expr& slot, const Expr& vector, const Env& env,
                          std::int64_t lanes) {
  const Expr place = piece_place(slot, vector);
  const Var l = k_.new_var(), z = k_.new_var();
  Env here = env;
  Body out;
  if (lanes > 0) {
    const Var inner = a_terms_.back().var;
    set(here, inner, at(Expr(inner), env) + Expr(l));
    Value value = at(p_.a, here);
    if (lanes % kHalf != 0) value = kernel::guard({{Expr(l), 0, lanes}}, value, zero());
    // One piece is the value as the buffer stores it.
    std::vector<Value> parts{value};
    if (pieces_->a > 1) {
      parts = split(value, pieces_->a);
      for (Value& part : parts) part = kernel::apply(ir::ScalarFn::bitcast, {part}, DType::f32);
    }
    Body stores;
    for (std::size_t i = 0; i < parts.size(); ++i)
      stores.push_back(kernel::store(
          a_buffer_, place + Expr(static_cast<std::int64_t>(i) * pieces_->elements()) + Expr(l),
          parts[i]));
    out.push_back(
        kernel::loop(l, 0, ceil_div(lanes, kHalf) * kHalf, Binding::vector, std::move(stores)));
  }
  if (lanes > 0) return out;
  Body zeros;
  for (int i = 0; i < pieces_->a; ++i)
    zeros.push_back(
        kernel::store(a_buffer_, place + Expr(i * pieces_->elements() + lanes) + Expr(z), zero()));
  out.push_back(kernel::loop(z, 0, kHalf - lanes, Binding::vector, std::move(zeros)));
  return out;
}

/// The vector of a row's terms that begins at `place`.
Expr Emitter::vector_at(const Env& place) const {
  std::vector<Axis> terms = a_terms_;
  if (pieces_->line > 1) terms.back().extent = pieces_->padded;
  return ir::floor_div(linear(terms, place), kHalf);
}

/// Where blocks divide the reduction.
Expr Emitter::in_block(std::size_t level, const Expr& position) const {
  std::int64_t inner = 1;
  for (std::size_t i = level + 1; i < blocks_.size(); ++i) inner *= blocks_[i];
  const Expr mine = ir::floor_mod(ir::floor_div(block_, inner), blocks_[level]);
  return mine * Expr(a_terms_[level].extent) + position;
}

/// One row of the task: all terms of the block, vectors along the innermost reduction. `place`: the
/// same as `env`, within the block.
Body Emitter::pieces_of_row(const Expr& slot, std::size_t level, Env env, Env place) {
  const Axis& axis = a_terms_[level];
  const Var x = k_.new_var();
  if (level + 1 < a_terms_.size()) {
    set(place, axis.var, Expr(x));
    set(env, axis.var, in_block(level, Expr(x)));
    // Short lines of a window have tests in common.
    constexpr std::int64_t kFewLines = 8;
    const bool lines = level + 2 == a_terms_.size() && pieces_->line > 1 &&
                       pieces_->line <= 2 * kHalf && axis.extent <= kFewLines;
    return {kernel::loop(x, 0, axis.extent, lines ? Binding::unroll : Binding::serial,
                         pieces_of_row(slot, level + 1, std::move(env), std::move(place)))};
  }
  Body out;
  const std::int64_t vectors = axis.extent / kHalf, rest = axis.extent % kHalf;
  const auto some = [&](const Expr& first, std::int64_t lanes) {
    set(place, axis.var, first);
    set(env, axis.var, in_block(level, first));
    return split_terms(slot, vector_at(place), env, lanes);
  };
  const auto add = [&](Body body) {
    out.insert(out.end(), std::make_move_iterator(body.begin()),
               std::make_move_iterator(body.end()));
  };
  // Of one axis all are halves of a tile's row in turn, of several only where none is left.
  const bool pairs =
      pieces_->vectors() == 2 &&
      (a_terms_.size() == 1 || (vectors % 2 == 0 && (axis.extent + kHalf - 1) / kHalf % 2 == 0));
  const std::int64_t together = pairs ? 2 : 1;
  // A line of a window in one vector.
  if (pieces_->line > 1 && pieces_->vectors() == 2 && vectors == 1 && rest > 0)
    return some(Expr(0), axis.extent);
  if (vectors >= together)
    out.push_back(kernel::loop(x, 0, vectors / together, Binding::serial,
                               some(Expr(x) * Expr(together * kHalf), together * kHalf)));
  if (pairs && vectors % 2 != 0) add(some(Expr((vectors - 1) * kHalf), kHalf));
  if (rest > 0) add(some(Expr(vectors * kHalf), rest));
  return out;
}

/// The task's rows. Where memory runs along them, blocks of 16 rows by 16 terms are transposed in
/// registers.
void Emitter::copy_rows_of_pieces(Body& body) {
  const auto rows = [&](const PerTile& around, const PerRow& f) {
    for (kernel::Stmt& s : for_each_row(around, f)) body.push_back(std::move(s));
  };
  const std::int64_t vectors = a_terms_.back().extent / kHalf,
                     rest = a_terms_.back().extent % kHalf;
  const auto zeros = [&](const Env& env, const Expr& slot) {
    return split_terms(slot, Expr(pieces_->vectors() * row_steps_ - 1), env, 0);
  };
  const std::int64_t terms = pieces_->place_of(p_.extents.k) / s_.depth;
  const bool half = (terms + kHalf - 1) / kHalf < pieces_->vectors() * row_steps_;
  const PerTile plain = [](Env env, const Rows& inside) { return inside(std::move(env)); };
  if (!blocks_of_rows()) {
    return rows(plain, [&](const Env& env, const Expr& slot) {
      Body row = pieces_of_row(slot, 0, env, env);
      if (half)
        for (kernel::Stmt& z : zeros(env, slot)) row.push_back(std::move(z));
      return row;
    });
  }
  // Terms outside, tiles within: what memory has side by side is read so.
  const auto part = [&](std::int64_t first, std::int64_t count, std::int64_t lanes) {
    Env terms, place;
    std::vector<Var> loops;
    for (std::size_t i = 0; i < a_terms_.size(); ++i) {
      loops.push_back(k_.new_var());
      Expr x(loops.back());
      if (i + 1 == a_terms_.size()) x = (Expr(first) + x) * Expr(kHalf);
      set(place, a_terms_[i].var, x);
      set(terms, a_terms_[i].var, in_block(i, x));
    }
    const PerTile around = [&](Env env, const Rows& inside) {
      for (const Axis& axis : a_terms_) set(env, axis.var, at(Expr(axis.var), terms));
      return inside(std::move(env));
    };
    Body copies = for_each_row(around, [&](const Env& env, const Expr& slot) {
      return split_terms(slot, vector_at(place), env, lanes);
    });
    for (std::size_t i = a_terms_.size(); i-- > 0;)
      copies = {kernel::loop(loops[i], 0, i + 1 == a_terms_.size() ? count : a_terms_[i].extent,
                             Binding::serial, std::move(copies))};
    for (kernel::Stmt& s : copies) body.push_back(std::move(s));
  };
  if (vectors > 0) part(0, vectors, kHalf);
  if (rest > 0) part(vectors, 1, rest);
  if (half) rows(plain, zeros);
}

bool Emitter::blocks_of_rows() const {
  return pieces_ && p_.a_across && s_.mr % Tile::kRows == 0 && s_.small == 0;
}

/// Whether tasks of one tile each find all panels in the second-level cache.
bool Emitter::panels_stay() const {
  const std::int64_t bytes = s_.panels * panel_size_ * size_of(DType::i32);
  return (s_.beside || tiles_of_panel() == 1) && 2 * bytes <= p_.request.target.l2_bytes &&
         s_.tiles() > 2 * p_.request.target.threads;
}

/// Whether a panel is done before the next one can come from memory: then it asks for what it reads
/// itself, a little ahead, which keeps the machine's own prefetching going.
bool Emitter::fetch_just_ahead() const {
  return !s_.beside && tiles_of_panel() == 1 && s_.mr <= 2 * Tile::kRows;
}

/// What comes from memory while a tile computes: its own panel's columns, or its share of the next
/// panel.
void Emitter::fetch_panel(const Expr& tile, Tile& x) const {
  constexpr std::int64_t kLine = 16;
  if (fetch_just_ahead()) {
    const std::int64_t lines = x.b.step / kLine;
    // In pieces a step is longer, with more products for each byte.
    const bool whole = pieces_->b == 1;
    x.fetches.push_back({b_buffer_, x.b.offset + Expr(x.b.step / (whole ? 1 : 2)), steps_, x.b.step,
                         static_cast<int>(lines), false, whole});
    return;
  }
  const std::int64_t shares = s_.beside ? 1 : tiles_of_panel();
  const std::int64_t lines = (x.b.step / shares + kLine - 1) / kLine;
  Expr next = x.b.offset + Expr(panel_size_);
  if (shares > 1) next = next + tile * Expr(lines * kLine * steps_);
  // A panel of many rows, or a slice, that fills the first-level cache keeps it.
  const bool fills = 3 * panel_size_ * size_of(DType::i32) > p_.request.target.l1_bytes,
             far = s_.slices > 1 || (fills && !s_.beside);
  x.fetches.push_back({b_buffer_, next, steps_, lines * kLine, static_cast<int>(lines), far, far});
}

/// Whether rows lie apart, where the machine does not guess the next ones, and come from afar:
/// those of a box have just been written, and a step of few products has no room for hints.
bool Emitter::rows_from_afar() const {
  const std::int64_t bytes = size_of(k_.buffers[direct_->buffer].dtype);
  return direct_->pitch * bytes > Tile::kRowBytes && s_.slices == 1 &&
         (s_.a != ASource::box || s_.nv > 1);
}

/// Blocks of the reduction add to the sums of all the task's tiles, slices to those of a panel's.
Expr Emitter::place_of_sums() const {
  if (overlap_) return place_of_turn(number_of_turn());
  if (s_.depth == 1 && s_.slices == 1) return 0;
  Expr tile = tile_of_panel();
  if (s_.depth > 1) tile = Expr(panel_loop_) * Expr(tiles_of_panel()) + tile;
  return tile * Expr(s_.mr * s_.nv * lanes_);
}

/// The products of a register tile, in one block of the reduction.
Tile Emitter::pieces_product(const Variant& v) const {
  Tile x;
  x.acc = acc_;
  x.to = place_of_sums();
  x.add = s_.depth > 1 || slice_.constant() != 0;
  const Expr tile = tile_of_panel();
  Expr panel(panel_loop_);
  if (s_.b == BSource::task) {
    panel = Expr(0);
  } else {
    Expr batch(0);
    for (const Axis& axis : b_batch_) batch = batch * Expr(axis.extent) + at(Expr(axis.var), env_);
    panel = batch * Expr(s_.panels) + panel_;
  }
  const std::int64_t blocks = (s_.mr + Tile::kRows - 1) / Tile::kRows;
  const std::int64_t step = pieces_->b * s_.nv * kWords;
  const Expr done = slice_ * Expr(steps_);
  const Expr before = (block_ * Expr(row_steps_) + done) * Expr(step);
  const Expr slot = s_.beside ? ir::floor_mod(tile, 2) : tile;
  x.a = {a_buffer_, slot * Expr(blocks * a_block_), pieces_->a * pieces_->elements(), a_block_};
  x.b = {b_buffer_, panel * Expr(panel_size_) + before, step, kWords};
  x.a_row = pieces_->depth();
  if (direct_) place_rows(v, x);
  x.a.offset = x.a.offset + done * Expr(x.a.step);
  for (const Tile::Operand::Run& run : x.a.runs)
    x.a.offset = x.a.offset + ir::floor_div(done, run.steps) * Expr(run.further);
  if (pieces_->bytes) {
    x.a.type = (*p_.request.graph)[p_.problem.a].type.dtype;
    x.b.type = (*p_.request.graph)[p_.problem.b].type.dtype;
  }
  // Tiles that lack a row or columns are computed as whole ones: of one shape, all have one
  // configuration of the registers.
  x.row_bytes = pieces_->row_bytes();
  x.rows = static_cast<int>(s_.mr);
  x.columns = static_cast<int>(s_.nv * lanes_);
  x.depth = steps_ * x.tile_depth();
  for (const auto& [a, b] : pieces_->products())
    x.terms.push_back({a * pieces_->elements(), b * s_.nv * kWords});
  if (s_.b == BSource::task)
    fetch_columns(tile, x);
  else if (s_.panels > 1 && !panels_stay())
    fetch_panel(tile, x);
  if (s_.depth == 1 && slice_.constant() == s_.slices - 1) {
    fetch_results(v, x);
    fetch_rows(v, x);
  }
  return x;
}

/// Of rows that are not copied a smaller tile has one of those before it, too, so that all are of
/// one shape and none reads beyond the last.
std::int64_t Emitter::rows_before(const Variant& v) const { return direct_ ? s_.mr - v.mr : 0; }

/// Where a tile's own results begin.
Expr Emitter::results_from(const Variant& v, const Expr& place) const {
  return place + Expr(rows_before(v) * s_.nv * lanes_);
}

void Emitter::place_rows(const Variant& v, Tile& x) const {
  Env env = env_;
  const bool box = s_.a == ASource::box;
  set(env, p_.tile->var, (box ? a_tile_position(v) : v.first_row) - Expr(rows_before(v)));
  if (box && p_.row) set(env, p_.row->var, Expr(row_loop_));
  x.a.buffer = direct_->buffer;
  x.a.offset = at(direct_->offset, env);
  x.a.step = direct_->step;
  x.a.block = direct_->block;
  x.height = static_cast<int>(height_of(p_));
  x.a.runs = direct_->runs;
  x.a_row = direct_->pitch;
  x.ahead = rows_from_afar();
}

Body Emitter::pieces_tile(const Variant& v) {
  Body body;
  if (s_.depth == 1) body.push_back({pieces_product(v)});
  for (kernel::Stmt& s : epilogue(v, acc_, results_from(v, place_of_sums())))
    body.push_back(std::move(s));
  return body;
}

/// What the epilogue touches comes from memory while the tile computes.
void Emitter::fetch_results(const Variant& v, Tile& x) const {
  constexpr std::int64_t kLineBytes = 64;
  for (const auto& [buffer, offset] : rows_of_results(false)) {
    Env env = env_;
    set(env, p_.tile->var, v.first_row);
    set(env, p_.n->var, panel_ * Expr(s_.nv * lanes_));
    const std::int64_t bytes = v.nv * lanes_ * size_of(k_.buffers[buffer].dtype),
                       pitch = *ir::coefficient_of(offset, p_.tile->var);
    if (k_.buffers[buffer].scope == Scope::grid && pitch > 0)
      x.fetches.push_back({buffer, at(offset, env), v.mr, pitch,
                           static_cast<int>((bytes + kLineBytes - 1) / kLineBytes)});
  }
}

/// The products of all tiles of a panel, or of all panels.
Body Emitter::products_in_loops(bool panels) {
  Body tiles;
  for (const Variant& v : variants())
    tiles.push_back(kernel::when(v.when, {kernel::Stmt{pieces_product(v)}}));
  const auto around = [&](Var loop, std::int64_t count) {
    const Var fresh = k_.new_var();
    tiles = kernel::substitute(
        tiles, [&](Var v) { return v == loop ? std::optional<Expr>(Expr(fresh)) : std::nullopt; });
    tiles = {kernel::loop(fresh, 0, count, Binding::serial, std::move(tiles))};
  };
  around(tile_loop_, s_.tiles_per_task);
  if (p_.row) around(row_loop_, s_.rows_per_task);
  if (panels) around(panel_loop_, s_.panels_per_task);
  return tiles;
}

/// The sums of a panel's tiles over all slices but the last.
Body Emitter::slices_before() {
  Body out = products_in_loops(false);
  if (s_.slices > 2) {
    const Var slice = k_.new_var();
    slice_ = Expr(slice) + Expr(1);
    out.push_back(kernel::loop(slice, 0, s_.slices - 2, Binding::serial, products_in_loops(false)));
  }
  slice_ = Expr(s_.slices - 1);
  return out;
}

/// The sums of all tiles of the task, block by block of the reduction: its rows' pieces are then
/// few enough for the second-level cache.
Body Emitter::pieces_by_depth() {
  const Var depth = k_.new_var(), zero = k_.new_var(), l = k_.new_var();
  const std::int64_t vectors = k_.buffers[acc_].size / lanes_;
  Body zeros{
      kernel::loop(l, 0, lanes_, Binding::vector,
                   {kernel::store(acc_, Expr(zero) * Expr(lanes_) + Expr(l), this->zero())})};
  Body out{kernel::loop(zero, 0, vectors, Binding::serial, std::move(zeros))};
  block_ = Expr(depth);
  Body block;
  copy_rows_of_pieces(block);
  block = without_tests(std::move(block));
  for (kernel::Stmt& s : products_in_loops(true)) block.push_back(std::move(s));
  block_ = Expr(0);
  out.push_back(kernel::loop(depth, 0, s_.depth, Binding::serial, std::move(block)));
  return out;
}

}  // namespace heddle::lower::contract

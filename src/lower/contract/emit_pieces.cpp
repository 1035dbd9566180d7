#include <algorithm>
#include <bit>

#include "kernel/traverse.h"
#include "lower/contract/emit.h"

namespace heddle::lower::contract {

using ir::Expr;
using ir::ScalarFn;
using ir::Var;
using kernel::Binding;
using kernel::Body;
using kernel::Scope;
using kernel::Value;
using Tile = kernel::TileProduct;

namespace {

constexpr std::int64_t kElements = Tile::kRows * Tile::kDepth;  // of a tile, bf16
constexpr std::int64_t kWords = kElements / 2, kHalf = Tile::kDepth / 2;

Value integer(ScalarFn fn, Value x, std::int64_t y, DType type = DType::i32) {
  return kernel::apply(fn, {std::move(x), kernel::imm_int(DType::i32, y)}, type);
}

constexpr std::int64_t kUpper = -65536;

Value as_f32(Value bits) { return kernel::apply(ScalarFn::bitcast, {std::move(bits)}, DType::f32); }

/// The bits of v rounded to bf16, ties away from zero; `any`: of any f32, else of one that does not
/// round to infinity. (A NaN may become another value: then the pieces after it are NaN.)
Value rounded_bits(const Value& bits, bool any) {
  constexpr std::int64_t kHalfUnit = 0x8000, kSize = 0x7fffffff,
                         kLargest = 0x7f7f8000;  // from here on, a half unit more is infinite
  Value up = integer(ScalarFn::add, bits, kHalfUnit);
  if (any) {
    const Value fits =
        integer(ScalarFn::less, integer(ScalarFn::bit_and, bits, kSize), kLargest, DType::b1);
    up = kernel::apply(ScalarFn::select, {fits, up, bits}, DType::i32);
  }
  return integer(ScalarFn::bit_and, std::move(up), kUpper);
}

/// The bits of the value's pieces. What two leave of three fits the third as it is.
std::vector<Value> split(const Value& v, int count) {
  const auto bits = [](const Value& x) {
    return kernel::apply(ScalarFn::bitcast, {x}, DType::i32);
  };
  if (count == 1) return {rounded_bits(bits(v), true)};
  const auto rest = [](const Value& x, const Value& piece) {
    return kernel::apply(ScalarFn::sub, {x, as_f32(piece)}, DType::f32);
  };
  const Value first = rounded_bits(bits(v), true), left = rest(v, first);
  const Value second = rounded_bits(bits(left), false);
  return {first, second, bits(rest(left, second))};
}

/// bf16 nearest to a number, ties away from zero; one that rounds to infinity is cut off.
std::uint16_t piece_of(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const bool fits = (bits & 0x7fffffffU) < 0x7f7f8000U;
  return static_cast<std::uint16_t>((fits ? bits + 0x8000U : bits) >> 16);
}

}  // namespace

/// Buffers: of a task's rows [tile of rows][step][piece] tiles of bf16; of all columns, or of one
/// panel of them, [panel][step][piece][vector] tiles of pairs.
void Emitter::plan_pieces() {
  for (const Axis& axis : k_axes_) set(env_, axis.var, Expr(0));  // those that are merged
  a_terms_ = merged_reductions(p_, expressions_of(p_.a));
  a_terms_.front().extent /= s_.depth;
  plan_column_terms();
  slot_ = k_.new_var();
  const std::int64_t slots = s_.rows_per_task * s_.tiles_per_task;
  steps_ = pieces_->steps / s_.depth;
  a_block_ = steps_ * pieces_->a * kElements;
  a_buffer_ = scratch("pieces", slots * ((s_.mr + Tile::kRows - 1) / Tile::kRows) * a_block_,
                      Scope::block, 1, DType::bf16);
  panel_size_ = pieces_->steps * pieces_->b * s_.nv * kWords;
  std::int64_t batches = 1;
  for (const Axis& axis : b_batch_) batches *= axis.extent;
  const bool task = s_.b == BSource::task;
  b_buffer_ = scratch("panels", (task ? 1 : batches * s_.panels) * panel_size_,
                      task ? Scope::block : Scope::grid, 1, DType::i32);
  const std::int64_t tiles = s_.depth > 1 ? slots * s_.panels_per_task : 1;
  acc_ = scratch("tile", tiles * s_.mr * s_.nv * lanes_, Scope::block);
}

/// A vector of columns takes its terms one by one: where sixteen of them do not follow each other
/// along an axis, all axes are one.
void Emitter::plan_column_terms() {
  b_main_ = p_.b;
  b_terms_ = merged_reductions(p_, expressions_of(p_.b));
  if (b_terms_.size() == 1 || b_terms_.back().extent % kHalf == 0) return;
  const Axis all{k_.new_var(), p_.extents.k, Role::k};
  Env env;
  Expr rest(all.var);
  for (std::size_t i = b_terms_.size(); i-- > 0;) {
    set(env, b_terms_[i].var, i > 0 ? ir::floor_mod(rest, b_terms_[i].extent) : rest);
    rest = ir::floor_div(rest, b_terms_[i].extent);
  }
  b_main_ = at(p_.b, env);
  b_terms_ = {all};
}

/// Where a row has the first term of a vector of `kHalf`.
Expr Emitter::piece_place(const Expr& slot, const Expr& vector) const {
  const std::int64_t blocks = (s_.mr + Tile::kRows - 1) / Tile::kRows;
  const Expr tile = ir::floor_div(slot, s_.mr), row = ir::floor_mod(slot, s_.mr);
  return (tile * Expr(blocks) + ir::floor_div(row, Tile::kRows)) * Expr(a_block_) +
         ir::floor_mod(row, Tile::kRows) * Expr(Tile::kDepth) +
         ir::floor_div(vector, 2) * Expr(pieces_->a * kElements) +
         ir::floor_mod(vector, 2) * Expr(kHalf);
}

/// Splits `lanes` terms of a row, from the first lane of `vector`; the rest of the vector becomes
/// zeros. More than its lanes are two of them, which share a row of a tile.
Body Emitter::split_terms(const Expr& slot, const Expr& vector, const Env& env,
                          std::int64_t lanes) {
  const Expr place = piece_place(slot, vector);
  const Var l = k_.new_var(), z = k_.new_var();
  Env here = env;
  Body out;
  if (lanes > 0) {
    const Var inner = a_terms_.back().var;
    set(here, inner, at(Expr(inner), env) + Expr(l));
    const std::vector<Value> parts = split(at(p_.a, here), pieces_->a);
    Body stores;
    for (std::size_t i = 0; i < parts.size(); ++i)
      stores.push_back(
          kernel::store(a_buffer_, place + Expr(static_cast<std::int64_t>(i) * kElements) + Expr(l),
                        as_f32(parts[i])));
    out.push_back(kernel::loop(l, 0, lanes, Binding::vector, std::move(stores)));
  }
  if (lanes >= kHalf) return out;
  Body zeros;
  for (int i = 0; i < pieces_->a; ++i)
    zeros.push_back(kernel::store(a_buffer_, place + Expr(i * kElements + lanes) + Expr(z),
                                  kernel::imm(DType::f32, 0)));
  out.push_back(kernel::loop(z, 0, kHalf - lanes, Binding::vector, std::move(zeros)));
  return out;
}

/// Where blocks divide the reduction.
Expr Emitter::in_block(std::size_t level, const Expr& position) const {
  return level > 0 ? position : block_ * Expr(a_terms_[0].extent) + position;
}

/// One row of the task: all terms of the block, vectors along the innermost reduction. `place`: the
/// same as `env`, within the block.
Body Emitter::pieces_of_row(const Expr& slot, std::size_t level, Env env, Env place) {
  const Axis& axis = a_terms_[level];
  const Var x = k_.new_var();
  if (level + 1 < a_terms_.size()) {
    set(place, axis.var, Expr(x));
    set(env, axis.var, in_block(level, Expr(x)));
    return {kernel::loop(x, 0, axis.extent, Binding::serial,
                         pieces_of_row(slot, level + 1, std::move(env), std::move(place)))};
  }
  Body out;
  const std::int64_t vectors = axis.extent / kHalf, rest = axis.extent % kHalf;
  const auto some = [&](const Expr& first, std::int64_t lanes) {
    set(place, axis.var, first);
    set(env, axis.var, in_block(level, first));
    return split_terms(slot, ir::floor_div(linear(a_terms_, place), kHalf), env, lanes);
  };
  const auto add = [&](Body body) {
    out.insert(out.end(), std::make_move_iterator(body.begin()),
               std::make_move_iterator(body.end()));
  };
  // Of one axis all are halves of a tile's row in turn, of several only where none is left.
  const bool pairs = a_terms_.size() == 1 || vectors % 2 == 0;
  const std::int64_t together = pairs ? 2 : 1;
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
    return split_terms(slot, Expr(2 * steps_ - 1), env, 0);
  };
  const bool half = (p_.extents.k / s_.depth + kHalf - 1) / kHalf < 2 * steps_;
  const PerTile plain = [](Env env, const Rows& inside) { return inside(std::move(env)); };
  if (!blocks_of_rows()) {
    return rows(plain, [&](const Env& env, const Expr& slot) {
      Body row = pieces_of_row(slot, 0, env, env);
      if (half)
        for (kernel::Stmt& z : zeros(env, slot)) row.push_back(std::move(z));
      return row;
    });
  }
  const auto part = [&](std::int64_t first, std::int64_t count, std::int64_t lanes) {
    std::vector<Var> loops;
    Env place;
    const auto around = [&](Env env, const Rows& inside) {
      loops.clear();
      place = env;
      for (std::size_t i = 0; i < a_terms_.size(); ++i) {
        loops.push_back(k_.new_var());
        Expr x(loops.back());
        if (i + 1 == a_terms_.size()) x = (Expr(first) + x) * Expr(kHalf);
        set(place, a_terms_[i].var, x);
        set(env, a_terms_[i].var, in_block(i, x));
      }
      Body body{kernel::loop(loops.back(), 0, count, Binding::serial, inside(std::move(env)))};
      for (std::size_t i = a_terms_.size() - 1; i-- > 0;)
        body = {kernel::loop(loops[i], 0, a_terms_[i].extent, Binding::serial, std::move(body))};
      return body;
    };
    rows(around, [&](const Env& env, const Expr& slot) {
      return split_terms(slot, ir::floor_div(linear(a_terms_, place), kHalf), env, lanes);
    });
  };
  if (vectors > 0) part(0, vectors, kHalf);
  if (rest > 0) part(vectors, 1, rest);
  if (half) rows(plain, zeros);
}

bool Emitter::blocks_of_rows() const {
  return pieces_ && p_.a_across && s_.mr % Tile::kRows == 0 && s_.small == 0;
}

/// The products of a register tile, in one block of the reduction.
Tile Emitter::pieces_product(const Variant& v) const {
  Tile x;
  x.acc = acc_;
  Expr tile(tile_loop_), panel(panel_loop_);
  if (p_.row) tile = Expr(row_loop_) * Expr(s_.tiles_per_task) + tile;
  if (s_.depth > 1) {
    const std::int64_t slots = s_.rows_per_task * s_.tiles_per_task;
    x.to = (panel * Expr(slots) + tile) * Expr(s_.mr * s_.nv * lanes_);
    x.add = true;
  }
  if (s_.b == BSource::task) {
    panel = Expr(0);
  } else {
    Expr batch(0);
    for (const Axis& axis : b_batch_) batch = batch * Expr(axis.extent) + at(Expr(axis.var), env_);
    panel = batch * Expr(s_.panels) + panel_;
  }
  const std::int64_t blocks = (s_.mr + Tile::kRows - 1) / Tile::kRows;
  const std::int64_t step = pieces_->b * s_.nv * kWords;
  const Expr before = block_ * Expr(steps_ * step);
  x.a = {a_buffer_, tile * Expr(blocks * a_block_), pieces_->a * kElements, a_block_};
  x.b = {b_buffer_, panel * Expr(panel_size_) + before, step, kWords};
  x.rows = static_cast<int>(v.mr);
  x.columns = static_cast<int>(v.nv * lanes_);
  x.depth = steps_ * Tile::kDepth;
  for (const auto& [a, b] : pieces_->products())
    x.terms.push_back({a * kElements, b * s_.nv * kWords});
  if (s_.b != BSource::task && s_.panels > 1) {
    // The next panel comes from memory while the tiles of this one compute, a share in each.
    constexpr std::int64_t kLine = 16;
    const std::int64_t lines = (step / tiles_of_panel() + kLine - 1) / kLine;
    const Expr next =
        (panel + Expr(1)) * Expr(panel_size_) + before + tile * Expr(lines * kLine * steps_);
    x.fetches.push_back({b_buffer_, next, steps_, lines * kLine, static_cast<int>(lines)});
  }
  if (s_.b == BSource::task) fetch_columns(tile, x);
  if (s_.depth == 1) fetch_results(v, x);
  return x;
}

Body Emitter::pieces_tile(const Variant& v) {
  Tile x = pieces_product(v);
  Body body = epilogue(v, x.acc, x.to);
  if (s_.depth > 1) return body;
  body.insert(body.begin(), kernel::Stmt{std::move(x)});
  return body;
}

/// The same of the columns that the next panel is made of.
void Emitter::fetch_columns(const Expr& tile, Tile& x) const {
  constexpr std::int64_t kLineBytes = 64;
  const kernel::Load* load = load_of_b();
  if (!load || k_.buffers[load->buffer].scope != Scope::grid || b_terms_.size() != 1 ||
      s_.panels_per_task == 1)
    return;
  const auto down = ir::coefficient_of(load->offset, b_terms_[0].var),
             along = ir::coefficient_of(load->offset, p_.n_axes[0].var);
  const bool columns = down == 1;  // memory runs down them
  const std::int64_t pitch = (columns ? along : down).value_or(0), width = s_.nv * lanes_;
  if (pitch < 1 || (!columns && along != 1)) return;
  const std::int64_t rows = ((columns ? width : p_.extents.k) + tiles_of_panel() - 1) /
                            tiles_of_panel(),
                     bytes =
                         (columns ? p_.extents.k : width) * size_of(k_.buffers[load->buffer].dtype);
  Env env = env_;
  const Expr first = tile * Expr(rows), next = (panel_ + Expr(1)) * Expr(width);
  set(env, p_.n_axes[0].var, columns ? next + first : next);
  set(env, b_terms_[0].var, columns ? Expr(0) : first);
  x.fetches.push_back({load->buffer, at(load->offset, env), rows, pitch,
                       static_cast<int>((bytes + kLineBytes - 1) / kLineBytes)});
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

/// The sums of all tiles of the task, block by block of the reduction: its rows' pieces are then
/// few enough for the second-level cache.
Body Emitter::pieces_by_depth() {
  const Var depth = k_.new_var(), zero = k_.new_var(), l = k_.new_var();
  const std::int64_t vectors = k_.buffers[acc_].size / lanes_;
  Body zeros{kernel::loop(
      l, 0, lanes_, Binding::vector,
      {kernel::store(acc_, Expr(zero) * Expr(lanes_) + Expr(l), kernel::imm(DType::f32, 0))})};
  Body out{kernel::loop(zero, 0, vectors, Binding::serial, std::move(zeros))};
  block_ = Expr(depth);
  Body block;
  copy_rows_of_pieces(block);
  block = without_tests(std::move(block));
  Body tiles;
  for (const Variant& v : variants())
    tiles.push_back(kernel::when(v.when, {kernel::Stmt{pieces_product(v)}}));
  const auto around = [&](Var loop, std::int64_t count, Body body) {
    const Var fresh = k_.new_var();
    body = kernel::substitute(
        body, [&](Var v) { return v == loop ? std::optional<Expr>(Expr(fresh)) : std::nullopt; });
    return Body{kernel::loop(fresh, 0, count, Binding::serial, std::move(body))};
  };
  tiles = around(tile_loop_, s_.tiles_per_task, std::move(tiles));
  if (p_.row) tiles = around(row_loop_, s_.rows_per_task, std::move(tiles));
  for (kernel::Stmt& s : around(panel_loop_, s_.panels_per_task, std::move(tiles)))
    block.push_back(std::move(s));
  block_ = Expr(0);
  out.push_back(kernel::loop(depth, 0, s_.depth, Binding::serial, std::move(block)));
  return out;
}

/// A vector of columns from n (`some`: the last ones, not all of them there), sixteen terms of it
/// (`terms` of them, then zeros) from `first`, to where `place` has the pair of a piece. Memory may
/// run along either: in between the terms are registers.
Body Emitter::split_columns(Env env, const Expr& n, const Expr& first, std::int64_t terms,
                            bool some, const PairPlace& place) {
  const kernel::BufferId kept = scratch("terms", kHalf * lanes_, Scope::lane, lanes_);
  const Var u = k_.new_var(), l = k_.new_var(), pair = k_.new_var();
  const Expr column = n + Expr(l);
  set(env, b_terms_.back().var, first + Expr(u));
  Expr rest = column;
  for (std::size_t a = p_.n_axes.size(); a-- > 0;) {
    const Axis& axis = p_.n_axes[a];
    set(env, axis.var, a > 0 ? ir::floor_mod(rest, axis.extent) : rest);
    rest = ir::floor_div(rest, axis.extent);
  }
  Value value = at(b_main_, env);
  if (some) value = kernel::guard({{column, 0, p_.extents.n}}, value, kernel::imm(DType::f32, 0));
  const auto keep = [&](Var at, std::int64_t begin, std::int64_t end, const Value& v, Var in) {
    return kernel::loop(
        at, begin, end, Binding::unroll,
        {kernel::loop(in, 0, lanes_, Binding::vector,
                      {kernel::store(kept, Expr(at) * Expr(lanes_) + Expr(in), v)})});
  };
  Body out{keep(u, 0, terms, value, l)};
  if (terms < kHalf)
    out.push_back(keep(k_.new_var(), terms, kHalf, kernel::imm(DType::f32, 0), k_.new_var()));
  const Var to = k_.new_var();
  std::vector<std::vector<Value>> halves;
  for (int i = 0; i < 2; ++i)
    halves.push_back(split(
        kernel::load(kept, (Expr(pair) * Expr(2) + Expr(i)) * Expr(lanes_) + Expr(to), DType::f32),
        pieces_->b));
  Body stores;
  for (int i = 0; i < pieces_->b; ++i) {
    const auto bits = [&](std::size_t side) { return halves[side][static_cast<std::size_t>(i)]; };
    const Value low =
        integer(ScalarFn::bit_and, integer(ScalarFn::shift_right, bits(0), 16), 0xffff);
    stores.push_back(kernel::store(b_buffer_, place(Expr(pair), i) + Expr(to),
                                   kernel::apply(ScalarFn::bit_or, {low, bits(1)}, DType::i32)));
  }
  out.push_back(kernel::loop(pair, 0, kHalf / 2, Binding::unroll,
                             {kernel::loop(to, 0, lanes_, Binding::vector, std::move(stores))}));
  return out;
}

/// Packs one panel of columns: pairs of terms, vectors of columns, zeros beyond both.
void Emitter::copy_pieces(const Expr& panel, const Expr& base, Body& body) {
  const std::int64_t extent = b_terms_.back().extent, whole = extent / kHalf;
  Env env = env_;
  for (const Axis& axis : b_terms_) set(env, axis.var, Expr(k_.new_var()));
  const auto variable = [&](std::size_t i) { return *at(Expr(b_terms_[i].var), env).variable(); };
  const auto block = [&](const Expr& first, std::int64_t terms) {
    const Var c = k_.new_var();
    const Expr n = panel * Expr(s_.nv * lanes_) + Expr(c) * Expr(lanes_);
    Env here = env;
    set(here, b_terms_.back().var, first);
    const Expr number = ir::floor_div(linear(b_terms_, here), kHalf);
    const auto place = [&](const Expr& pair, int piece) {
      return base + ir::floor_div(number, 2) * Expr(pieces_->b * s_.nv * kWords) +
             (ir::floor_mod(number, 2) * Expr(kHalf / 2) + pair) * Expr(lanes_) +
             Expr(c) * Expr(kWords) + Expr(piece * s_.nv * kWords);
    };
    // The last vectors may lack columns; the others need no tests.
    const Expr vector = panel * Expr(s_.nv) + Expr(c);
    const std::int64_t full = p_.extents.n / lanes_,
                       all = s_.panel_blocks() * s_.panels_per_task * s_.nv;
    Body vectors{
        kernel::when({{vector, 0, full}}, split_columns(env, n, first, terms, false, place))};
    if (full < all)
      vectors.push_back(
          kernel::when({{vector, full, all}}, split_columns(env, n, first, terms, true, place)));
    return kernel::loop(c, 0, s_.nv, Binding::serial, std::move(vectors));
  };
  Body loop;
  const Var x = variable(b_terms_.size() - 1);
  if (whole > 0)
    loop.push_back(
        kernel::loop(x, 0, whole, Binding::serial, {block(Expr(x) * Expr(kHalf), kHalf)}));
  if (extent % kHalf != 0) loop.push_back(block(Expr(whole * kHalf), extent % kHalf));
  for (std::size_t i = b_terms_.size() - 1; i-- > 0;)
    loop = {kernel::loop(variable(i), 0, b_terms_[i].extent, Binding::serial, std::move(loop))};
  if ((p_.extents.k + kHalf - 1) / kHalf < 2 * pieces_->steps) {
    const Var c = k_.new_var(), row = k_.new_var(), l = k_.new_var();
    const Expr last = base + Expr((pieces_->steps - 1) * pieces_->b * s_.nv * kWords + kWords / 2);
    Body zeros;
    for (int i = 0; i < pieces_->b; ++i)
      zeros.push_back(kernel::store(b_buffer_,
                                    last + Expr((i * s_.nv) * kWords) + Expr(c) * Expr(kWords) +
                                        Expr(row) * Expr(lanes_) + Expr(l),
                                    kernel::imm_int(DType::i32, 0)));
    zeros = {kernel::loop(l, 0, lanes_, Binding::vector, std::move(zeros))};
    zeros = {kernel::loop(row, 0, kHalf / 2, Binding::serial, std::move(zeros))};
    loop.push_back(kernel::loop(c, 0, s_.nv, Binding::serial, std::move(zeros)));
  }
  for (kernel::Stmt& s : loop) body.push_back(std::move(s));
}

/// The constant operand likewise.
Tensor Emitter::pack_pieces() const {
  const kernel::Load& load = operand_load();
  const Tensor& source = constant_operand(load);
  const std::vector<std::int64_t> none(static_cast<std::size_t>(k_.variables), 0);
  const std::int64_t zero = ir::evaluate(load.offset, none);
  const auto on = offsets_of(load, p_.n_axes), ok = offsets_of(load, k_axes_),
             ob = offsets_of(load, b_batch_);
  const TensorType packed{DType::i32,
                          {static_cast<std::int64_t>(ob.size()), s_.panels, panel_size_}};
  if (!p_.request.contents) return {packed, nullptr, nullptr};
  Tensor out(packed);  // zeros
  auto* to = reinterpret_cast<std::uint16_t*>(out.mutable_data());
  std::fill_n(to, 2 * out.count(), std::uint16_t{0});
  const std::int64_t width = s_.nv * lanes_, piece = s_.nv * kWords;
  for (const std::int64_t batch : ob)
    for (std::int64_t panel = 0; panel < s_.panels; ++panel, to += 2 * panel_size_)
      for (std::int64_t k = 0; k < p_.extents.k; ++k)
        for (std::int64_t i = 0; i < std::min(width, p_.extents.n - panel * width); ++i) {
          auto rest =
              static_cast<float>(source.at(zero + batch + ok[static_cast<std::size_t>(k)] +
                                           on[static_cast<std::size_t>(panel * width + i)]));
          const std::int64_t word = k / Tile::kDepth * pieces_->b * piece + i / lanes_ * kWords +
                                    k % Tile::kDepth / 2 * lanes_ + i % lanes_;
          for (int part = 0; part < pieces_->b; ++part) {
            const std::uint16_t bits = piece_of(rest);
            to[2 * (word + part * piece) + k % 2] = bits;
            rest -= bf16_to_f32(bits);
          }
        }
  return out;
}

}  // namespace heddle::lower::contract

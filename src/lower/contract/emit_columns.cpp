// The columns of a product in tile registers: pairs of terms or words of bytes, as its tiles have
// them.
#include <algorithm>

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
  constexpr std::int64_t kFewLines = 64;  // of a step
  if (bytes / kLineBytes * ((rows + steps_ - 1) / steps_) > kFewLines) return;
  Env env = env_;
  const Expr first = tile * Expr(rows), next = (panel_ + Expr(1)) * Expr(width);
  set(env, p_.n_axes[0].var, columns ? next + first : next);
  set(env, b_terms_[0].var, columns ? Expr(0) : first);
  x.fetches.push_back({load->buffer, at(load->offset, env), rows, pitch,
                       static_cast<int>((bytes + kLineBytes - 1) / kLineBytes)});
}

/// The same of the rows that are split next, a share of them with each panel: the next task's,
/// where each has a tile of all columns, or those behind the tile that is split beside these
/// products; or of those that it reads next.
void Emitter::fetch_rows(const Variant& v, Tile& x) const {
  const bool next_task = !p_.row && s_.tiles_per_task == 1 && s_.panel_blocks() == 1;
  if (p_.a_across || !(s_.beside || next_task) || a_terms_.size() != 1 || s_.a == ASource::box)
    return;
  constexpr std::int64_t kFewLines = 64, kLineBytes = 64;  // of a step
  const std::int64_t panels = s_.panels_per_task;
  std::vector<const kernel::Load*> seen;
  kernel::for_each_value(p_.a, [&](const Value& value) {
    const auto* load = std::get_if<kernel::Load>(&value->op);
    if (!load || !load->dynamic.empty() || k_.buffers[load->buffer].scope != Scope::grid) return;
    for (const kernel::Load* other : seen)
      if (other->buffer == load->buffer && other->offset == load->offset) return;
    seen.push_back(load);
    const auto down = ir::coefficient_of(load->offset, p_.tile->var);
    if (ir::coefficient_of(load->offset, a_terms_[0].var) != 1 || down.value_or(0) < 1) return;
    std::int64_t rows = (v.mr + panels - 1) / panels, pitch = *down, count = p_.extents.k;
    if (pitch == count) {  // they follow each other: equal shares for all steps
      rows = steps_;
      pitch = count = (v.mr * p_.extents.k + rows * panels - 1) / (rows * panels);
    }
    const std::int64_t bytes = count * size_of(k_.buffers[load->buffer].dtype);
    Tile::Fetch f{load->buffer, 0, rows, pitch,
                  static_cast<int>((bytes + kLineBytes - 1) / kLineBytes)};
    if (f.rows_of_step(x.depth) * f.lines > kFewLines) return;
    Env env = env_;
    set(env, p_.tile->var, v.first_row + Expr(v.mr * (s_.beside && !direct_ ? 2 : 1)));
    set(env, a_terms_[0].var, Expr(0));
    f.offset = at(load->offset, env) + Expr(panel_loop_) * Expr(rows * pitch);
    x.fetches.push_back(std::move(f));
  });
}

/// A vector of columns from n (`some`: the last ones, not all of them there), sixteen terms of it
/// (`terms` of them, then zeros) from `first`, to where `place` has the pair of a piece, or a word
/// of bytes. Memory may run along either: in between the terms are registers.
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
  if (some) value = kernel::guard({{column, 0, p_.extents.n}}, value, zero());
  const auto keep = [&](Var at, std::int64_t begin, std::int64_t end, const Value& v, Var in) {
    return kernel::loop(
        at, begin, end, Binding::unroll,
        {kernel::loop(in, 0, lanes_, Binding::vector,
                      {kernel::store(kept, Expr(at) * Expr(lanes_) + Expr(in), v)})});
  };
  Body out{keep(u, 0, terms, value, l)};
  if (terms < kHalf) out.push_back(keep(k_.new_var(), terms, kHalf, zero(), k_.new_var()));
  const Var to = k_.new_var();
  if (pieces_->bytes) {
    const Value word =
        kernel::load(kept, Expr(pair) * Expr(lanes_) + Expr(to), p_.problem.element());
    out.push_back(kernel::loop(
        pair, 0, kHalf, Binding::unroll,
        {kernel::loop(to, 0, lanes_, Binding::vector,
                      {kernel::store(b_buffer_, place(Expr(pair), 0) + Expr(to), word)})}));
    return out;
  }
  std::vector<std::vector<Value>> halves;
  for (int i = 0; i < 2; ++i)
    halves.push_back(split(
        kernel::load(kept, (Expr(pair) * Expr(2) + Expr(i)) * Expr(lanes_) + Expr(to), DType::f32),
        pieces_->b));
  Body stores;
  for (int i = 0; i < pieces_->b; ++i) {
    const auto bits = [&](std::size_t side) { return halves[side][static_cast<std::size_t>(i)]; };
    const auto integer = [](ScalarFn fn, Value x, std::int64_t y) {
      return kernel::apply(fn, {std::move(x), kernel::imm_int(DType::i32, y)}, DType::i32);
    };
    const Value low =
        integer(ScalarFn::bit_and, integer(ScalarFn::shift_right, bits(0), 16), 0xffff);
    stores.push_back(kernel::store(b_buffer_, place(Expr(pair), i) + Expr(to),
                                   kernel::apply(ScalarFn::bit_or, {low, bits(1)}, DType::i32)));
  }
  out.push_back(kernel::loop(pair, 0, kHalf / 2, Binding::unroll,
                             {kernel::loop(to, 0, lanes_, Binding::vector, std::move(stores))}));
  return out;
}

/// Up to sixteen terms from `env`'s of a panel of columns.
kernel::Stmt Emitter::columns_of_terms(const Env& env, const Expr& panel, const Expr& base,
                                       std::int64_t terms) {
  const Var c = k_.new_var();
  const Expr n = panel * Expr(s_.nv * lanes_) + Expr(c) * Expr(lanes_);
  const Expr number = ir::floor_div(linear(b_terms_, env), kHalf);
  const auto place = [&](const Expr& pair, int piece) {
    const std::int64_t vectors = pieces_->vectors();
    return base + ir::floor_div(number, vectors) * Expr(pieces_->b * s_.nv * kWords) +
           (ir::floor_mod(number, vectors) * Expr(kHalf / 2) + pair) * Expr(lanes_) +
           Expr(c) * Expr(kWords) + Expr(piece * s_.nv * kWords);
  };
  // The last vectors may lack columns; the others need no tests.
  const Expr vector = panel * Expr(s_.nv) + Expr(c), first = at(Expr(b_terms_.back().var), env);
  const std::int64_t full = p_.extents.n / lanes_,
                     all = s_.panel_blocks() * s_.panels_per_task * s_.nv;
  Body vectors{
      kernel::when({{vector, 0, full}}, split_columns(env, n, first, terms, false, place))};
  if (full < all)
    vectors.push_back(
        kernel::when({{vector, full, all}}, split_columns(env, n, first, terms, true, place)));
  return kernel::loop(c, 0, s_.nv, Binding::serial, std::move(vectors));
}

/// Zeros for the half of a panel's last step that has no terms.
std::optional<kernel::Stmt> Emitter::columns_without_terms(const Expr& base) {
  if ((p_.extents.k + kHalf - 1) / kHalf == pieces_->vectors() * pieces_->steps)
    return std::nullopt;
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
  return kernel::loop(c, 0, s_.nv, Binding::serial, std::move(zeros));
}

/// Packs one panel of columns: pairs of terms, vectors of columns, zeros beyond both.
void Emitter::copy_pieces(const Expr& panel, const Expr& base, Body& body) {
  const std::int64_t extent = b_terms_.back().extent, whole = extent / kHalf;
  Env env = env_;
  std::vector<Var> loops;
  for (const Axis& axis : b_terms_) {
    loops.push_back(k_.new_var());
    set(env, axis.var, Expr(loops.back()));
  }
  const auto block = [&](const Expr& first, std::int64_t terms) {
    Env here = env;
    set(here, b_terms_.back().var, first);
    return columns_of_terms(here, panel, base, terms);
  };
  Body loop;
  if (whole > 0)
    loop.push_back(kernel::loop(loops.back(), 0, whole, Binding::serial,
                                {block(Expr(loops.back()) * Expr(kHalf), kHalf)}));
  if (extent % kHalf != 0) loop.push_back(block(Expr(whole * kHalf), extent % kHalf));
  for (std::size_t i = b_terms_.size() - 1; i-- > 0;)
    loop = {kernel::loop(loops[i], 0, b_terms_[i].extent, Binding::serial, std::move(loop))};
  for (kernel::Stmt& s : loop) body.push_back(std::move(s));
  if (auto zeros = columns_without_terms(base)) body.push_back(*std::move(zeros));
}

/// Whether memory runs along the columns, so that few terms of all of them are side by side.
bool Emitter::columns_by_terms() const {
  const kernel::Load* load = load_of_b();
  return pieces_ && load && b_terms_.size() == 1 &&
         ir::coefficient_of(load->offset, p_.n_axes[0].var) == 1;
}

std::int64_t Emitter::blocks_of_terms() const { return (p_.extents.k + kHalf - 1) / kHalf; }

/// Packs sixteen terms, the `block`th, of all columns of a batch.
Body Emitter::terms_of_panels(const Expr& block, const Expr& base) {
  const std::int64_t extent = b_terms_[0].extent, whole = extent / kHalf;
  const Var panel = k_.new_var();
  const Expr to = base + Expr(panel) * Expr(panel_size_);
  const auto some = [&](const Expr& first, std::int64_t terms) {
    Env env = env_;
    set(env, b_terms_[0].var, first);
    return columns_of_terms(env, Expr(panel), to, terms);
  };
  Body body;
  if (whole > 0)
    body.push_back(kernel::when({{block, 0, whole}}, {some(block * Expr(kHalf), kHalf)}));
  if (extent % kHalf != 0)
    body.push_back(
        kernel::when({{block, whole, whole + 1}}, {some(Expr(whole * kHalf), extent % kHalf)}));
  if (auto zeros = columns_without_terms(to))
    body.push_back(kernel::when({{block, 0, 1}}, {*std::move(zeros)}));
  return {kernel::loop(panel, 0, s_.panels, Binding::serial, std::move(body))};
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
  auto* to = reinterpret_cast<std::uint32_t*>(out.mutable_data());
  std::fill_n(to, out.count(), 0U);
  const std::int64_t width = s_.nv * lanes_, piece = s_.nv * kWords, depth = pieces_->depth();
  const std::int64_t next = part_distance();
  const std::int64_t in_word = pieces_->bytes ? 1 : 2;  // terms
  const auto split = [&](std::uint32_t* word, std::int64_t k, std::int64_t from) {
    auto rest = static_cast<float>(source.at(from));
    for (int part = 0; part < pieces_->b; ++part, word += piece) {
      const std::uint16_t bits = piece_of(rest);
      *word |= static_cast<std::uint32_t>(bits) << (k % 2 * 16);
      rest -= bf16_to_f32(bits);
    }
  };
  for (const std::int64_t batch : ob)
    for (std::int64_t panel = 0; panel < s_.panels; ++panel, to += panel_size_)
      for (std::int64_t k = 0; k < p_.extents.k; ++k)
        for (std::int64_t i = 0; i < std::min(width, p_.extents.n - panel * width); ++i) {
          const std::int64_t from = zero + batch + ok[static_cast<std::size_t>(k)] +
                                    on[static_cast<std::size_t>(panel * width + i)];
          const std::int64_t at = pieces_->place_of(k);
          std::uint32_t* word = to + at / depth * pieces_->b * piece + i / lanes_ * kWords +
                                at % depth / in_word * lanes_ + i % lanes_;
          if (pieces_->bytes)
            *word = word_at(source, from, next, p_.problem.parts->count);
          else
            split(word, at, from);
        }
  return out;
}

}  // namespace heddle::lower::contract

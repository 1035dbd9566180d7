#include <algorithm>
#include <bit>
#include <cstring>

#include "kernel/halves.h"
#include "kernel/traverse.h"
#include "lower/contract/emit.h"

namespace heddle::lower::contract {

using ir::Expr;
using ir::Var;
using kernel::Binding;
using kernel::Body;
using kernel::BufferId;
using kernel::Scope;
using kernel::Value;

namespace {

constexpr int kTileRows = kernel::TileProduct::kRows;

std::int64_t round_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b * b; }

}  // namespace

/// How the main loop reads a, and how its reductions run.
void Emitter::plan_a() {
  Env none;
  const bool tiles = s_.a == ASource::tiles;
  if (s_.a == ASource::in_place) a_main_ = p_.a;
  if ((s_.a == ASource::matrix && !strassen_) || tiles) {
    slot_ = k_.new_var();
    // Of a tile the rows of one term lie in one line; rows by themselves are padded, as those a
    // multiple of 1 KB apart would share few cache sets.
    lda_ = tiles ? static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(s_.mr)))
                 : round_up(p_.extents.k, lanes_) + lanes_;
    const std::int64_t count = s_.rows_per_task * s_.tiles_per_task;
    a_buffer_ =
        operand_scratch("rows", count * (tiles ? p_.extents.k : s_.mr) * lda_, Scope::block);
    a_main_ = kernel::load(a_buffer_, a_place(Expr(slot_), none), p_.problem.element());
  }
  if (s_.a == ASource::box) plan_box();
  if (winograd_ || strassen_) return;
  plan_k_loops();
}

/// Where the copy of the rows has a term of the row in a slot.
Expr Emitter::a_place(const Expr& slot, const Env& k) const {
  if (s_.a != ASource::tiles) return slot * Expr(lda_) + k_linear(k);
  return (ir::floor_div(slot, s_.mr) * Expr(p_.extents.k) + k_linear(k)) * Expr(lda_) +
         ir::floor_mod(slot, s_.mr);
}

void Emitter::plan_k_loops() {
  std::vector<Expr> exprs = expressions_of(a_main_);
  if (s_.b == BSource::in_place)
    for (const Expr& e : expressions_of(p_.b)) exprs.push_back(e);
  for (const Axis& axis : k_axes_) {
    if (!k_loops_.empty() && chained(exprs, k_loops_.back().axes.back(), axis)) {
      k_loops_.back().axes.push_back(axis);
      k_loops_.back().extent *= axis.extent;
    } else {
      k_loops_.push_back({{axis}, axis.extent});
    }
  }
  if (k_loops_.empty()) k_loops_.push_back({{Axis{k_.new_var(), 1, Role::k}}, 1});
}

/// How the main loop reads b: n_vector_ is the position in the panel, or along n when in place.
void Emitter::plan_b() {
  n_vector_ = k_.new_var();
  const DType type = p_.problem.element();
  if (s_.b == BSource::in_place) {
    b_main_ = p_.b;
    return;
  }
  Env none;
  const Expr in_panel = k_linear(none) * Expr(s_.nv * lanes_) + Expr(n_vector_);
  std::int64_t batches = 1;
  Expr batch(0);
  for (const Axis& axis : b_batch_) {
    batches *= axis.extent;
    batch = batch * Expr(axis.extent) + at(Expr(axis.var), env_);
  }
  if (s_.b == BSource::task) {
    b_buffer_ = operand_scratch("panels", s_.panels_per_task * panel_size_, Scope::block);
    b_main_ = kernel::load(b_buffer_, Expr(panel_loop_) * Expr(panel_size_) + in_panel, type);
    return;
  }
  const bool constant = s_.b == BSource::constant;
  if (constant && keeps_bytes()) stored_parts_ = p_.problem.parts->count;
  const std::int64_t size = batches * s_.panels * panel_size_ * stored_parts_;
  b_buffer_ = operand_scratch("panels", size, Scope::grid);
  if (constant) k_.buffers[b_buffer_].dtype = packed_type();
  const Expr word = (batch * Expr(s_.panels) + panel_) * Expr(panel_size_) + in_panel;
  if (stored_parts_ == 1) {
    b_main_ = kernel::load(b_buffer_, word, type);
    return;
  }
  std::vector<Value> parts;
  for (std::int64_t i = 0; i < stored_parts_; ++i)
    parts.push_back(operand_at(b_buffer_, word * Expr(stored_parts_) + Expr(i)));
  b_main_ = kernel::packed(parts);
}

/// Whether bytes of a constant stay bytes, which the main loop widens to the halves of words: a few
/// rows wait for them to come from memory.
bool Emitter::keeps_bytes() const {
  const auto& parts = p_.problem.parts;
  const DType stored = k_.buffers[operand_load().buffer].dtype;
  return parts && parts->count == 2 && (stored == DType::i8 || stored == DType::u8) &&
         p_.problem.count(Role::m) <= kRowsOfBytes;
}

void Emitter::copy_a(Body& body) {
  if (s_.a == ASource::box) copy_box(0, Position(p_.box->dims.size(), Expr(0)), body);
  if (s_.a == ASource::matrix || s_.a == ASource::tiles) copy_matrix(body);
}

/// One row of the matrix: the reductions in order, vectors along the innermost.
Body Emitter::matrix_row(const Expr& slot, std::size_t level, Env env) {
  const auto element = [&](const Env& here) {
    return kernel::store(a_buffer_, a_place(slot, here), at(p_.a, here));
  };
  if (level == k_axes_.size()) return {element(env)};
  const Axis& axis = k_axes_[level];
  const Var x = k_.new_var();
  if (level + 1 < k_axes_.size()) {
    set(env, axis.var, Expr(x));
    return {kernel::loop(x, 0, axis.extent, Binding::serial, matrix_row(slot, level + 1, env))};
  }
  Body out;
  const std::int64_t vectors = axis.extent / lanes_, rest = axis.extent % lanes_;
  if (vectors > 0) {
    const Var l = k_.new_var();
    set(env, axis.var, Expr(x) * Expr(lanes_) + Expr(l));
    out.push_back(kernel::loop(x, 0, vectors, Binding::serial,
                               {kernel::loop(l, 0, lanes_, Binding::vector, {element(env)})}));
  }
  if (rest > 0) {
    const Var t = k_.new_var();
    set(env, axis.var, Expr(t) + Expr(vectors * lanes_));
    out.push_back(kernel::loop(t, 0, rest, Binding::serial, {element(env)}));
  }
  return out;
}

/// A loop over the rows of a tile; vectors of them where memory runs that way.
Body Emitter::rows_of_tile(std::int64_t rows, Var r, Body body) {
  if (blocks_of_rows()) {
    const Var block = k_.new_var(), row = k_.new_var();
    Env place;
    set(place, r, Expr(block) * Expr(kTileRows) + Expr(row));
    body = kernel::substitute(body, [&](Var v) {
      return v == r ? place[static_cast<std::size_t>(r.index)] : std::nullopt;
    });
    return {kernel::loop(block, 0, rows / kTileRows, Binding::serial,
                         {kernel::loop(row, 0, kTileRows, Binding::unroll, std::move(body))})};
  }
  if (s_.a != ASource::tiles) return {kernel::loop(r, 0, rows, Binding::serial, std::move(body))};
  Body out;
  for (std::int64_t first = 0; first < rows; first += lanes_) {
    const Var l = k_.new_var();
    Env place;
    set(place, r, Expr(first) + Expr(l));
    Body part;
    for (const kernel::Stmt& s : body) {
      const auto& store = std::get<kernel::Store>(s.op);
      part.push_back(kernel::store(store.buffer, at(store.offset, place), at(store.value, place)));
    }
    out.push_back(kernel::loop(l, 0, std::min<std::int64_t>(lanes_, rows - first), Binding::vector,
                               std::move(part)));
  }
  return out;
}

/// Loops over the rows of the task's tiles, each tile at its own slots.
Body Emitter::for_each_row(const PerTile& around, const PerRow& f) {
  Body out;
  for (std::int64_t rows : {s_.mr, s_.mr - 1}) {
    const bool big = rows == s_.mr;
    if (big ? s_.big == 0 : s_.small == 0) continue;
    const Var row = k_.new_var(), tile = k_.new_var(), r = k_.new_var();
    Env loops;
    set(loops, row_loop_, Expr(row));
    set(loops, tile_loop_, Expr(tile));
    const Expr tile_index = at(tile_, loops), row_index = at(row_, loops);
    Env env = env_;
    if (p_.row) set(env, p_.row->var, row_index);
    const Expr first = big ? tile_index * Expr(s_.mr) : tile_index * Expr(s_.mr - 1) + Expr(s_.big);
    if (p_.tile) set(env, p_.tile->var, first + Expr(r));
    Expr slot = Expr(tile) * Expr(s_.mr) + Expr(r);
    if (p_.row) slot = Expr(row) * Expr(s_.tiles_per_task * s_.mr) + slot;
    std::vector<ir::Condition> when{{tile_index, big ? 0 : s_.big, big ? s_.big : s_.tiles()}};
    if (p_.row) when.push_back({row_index, 0, p_.extents.rows});
    Body body = around(std::move(env),
                       [&](Env inner) { return rows_of_tile(rows, r, f(std::move(inner), slot)); });
    body = {kernel::loop(tile, 0, s_.beside ? 1 : s_.tiles_per_task, Binding::serial,
                         {kernel::when(when, std::move(body))})};
    if (p_.row) body = {kernel::loop(row, 0, s_.rows_per_task, Binding::serial, std::move(body))};
    out.push_back(std::move(body[0]));
  }
  return out;
}

Body Emitter::for_each_row(const PerRow& f) {
  return for_each_row([](Env env, const Rows& rows) { return rows(std::move(env)); }, f);
}

namespace {

/// The largest divisor that is no more than a cache line of elements.
std::int64_t block_of(std::int64_t extent) {
  for (std::int64_t block = 16; block > 1; --block)
    if (extent % block == 0) return block;
  return 1;
}

}  // namespace

/// Copies the task's rows × reductions; along the rows where memory runs that way.
void Emitter::copy_matrix(Body& body) {
  if (!p_.a_across) {
    for (kernel::Stmt& s : for_each_row(
             [&](Env env, const Expr&slot) { return matrix_row(slot, 0, std::move(env)); }))
      body.push_back(std::move(s));
    return;
  }
  // Rows across memory lie far apart in the copy, too: a tile takes a block of reductions at a
  // time, so that neither side touches many lines.
  const std::int64_t block = block_of(k_axes_.back().extent);
  std::vector<Var> k_vars;
  for (std::size_t i = 0; i < k_axes_.size(); ++i) k_vars.push_back(k_.new_var());
  const auto around = [&](Env env, const Rows& rows) {
    for (std::size_t i = 0; i < k_axes_.size(); ++i) set(env, k_axes_[i].var, Expr(k_vars[i]));
    if (block == 1) return rows(std::move(env));
    const Var in_block = k_.new_var();
    set(env, k_axes_.back().var, Expr(k_vars.back()) * Expr(block) + Expr(in_block));
    return Body{kernel::loop(in_block, 0, block, Binding::serial, rows(std::move(env)))};
  };
  Body copies = for_each_row(around, [&](Env env, const Expr& slot) {
    return matrix_row(slot, k_axes_.size(), std::move(env));
  });
  for (std::size_t i = k_axes_.size(); i-- > 0;) {
    const std::int64_t extent = k_axes_[i].extent / (i + 1 == k_axes_.size() ? block : 1);
    copies = {kernel::loop(k_vars[i], 0, extent, Binding::serial, std::move(copies))};
  }
  for (kernel::Stmt& s : copies) body.push_back(std::move(s));
}

/// Where b is read, if at one place that is known before it runs.
const kernel::Load* Emitter::load_of_b() const {
  if (p_.n_axes.size() != 1 || p_.problem.parts) return nullptr;
  const kernel::Load* load = nullptr;
  kernel::for_each_value(p_.b, [&](const Value& v) {
    const auto* found = std::get_if<kernel::Load>(&v->op);
    if (found && found->dynamic.empty() && !load) load = found;
  });
  return load;
}

/// The reduction along which b lies in memory while its columns are far apart, with at least a
/// vector of terms: each column of a panel then touches another line, and of the same cache set.
std::optional<std::size_t> Emitter::run_of_b() const {
  constexpr std::int64_t kFarApart = 16;
  const kernel::Load* load = load_of_b();
  if (!load) return std::nullopt;
  const auto across = ir::coefficient_of(load->offset, p_.n_axes[0].var);
  if (!across || std::abs(*across) < kFarApart) return std::nullopt;
  for (std::size_t i = 0; i < k_axes_.size(); ++i)
    if (ir::coefficient_of(load->offset, k_axes_[i].var) == 1 && k_axes_[i].extent >= lanes_)
      return i;
  return std::nullopt;
}

/// copy_panel() for such an operand: blocks of reductions outside, columns inside.
void Emitter::copy_panel_along(std::size_t run, const Expr& panel, const Expr& base, Body& body) {
  const std::int64_t width = s_.nv * lanes_, extent = k_axes_[run].extent;
  const bool partial = p_.extents.n % width != 0 || s_.panels % s_.panels_per_task != 0;
  const auto element = [&](const Expr& term, const Expr& column, Env env, Env k_env) {
    const Expr n = panel * Expr(width) + column;
    set(env, p_.n_axes[0].var, n);
    set(env, k_axes_[run].var, term);
    set(k_env, k_axes_[run].var, term);
    Value value = at(p_.b, env);
    if (partial)
      value = kernel::guard({{n, 0, p_.extents.n}}, value, kernel::imm(p_.problem.type, 0));
    return kernel::store(b_buffer_, base + k_linear(k_env) * Expr(width) + column, value);
  };
  // Blocks of as many terms as columns are transposed in registers.
  const auto block_of_terms = [&](const Expr& first, const Env& env, const Env& k_env) {
    const Var vector = k_.new_var(), term = k_.new_var(), l = k_.new_var();
    const Expr column = Expr(vector) * Expr(lanes_) + Expr(l);
    Body lanes{kernel::loop(l, 0, lanes_, Binding::vector,
                            {element(first + Expr(term), column, env, k_env)})};
    Body terms{kernel::loop(term, 0, lanes_, Binding::unroll, std::move(lanes))};
    return kernel::loop(vector, 0, s_.nv, Binding::serial, std::move(terms));
  };
  const auto last_terms = [&](const Expr& first, std::int64_t count, const Env& env,
                              const Env& k_env) {
    const Var column = k_.new_var(), l = k_.new_var();
    Body lanes{kernel::loop(l, 0, count, Binding::vector,
                            {element(first + Expr(l), Expr(column), env, k_env)})};
    return kernel::loop(column, 0, width, Binding::serial, std::move(lanes));
  };
  Env env = env_, k_env;
  std::vector<Var> others;
  for (std::size_t i = 0; i < k_axes_.size(); ++i) {
    others.push_back(k_.new_var());
    set(env, k_axes_[i].var, Expr(others[i]));
    set(k_env, k_axes_[i].var, Expr(others[i]));
  }
  const Var block = k_.new_var();
  Body loop{kernel::loop(block, 0, extent / lanes_, Binding::serial,
                         {block_of_terms(Expr(block) * Expr(lanes_), env, k_env)})};
  if (extent % lanes_ != 0)
    loop.push_back(last_terms(Expr(extent / lanes_ * lanes_), extent % lanes_, env, k_env));
  for (std::size_t i = k_axes_.size(); i-- > 0;)
    if (i != run)
      loop = {kernel::loop(others[i], 0, k_axes_[i].extent, Binding::serial, std::move(loop))};
  for (kernel::Stmt& s : loop) body.push_back(std::move(s));
}

/// Packs one panel of b, [k][nv·lanes], zeros beyond n, to b_buffer_ at `base`.
void Emitter::copy_panel(const Expr& panel, const Expr& base, Body& body) {
  if (pieces_) return copy_pieces(panel, base, body);
  if (const auto run = run_of_b()) return copy_panel_along(*run, panel, base, body);
  const Var c = k_.new_var(), l = k_.new_var();
  const Expr in_panel = Expr(c) * Expr(lanes_) + Expr(l);
  const Expr n = panel * Expr(s_.nv * lanes_) + in_panel;
  Env env = env_;
  Expr rest = n;
  for (std::size_t i = p_.n_axes.size(); i-- > 0;) {
    const Axis& axis = p_.n_axes[i];
    set(env, axis.var, i > 0 ? ir::floor_mod(rest, axis.extent) : rest);
    rest = ir::floor_div(rest, axis.extent);
  }
  Env k_env;
  for (const Axis& axis : k_axes_) {
    const Var x = k_.new_var();
    set(env, axis.var, Expr(x));
    set(k_env, axis.var, Expr(x));
  }
  Value value = at(p_.b, env);
  const std::int64_t width = s_.nv * lanes_;
  if (p_.extents.n % width != 0 || s_.panels % s_.panels_per_task != 0)
    value = kernel::guard({{n, 0, p_.extents.n}}, value, kernel::imm(p_.problem.element(), 0));
  Body loop{kernel::loop(
      l, 0, lanes_, Binding::vector,
      {kernel::store(b_buffer_, base + k_linear(k_env) * Expr(width) + in_panel, value)})};
  loop = {kernel::loop(c, 0, s_.nv, Binding::serial, std::move(loop))};
  for (std::size_t i = k_axes_.size(); i-- > 0;) {
    const Var x = *at(Expr(k_axes_[i].var), k_env).variable();
    loop = {kernel::loop(x, 0, k_axes_[i].extent, Binding::serial, std::move(loop))};
  }
  for (kernel::Stmt& s : loop) body.push_back(std::move(s));
}

std::optional<kernel::Stmt> Emitter::packing_phase() {
  if (s_.b != BSource::phase) return std::nullopt;
  if (winograd_) return filter_phase();
  const Var task = k_.new_var();
  const Env saved = env_;
  const bool by_terms = columns_by_terms();
  const std::int64_t tasks = by_terms ? blocks_of_terms() : s_.panels;
  std::int64_t below = 1;
  const Expr batch = ir::floor_div(Expr(task), tasks), index = ir::floor_mod(Expr(task), tasks);
  Expr rest = batch;
  for (std::size_t i = b_batch_.size(); i-- > 0;) {
    set(env_, b_batch_[i].var, i > 0 ? ir::floor_mod(rest, b_batch_[i].extent) : rest);
    rest = ir::floor_div(rest, b_batch_[i].extent);
    below *= b_batch_[i].extent;
  }
  Body body;
  if (by_terms)
    body = terms_of_panels(index, batch * Expr(s_.panels * panel_size_));
  else
    copy_panel(index, Expr(task) * Expr(panel_size_), body);
  env_ = saved;
  return kernel::loop(task, 0, below * tasks, Binding::grid, std::move(body));
}

/// The load that reads the constant operand; of parts the first one's.
const kernel::Load& Emitter::operand_load() const {
  const auto parts = kernel::parts_of(p_.b);
  return *kernel::load_under_cast(parts.empty() ? p_.b : parts[0]);
}

/// Storage types stay as they are; others are packed as what is computed with.
DType Emitter::packed_type() const {
  const DType from = k_.buffers[operand_load().buffer].dtype;
  if (stored_parts_ > 1) return from;
  return compute_type(from) == p_.problem.element() ? from : p_.problem.element();
}

const Tensor& Emitter::constant_operand(const kernel::Load& load) const {
  const Tensor* source = nullptr;
  for (const Values::Input& in : p_.values.inputs())
    if (in.buffer == load.buffer) source = p_.request.graph->constant_of(in.node);
  HEDDLE_CHECK(source != nullptr, "packing an operand that is no constant");
  return *source;
}

/// From a part of a word of the constant operand to the next.
std::int64_t Emitter::part_distance() const {
  return p_.problem.parts ? *kernel::distance_of_parts(kernel::parts_of(p_.b))->constant() : 0;
}

std::vector<std::int64_t> Emitter::offsets_of(const kernel::Load& load,
                                              const std::vector<Axis>& axes) const {
  std::vector<std::int64_t> vars(static_cast<std::size_t>(k_.variables), 0);
  const std::int64_t zero = ir::evaluate(load.offset, vars);
  std::int64_t count = 1;
  for (const Axis& axis : axes) count *= axis.extent;
  std::vector<std::int64_t> out(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) {
    std::int64_t rest = i;
    for (std::size_t a = axes.size(); a-- > 0;) {
      vars[static_cast<std::size_t>(axes[a].var.index)] = rest % axes[a].extent;
      rest /= axes[a].extent;
    }
    out[static_cast<std::size_t>(i)] = ir::evaluate(load.offset, vars) - zero;
  }
  return out;
}

/// The constant operand in panel order. Its offset is a sum of functions of the batch, n and k
/// axes, so three tables of partial offsets give every element.
Tensor Emitter::pack_constant() const {
  const kernel::Load& load = operand_load();
  const Tensor* source = &constant_operand(load);
  const std::vector<std::int64_t> none(static_cast<std::size_t>(k_.variables), 0);
  const std::int64_t zero = ir::evaluate(load.offset, none);
  const auto on = offsets_of(load, p_.n_axes), ok = offsets_of(load, k_axes_),
             ob = offsets_of(load, b_batch_);
  const std::int64_t width = s_.nv * lanes_, n = p_.extents.n;
  const DType type = packed_type();
  const TensorType packed{
      type, s_.dots ? Shape{n, p_.extents.k}
                    : Shape{std::ssize(ob), s_.panels, p_.extents.k, width * stored_parts_}};
  if (!p_.request.contents) return {packed, nullptr, nullptr};
  Tensor out(packed);
  const auto fill = [&](const auto& copy) {
    std::int64_t at = 0;
    for (std::int64_t column = 0; s_.dots && column < n; ++column)
      for (const std::int64_t k : ok) copy(at++, zero + k + on[static_cast<std::size_t>(column)]);
    if (s_.dots) return;
    for (const std::int64_t batch : ob)
      for (std::int64_t panel = 0; panel < s_.panels; ++panel)
        for (const std::int64_t k : ok) {
          const std::int64_t first = panel * width, count = std::min(width, n - first);
          for (std::int64_t i = 0; i < count; ++i)
            copy(at + i, zero + batch + k + on[static_cast<std::size_t>(first + i)]);
          at += width;
        }
  };
  const auto fill_bits = [&]<class Bits>(Bits) {
    const auto* from = reinterpret_cast<const Bits*>(source->data());
    auto* to = reinterpret_cast<Bits*>(out.mutable_data());
    fill([=](std::int64_t i, std::int64_t offset) { to[i] = from[offset]; });
  };
  if (stored_parts_ > 1)
    fill([&, next = part_distance()](std::int64_t i, std::int64_t offset) {
      for (std::int64_t part = 0; part < stored_parts_; ++part)
        out.set_int(i * stored_parts_ + part, source->int_at(offset + part * next));
    });
  else if (p_.problem.parts)
    fill([&, next = part_distance()](std::int64_t i, std::int64_t offset) {
      const std::uint32_t word = word_at(*source, offset, next, p_.problem.parts->count);
      out.set_int(i, static_cast<std::int32_t>(word));
    });
  else if (source->dtype() == type && size_of(type) == 4)
    fill_bits(std::uint32_t{});
  else if (source->dtype() == type && size_of(type) == 2)
    fill_bits(std::uint16_t{});
  else if (is_float(type))
    fill([&](std::int64_t i, std::int64_t offset) { out.set(i, source->at(offset)); });
  else
    fill([&](std::int64_t i, std::int64_t offset) { out.set_int(i, source->int_at(offset)); });
  return out;
}

}  // namespace heddle::lower::contract

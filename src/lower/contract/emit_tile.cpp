#include <algorithm>
#include <bit>
#include <set>

#include "kernel/halves.h"
#include "kernel/traverse.h"
#include "lower/contract/emit.h"

namespace heddle::lower::contract {

using ir::Expr;
using ir::ScalarFn;
using ir::Var;
using kernel::Binding;
using kernel::Body;
using kernel::BufferId;
using kernel::Scope;
using kernel::Value;

Body Emitter::tile(const Variant& v) {
  if (pieces_) return pieces_tile(v);
  if (s_.dots) return dots_tile(v);
  Registers reg;
  reg.acc = scratch(fmt::format("acc{}x{}", v.mr, v.nv), v.mr * v.nv * lanes_, Scope::lane, lanes_);
  reg.b = operand_scratch("b", v.nv * lanes_, Scope::lane, lanes_);
  reg.a = operand_scratch("a", 1, Scope::lane, 1);
  Body body{for_each_vector(v, [&](const Expr& i, const Expr& l) {
    return kernel::store(reg.acc, i * Expr(lanes_) + l, kernel::imm(p_.problem.type, 0));
  })};
  const Expr done = strassen_ ? at(Expr(place_), env_) : Expr(0);
  for (kernel::Stmt& s : reduction(v, reg, 0, env_, done)) body.push_back(std::move(s));
  if (winograd_ || strassen_) {
    body.push_back(store_products(v, reg.acc));
    return body;
  }
  for (kernel::Stmt& s : epilogue(v, reg.acc)) body.push_back(std::move(s));
  return body;
}

/// f for each vector of the tile, unrolled: `vector` counts row by row.
kernel::Stmt Emitter::for_each_vector(const Variant& v, const PerVector& f) {
  const Var r = k_.new_var(), c = k_.new_var(), l = k_.new_var();
  Body lanes{
      kernel::loop(l, 0, lanes_, Binding::vector, {f(Expr(r) * Expr(v.nv) + Expr(c), Expr(l))})};
  Body vectors{kernel::loop(c, 0, v.nv, Binding::unroll, std::move(lanes))};
  return kernel::loop(r, 0, v.mr, Binding::unroll, std::move(vectors));
}

/// At a position of a reduction loop: its last axis runs over all of them.
Emitter::Env Emitter::in_loop(const KLoop& loop, const Expr& position, Env env) {
  for (const Axis& axis : loop.axes) set(env, axis.var, 0);
  set(env, loop.axes.back().var, position);
  return env;
}

/// The reduction loops; the innermost runs in steps of `unroll`.
Body Emitter::reduction(const Variant& v, const Registers& reg, std::size_t level, const Env& env,
                        const Expr& done) {
  if (level == k_loops_.size()) return step(v, reg, env);
  const KLoop& loop = k_loops_[level];
  const auto inside = [&](const Expr& position) {
    return reduction(v, reg, level + 1, in_loop(loop, position, env),
                     done * Expr(loop.extent) + position);
  };
  const Var x = k_.new_var();
  if (level + 1 < k_loops_.size())
    return {kernel::loop(x, 0, loop.extent, Binding::serial,
                         {kernel::when(not_padding(loop, Expr(x)), inside(Expr(x)))})};
  std::int64_t unroll = loop.extent <= 2 * s_.unroll ? loop.extent : s_.unroll;
  // Where rows overlap, loads that two steps share would be kept in registers: few steps are
  // written out, and never all of them (a loop of one turn is none).
  if (const std::int64_t distinct = distinct_steps(loop); distinct < unroll)
    unroll = std::clamp<std::int64_t>(loop.extent / 2, 1, std::min<std::int64_t>(distinct, 2));
  const std::int64_t whole = loop.extent / unroll, rest = loop.extent % unroll;
  const Var u = k_.new_var();
  Body unrolled{
      kernel::loop(u, 0, unroll, Binding::unroll, inside(Expr(x) * Expr(unroll) + Expr(u)))};
  const Expr before = done * Expr(loop.extent) + Expr(x) * Expr(unroll);
  for (const Body& more : {fetch_ahead(before, unroll), fetch_rows(v, before, unroll),
                           fetch_results(v, before, unroll)})
    unrolled.insert(unrolled.end(), more.begin(), more.end());
  Body out{kernel::loop(x, 0, whole, Binding::serial, std::move(unrolled))};
  if (rest > 0) {
    const Var t = k_.new_var();
    out.push_back(
        kernel::loop(t, 0, rest, Binding::unroll, inside(Expr(t) + Expr(whole * unroll))));
  }
  return out;
}

/// Where the box has rows of nothing but padding for all of a tile, these steps add nothing: what
/// must hold for one of them to be worth doing. (`u` may range wider than the coordinate does.)
std::vector<ir::Condition> Emitter::not_padding(const KLoop& loop, const Expr& position) const {
  std::vector<ir::Condition> out;
  if (s_.a != ASource::box || winograd_ || loop.axes.size() != 1) return out;
  Env env = box_env();
  set(env, loop.axes[0].var, position);
  if (p_.row) set(env, p_.row->var, Expr(row_loop_));
  for (const Box::Dim& dim : p_.box->dims) {
    std::vector<Var> vars;
    ir::collect_variables(dim.local, vars);
    const bool alone = std::ranges::all_of(
        vars, [&](Var v) { return v == loop.axes[0].var || (p_.row && v == p_.row->var); });
    if (!alone || !ir::depends_on(dim.local, loop.axes[0].var)) continue;
    const Expr u = dim.low + dim.local, here = at(dim.low, box_env()) + at(dim.local, env);
    const auto add = [&](const Expr& e, std::int64_t low, std::int64_t high) {
      const auto with = [&](const Expr& x) {
        return ir::substitute(
            e, [&](Var v) { return v == dim.u ? std::optional<Expr>(x) : std::nullopt; });
      };
      const auto span = ir::bounds(with(u), p_.problem.ranges());
      if (span && span->low >= low && span->high < high) return;
      out.push_back({at(with(here), env_), low, high});
    };
    add(Expr(dim.u), dim.inside.low, dim.inside.high + 1);
    for (const ir::Condition& c : dim.more) add(c.expr, c.low, c.high);
  }
  return out;
}

namespace {

/// A share of `count` things in each turn of `steps` of `all` steps: the first of the turn that
/// begins after `done` steps, and how many. Past the last turns there are more than `count`.
struct Share {
  Expr first;
  std::int64_t each;
};
Share share_of_turn(std::int64_t count, std::int64_t all, const Expr& done, std::int64_t steps) {
  const std::int64_t in_step = (count + all - 1) / all;
  if (count >= all) return {done * Expr(in_step), steps * in_step};
  const auto apart =
      static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(all / count)));
  return {ir::floor_div(done, apart), (steps + apart - 1) / apart};
}

constexpr std::int64_t kLineBytes = 64;

}  // namespace

std::int64_t Emitter::tiles_of_panel() const {
  return s_.tiles_per_task * (p_.row ? s_.rows_per_task : 1);
}

/// The number of the tile that is computed.
Expr Emitter::tile_of_panel() const {
  const Expr tile(tile_loop_);
  return p_.row ? Expr(row_loop_) * Expr(s_.tiles_per_task) + tile : tile;
}

/// Of the `lines` of the next panel, what this turn of this tile prefetches. `done`: steps of this
/// tile before the turn, of `all`.
std::vector<Expr> Emitter::lines_of_turn(std::int64_t lines, std::int64_t all, const Expr& done,
                                         std::int64_t steps) const {
  const std::int64_t in_tile = (lines + tiles_of_panel() - 1) / tiles_of_panel();
  const Share share = share_of_turn(in_tile, all, done, steps);
  const Expr first = tile_of_panel() * Expr(in_tile) + share.first;
  std::vector<Expr> out;
  for (std::int64_t i = 0; i < share.each; ++i) out.push_back(first + Expr(i));
  return out;
}

/// What a few rows read next of a constant operand that no core's cache keeps: their products wait
/// for memory, of which a core's loads alone do not take all.
Body Emitter::fetch_columns(const Expr& done, std::int64_t steps) const {
  constexpr std::int64_t kAhead = 2048;  // bytes
  if (s_.b != BSource::constant || strassen_ || tiles_of_panel() > 1) return {};
  const std::int64_t width = s_.nv * lanes_;
  const std::int64_t bytes = size_of(k_.buffers[b_buffer_].dtype) * stored_parts_;
  if (s_.panels * panel_size_ * bytes <= p_.request.target.l2_bytes) return {};
  Body out;
  for (std::int64_t at = 0; at < steps * width; at += kLineBytes / bytes)
    out.push_back({kernel::Prefetch{
        b_buffer_, (start_of_panel(panel_) + done * Expr(width) + Expr(at + kAhead / bytes)) *
                       Expr(stored_parts_)}});
  return out;
}

/// Where the constant operand's panel begins.
Expr Emitter::start_of_panel(const Expr& panel) const {
  Expr batch(0);
  for (const Axis& axis : b_batch_) batch = batch * Expr(axis.extent) + at(Expr(axis.var), env_);
  return (batch * Expr(s_.panels) + panel) * Expr(panel_size_);
}

/// The next panel of the constant operand comes from memory while the tiles of this one compute, a
/// share in each turn of `steps` steps.
Body Emitter::fetch_ahead(const Expr& done, std::int64_t steps) const {
  constexpr std::int64_t kFewRows = 16;
  if (winograd_) return {};
  if (tiles_of_panel() * s_.mr < kFewRows) return fetch_columns(done, steps);
  if (s_.panels == 1) return {};
  if (s_.b == BSource::task) return fetch_operand(done, steps);
  if (s_.b != BSource::constant) return {};
  HEDDLE_CHECK(stored_parts_ == 1, "bytes of words for more than a few rows");
  const std::int64_t line = kLineBytes / size_of(k_.buffers[b_buffer_].dtype);
  const std::int64_t all = strassen_ ? kStrassenProducts * strassen_->terms : p_.extents.k;
  const Expr next = start_of_panel(panel_ + Expr(1));
  // A panel that fills the first-level cache keeps it.
  const bool far = 3 * panel_size_ * kLineBytes / line > p_.request.target.l1_bytes;
  // The page behind, which only Intel's servers want (they have tile registers) where products, not
  // memory, take the time: on Zen 5 they take up to a tenth longer with it.
  constexpr std::int64_t kFewForPages = 32;
  const bool page = far && (p_.request.target.tiles || tiles_of_panel() * s_.mr <= kFewForPages);
  Body out;
  for (const Expr& l : lines_of_turn((panel_size_ + line - 1) / line, all, done, steps))
    out.push_back({kernel::Prefetch{b_buffer_, next + l * Expr(line), far, page && out.empty()}});
  return out;
}

/// Tasks take all columns of one of several independent products (heads of an attention): what the
/// next task reads is another product's.
bool Emitter::next_is_other_product() const {
  return s_.panels <= s_.panels_per_task && s_.tile_blocks() == 1 && !p_.row &&
         p_.extents.outer > 1;
}

/// The same of an operand that each task packs: of what the next task reads.
Body Emitter::fetch_operand(const Expr& done, std::int64_t steps) const {
  const kernel::Load* load = load_of_b();
  const bool other = next_is_other_product();
  if (!load || k_.buffers[load->buffer].scope != Scope::grid || strassen_ || k_axes_.size() != 1 ||
      p_.extents.k < steps || (s_.panels <= s_.panels_per_task && !other))
    return {};
  const bool along = run_of_b().has_value();
  if (!along && ir::coefficient_of(load->offset, p_.n_axes[0].var) != 1) return {};
  const std::int64_t line = kLineBytes / size_of(k_.buffers[load->buffer].dtype);
  const std::int64_t width = s_.nv * lanes_, terms = p_.extents.k;
  const std::int64_t run = ((along ? terms : width) + line - 1) / line;  // lines next to each other
  Env next = env_;
  if (other) decode(outer_ + Expr(1), next);
  const Expr column = (panel_ + Expr(other ? 0 : s_.panels_per_task)) * Expr(width);
  Body out;
  for (const Expr& l : lines_of_turn((along ? width : terms) * run, terms, done, steps)) {
    const Expr runs = ir::floor_div(l, run), inside = ir::floor_mod(l, run) * Expr(line);
    Env env = next;
    set(env, p_.n_axes[0].var, column + (along ? runs : inside));
    set(env, k_axes_[0].var, along ? inside : runs);
    out.push_back({kernel::Prefetch{load->buffer, at(load->offset, env)}});
  }
  return out;
}

/// Of the next product, too, the rows that lie far from each other, where the machine does not
/// guess them: each panel of this one asks for its share.
Body Emitter::fetch_rows(const Variant& v, const Expr& done, std::int64_t steps) const {
  constexpr std::int64_t kPage = 4096;
  const auto* load = std::get_if<kernel::Load>(&a_main_->op);
  if (!next_is_other_product() || s_.a != ASource::in_place || s_.b != BSource::task || !load ||
      winograd_ || strassen_ || !p_.tile || k_axes_.size() != 1 || p_.extents.k < steps)
    return {};
  const std::int64_t bytes = size_of(k_.buffers[load->buffer].dtype), line = kLineBytes / bytes;
  const auto apart = ir::coefficient_of(load->offset, p_.tile->var);
  if (!apart || *apart * bytes < kPage || ir::coefficient_of(load->offset, k_axes_[0].var) != 1)
    return {};
  const std::int64_t run = (p_.extents.k + line - 1) / line;
  const std::int64_t rows = (v.mr + s_.panels - 1) / s_.panels;
  const Share share = share_of_turn(rows * run, p_.extents.k, done, steps);
  Env next = env_;
  decode(outer_ + Expr(1), next);
  Body out;
  for (std::int64_t i = 0; i < share.each; ++i) {
    const Expr l = share.first + Expr(i);
    Env env = next;
    set(env, p_.tile->var, v.first_row + panel_ * Expr(rows) + ir::floor_div(l, run));
    set(env, k_axes_[0].var, ir::floor_mod(l, run) * Expr(line));
    out.push_back({kernel::Prefetch{load->buffer, at(load->offset, env)}});
  }
  return out;
}

/// Where the epilogue has, in row-major order, what it reads and writes; `far`: only what is the
/// program's inputs and outputs (weights and their moments, of which no cache has anything), and
/// what is too large for the caches to have much of it.
std::set<std::pair<BufferId, Expr>> Emitter::rows_of_results(bool far) const {
  const prim::Graph& g = *p_.request.graph;
  std::set<std::pair<BufferId, Expr>> places;
  if (!p_.n || !p_.tile) return places;
  const auto add = [&](BufferId buffer, const Expr& offset) {
    if (ir::coefficient_of(offset, p_.n->var) == 1 &&
        ir::coefficient_of(offset, p_.tile->var).value_or(0) != 0)
      places.emplace(buffer, offset);
  };
  const auto leaves = [&](BufferId buffer) {
    const kernel::Buffer& b = k_.buffers[buffer];
    return b.size * size_of(b.dtype) > p_.request.target.l3_bytes / 8;
  };
  for (const Output& o : p_.outputs) {
    const bool given = std::any_of(g.outputs.begin(), g.outputs.end(),
                                   [&](const auto& out) { return out.node == o.node; });
    // Tiles of fewer steps are over before lines that they only store to are there.
    constexpr std::int64_t kStepsOfMemory = 64;
    const bool away = leaves(o.buffer) && p_.extents.k >= kStepsOfMemory;
    if ((given || away || !far) && !o.sum) add(o.buffer, o.offset);
    kernel::for_each_value(o.value, [&](const Value& x) {
      const auto* load = std::get_if<kernel::Load>(&x->op);
      if (!load || !load->dynamic.empty()) return;
      for (const Values::Input& in : p_.values.inputs())
        if (in.buffer == load->buffer &&
            (!far || leaves(in.buffer) || std::holds_alternative<prim::Input>(g[in.node].op)))
          add(load->buffer, load->offset);
    });
  }
  return places;
}

/// They come from memory while the tile computes.
Body Emitter::fetch_results(const Variant& v, const Expr& done, std::int64_t steps) const {
  if (winograd_ || strassen_ || p_.extents.k < steps) return {};
  Body out;
  for (const auto& [buffer, offset] : rows_of_results(true)) {
    const std::int64_t bytes = lanes_ * size_of(k_.buffers[buffer].dtype);
    const std::int64_t vectors = std::max<std::int64_t>(1, kLineBytes / bytes);  // of a line
    const std::int64_t lines = ceil_div(v.nv, vectors);                          // of a row
    const Share share = share_of_turn(v.mr * lines, p_.extents.k, done, steps);
    for (std::int64_t i = 0; i < share.each; ++i) {
      const Expr line = share.first + Expr(i);
      const Expr vector = ir::floor_mod(line, lines) * Expr(vectors);
      Env env = env_;
      set(env, p_.tile->var, v.first_row + ir::floor_div(line, lines));
      set(env, p_.n->var, (panel_ * Expr(s_.nv) + vector) * Expr(lanes_));
      out.push_back({kernel::Prefetch{buffer, at(offset, env)}});
    }
  }
  return out;
}

/// Steps along the innermost reduction before a row reads what its neighbour has read: rows that
/// overlap (a strided convolution of few channels) would otherwise keep elements in registers.
std::int64_t Emitter::distinct_steps(const KLoop& loop) const {
  constexpr std::int64_t kAll = 1 << 20;
  if (!p_.tile) return kAll;
  std::int64_t steps = kAll;
  for (const Expr& e : expressions_of(a_main_)) {
    const auto row = ir::coefficient_of(e, p_.tile->var);
    const auto step = ir::coefficient_of(e, loop.axes.back().var);
    if (row && step && *row > 0 && *step > 0 && *row % *step == 0)
      steps = std::min(steps, *row / *step);
  }
  return steps;
}

/// One reduction step: load the vectors of b, then each row's element of a against all of them.
Body Emitter::step(const Variant& v, const Registers& reg, const Env& k) {
  const DType type = p_.problem.type;
  const Var c = k_.new_var(), l = k_.new_var();
  Expr in_panel = Expr(c) * Expr(lanes_) + Expr(l);
  Env b_env = k;
  set(b_env, n_vector_, in_panel);
  if (p_.n) set(b_env, p_.n->var, panel_ * Expr(s_.nv * lanes_) + in_panel);
  Body load_b{kernel::loop(l, 0, lanes_, Binding::vector,
                           {kernel::store(reg.b, in_panel, at(b_main_, b_env))})};
  Body out{kernel::loop(c, 0, v.nv, Binding::unroll, std::move(load_b))};

  const Var r = k_.new_var(), c2 = k_.new_var(), l2 = k_.new_var();
  Env a_env = k;
  if (p_.tile) set(a_env, p_.tile->var, a_tile_position(v) + Expr(r));
  if (s_.a == ASource::box && p_.row) set(a_env, p_.row->var, Expr(row_loop_));
  if (s_.a == ASource::matrix || s_.a == ASource::tiles) {
    Expr slot = Expr(tile_loop_) * Expr(s_.mr) + Expr(r);
    if (p_.row) slot = Expr(row_loop_) * Expr(s_.tiles_per_task * s_.mr) + slot;
    set(a_env, slot_, slot);
  }
  const Expr i = (Expr(r) * Expr(v.nv) + Expr(c2)) * Expr(lanes_) + Expr(l2);
  Value b = kernel::load(reg.b, Expr(c2) * Expr(lanes_) + Expr(l2), element_);
  const Value a = kernel::load(reg.a, 0, element_);
  const Value product = terms_ == WinogradTerms::halves ? kernel::product_of_halves(a, b)
                        : terms_ == WinogradTerms::integers
                            ? kernel::apply(ScalarFn::dot2, {a, b}, type)
                            : p_.problem.product(a, b);
  Value sum = kernel::apply(ScalarFn::add, {kernel::load(reg.acc, i, type), product}, type);
  Body lanes{kernel::loop(l2, 0, lanes_, Binding::vector, {kernel::store(reg.acc, i, sum)})};
  Body row{kernel::store(reg.a, 0, at(a_main_, a_env)),
           kernel::loop(c2, 0, v.nv, Binding::unroll, std::move(lanes))};
  out.push_back(kernel::loop(r, 0, v.mr, Binding::unroll, std::move(row)));
  return out;
}

/// Where a variant's first row lies along the tile axis, as the main loop's source counts it.
Expr Emitter::a_tile_position(const Variant& v) const {
  // A box starts at the task's first tile; it is cut only where all tiles are equal.
  if (s_.a == ASource::box && !p_.row && s_.tile_blocks() > 1)
    return Expr(tile_loop_) * Expr(s_.mr);
  return v.first_row;
}

/// Results straight from the accumulators, or through a tile in memory that a loop walks.
Body Emitter::epilogue(const Variant& v, BufferId acc, const std::optional<Expr>& in_memory) {
  Body body;
  BufferId source = acc;
  const bool staged = s_.staged || in_memory;
  if (staged && !in_memory) {
    source = scratch("tile", v.mr * v.nv * lanes_, Scope::block);
    body.push_back(for_each_vector(v, [&](const Expr& i, const Expr& l) {
      const Expr offset = i * Expr(lanes_) + l;
      return kernel::store(source, offset, kernel::load(acc, offset, p_.problem.type));
    }));
  }
  const std::int64_t whole = v.tail ? v.nv - 1 : v.nv, stride = in_memory ? s_.nv : v.nv;
  const Var r = k_.new_var(), c = k_.new_var();
  Env env = env_;
  if (p_.tile) set(env, p_.tile->var, v.first_row + Expr(r));
  const auto vector = [&](const Expr& column, std::int64_t lanes) {
    return results(env, source,
                   in_memory.value_or(0) + (Expr(r) * Expr(stride) + column) * Expr(lanes_), column,
                   lanes);
  };
  Body row = zero_row_sums();
  if (whole > 0)
    row.push_back(kernel::loop(c, 0, whole, Binding::unroll, {vector(Expr(c), lanes_)}));
  if (v.tail) row.push_back(vector(Expr(whole), v.tail));
  for (kernel::Stmt& s : store_row_sums(env)) row.push_back(std::move(s));
  body.push_back(
      kernel::loop(r, 0, v.mr, staged ? Binding::serial : Binding::unroll, std::move(row)));
  return body;
}

/// The epilogue of the panel's vector `column`, which lies at `in_source`: every output, in order;
/// later ones reuse earlier ones.
kernel::Stmt Emitter::results(Env env, BufferId source, const Expr& in_source, const Expr& column,
                              std::int64_t lanes) {
  const Var l = k_.new_var();
  const std::int64_t width = s_.nv * lanes_ * (strassen_ ? 2 : 1);
  if (p_.n) set(env, p_.n->var, panel_ * Expr(width) + column * Expr(lanes_) + Expr(l));
  return kernel::loop(l, 0, lanes, Binding::vector, stores_of(env, l, source, in_source, column));
}

/// Lane `l` of a vector of results, at the position that `env` says.
Body Emitter::stores_of(const Env& env, Var l, BufferId source, const Expr& in_source,
                        const Expr& column) {
  std::vector<std::pair<BufferId, Value>> with{
      {p_.result, kernel::load(source, in_source + Expr(l), p_.problem.type)}};
  Body stores;
  for (std::size_t i = 0; i < p_.outputs.size(); ++i) {
    const Output& o = p_.outputs[i];
    Value value = replace_loads(at(o.value, env), with);
    if (i + 1 < p_.outputs.size() && o.node != p_.problem.contract) {
      const BufferId shared =
          k_.add_buffer({"shared", value->dtype, lanes_, Scope::lane, -1, false, lanes_});
      stores.push_back(kernel::store(shared, Expr(l), value));
      value = kernel::load(shared, Expr(l), value->dtype);
      with.emplace_back(o.stand_in, value);
    }
    const auto sum = std::ranges::find(sums_, i, &Sum::output),
               row_sum = std::ranges::find(row_sums_, i, &Sum::output);
    if (sum != sums_.end())
      stores.push_back(add_to(sum->task, place_of_sums(column) + Expr(l), value));
    else if (row_sum != row_sums_.end())
      stores.push_back(add_to(row_sum->task, Expr(l), value));
    else
      stores.push_back(kernel::store(o.buffer, at(o.offset, env), value));
  }
  return stores;
}

}  // namespace heddle::lower::contract

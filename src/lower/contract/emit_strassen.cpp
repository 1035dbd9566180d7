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

namespace {

Value plus(const Value& x, const Value& y) {
  return kernel::apply(ScalarFn::add, {x, y}, x->dtype);
}
Value minus(const Value& x, const Value& y) {
  return kernel::apply(ScalarFn::sub, {x, y}, x->dtype);
}

}  // namespace

/// Buffers of a task: sums of rows [7][slots][terms], products of one tile [7][mr][nv·lanes]; sums
/// of columns [panel][7][terms][nv·lanes] for all tasks.
void Emitter::plan_strassen() {
  const DType type = p_.problem.type;
  const std::int64_t width = s_.nv * lanes_, terms = strassen_->terms;
  const std::int64_t slots = s_.tiles_per_task * s_.mr;
  // Rows a multiple of 1 KB apart would share few cache sets.
  lda_ = (terms + lanes_ - 1) / lanes_ * lanes_ + lanes_;
  transformed_ = scratch("sums", kStrassenProducts * slots * lda_, Scope::block);
  products_ = scratch("products", kStrassenProducts * s_.mr * width, Scope::block);
  b_buffer_ = scratch("panels", s_.panels * kStrassenProducts * terms * width, Scope::grid);
  place_ = k_.new_var();
  slot_ = k_.new_var();
  n_vector_ = k_.new_var();
  const Axis term{k_.new_var(), terms, Role::k};
  const Expr place(place_), t(term.var);
  a_main_ = kernel::load(transformed_, (place * Expr(slots) + Expr(slot_)) * Expr(lda_) + t, type);
  b_main_ =
      kernel::load(b_buffer_,
                   ((panel_ * Expr(kStrassenProducts) + place) * Expr(terms) + t) * Expr(width) +
                       Expr(n_vector_),
                   type);
  k_loops_ = {{{term}, terms}};
}

Body Emitter::strassen_body() {
  Body body = for_each_row([&](Env env, const Expr& slot) {
    const Expr pair = at(Expr(p_.tile->var), env);
    return halved_terms(pair, slot, 0, std::move(env), Expr(0));
  });
  body = without_tests(std::move(body));
  Body tiles;
  for (const Variant& v : variants()) tiles.push_back(kernel::when(v.when, strassen_tile(v)));
  tiles = {kernel::loop(tile_loop_, 0, s_.tiles_per_task, Binding::serial, std::move(tiles))};
  body.push_back(
      kernel::loop(panel_loop_, 0, s_.panels_per_task, Binding::serial, std::move(tiles)));
  return body;
}

/// One pair of rows: all terms of the first half of the outermost reduction, each with its partner
/// in the second, vectors along the innermost.
Body Emitter::halved_terms(const Expr& pair, const Expr& slot, std::size_t level, Env env,
                           const Expr& term) {
  const Axis& axis = k_axes_[level];
  const std::int64_t extent = level == 0 ? axis.extent / 2 : axis.extent;
  const Var x = k_.new_var();
  const auto inside = [&](const Expr& position, std::int64_t lanes) {
    set(env, axis.var, position);
    const Expr next = term * Expr(extent) + position;
    if (level + 1 < k_axes_.size()) return halved_terms(pair, slot, level + 1, env, next);
    return Body{halved_vector(pair, slot, env, next, lanes)};
  };
  if (level + 1 < k_axes_.size())
    return {kernel::loop(x, 0, extent, Binding::serial, inside(Expr(x), 1))};
  Body out;
  const std::int64_t vectors = extent / lanes_, rest = extent % lanes_;
  if (vectors > 0)
    out.push_back(
        kernel::loop(x, 0, vectors, Binding::serial, inside(Expr(x) * Expr(lanes_), lanes_)));
  if (rest > 0)
    for (kernel::Stmt& s : inside(Expr(vectors * lanes_), rest)) out.push_back(std::move(s));
  return out;
}

/// The seven sums of the blocks that the pair of rows has in a vector of terms of either half.
kernel::Stmt Emitter::halved_vector(const Expr& pair, const Expr& slot, const Env& env,
                                    const Expr& term, std::int64_t lanes) {
  const DType type = p_.problem.type;
  const Var l = k_.new_var();
  const Axis &outer = k_axes_.front(), &inner = k_axes_.back();
  const BufferId kept = scratch("blocks", 8 * lanes_, Scope::lane, lanes_);
  Body body;
  int count = 0;
  const auto keep = [&](const Value& v) {
    const Expr place = Expr(lanes_ * count++) + Expr(l);
    body.push_back(kernel::store(kept, place, v));
    return kernel::load(kept, place, type);
  };
  const auto block = [&](int row, int half) {
    Env here = env;
    const Expr r = pair * Expr(2) + Expr(row);
    set(here, p_.tile->var, r);
    set(here, inner.var, *here[static_cast<std::size_t>(inner.var.index)] + Expr(l));
    if (half > 0)
      set(here, outer.var,
          *here[static_cast<std::size_t>(outer.var.index)] + Expr(outer.extent / 2));
    Value v = at(p_.a, here);
    if (row > 0 && p_.extents.tile % 2 != 0)
      v = kernel::guard({{r, 0, p_.extents.tile}}, v, kernel::imm(type, 0));
    return keep(v);
  };
  const Value a11 = block(0, 0), a12 = block(0, 1), a21 = block(1, 0), a22 = block(1, 1);
  const Value s1 = keep(plus(a21, a22)), s2 = keep(minus(s1, a11));
  const Value sums[] = {a11, a12, minus(a12, s2), a22, s1, s2, minus(a11, a21)};
  const std::int64_t slots = s_.tiles_per_task * s_.mr;
  for (std::int64_t i = 0; i < kStrassenProducts; ++i)
    body.push_back(kernel::store(transformed_,
                                 (Expr(i * slots) + slot) * Expr(lda_) + term + Expr(l), sums[i]));
  return kernel::loop(l, 0, lanes, Binding::vector, std::move(body));
}

Body Emitter::strassen_tile(const Variant& v) {
  const Var place = k_.new_var();
  set(env_, place_, Expr(place));
  return {kernel::loop(place, 0, kStrassenProducts, Binding::serial, tile(v)), join_products(v)};
}

/// Seven products of a tile to its four results, each with its epilogue where it exists.
kernel::Stmt Emitter::join_products(const Variant& v) {
  const DType type = p_.problem.type;
  const Var r = k_.new_var(), c = k_.new_var(), l = k_.new_var(), y = k_.new_var(),
            x = k_.new_var();
  const BufferId kept = scratch("partial", 10 * lanes_, Scope::lane, lanes_);
  const BufferId square = s_.staged ? scratch("square", 4 * lanes_, Scope::block)
                                    : scratch("square", 4 * lanes_, Scope::lane, lanes_);
  Body body;
  int count = 0;
  const auto keep = [&](const Value& value) {
    const Expr place = Expr(lanes_ * count++) + Expr(l);
    body.push_back(kernel::store(kept, place, value));
    return kernel::load(kept, place, type);
  };
  std::vector<Value> p;
  for (std::int64_t i = 0; i < kStrassenProducts; ++i) {
    const Expr at = (Expr(i * v.mr) + Expr(r)) * Expr(s_.nv) + Expr(c);
    p.push_back(keep(kernel::load(products_, at * Expr(lanes_) + Expr(l), type)));
  }
  const Value u2 = keep(plus(p[0], p[5])), u3 = keep(plus(u2, p[6]));
  const Value results_of[] = {plus(p[0], p[1]), plus(plus(u2, p[4]), p[2]), minus(u3, p[3]),
                              plus(u3, p[4])};
  for (std::int64_t i = 0; i < 4; ++i)
    body.push_back(kernel::store(square, Expr(i * lanes_) + Expr(l), results_of[i]));
  body = {kernel::loop(l, 0, lanes_, Binding::vector, std::move(body))};

  const Expr row = (v.first_row + Expr(r)) * Expr(2) + Expr(y);
  const Expr column = Expr(c) * Expr(2) + Expr(x);
  Env env = env_;
  set(env, p_.tile->var, row);
  const Expr from = (Expr(y) * Expr(2) + Expr(x)) * Expr(lanes_);
  const std::int64_t vectors = p_.extents.n / lanes_;
  Body each{results(env, square, from, column, lanes_)};
  if (vectors % 2 != 0)
    each = {kernel::when({{panel_ * Expr(2 * s_.nv) + column, 0, vectors}}, std::move(each))};
  const Binding binding = s_.staged ? Binding::serial : Binding::unroll;
  each = {kernel::loop(x, 0, 2, binding, std::move(each))};
  if (p_.extents.tile % 2 != 0) each = {kernel::when({{row, 0, p_.extents.tile}}, std::move(each))};
  body.push_back(kernel::loop(y, 0, 2, binding, std::move(each)));
  body = {kernel::loop(c, 0, v.nv, Binding::serial, std::move(body))};
  return kernel::loop(r, 0, v.mr, Binding::serial, std::move(body));
}

/// The sums of blocks of the constant operand, in doubles, rounded once.
Tensor Emitter::pack_strassen() const {
  const kernel::Load& load = operand_load();
  const Tensor& source = constant_operand(load);
  const std::vector<std::int64_t> none(static_cast<std::size_t>(k_.variables), 0);
  const std::int64_t zero = ir::evaluate(load.offset, none);
  const auto on = offsets_of(load, p_.n_axes), ok = offsets_of(load, k_axes_);
  const std::int64_t terms = strassen_->terms, width = s_.nv * lanes_;
  const auto shares = column_shares();
  Tensor out({DType::f32, {s_.panels, kStrassenProducts, terms, width}});
  auto* to = reinterpret_cast<float*>(out.mutable_data());
  const auto element = [&](std::int64_t k, std::int64_t n) {
    if (n >= p_.extents.n) return 0.0;
    return source.at(zero + ok[static_cast<std::size_t>(k)] + on[static_cast<std::size_t>(n)]);
  };
  for (std::int64_t panel = 0; panel < s_.panels; ++panel)
    for (std::int64_t k = 0; k < terms; ++k)
      for (std::int64_t i = 0; i < width; ++i) {
        const std::int64_t pair = panel * s_.nv + i / lanes_, n = 2 * pair * lanes_ + i % lanes_;
        const double blocks[] = {element(k, n), element(k, n + lanes_), element(k + terms, n),
                                 element(k + terms, n + lanes_)};
        for (std::size_t q = 0; q < shares.size(); ++q) {
          double sum = 0;
          for (std::size_t b = 0; b < 4; ++b) sum += shares[q][b] * blocks[b];
          const std::int64_t place = panel * kStrassenProducts + static_cast<std::int64_t>(q);
          to[(place * terms + k) * width + i] = static_cast<float>(sum);
        }
      }
  return out;
}

}  // namespace heddle::lower::contract

#include <algorithm>
#include <cmath>

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

Value times(const Value& x, const Value& y) {
  return kernel::apply(ScalarFn::mul, {x, y}, x->dtype);
}

/// Values of a vector loop that later statements read, each in registers of its own.
class Kept {
 public:
  Kept(BufferId buffer, int lanes, Var lane, Body& body)
      : buffer_(buffer), lanes_(lanes), lane_(lane), body_(body) {}
  Value operator()(const Value& v) {
    const Expr place = Expr(lanes_ * count_++) + Expr(lane_);
    body_.push_back(kernel::store(buffer_, place, v));
    return kernel::load(buffer_, place, v->dtype);
  }

 private:
  BufferId buffer_;
  int lanes_, count_ = 0;
  Var lane_;
  Body& body_;
};

}  // namespace

/// Buffers of a task: sums of rows [7][slots][terms], products of one tile [7][mr][nv·lanes],
/// factors of rows [slots][2]; of all tasks: sums of columns [panel][7][terms][nv·lanes], each
/// panel followed by the factors of its columns.
void Emitter::plan_strassen() {
  const DType type = p_.problem.type;
  const std::int64_t width = s_.nv * lanes_, terms = strassen_->terms;
  const std::int64_t slots = s_.tiles_per_task * s_.mr;
  // Rows a multiple of 1 KB apart would share few cache sets.
  lda_ = (terms + lanes_ - 1) / lanes_ * lanes_ + lanes_;
  transformed_ = scratch("sums", kStrassenProducts * slots * lda_, Scope::block);
  products_ = scratch("products", kStrassenProducts * s_.mr * width, Scope::block);
  factors_ = scratch("factors", 2 * slots, Scope::block);
  inverses_ = scratch("inverses", 2 * slots, Scope::block);
  panel_size_ = (kStrassenProducts * terms + 2) * width;
  b_buffer_ = scratch("panels", s_.panels * panel_size_, Scope::grid);
  place_ = k_.new_var();
  slot_ = k_.new_var();
  n_vector_ = k_.new_var();
  const Axis term{k_.new_var(), terms, Role::k};
  const Expr place(place_), t(term.var);
  a_main_ = kernel::load(transformed_, (place * Expr(slots) + Expr(slot_)) * Expr(lda_) + t, type);
  b_main_ = kernel::load(
      b_buffer_,
      panel_ * Expr(panel_size_) + (place * Expr(terms) + t) * Expr(width) + Expr(n_vector_), type);
  k_loops_ = {{{term}, terms}};
}

Body Emitter::strassen_body() {
  Body body = for_each_row([&](const Env& env, const Expr& slot) {
    Body rows = row_factors(env, slot);
    for (kernel::Stmt& s :
         for_each_term(0, env, Expr(0), [&](const Env&here, const Expr&term, std::int64_t lanes) {
           return halved_vector(slot, here, term, lanes);
         }))
      rows.push_back(std::move(s));
    return rows;
  });
  body = without_tests(std::move(body));
  Body tiles;
  for (const Variant& v : variants()) tiles.push_back(kernel::when(v.when, strassen_tile(v)));
  tiles = {kernel::loop(tile_loop_, 0, s_.tiles_per_task, Binding::serial, std::move(tiles))};
  body.push_back(
      kernel::loop(panel_loop_, 0, s_.panels_per_task, Binding::serial, std::move(tiles)));
  return body;
}

/// All terms of the first half of the outermost reduction, vectors along the innermost.
Body Emitter::for_each_term(std::size_t level, Env env, const Expr& term, const PerTerms& f) {
  const Axis& axis = k_axes_[level];
  const std::int64_t extent = level == 0 ? axis.extent / 2 : axis.extent;
  const Var x = k_.new_var();
  const auto inside = [&](const Expr& position, std::int64_t lanes) {
    set(env, axis.var, position);
    const Expr next = term * Expr(extent) + position;
    if (level + 1 < k_axes_.size()) return for_each_term(level + 1, env, next, f);
    return Body{f(env, next, lanes)};
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

/// An element of a row of the pair, in either half of the reduction; zero in a row that is missing.
Value Emitter::halved_element(const Env& env, const Expr& lane, int row, int half) const {
  const Axis &outer = k_axes_.front(), &inner = k_axes_.back();
  Env here = env;
  const Expr r = at(Expr(p_.tile->var), env) * Expr(2) + Expr(row);
  set(here, p_.tile->var, r);
  set(here, inner.var, *here[static_cast<std::size_t>(inner.var.index)] + lane);
  if (half > 0)
    set(here, outer.var, *here[static_cast<std::size_t>(outer.var.index)] + Expr(outer.extent / 2));
  const Value v = at(p_.a, here);
  if (row == 0 || p_.extents.tile % 2 == 0) return v;
  return kernel::guard({{r, 0, p_.extents.tile}}, v, kernel::imm(p_.problem.type, 0));
}

/// Each row is scaled by a power of two to a sum of absolute values between 1 and 2, so that what
/// is lost in sums with its neighbour is small for both (outer scaling: Ballard et al., SIAM J.
/// Sci. Comput. 38, 2016). The inverse of a row that holds an infinity or NaN is NaN.
Body Emitter::row_factors(const Env& env, const Expr& slot) {
  constexpr double kSmall = 0x1p-24, kLeast = 0x1p-100, kMost = 0x1p100;  // no sum overflows
  constexpr std::int64_t kExponent = 0x7f800000;
  const DType type = p_.problem.type;
  const auto map = [&](ScalarFn fn, std::vector<Value> args) {
    return kernel::apply(fn, std::move(args), type);
  };
  const auto number = [&](double x) { return kernel::imm(type, x); };
  const BufferId sums = scratch("norms", 2 * lanes_, Scope::lane, lanes_);
  const BufferId sum = scratch("norm", 2, Scope::lane, 1);
  const Var z = k_.new_var();
  Body zero;
  for (int row = 0; row < 2; ++row)
    zero.push_back(kernel::store(sums, Expr(row * lanes_) + Expr(z), number(0)));
  Body out{kernel::loop(z, 0, lanes_, Binding::vector, std::move(zero))};
  for (kernel::Stmt& s :
       for_each_term(0, env, Expr(0), [&](const Env&here, const Expr&, std::int64_t lanes) {
         const Var l = k_.new_var();
         Body body;
         for (int row = 0; row < 2; ++row)
           for (int half = 0; half < 2; ++half) {
             const Expr to = Expr(row * lanes_) + Expr(l);
             const Value size = map(ScalarFn::abs, {halved_element(here, Expr(l), row, half)});
             body.push_back(kernel::store(
                 sums, to,
                 plus(kernel::load(sums, to, type), map(ScalarFn::mul, {size, number(kSmall)}))));
           }
         return kernel::loop(l, 0, lanes, Binding::vector, std::move(body));
       }))
    out.push_back(std::move(s));
  for (int row = 0; row < 2; ++row) {
    out.push_back(
        kernel::store(sum, Expr(row),
                      std::make_shared<const kernel::ValueNode>(kernel::ValueNode{
                          kernel::LaneReduce{ir::Monoid::sum, sums, Expr(row * lanes_)}, type})));
    const Value s = kernel::load(sum, Expr(row), type);
    const Value bits = kernel::apply(
        ScalarFn::bit_and,
        {kernel::apply(ScalarFn::bitcast, {s}, DType::i32), kernel::imm_int(DType::i32, kExponent)},
        DType::i32);
    const Value power =
        map(ScalarFn::min,
            {map(ScalarFn::max, {map(ScalarFn::bitcast, {bits}), number(kLeast)}), number(kMost)});
    // Of a row of zeros 0, so that its results are.
    const Value inverse = map(ScalarFn::min, {power, map(ScalarFn::mul, {s, number(2)})});
    const Expr to = slot * Expr(2) + Expr(row);
    out.push_back(kernel::store(
        factors_, to, map(ScalarFn::mul, {map(ScalarFn::recip, {power}), number(kSmall)})));
    out.push_back(kernel::store(
        inverses_, to, plus(map(ScalarFn::mul, {inverse, number(1 / kSmall)}), minus(s, s))));
  }
  return out;
}

/// The seven sums of the blocks that the pair of rows has in a vector of terms of either half.
kernel::Stmt Emitter::halved_vector(const Expr& slot, const Env& env, const Expr& term,
                                    std::int64_t lanes) {
  constexpr double kMost = 0x1p60;  // scaled elements are less: what is not is no number
  const DType type = p_.problem.type;
  const Var l = k_.new_var();
  const BufferId kept = scratch("blocks", 10 * lanes_, Scope::lane, lanes_);
  Body body;
  Kept keep(kept, lanes_, l, body);
  const auto block = [&](int row, int half) {
    const Value factor = kernel::load(factors_, slot * Expr(2) + Expr(row), type);
    const Value v =
        keep(kernel::apply(ScalarFn::mul, {halved_element(env, Expr(l), row, half), factor}, type));
    const Value fits = kernel::apply(
        ScalarFn::less, {kernel::apply(ScalarFn::abs, {v}, type), kernel::imm(type, kMost)},
        DType::b1);
    return keep(kernel::apply(ScalarFn::select, {fits, v, kernel::imm(type, 0)}, type));
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
  Kept keep(kept, lanes_, l, body);
  std::vector<Value> p;
  for (std::int64_t i = 0; i < kStrassenProducts; ++i) {
    const Expr at = (Expr(i * v.mr) + Expr(r)) * Expr(s_.nv) + Expr(c);
    p.push_back(keep(kernel::load(products_, at * Expr(lanes_) + Expr(l), type)));
  }
  const Value u2 = keep(plus(p[0], p[5])), u3 = keep(plus(u2, p[6]));
  const Value results_of[] = {plus(p[0], p[1]), plus(plus(u2, p[4]), p[2]), minus(u3, p[3]),
                              plus(u3, p[4])};
  for (std::int64_t i = 0; i < 4; ++i) {
    const Expr slot = Expr(tile_loop_) * Expr(s_.mr) + Expr(r);
    const Expr column = (Expr(c) * Expr(2) + Expr(i % 2)) * Expr(lanes_) + Expr(l);
    const Value of_row = kernel::load(inverses_, slot * Expr(2) + Expr(i / 2), type);
    const Value of_column =
        kernel::load(b_buffer_,
                     panel_ * Expr(panel_size_) +
                         Expr(kStrassenProducts * strassen_->terms * s_.nv * lanes_) + column,
                     type);
    body.push_back(kernel::store(square, Expr(i * lanes_) + Expr(l),
                                 times(times(results_of[i], of_column), of_row)));
  }
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

/// The sums of blocks of the constant operand, in doubles, rounded once; columns scaled as rows
/// are.
Tensor Emitter::pack_strassen() const {
  const TensorType packed{DType::f32, {s_.panels, panel_size_}};
  if (!p_.request.contents) return {packed, nullptr, nullptr};
  const kernel::Load& load = operand_load();
  const Tensor& source = constant_operand(load);
  const std::vector<std::int64_t> none(static_cast<std::size_t>(k_.variables), 0);
  const std::int64_t zero = ir::evaluate(load.offset, none);
  const auto on = offsets_of(load, p_.n_axes), ok = offsets_of(load, k_axes_);
  const std::int64_t terms = strassen_->terms, width = s_.nv * lanes_;
  const auto shares = column_shares();
  Tensor out(packed);
  auto* to = reinterpret_cast<float*>(out.mutable_data());
  const auto* from = reinterpret_cast<const float*>(source.data()) + zero;
  const auto inverses = column_inverses(from, on, ok);
  const auto element = [&](std::int64_t k, std::int64_t n) -> double {
    if (n >= p_.extents.n || std::isnan(inverses[static_cast<std::size_t>(n)])) return 0;
    return from[ok[static_cast<std::size_t>(k)] + on[static_cast<std::size_t>(n)]] /
           inverses[static_cast<std::size_t>(n)];
  };
  for (std::int64_t panel = 0; panel < s_.panels; ++panel, to += panel_size_) {
    for (std::int64_t k = 0; k < terms; ++k)
      for (std::int64_t i = 0; i < width; ++i) {
        const std::int64_t pair = panel * s_.nv + i / lanes_, n = 2 * pair * lanes_ + i % lanes_;
        const double blocks[] = {element(k, n), element(k, n + lanes_), element(k + terms, n),
                                 element(k + terms, n + lanes_)};
        for (std::size_t q = 0; q < shares.size(); ++q) {
          double sum = 0;
          for (std::size_t b = 0; b < 4; ++b) sum += shares[q][b] * blocks[b];
          to[(static_cast<std::int64_t>(q) * terms + k) * width + i] = static_cast<float>(sum);
        }
      }
    for (std::int64_t i = 0; i < 2 * width; ++i)
      if (const std::int64_t n = 2 * panel * width + i; n < p_.extents.n)
        to[kStrassenProducts * terms * width + i] =
            static_cast<float>(inverses[static_cast<std::size_t>(n)]);
  }
  return out;
}

/// By column: the power of two that it is divided by; NaN where it holds an infinity or NaN.
std::vector<double> Emitter::column_inverses(const float* from, const std::vector<std::int64_t>& on,
                                             const std::vector<std::int64_t>& ok) const {
  constexpr int kMost = 100;
  std::vector<double> out;
  for (const std::int64_t n : on) {
    double sum = 0;
    for (const std::int64_t k : ok) sum += std::fabs(from[k + n]);
    int exponent = 1;
    if (sum > 0 && std::isfinite(sum)) std::frexp(sum, &exponent);
    const double power = std::ldexp(1.0, std::clamp(exponent - 1, -kMost, kMost));
    out.push_back(std::isfinite(sum) ? power : std::nan(""));
  }
  return out;
}

}  // namespace heddle::lower::contract

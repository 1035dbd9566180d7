#include <algorithm>
#include <array>

#include "kernel/halves.h"
#include "kernel/traverse.h"
#include "lower/contract/emit.h"
#include "support/math.h"

namespace heddle::lower::contract {

using ir::Expr;
using ir::Var;
using kernel::Binding;
using kernel::Body;
using kernel::BufferId;
using kernel::Scope;
using kernel::Value;

namespace {

/// Both passes of a transform of one tile: `line` along the columns of a square of `in`, then along
/// the rows of what that gives. `read` has the elements; `write` takes the results.
template <class Line, class Read, class Write>
void transform(std::int64_t in, std::int64_t out, BufferId half, const Expr& lane, int lanes,
               DType type, const Line& line, const Read& read, const Write& write, Body& body) {
  const auto place = [&](std::int64_t y, std::int64_t x) {
    return Expr((y * in + x) * lanes) + lane;
  };
  for (std::int64_t x = 0; x < in; ++x) {
    std::vector<Value> d;
    for (std::int64_t y = 0; y < in; ++y) d.push_back(read(y, x));
    const std::vector<Value> o = line(d);
    for (std::int64_t y = 0; y < out; ++y)
      body.push_back(kernel::store(half, place(y, x), o[static_cast<std::size_t>(y)]));
  }
  for (std::int64_t y = 0; y < out; ++y) {
    std::vector<Value> d;
    for (std::int64_t x = 0; x < in; ++x) d.push_back(kernel::load(half, place(y, x), type));
    const std::vector<Value> o = line(d);
    for (std::int64_t x = 0; x < out; ++x)
      body.push_back(write(y, x, o[static_cast<std::size_t>(x)]));
  }
}

Value shifted(const Value& v, int bits) {
  return kernel::apply(ir::ScalarFn::shift_right, {v, kernel::imm_int(v->dtype, bits)}, v->dtype);
}

/// Elements from one place to the next: as they are, which the machine reads ahead best, unless
/// what a transform takes of each of them would share few sets of a cache.
std::int64_t apart(std::int64_t count, DType type) {
  constexpr std::int64_t kFewSets = 16;
  const std::int64_t line = 64 / size_of(type), lines = ceil_div(count, line);
  return lines % kFewSets == 0 ? (lines + 1) * line : count;
}

}  // namespace

/// Buffers of a task: transformed elements [A²][tiles][channels], products of one panel
/// [A²][tiles][nv·lanes], each place perhaps with a line behind it; filters
/// [panel][A²][channels][nv·lanes] for all tasks.
void Emitter::plan_winograd() {
  const DType type = p_.problem.type;
  const std::int64_t a = s_.winograd + 2, tiles = winograd_tiles(), width = s_.nv * lanes_;
  const bool halves = terms_ == WinogradTerms::halves, pairs = terms_ != WinogradTerms::single;
  const std::int64_t parts = pairs ? 2 : 1, steps = winograd_->terms() / parts;
  if (pairs) element_ = DType::i32;
  box_ = a_buffer_;
  // Rows a multiple of 1 KB apart would share few cache sets.
  lda_ = winograd_->terms() + 2 * lanes_;
  const DType stored = halves ? DType::bf16 : pairs ? DType::i16 : type;
  transformed_place_ = apart(tiles * lda_, stored);
  products_place_ = apart(tiles * width, type);
  transformed_ = scratch("transformed", a * a * transformed_place_, Scope::block, 1, stored);
  products_ = scratch("products", a * a * products_place_, Scope::block);
  b_buffer_ = operand_scratch("filters", s_.panels * a * a * steps * width, Scope::grid);
  place_ = k_.new_var();
  n_vector_ = k_.new_var();
  const Var term = winograd_->channel.var;  // of all planes
  const Expr c(term), place(place_);
  const Expr row = place * Expr(transformed_place_) + Expr(p_.tile->var) * Expr(lda_);
  std::vector<Value> elements;
  for (std::int64_t i = 0; i < parts; ++i)
    elements.push_back(operand_at(transformed_, row + c * Expr(parts) + Expr(i)));
  a_main_ = elements[0];
  if (halves)
    for (Value& v : elements) v = kernel::upper_half(v);
  if (pairs) a_main_ = kernel::packed(elements);
  b_main_ = kernel::load(
      b_buffer_, ((panel_ * Expr(a * a) + place) * Expr(steps) + c) * Expr(width) + Expr(n_vector_),
      element_);
  k_loops_ = {{{{term, steps, Role::k}}, steps}};
}

Body Emitter::winograd_body() {
  const std::int64_t a = s_.winograd + 2;
  Body body;
  copy_a(body);
  body = without_tests(std::move(body));
  body.push_back(input_transform());
  Body tiles;
  for (const Variant& v : variants()) tiles.push_back(kernel::when(v.when, tile(v)));
  Body panel{kernel::loop(
      place_, 0, a * a, Binding::serial,
      {kernel::loop(tile_loop_, 0, s_.tiles_per_task, Binding::serial, std::move(tiles))})};
  panel.push_back(output_transform());
  for (kernel::Stmt& s : zero_sums()) body.push_back(std::move(s));
  body.push_back(
      kernel::loop(panel_loop_, 0, s_.panels_per_task, Binding::serial, std::move(panel)));
  for (kernel::Stmt& s : store_sums()) body.push_back(std::move(s));
  return body;
}

kernel::Stmt Emitter::input_transform() {
  const DType type = p_.problem.type;
  const std::int64_t m = s_.winograd, a = m + 2;
  const std::int64_t across = winograd_across(), down = s_.rows_per_task / m;
  const Var ty = k_.new_var(), tx = k_.new_var(), c = k_.new_var(), l = k_.new_var();
  const Var plane = k_.new_var();
  const Expr channel = Expr(c) * Expr(lanes_) + Expr(l);
  const Expr tile = Expr(ty) * Expr(across) + Expr(tx);
  const Value element = operand_at(box_, box_offset());
  const auto read = [&](std::int64_t y, std::int64_t x) {
    Env env;
    set(env, p_.row->var, Expr(ty) * Expr(m) + Expr(y));
    set(env, p_.tile->var, Expr(tx) * Expr(m) + Expr(x));
    set(env, winograd_->kh.var, 0);
    set(env, winograd_->kw.var, 0);
    set(env, winograd_->channel.var, channel);
    if (winograd_->depth) set(env, winograd_->depth->var, Expr(plane));
    return at(element, env);
  };
  const auto write = [&](std::int64_t y, std::int64_t x, const Value& v) {
    Expr to = Expr((y * a + x) * transformed_place_) + tile * Expr(lda_) + channel;
    if (winograd_->depth) to = to + Expr(plane) * Expr(winograd_->channel.extent);
    return kernel::store(transformed_, to, cast_to(v, stored_as(transformed_)));
  };
  const auto line = [&](const std::vector<Value>& d) { return input_line(m, d); };
  const BufferId half = scratch("half", a * a * lanes_, Scope::lane, lanes_);
  Body body;
  transform(a, a, half, Expr(l), lanes_, type, line, read, write, body);
  body = {kernel::loop(l, 0, lanes_, Binding::vector, std::move(body))};
  body = {kernel::loop(c, 0, winograd_->channel.extent / lanes_, Binding::serial, std::move(body))};
  if (const auto& depth = winograd_->depth)
    body = {kernel::loop(plane, 0, depth->extent, Binding::serial, std::move(body))};
  body = {kernel::loop(tx, 0, across, Binding::serial, std::move(body))};
  return kernel::loop(ty, 0, down, Binding::serial, std::move(body));
}

kernel::Stmt Emitter::store_products(const Variant& v, BufferId acc) {
  const Var r = k_.new_var(), c = k_.new_var(), l = k_.new_var();
  const Expr place = at(Expr(place_), env_);
  const std::int64_t width = s_.nv * lanes_;
  const Expr first = strassen_ ? place * Expr(v.mr * width)
                               : place * Expr(products_place_) + v.first_row * Expr(width);
  const Expr to = first + (Expr(r) * Expr(s_.nv) + Expr(c)) * Expr(lanes_) + Expr(l);
  const Expr from = (Expr(r) * Expr(v.nv) + Expr(c)) * Expr(lanes_) + Expr(l);
  Body body{kernel::store(products_, to, kernel::load(acc, from, p_.problem.type))};
  body = {kernel::loop(l, 0, lanes_, Binding::vector, std::move(body))};
  body = {kernel::loop(c, 0, v.nv, Binding::unroll, std::move(body))};
  return kernel::loop(r, 0, v.mr, Binding::unroll, std::move(body));
}

/// The panel's products to m×m results a tile, in memory, then the epilogue of those that exist.
kernel::Stmt Emitter::output_transform() {
  const DType type = p_.problem.type;
  const std::int64_t m = s_.winograd, a = m + 2;
  const std::int64_t across = winograd_across(), down = s_.rows_per_task / m;
  const Var ty = k_.new_var(), tx = k_.new_var(), c = k_.new_var(), l = k_.new_var();
  const Expr tile = Expr(ty) * Expr(across) + Expr(tx);
  const BufferId half = scratch("half", m * a * lanes_, Scope::lane, lanes_);
  const bool integers = terms_ == WinogradTerms::integers;
  const BufferId square = scratch("square", m * m * s_.nv * lanes_, Scope::block);
  const auto read = [&](std::int64_t y, std::int64_t x) {
    const Expr row = Expr((y * a + x) * products_place_) + tile * Expr(s_.nv * lanes_);
    return kernel::load(products_, row + Expr(c) * Expr(lanes_) + Expr(l), type);
  };
  const auto write = [&](std::int64_t y, std::int64_t x, const Value& v) {
    const Expr to = (Expr((y * m + x) * s_.nv) + Expr(c)) * Expr(lanes_) + Expr(l);
    return kernel::store(square, to, integers ? shifted(v, kWinogradShift) : v);
  };
  const auto line = [&](const std::vector<Value>& d) { return output_line(m, d); };
  Body body;
  transform(a, m, half, Expr(l), lanes_, type, line, read, write, body);
  body = {kernel::loop(l, 0, lanes_, Binding::vector, std::move(body))};
  body = {kernel::loop(c, 0, s_.nv, Binding::serial, std::move(body))};

  const Var y = k_.new_var(), x = k_.new_var(), c2 = k_.new_var();
  const Expr row = row_ + Expr(ty) * Expr(m) + Expr(y);
  const Expr column = column_ + Expr(tx) * Expr(m) + Expr(x);
  Env env = env_;
  set(env, p_.row->var, row);
  set(env, p_.tile->var, column);
  const Expr from = ((Expr(y) * Expr(m) + Expr(x)) * Expr(s_.nv) + Expr(c2)) * Expr(lanes_);
  const std::int64_t vectors = p_.extents.n / lanes_;
  Body pixel{kernel::when({{panel_ * Expr(s_.nv) + Expr(c2), 0, vectors}},
                          {results(env, square, from, Expr(c2), lanes_)})};
  pixel = {kernel::loop(c2, 0, s_.nv, Binding::unroll, std::move(pixel))};
  pixel = {kernel::when({{column, 0, p_.extents.tile}}, std::move(pixel))};
  pixel = {kernel::loop(x, 0, m, Binding::serial, std::move(pixel))};
  pixel = {kernel::when({{row, 0, p_.extents.rows}}, std::move(pixel))};
  body.push_back(kernel::loop(y, 0, m, Binding::serial, std::move(pixel)));
  body = {kernel::loop(tx, 0, across, Binding::serial, std::move(body))};
  return kernel::loop(ty, 0, down, Binding::serial, std::move(body));
}

/// The filter's transform G g Gᵀ where filters are not constant: a phase of its own, tasks of some
/// channels of a panel.
kernel::Stmt Emitter::filter_phase() {
  constexpr std::int64_t kTaps = 3;
  const DType type = p_.problem.type;
  const std::int64_t a = s_.winograd + 2, channels = winograd_->channel.extent;
  const std::int64_t width = s_.nv * lanes_, blocks = channels / lanes_;
  const Var task = k_.new_var(), in_block = k_.new_var(), v = k_.new_var(), l = k_.new_var();
  const Expr panel = ir::floor_div(Expr(task), blocks), in_panel = Expr(v) * lanes_ + Expr(l);
  const Expr c = ir::floor_mod(Expr(task), blocks) * lanes_ + Expr(in_block);
  const Expr n = panel * width + in_panel;
  const auto read = [&](std::int64_t y, std::int64_t x) {
    Env env;
    set(env, winograd_->kh.var, y);
    set(env, winograd_->kw.var, x);
    set(env, winograd_->channel.var, c);
    set(env, p_.n->var, n);
    return at(p_.b, env);
  };
  const auto write = [&](std::int64_t y, std::int64_t x, const Value& value) {
    const Expr place = panel * (a * a) + Expr(y * a + x);
    return kernel::store(b_buffer_, (place * channels + c) * width + in_panel, value);
  };
  const auto line = [&](const std::vector<Value>& d) {
    std::vector<Value> out;
    for (const auto& g : filter_transform(s_.winograd)) {
      Value sum;
      for (std::size_t i = 0; i < g.size(); ++i) {
        if (g[i] == 0) continue;
        const Value term = kernel::apply(ir::ScalarFn::mul, {d[i], kernel::imm(type, g[i])}, type);
        sum = sum ? kernel::apply(ir::ScalarFn::add, {sum, term}, type) : term;
      }
      out.push_back(sum);
    }
    return out;
  };
  const BufferId half = scratch("half", a * kTaps * lanes_, Scope::lane, lanes_);
  Body body;
  transform(kTaps, a, half, Expr(l), lanes_, type, line, read, write, body);
  body = {kernel::loop(l, 0, lanes_, Binding::vector, std::move(body))};
  if (p_.extents.n % width != 0)
    body = {kernel::when({{panel * s_.nv + Expr(v), 0, p_.extents.n / lanes_}}, std::move(body))};
  body = {kernel::loop(v, 0, s_.nv, Binding::serial, std::move(body))};
  body = {kernel::loop(in_block, 0, lanes_, Binding::serial, std::move(body))};
  return kernel::loop(task, 0, s_.panels * blocks, Binding::grid, std::move(body));
}

/// The filter's transform G g Gᵀ for every channel and filter, in doubles, rounded once.
Tensor Emitter::pack_winograd() const {
  const kernel::Load& load = operand_load();
  const Tensor& source = constant_operand(load);
  const std::int64_t a = s_.winograd + 2, terms = winograd_->terms();
  const std::int64_t width = s_.nv * lanes_, n = p_.extents.n;
  const auto g = filter_transform(s_.winograd);
  std::vector<std::int64_t> vars(static_cast<std::size_t>(k_.variables), 0);
  const auto element = [&](const Axis& axis, std::int64_t value) {
    vars[static_cast<std::size_t>(axis.var.index)] = value;
    const std::int64_t offset = ir::evaluate(load.offset, vars);
    vars[static_cast<std::size_t>(axis.var.index)] = 0;
    return offset;
  };
  // The offset is affine: one step of each axis gives every element.
  const std::int64_t zero = ir::evaluate(load.offset, vars);
  const auto step = [&](const Axis& axis) { return element(axis, 1) - zero; };
  const std::int64_t dh = step(winograd_->kh), dw = step(winograd_->kw);
  const std::int64_t dc = step(winograd_->channel), dn = step(*p_.n);
  const std::int64_t dd = winograd_->depth ? step(*winograd_->depth) : 0;
  const std::int64_t parts = terms_ == WinogradTerms::single ? 1 : 2;
  const TensorType packed{element_, {s_.panels, a * a, terms / parts, width}};
  if (!p_.request.contents) return {packed, nullptr, nullptr};
  Tensor out(packed);
  auto* whole = reinterpret_cast<float*>(out.mutable_data());
  auto* halves = reinterpret_cast<std::uint16_t*>(out.mutable_data());
  auto* integers = reinterpret_cast<std::int16_t*>(out.mutable_data());
  for (std::int64_t o = 0; o < n; ++o)
    for (std::int64_t c = 0; c < terms; ++c) {
      const std::int64_t channels = winograd_->channel.extent;
      const std::int64_t filter = zero + o * dn + c % channels * dc + c / channels * dd;
      double half[6][3];
      for (std::int64_t i = 0; i < a; ++i)
        for (std::int64_t x = 0; x < 3; ++x) {
          half[i][x] = 0;
          for (std::int64_t y = 0; y < 3; ++y)
            half[i][x] += g[static_cast<std::size_t>(i)][static_cast<std::size_t>(y)] *
                          source.at(filter + y * dh + x * dw);
        }
      for (std::int64_t i = 0; i < a; ++i)
        for (std::int64_t j = 0; j < a; ++j) {
          double sum = 0;
          for (std::size_t x = 0; x < 3; ++x) sum += half[i][x] * g[static_cast<std::size_t>(j)][x];
          const std::int64_t place = (o / width) * a * a + i * a + j;
          const std::int64_t to = (place * terms / parts + c / parts) * width + o % width;
          if (terms_ == WinogradTerms::halves)
            halves[2 * to + c % 2] = f32_to_bf16(static_cast<float>(sum));
          else if (terms_ == WinogradTerms::integers)
            integers[2 * to + c % 2] = static_cast<std::int16_t>(sum * kWinogradScale);
          else
            whole[to] = static_cast<float>(sum);
        }
    }
  return out;
}

}  // namespace heddle::lower::contract

#include "lower/gpu/attention_emit.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernel/bounds.h"
#include "kernel/traverse.h"
#include "support/math.h"

namespace heddle::lower::gpu {

using ir::ScalarFn;
using kernel::Barrier;
using kernel::Binding;
using kernel::BufferId;
using kernel::Scope;
using kernel::Stmt;
using kernel::Value;

namespace {

Value f32(double x) { return kernel::imm(DType::f32, x); }
Value apply(ScalarFn fn, std::vector<Value> args) {
  return kernel::apply(fn, std::move(args), DType::f32);
}

}  // namespace

AttentionEmitter::AttentionEmitter(const Request& request, const Attention& a,
                                   const AttentionTiles& tiles)
    : request_(request),
      g_(*request.graph),
      a_(a),
      t_(tiles),
      values_(g_),
      blocks_(ceil_div(a.extent(a.row), tiles.rows)),
      steps_(ceil_div(a.extent(a.key), tiles.keys)) {
  k_.variables = static_cast<std::int32_t>(a_.extents.size());
  values_.ranges() = ir::ranges_of(a_.extents);
  values_.bind(a_.products, [this](Evaluator&, const auto&, const auto&) { return product_; });
  const auto columns = static_cast<int>(a_.extent(a_.column));
  if (t_.mma) {
    const int tall = t_.rows / (t_.threads / kernel::kWarp) / 16;
    s_ = {tall, 2, t_.keys / 8, 2};
    o_ = {tall, 2, (columns + 7) / 8, 2};
  } else {
    const int tall = t_.rows / (t_.threads / kAcross);
    const int width = columns <= kAcross ? 1 : columns <= 2 * kAcross ? 2 : 4;
    s_ = {tall, 1, t_.keys / kAcross, 1};
    o_ = {tall, 1, static_cast<int>(ceil_div(columns, kAcross * width)), width};
  }
}

BufferId AttentionEmitter::buffer(std::string name, DType type, std::int64_t size, Scope scope) {
  return k_.add_buffer({std::move(name), type, size, scope, -1, false, 1});
}
ir::Var AttentionEmitter::fresh(std::int64_t extent) {
  const Var v = k_.new_var();
  kernel::set_range(values_.ranges(), v, ir::Interval{0, extent - 1});
  return v;
}
Stmt AttentionEmitter::each(std::int64_t count, Binding binding, const Made& make) {
  const Var v = fresh(count);
  return kernel::loop(v, 0, count, binding, make(Expr(v)));
}
/// What `make` does with the value where it is in [0, extent).
kernel::Body AttentionEmitter::let(const Expr& value, std::int64_t extent, const Made& make) {
  if (value.constant()) return make(value);
  const Var v = fresh(extent);
  return {kernel::let(v, value, 0, extent, make(Expr(v)))};
}
kernel::Body AttentionEmitter::fill(BufferId b, std::int64_t count, double value) {
  return {each(count, Binding::unroll,
               [&](const Expr& i) { return Body{kernel::store(b, i, f32(value))}; })};
}

kernel::Body AttentionEmitter::rows(
    const Fragment& f,
    const std::function<Body(const Expr& slot, const Expr& row, const Expr& base)>& make) {
  const std::int64_t each_column = std::int64_t{f.heights} * f.widths;
  return {each(f.rows, Binding::unroll, [&](const Expr& i) {
    return Body{each(f.heights, Binding::unroll, [&](const Expr& h) {
      const Expr slot = i * Expr(f.heights) + h;
      const Expr base = i * Expr(f.columns * each_column) + h * Expr(f.widths);
      if (!t_.mma)
        return make(slot, i * Expr(t_.threads / kAcross) + ir::floor_div(Expr(thread_), kAcross),
                    base);
      const Expr warp = ir::floor_div(Expr(thread_), kernel::kWarp);
      const Expr lane = ir::floor_mod(Expr(thread_), kernel::kWarp);
      return make(slot,
                  warp * Expr(f.rows * 16) + i * Expr(16) + h * Expr(8) + ir::floor_div(lane, 4),
                  base);
    })};
  })};
}

kernel::Body AttentionEmitter::columns(
    const Fragment& f, Binding innermost,
    const std::function<Body(const Expr& column, const Expr& offset)>& make) {
  return {each(f.columns, Binding::unroll, [&](const Expr& j) {
    return Body{each(f.widths, innermost, [&](const Expr& l) {
      const Expr offset = j * Expr(std::int64_t{f.heights} * f.widths) + l;
      const Expr lane = ir::floor_mod(Expr(thread_), kernel::kWarp);
      const Expr place = t_.mma ? j * Expr(4) + ir::floor_mod(lane, 4)
                                : j * Expr(kAcross) + ir::floor_mod(Expr(thread_), kAcross);
      return make(place * Expr(f.widths) + l, offset);
    })};
  })};
}

void AttentionEmitter::add_arguments() {
  add_inputs(request_, a_.cluster, k_, out_, values_);
  layout_ = attention::output_layout(request_, a_);
  out_.output_layouts = {layout_};
  result_ = add_argument(g_, a_.result, layout_, true, k_, out_);
}

/// The scores are -inf beyond key = row + offset, whatever the operands are.
std::optional<std::int64_t> AttentionEmitter::causal_offset() {
  product_ = f32(0);
  const Value v = values_.at(a_.scores, a_.scores_at);
  values_.clear();
  return attention::hidden_beyond(a_, v, {}, attention::constants_of(g_, request_, k_, out_));
}

std::vector<ir::Condition> AttentionEmitter::needed(const Expr& j) const {
  if (!causal_) return {};
  const std::int64_t most = blocks_ * t_.rows + *causal_;
  return {{block_ * Expr(t_.rows) + Expr(t_.rows - 1 + *causal_) - j * Expr(t_.keys), 0, most}};
}

Value AttentionEmitter::score(const Expr& row, const Expr& key, Value product) {
  Evaluator::Index at;
  for (const Expr& e : a_.scores_at)
    at.push_back(ir::substitute(e, [&](Var v) -> std::optional<Expr> {
      if (v == a_.row) return row;
      if (v == a_.key) return key;
      return std::nullopt;
    }));
  product_ = std::move(product);
  return values_.at(a_.scores, at);
}

/// Binds the block's rows and the batch axes.
kernel::Body AttentionEmitter::in_block(const std::function<Body()>& make) {
  std::int64_t batches = 1;
  for (Var v : a_.batch) batches *= a_.extent(v);
  const Var task = fresh(batches * blocks_);
  thread_ = fresh(t_.threads);
  Expr number = ir::floor_mod(Expr(task), blocks_);
  // The longest first.
  if (causal_) number = Expr(blocks_ - 1) - number;
  const std::function<Body(std::size_t, Expr)> decode = [&](std::size_t left, Expr rest) -> Body {
    if (left == 0) return make();
    const Var v = a_.batch[left - 1];
    const Expr here = left == 1 ? rest : ir::floor_mod(rest, a_.extent(v));
    return {
        kernel::let(v, here, 0, a_.extent(v), decode(left - 1, ir::floor_div(rest, a_.extent(v))))};
  };
  Body body = let(number, blocks_, [&](const Expr& block) {
    block_ = block;
    return decode(a_.batch.size(), ir::floor_div(Expr(task), blocks_));
  });
  return {kernel::loop(task, 0, batches * blocks_, Binding::grid,
                       {kernel::loop(thread_, 0, t_.threads, Binding::thread, std::move(body))})};
}

kernel::Body AttentionEmitter::loop() {
  const DType stored = k_.buffers[tk_.memory].dtype;
  acc_s_ = buffer("scores", DType::f32, s_.size(), Scope::lane);
  acc_o_ = buffer("sums", DType::f32, o_.size(), Scope::lane);
  for (auto [b, name] :
       {std::pair{&most_, "most"}, {&next_, "next"}, {&scale_, "scale"}, {&sum_, "total"}})
    *b = buffer(name, DType::f32, s_.slots(), Scope::lane);
  tp_.across = t_.rows, tp_.along = t_.keys;
  tp_.row = t_.keys + 16 / size_of(stored), tp_.step = 1;
  tp_.memory = buffer("weights", stored, tp_.across * tp_.row, Scope::block);

  Body body = fill(acc_o_, o_.size(), 0);
  append(body, fill(most_, s_.slots(), -std::numeric_limits<double>::infinity()));
  append(body, fill(sum_, s_.slots(), 0));
  append(body, copies(tq_, block_, Expr(0)));
  append(body, copies(tk_, Expr(0), Expr(0)));
  append(body, copies(tv_, Expr(0), Expr(0)));
  body.push_back({kernel::CopyGroup{}});
  body.push_back(each(steps_, Binding::serial, [&](const Expr& j) {
    Body one = step(j);
    return causal_ ? Body{kernel::when(needed(j), std::move(one))} : one;
  }));
  body.push_back({kernel::Combine{ir::Monoid::sum, sum_, 0, s_.slots(), t_.mma ? 4 : kAcross, 1}});
  return body;
}

/// The barrier shows this step's keys and values to all threads, and that all are done with the
/// room of the next ones.
kernel::Body AttentionEmitter::step(const Expr& j) {
  const Expr next = j + Expr(1), stage = ir::floor_mod(j, 2);
  Body body{{kernel::CopyGroup{false, 0}}, {Barrier{Scope::block}}};
  if (steps_ > 1) {
    std::vector<ir::Condition> more = needed(next);
    more.push_back({next, 0, steps_});
    Body start = copies(tk_, next, ir::floor_mod(next, 2));
    append(start, copies(tv_, next, ir::floor_mod(next, 2)));
    body.push_back(kernel::when(std::move(more), std::move(start)));
    body.push_back({kernel::CopyGroup{}});
  }
  append(body, fill(acc_s_, s_.size(), 0));
  append(body, multiply(acc_s_, s_, tq_, Expr(0), tk_, stage * Expr(tk_.size), true));
  // Scores, and the largest of each row so far.
  append(body, rows(s_, [&](const Expr& slot, const Expr& row, const Expr& base) {
           const std::int64_t all = a_.extent(a_.row), keys = a_.extent(a_.key);
           Body out{kernel::store(next_, slot, kernel::load(most_, slot, DType::f32))};
           const Expr at = block_ * Expr(t_.rows) + row;
           append(
               out, let(all % t_.rows ? ir::min(at, Expr(all - 1)) : at, all, [&](const Expr& r) {
                 return columns(s_, Binding::unroll, [&](const Expr& column, const Expr& offset) {
                   const Expr place = j * Expr(t_.keys) + column;
                   const bool ragged = keys % t_.keys != 0;
                   return let(
                       ragged ? ir::min(place, Expr(keys - 1)) : place, keys, [&](const Expr& key) {
                         const Expr e = base + offset;
                         Value s = score(r, key, kernel::load(acc_s_, e, DType::f32));
                         if (ragged)
                           s = kernel::guard({{place, 0, keys}}, s,
                                             f32(-std::numeric_limits<double>::infinity()));
                         return Body{kernel::store(acc_s_, e, s),
                                     kernel::store(next_, slot,
                                                   apply(ScalarFn::max,
                                                         {kernel::load(next_, slot, DType::f32),
                                                          kernel::load(acc_s_, e, DType::f32)}))};
                       });
                 });
               }));
           return out;
         }));
  append(body, softmax());
  append(body, multiply(acc_o_, o_, tp_, Expr(0), tv_, stage * Expr(tv_.size), false));
  return body;
}

/// Weights relative to the new maxima; what was added up so far is scaled to them.
kernel::Body AttentionEmitter::softmax() {
  const auto at = [](BufferId b, const Expr& i) { return kernel::load(b, i, DType::f32); };
  Body body{{kernel::Combine{ir::Monoid::max, next_, 0, s_.slots(), t_.mma ? 4 : kAcross, 1}}};
  body.push_back(each(s_.slots(), Binding::unroll, [&](const Expr& i) {
    const Value none = kernel::apply(
        ScalarFn::equal, {at(next_, i), f32(-std::numeric_limits<double>::infinity())}, DType::b1);
    const Value base = apply(ScalarFn::select, {none, f32(0), at(next_, i)});
    const Value scale = apply(ScalarFn::exp, {apply(ScalarFn::sub, {at(most_, i), base})});
    return Body{kernel::store(scale_, i, scale), kernel::store(most_, i, at(next_, i)),
                kernel::store(next_, i, base),
                kernel::store(sum_, i, apply(ScalarFn::mul, {at(sum_, i), at(scale_, i)}))};
  }));
  append(body, rows(s_, [&](const Expr& slot, const Expr&, const Expr& base) {
           return columns(s_, Binding::unroll, [&](const Expr&, const Expr& offset) {
             const Expr e = base + offset;
             const Value p = kernel::with_origin(
                 apply(ScalarFn::exp, {apply(ScalarFn::sub, {at(acc_s_, e), at(next_, slot)})}),
                 a_.exp.value);
             return Body{
                 kernel::store(acc_s_, e, p),
                 kernel::store(sum_, slot, apply(ScalarFn::add, {at(sum_, slot), at(acc_s_, e)}))};
           });
         }));
  append(body, rows(s_, [&](const Expr&, const Expr& row, const Expr& base) {
           return columns(s_, s_.widths > 1 ? Binding::vector : Binding::unroll,
                          [&](const Expr& column, const Expr& offset) {
                            return Body{kernel::store(tp_.memory, row * Expr(tp_.row) + column,
                                                      at(acc_s_, base + offset))};
                          });
         }));
  append(body, rows(o_, [&](const Expr& slot, const Expr&, const Expr& base) {
           return columns(o_, Binding::unroll, [&](const Expr&, const Expr& offset) {
             const Expr e = base + offset;
             return Body{
                 kernel::store(acc_o_, e, apply(ScalarFn::mul, {at(acc_o_, e), at(scale_, slot)}))};
           });
         }));
  // A row's weights are its own warp's.
  body.push_back({Barrier{Scope::warp}});
  return body;
}

kernel::Body AttentionEmitter::results() {
  const auto at = [](BufferId b, const Expr& i) { return kernel::load(b, i, DType::f32); };
  Body body{each(s_.slots(), Binding::unroll, [&](const Expr& i) {
    return Body{kernel::store(sum_, i, apply(ScalarFn::recip, {at(sum_, i)}))};
  })};
  const std::int64_t all = a_.extent(a_.row), wide = a_.extent(a_.column);
  const bool whole = wide == std::int64_t{o_.columns} * o_.widths * (t_.mma ? 4 : kAcross);
  append(body, rows(o_, [&](const Expr& slot, const Expr& row, const Expr& base) {
           return let(block_ * Expr(t_.rows) + row, all, [&](const Expr& r) {
             const auto store = [&](const Expr& column, const Expr& offset) {
               Expr to(0);
               for (std::size_t d = 0; d < layout_.strides.size(); ++d) {
                 const Var v{static_cast<std::int32_t>(d)};
                 if (a_.extent(v) == 1) continue;
                 to = to + (v == a_.row      ? r
                            : v == a_.column ? column
                                             : Expr(v)) *
                               Expr(layout_.strides[d]);
               }
               return Body{kernel::store(
                   result_, to,
                   kernel::with_origin(
                       apply(ScalarFn::mul, {at(acc_o_, base + offset), at(sum_, slot)}),
                       a_.result.value))};
             };
             if (whole && o_.widths > 1) return columns(o_, Binding::vector, store);
             return columns(o_, Binding::unroll, [&](const Expr& column, const Expr& offset) {
               return let(column, wide, [&](const Expr& c) { return store(c, offset); });
             });
           });
         }));
  return body;
}

Lowered AttentionEmitter::run() {
  add_arguments();
  causal_ = causal_offset();
  tq_ = tile_of(a_.q, "queries", t_.rows, 1);
  tk_ = tile_of(a_.k, "keys", t_.keys, 2);
  tv_ = tile_of(a_.v, "values", t_.keys, 2);
  k_.body = in_block([&] {
    Body body = loop();
    append(body, results());
    return body;
  });
  k_.name = fmt::format("attention_{}", a_.result.value);
  out_.kernel = kernel::simplify(k_);
  out_.schedule =
      fmt::format("attention {} {}x{} depth={} threads={}{}", t_.mma ? "mma" : "scalar", t_.rows,
                  t_.keys, a_.extent(a_.depth), t_.threads, causal_ ? " causal" : "");
  return std::move(out_);
}

}  // namespace heddle::lower::gpu

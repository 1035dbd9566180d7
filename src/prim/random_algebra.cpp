// Short random chains over all element types, made of what rewrite rows look for: constants that
// are special, functions applied twice, every monoid, casts there and back.
#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "prim/access.h"
#include "prim/random_graph.h"
#include "prim/types.h"

namespace heddle::prim {
namespace {

using ir::Monoid;
using ir::ScalarFn;

class Algebra {
 public:
  Algebra(Graph& g, std::mt19937& rng) : g_(g), b_(g), rng_(rng) {}

  void make(int steps) {
    static const Shape kShapes[] = {{3, 4}, {2, 3, 2}, {4}, {1, 6}, {2, 1, 16}};
    const Shape shape = kShapes[rng_() % 5];
    for (DType t : {DType::f32, DType::i32, DType::b1, DType::f64})
      values_.push_back(g_.add_input(fmt::format("x{}", values_.size()), {t, shape}));
    NodeId x = values_[rng_() % values_.size()];
    for (int i = 0; i < steps; ++i) values_.push_back(x = step(x));
    g_.outputs = {{"y", x}};
    if (rng_() % 2) g_.outputs.push_back({"z", values_[values_.size() - 2]});
  }

 private:
  bool coin() { return rng_() % 2 == 0; }
  template <class T>
  T pick(std::initializer_list<T> from) {
    return from.begin()[rng_() % from.size()];
  }

  NodeId splat(DType t, double v) {
    return is_float(t) ? b_.scalar(t, v) : b_.scalar_int(t, static_cast<std::int64_t>(v));
  }
  /// A constant, or another value, that can be combined with x.
  NodeId partner(NodeId x) {
    const DType t = b_.dtype(x);
    if (t == DType::b1) {
      if (coin()) return splat(t, rng_() % 2);
    } else if (rng_() % 4 != 0) {
      return splat(t, is_float(t) ? pick({0.0, 1.0, 2.0, -1.0, 0.5, 4.0, 3.0, -0.25, 8.0})
                                  : pick({0.0, 1.0, 2.0, -1.0, 3.0}));
    }
    for (std::size_t i = values_.size(); i-- > 0;)
      if (b_.type(values_[i]) == b_.type(x) && coin()) return values_[i];
    return x;
  }
  NodeId both_ways(ScalarFn fn, NodeId x, NodeId y) {
    return rng_() % 3 ? b_.map(fn, {x, y}) : b_.map(fn, {y, x});
  }

  NodeId fresh(TensorType type) {
    return g_.add_input(fmt::format("n{}", g_.inputs.size()), std::move(type));
  }

  NodeId truth(NodeId x) {
    switch (rng_() % 4) {
      case 0:
        return b_.map(ScalarFn::logical_not, {x});
      case 1:
        return both_ways(ScalarFn::logical_and, x, partner(x));
      case 2:
        return both_ways(ScalarFn::logical_or, x, partner(x));
      default:
        return choice(x);
    }
  }
  NodeId choice(NodeId condition) {
    for (std::size_t i = values_.size(); i-- > 0;)
      if (b_.shape(values_[i]) == b_.shape(condition) && b_.dtype(values_[i]) != DType::b1 &&
          coin()) {
        const NodeId x = values_[i];
        const NodeId c = coin() ? condition : b_.full({DType::b1, b_.shape(x)}, rng_() % 2);
        return b_.select(c, x, coin() ? x : b_.neg(x));
      }
    return condition;
  }
  /// As operators write it, or with something else in one of its places.
  NodeId softplus(NodeId x) {
    const auto mostly = [&](double v) {
      return b_.full(b_.type(x), rng_() % 8 == 0 ? v + 0.5 : v);
    };
    const NodeId above = b_.map(ScalarFn::greater, {x, mostly(0)});
    const NodeId tail = b_.log(b_.add(b_.exp(b_.select(above, b_.neg(x), x)), mostly(1)));
    return both_ways(ScalarFn::add, b_.select(above, x, mostly(0)), tail);
  }
  NodeId number(NodeId x) {
    const DType t = b_.dtype(x);
    if (is_float(t) && rng_() % 5 == 0) {
      if (coin()) return b_.map(ScalarFn::pow, {x, splat(t, pick({-1.0, 1.0, 2.0, 3.0, 4.0}))});
      const NodeId positive = b_.add(b_.map(ScalarFn::abs, {x}), 0.5);
      return b_.map(ScalarFn::pow, {positive, splat(t, pick({-0.5, 0.5, 1.5}))});
    }
    if (is_float(t) && rng_() % 10 == 0) {
      if (rng_() % 3 == 0) return b_.tanh(softplus(x));
      return b_.map(pick({ScalarFn::erf, ScalarFn::tanh}),
                    {b_.map(ScalarFn::div, {x, splat(t, pick({3.0, 1.25}))})});
    }
    if (is_float(t) && rng_() % 12 == 0) {  // a shared factor, finite
      x = b_.max(b_.min(x, splat(t, 50)), splat(t, -50));
      const NodeId p = fresh(b_.type(x)), q = fresh(b_.type(x));
      return b_.map(pick({ScalarFn::add, ScalarFn::sub}),
                    {b_.mul(x, p), both_ways(ScalarFn::mul, x, q)});
    }
    if (rng_() % 6 == 0) return b_.neg(x);
    if (is_int(t) && rng_() % 6 == 0) {
      const NodeId y = partner(x);
      return b_.sub(both_ways(ScalarFn::add, x, y), coin() ? y : partner(x));
    }
    if (is_int(t) && rng_() % 6 == 0) return b_.map(ScalarFn::bit_not, {x});
    if (rng_() % 8 == 0) return b_.map(pick({ScalarFn::less, ScalarFn::equal}), {x, partner(x)});
    const ScalarFn fn = pick(
        {ScalarFn::add, ScalarFn::sub, ScalarFn::mul, ScalarFn::min, ScalarFn::max, ScalarFn::div});
    const NodeId once = both_ways(fn, x, partner(x));
    // A second time: (x + p) + q, min(min(x, p), q), …
    return coin() ? b_.map(fn, {once, partner(once)}) : once;
  }

  /// Casts of computed floats to integers could round either way, so integers come from inputs.
  NodeId cast(NodeId x) {
    const bool input = std::holds_alternative<Input>(g_[x].op);
    const DType to = pick({DType::f32, DType::f64, DType::f16, DType::i32, DType::i64, DType::u8});
    if (is_float(b_.dtype(x)) && is_int(to) && !input) return b_.cast(x, DType::f64);
    const NodeId once = b_.cast(x, to);
    if (is_float(to) && !is_int(b_.dtype(x)) && !input) return once;
    return coin() ? b_.cast(once, pick({DType::f32, DType::i32, DType::i64})) : once;
  }

  /// Into bounds that narrow integers hold, or nearly, and to wide ones again.
  NodeId saturated(NodeId x) {
    const DType t = b_.dtype(x);
    x = b_.max(b_.mul(x, 64.0), splat(t, pick({-129.0, -128.0, -1.0, 0.0, 3.0})));
    x = b_.min(x, splat(t, pick({127.0, 128.0, 255.0, 256.0, -2.0})));
    if (coin()) x = b_.add(b_.cast(x, DType::i32), splat(DType::i32, pick({-128.0, 1.0, 128.0})));
    return b_.cast(b_.cast(x, pick({DType::i8, DType::u8, DType::i16})),
                   pick({DType::i32, DType::i64, DType::i16}));
  }

  /// A dear function of few integers with few results, as quantised activations are.
  NodeId byte_function() {
    NodeId q = fresh({pick({DType::u8, DType::i8}), {2, 6}});
    if (coin()) q = b_.sub(b_.cast(q, DType::i32), splat(DType::i32, pick({-128.0, 3.0, 128.0})));
    const NodeId x = b_.mul(b_.cast(q, DType::f32), 0.04);
    NodeId y = coin() ? b_.sigmoid(x) : b_.tanh(x);
    if (coin()) y = b_.mul(x, y);
    y = b_.map(ScalarFn::round, {b_.mul(y, 90.0)});
    const bool positive = coin();
    y = b_.max(y, splat(DType::f32, positive ? 0.0 : -128.0));
    y = b_.min(y, splat(DType::f32, positive ? 255.0 : 127.0));
    return b_.cast(y, positive ? DType::u8 : pick({DType::i8, DType::i32}));
  }

  /// Integers less a zero point, times a scale: one number, or one of each row, column or
  /// reduction.
  NodeId dequantised(NodeId q, int own) {
    const Shape shape = b_.shape(q);
    NodeId x = b_.cast(q, DType::i32);
    if (coin()) x = b_.sub(x, splat(DType::i32, pick({1.0, 128.0, -40.0, 1e6})));
    x = b_.cast(x, DType::f32);
    if (rng_() % 4 == 0) return x;
    if (coin()) return b_.mul(x, splat(DType::f32, pick({0.5, 0.125, 3.0})));
    Shape along(2, 1);
    const auto at = static_cast<std::size_t>(rng_() % 4 ? own : 1 - own);
    along[at] = shape[at];
    Tensor scale({DType::f32, along});
    for (std::int64_t i = 0; i < scale.count(); ++i)
      scale.set(i, 0.25 * static_cast<double>(i + 1));
    return b_.mul(x, b_.broadcast(b_.constant(scale), shape));
  }
  /// What is between two operators on quantised values, with scales that leave every value exact.
  NodeId requantised() {
    const Shape shape{3, 8};
    const DType narrow = pick({DType::i8, DType::u8});
    const NodeId q = g_.add_input(fmt::format("q{}", g_.inputs.size()), {narrow, shape});
    const auto row = [&] {
      Tensor t({DType::f32, {8}});
      for (std::int64_t i = 0; i < 8; ++i) t.set(i, pick({0.5, 1.0, 2.0, -4.0}));
      return b_.broadcast(b_.constant(t), shape);
    };
    const NodeId scale = splat(DType::f32, pick({0.25, 2.0, 8.0}));
    NodeId x = b_.cast(q, DType::f32);
    if (coin()) x = b_.mul(x, scale);
    for (int i = static_cast<int>(rng_() % 3); i > 0; --i) x = b_.mul(x, row());
    if (coin()) x = b_.add(x, row());
    x = coin() ? b_.map(ScalarFn::div, {x, b_.broadcast(scale, shape)}) : b_.mul(x, scale);
    if (rng_() % 4) x = b_.map(ScalarFn::round, {x});
    if (coin()) x = b_.cast(q, DType::f32);
    if (coin()) x = b_.max(x, splat(DType::f32, pick({-128.0, 0.0, 3.0})));
    if (coin()) x = b_.min(x, splat(DType::f32, pick({127.0, 255.0, 9.0})));
    return coin() ? b_.cast(x, DType::i32) : x;
  }
  /// Maxima or sums of windows, some of which may lie outside, or parts side by side, quantised
  /// again.
  NodeId requantised_parts() {
    const NodeId scale = splat(DType::f32, pick({0.25, 2.0, 8.0}));
    const auto part = [&] {
      const DType narrow = rng_() % 4 ? DType::u8 : DType::i8;
      const NodeId q = g_.add_input(fmt::format("q{}", g_.inputs.size()), {narrow, {3, 8}});
      const NodeId x = b_.cast(q, DType::f32);
      return rng_() % 4 ? b_.mul(x, coin() ? scale : splat(DType::f32, 0.5)) : x;
    };
    NodeId x = part();
    if (coin()) {
      const ir::Expr at = ir::Expr(ir::Var{1}) * 2 + ir::Expr(ir::Var{2}) - pick({0, 1, 3});
      x = b_.view(x, {3, 4, 3}, {{ir::Var{0}, at}, {{at, 0, 8}}}, rng_() % 4 ? -INFINITY : 0.0);
      x = b_.reduce(pick({Monoid::max, Monoid::max, Monoid::sum, Monoid::min}), x, {2}, false);
    } else {
      x = b_.concat({x, part()}, 1);
    }
    x = b_.map(ScalarFn::div, {x, b_.broadcast(scale, b_.shape(x))});
    const auto drawn = rng_();
    const double low = drawn % 4 ? 0 : std::array{-3.0, -128.0, 5.0}[drawn / 4 % 3];
    x = b_.max(b_.map(ScalarFn::round, {x}), splat(DType::f32, low));
    x = b_.min(x, splat(DType::f32, pick({255.0, 127.0, 300.0})));
    return b_.cast(x, pick({DType::u8, DType::i32, DType::u8}));
  }
  NodeId quantised_product() {
    const std::int64_t k = pick<std::int64_t>({16, 9, 12, 19, 37, 58, 33}),
                       n = pick<std::int64_t>({8, 3});
    const auto narrow = [&] { return pick({DType::i8, DType::u8, DType::i16}); };
    const NodeId q = g_.add_input(fmt::format("q{}", g_.inputs.size()), {narrow(), {5, k}});
    Tensor w({narrow(), {k, n}});
    for (std::int64_t i = 0; i < w.count(); ++i) w.set_int(i, i * 37 % 120);
    if (rng_() % 2 == 0) {
      const auto bf16 = [&](NodeId x) { return b_.cast(b_.cast(x, DType::f32), DType::bf16); };
      return b_.cast(b_.matmul(bf16(q), bf16(b_.constant(w))), DType::f32);
    }
    if (rng_() % 4 == 0) {  // bytes as they are
      Node product =
          g_[b_.matmul(b_.cast(b_.neg(q), DType::u8), b_.cast(b_.constant(w), DType::u8))];
      return g_.add(product.op, {product.args[0], b_.cast(b_.constant(w), DType::i8)},
                    {DType::i32, product.type.shape});
    }
    if (rng_() % 3 == 0)
      return b_.matmul(b_.cast(q, DType::i32), b_.cast(b_.constant(w), DType::i32));
    if (rng_() % 4 == 0) return quantised_channels();
    return b_.matmul(dequantised(q, 0), dequantised(b_.constant(w), 1));
  }
  /// Channels by themselves (a depthwise convolution), some of them few.
  NodeId quantised_channels() {
    const std::int64_t channels = pick<std::int64_t>({16, 18, 3});
    const NodeId q = fresh({pick({DType::u8, DType::u8, DType::i8}), {1, channels, 4, 5}});
    const NodeId zero = splat(DType::i32, pick({0.0, 3.0, 131.0}));
    const NodeId x = b_.cast(b_.sub(b_.cast(q, DType::i32), zero), DType::f32);
    Tensor w({DType::i8, {channels, 1, 3, 2}});
    for (std::int64_t i = 0; i < w.count(); ++i) w.set_int(i, i * 37 % 256 - 128);
    const std::int64_t pad = pick<std::int64_t>({0, 1});
    return b_.conv(b_.mul(x, splat(DType::f32, 0.25)),
                   b_.mul(b_.cast(b_.constant(w), DType::f32), splat(DType::f32, 0.5)),
                   {{1, 2}, {1, 1}, {pad, 1}, {1, pad}, static_cast<int>(channels)});
  }

  NodeId movement(NodeId x) {
    const Shape shape = b_.shape(x);
    const int rank = b_.rank(x);
    if (rank == 0) return b_.broadcast(x, {3, 2});
    const auto at = rng_() % shape.size();
    switch (rng_() % 6) {
      case 0: {
        Shape out = shape;
        if (rank < 4) out.insert(out.begin(), pick<std::int64_t>({2, 3}));
        return b_.broadcast(x, out);
      }
      case 1: {
        Shape pad(shape.size(), 0);
        pad[at] = 1;
        const double fill = b_.dtype(x) == DType::b1 ? 0 : pick({0.0, 1.0, 2.0});
        // Padding of a constant by itself, or by something else.
        const NodeId y = coin() ? b_.full(b_.type(x), b_.dtype(x) == DType::b1 ? 1 : 2) : x;
        return b_.pad(y, pad, pad, fill);
      }
      case 2:
        return b_.flip(x, {static_cast<int>(at)});
      case 3:
        return b_.unsqueeze(x, {static_cast<int>(at)});
      case 4: {  // the same elements again, or rows of them that are then turned
        const NodeId places = b_.mul(b_.iota({DType::i64, {pick<std::int64_t>({2, 5})}}, 0),
                                     b_.scalar_int(DType::i64, pick<std::int64_t>({-1, 1, 2})));
        const NodeId y = b_.take(x, places, static_cast<int>(at));
        std::vector<int> order(shape.size());
        std::iota(order.rbegin(), order.rend(), 0);
        return coin() ? b_.transpose(y, order) : y;
      }
      default: {
        const NodeId index = b_.scalar_int(DType::i64, pick<std::int64_t>({0, -1, 1, 9, -9}));
        Gather g{{static_cast<int>(at)}, {}};
        Shape out;
        for (std::size_t k = 0; k < shape.size(); ++k) {
          g.base.push_back(k == at ? ir::Expr(0)
                                   : ir::Expr(ir::Var{static_cast<std::int32_t>(out.size())}));
          if (k != at) out.push_back(shape[k]);
        }
        return b_.gather(x, {b_.broadcast(index, out)}, std::move(g), out);
      }
    }
  }

  NodeId reduce_once(NodeId x) {
    const DType t = b_.dtype(x);
    if (b_.rank(x) == 0) return x;
    const Monoid fn = t == DType::b1 ? pick({Monoid::any, Monoid::all})
                                     : pick({Monoid::sum, Monoid::prod, Monoid::max, Monoid::min,
                                             Monoid::argmax, Monoid::argmin});
    std::vector<int> axes = {static_cast<int>(rng_() % b_.shape(x).size())};
    const bool one = fn == Monoid::argmax || fn == Monoid::argmin;
    if (!one && b_.rank(x) > 1 && coin()) axes = {0, b_.rank(x) - 1};
    return b_.reduce(fn, x, axes, coin());
  }
  /// What positions along an axis pick out of it, summed; they may lie outside.
  NodeId one_hot_sum(NodeId x) {
    const Shape shape = b_.shape(x);
    const int axis = static_cast<int>(rng_() % shape.size());
    Shape once = shape;
    once[static_cast<std::size_t>(axis)] = 1;
    const NodeId places = b_.broadcast(fresh({DType::i64, once}), shape);
    const NodeId counts = b_.iota({DType::i64, shape}, axis);
    const NodeId value =
        coin() ? b_.full(b_.type(x), 2) : b_.broadcast(b_.reduce_max(x, {axis}), shape);
    const NodeId hit = both_ways(ScalarFn::equal, places, counts);
    return b_.reduce_sum(b_.select(hit, value, b_.full(b_.type(x), 0)), {axis}, false);
  }
  NodeId reduction(NodeId x) {
    if (is_float(b_.dtype(x)) && b_.rank(x) > 0 && rng_() % 8 == 0) return one_hot_sum(x);
    const NodeId y = coin() ? movement(x) : x;
    const NodeId once = reduce_once(y);
    return coin() ? reduce_once(once) : once;
  }

  /// Something in groups of channels, with what each group has in common.
  NodeId grouped() {
    const std::int64_t positions = pick<std::int64_t>({1, 4, 3});
    const NodeId x = fresh({pick({DType::f32, DType::i32, DType::f64}), {1, 6, positions, 2}});
    const NodeId groups = b_.reshape(coin() ? x : b_.neg(x), {1, 3, 4 * positions});
    const NodeId common = reduce_once(groups);
    if (coin() || b_.dtype(common) != b_.dtype(x) || element_count(b_.shape(common)) != 3)
      return common;
    const NodeId own = b_.broadcast(b_.reshape(common, {1, 3, 1}), b_.shape(groups));
    const NodeId both = b_.map(pick({ScalarFn::sub, ScalarFn::max}), {groups, own});
    return coin() ? reduce_once(both) : b_.reshape(both, b_.shape(x));
  }

  /// Sums over the last two dimensions by one variable that is divided.
  NodeId divided_contraction(NodeId x) {
    const Shape shape = b_.shape(x);
    const std::int64_t inner = shape[2], all = shape[1] * inner;
    const ir::Expr r = ir::Var{2};
    Tensor w({b_.dtype(x), {all, 4}});
    for (std::int64_t i = 0; i < w.count(); ++i) w.set(i, static_cast<double>(i * 3 % 7) - 3);
    return b_.contract(x, b_.constant(w), {shape[0], 4}, {all},
                       {{ir::Var{0}, ir::floor_div(r, inner), ir::floor_mod(r, inner)}, {}},
                       {{r, ir::Var{1}}, {}}, b_.dtype(x));
  }

  /// A filter spread over every other position, as in the gradient of a strided convolution.
  NodeId spread_contraction(NodeId x) {
    const std::int64_t k = b_.shape(x).back(), rows = element_count(b_.shape(x)) / k;
    const std::int64_t step = pick<std::int64_t>({2, 3}), width = pick<std::int64_t>({1, 3, 4});
    ir::Expr at = ir::Expr(ir::Var{1}) - ir::Expr(ir::Var{2}) * ir::Expr(step) +
                  ir::Expr(pick<std::int64_t>({0, 1, 2}));
    Tensor w({b_.dtype(x), {width}});
    for (std::int64_t i = 0; i < width; ++i) w.set(i, static_cast<double>(i) - 0.5);
    return b_.contract(b_.reshape(x, {rows, k}), b_.constant(w), {rows, k * step}, {k},
                       {{ir::Var{0}, ir::Var{2}}, {}}, {{at}, {{at, 0, width}}}, b_.dtype(x));
  }

  NodeId pattern(Shape shape) {
    Tensor w({DType::f32, std::move(shape)});
    for (std::int64_t i = 0; i < w.count(); ++i) w.set(i, static_cast<double>(i * 3 % 7) - 3);
    return b_.constant(w);
  }
  /// A product of rows that are sums of a few others, beside rows of their own.
  NodeId resampled_product() {
    const std::int64_t k = 16, times = pick<std::int64_t>({3, 4}), rows = 2 * times;
    const NodeId x = coin() ? fresh({DType::f32, {2, k}})
                            : b_.add(b_.matmul(fresh({DType::f32, {2, 5}}), pattern({5, k})),
                                     b_.broadcast(pattern({k}), {2, k}));
    const ir::Expr row = ir::floor_div(ir::Var{0}, times);
    NodeId y = b_.view(x, {rows, k}, {{row, ir::Var{1}}, {}});
    y = b_.mul(y, b_.broadcast(pattern({rows, 1}), {rows, k}));
    const NodeId other = b_.view(x, {rows, k}, {{ir::Expr(1) - row, ir::Var{1}}, {}});
    y = coin() ? b_.add(y, other) : b_.sub(y, other);
    if (rng_() % 4 == 0) y = b_.concat({y, fresh({DType::f32, {rows, 2}})}, 1);
    return b_.matmul(y, pattern({b_.shape(y).back(), 3}));
  }
  /// A window's gradient: taps run backwards, both operands have its conditions, and what a strided
  /// one never reads is zero.
  NodeId window_gradient(NodeId x) {
    const std::int64_t k = b_.shape(x).back(), rows = element_count(b_.shape(x)) / k;
    const std::int64_t width = pick<std::int64_t>({2, 3}), out = k + width - 1;
    const ir::Expr at = ir::Expr(ir::Var{1}) - ir::Expr(ir::Var{3});
    Tensor w({b_.dtype(x), {width}});
    for (std::int64_t i = 0; i < width; ++i) w.set(i, static_cast<double>(i) - 0.5);
    const ir::Condition inside{at, 0, k}, even{ir::Var{2}, 0, 1};
    prim::Access own{{ir::Var{0}, at}, {inside}}, filter{{ir::Var{3}}, {inside}};
    if (coin()) own.inside.push_back(even);
    return b_.contract(b_.reshape(x, {rows, k}), b_.constant(w), {rows, out, 2}, {width},
                       std::move(own), std::move(filter), b_.dtype(x));
  }
  /// Positions of two residues that meet taps of their own.
  NodeId residue_contraction(NodeId x) {
    const std::int64_t k = b_.shape(x).back(), rows = element_count(b_.shape(x)) / k;
    const ir::Expr tap =
        ir::Expr(ir::Var{3}) * ir::Expr(2) +
        ir::floor_mod(ir::Expr(ir::Var{2}) + ir::Expr(pick<std::int64_t>({0, 1})), 2);
    Tensor w({b_.dtype(x), {3}});
    for (std::int64_t i = 0; i < 3; ++i) w.set(i, static_cast<double>(i) - 0.5);
    return b_.contract(b_.reshape(x, {rows, k}), b_.constant(w), {rows, k, 2}, {2},
                       {{ir::Var{0}, ir::Var{1}}, {}}, {{tap}, {{tap, 0, 3}}}, b_.dtype(x));
  }

  /// Slices that lie between each other, one behind another; some in no order of digits.
  NodeId slices_in_turn() {
    const auto turns = pick<std::int64_t>({2, 3}), part = pick<std::int64_t>({1, 2});
    const std::int64_t pieces = coin() ? turns : 2 * turns;
    const NodeId x = fresh({DType::f32, {part, 2 * turns, 4}});
    View v;
    for (std::int64_t k = 0; k < pieces; ++k) {
      const ir::Expr at = ir::Var{0}, from(k * part);
      v.pieces.push_back({{at - from, var(1) * ir::Expr(turns) + ir::Expr(k % turns),
                           var(2) * ir::Expr(2) + ir::Expr(k / turns)},
                          {{at, k * part, (k + 1) * part}}});
    }
    if (rng_() % 4 == 0) std::swap(v.pieces[0].index[1], v.pieces[1].index[1]);
    return g_.add(std::move(v), std::vector(static_cast<std::size_t>(pieces), x),
                  {DType::f32, {part * pieces, 2, 2}});
  }
  /// Taps in whole steps and taps between them.
  NodeId taps_in_turn() {
    const auto steps = pick<std::int64_t>({2, 3}), taps = pick<std::int64_t>({2, 3});
    const std::int64_t places = 4;
    const ir::Expr whole = var(1) + var(2) - ir::Expr(1);
    const ir::Expr at = whole * ir::Expr(coin() ? steps : steps + 1) + var(3);
    const std::int64_t extent = places * (steps + 1);
    Access from{{var(0), at}, {{at, 0, extent}}};
    if (coin()) from.inside.push_back({whole, 0, places - 1});
    Tensor w({DType::f32, {taps, steps}});
    for (std::int64_t i = 0; i < w.count(); ++i) w.set(i, static_cast<double>(i % 5) - 1.5);
    const NodeId x = fresh({DType::f32, {3, extent}}), y = b_.constant(w);
    Access filter{{var(2), var(3)}, {}};
    const Shape out{3, places}, terms{taps, steps};
    return coin() ? b_.contract(x, y, out, terms, from, filter, DType::f32)
                  : b_.contract(y, x, out, terms, filter, from, DType::f32);
  }

  /// With a constant that is all equal, or a shape that a split or merged dimension reaches.
  NodeId contraction(NodeId x) {
    if (b_.rank(x) == 3 && coin()) return divided_contraction(x);
    const std::int64_t k = b_.shape(x).back();
    if (rng_() % 4 == 0 && is_float(b_.dtype(x))) return spread_contraction(x);
    if (rng_() % 4 == 0 && is_float(b_.dtype(x)))
      return coin() ? window_gradient(x) : residue_contraction(x);
    if (coin()) return b_.matmul(x, b_.full({b_.dtype(x), {k, 3}}, 2));
    if (coin()) {
      const NodeId y = b_.matmul(x, fresh({b_.dtype(x), {k, 3}}));
      std::vector<int> order(b_.shape(y).size());
      std::iota(order.rbegin(), order.rend(), 0);
      return b_.transpose(y, order);
    }
    const NodeId flat = b_.reshape(x, {element_count(b_.shape(x)) / k, k});
    Tensor w({b_.dtype(x), {k, 4}});
    for (std::int64_t i = 0; i < w.count(); ++i) w.set(i, static_cast<double>(i % 5) - 2);
    const NodeId y = b_.matmul(flat, b_.constant(w));
    Shape split = b_.shape(x);
    split.back() = 2;
    split.push_back(2);
    std::vector<int> order(split.size());
    std::iota(order.begin(), order.end(), 0);
    std::swap(order[0], order.back());
    return b_.transpose(b_.reshape(y, split), order);
  }

  /// What the builder would have simplified.
  NodeId raw_view(NodeId x) {
    const Shape& shape = b_.shape(x);
    Access a = identity_access(shape);
    const auto at = rng_() % shape.size();
    if (coin()) a.index[at] = ir::floor_mod(a.index[at] + shape[at], shape[at]);
    a.inside.push_back({ir::Var{static_cast<std::int32_t>(at)}, 0, shape[at] + (coin() ? 0 : -1)});
    return g_.add(View{{a}, 1}, {x}, b_.type(x));
  }

  NodeId step(NodeId x) {
    if (b_.rank(x) > 0 && rng_() % 16 == 0) return raw_view(x);
    if (b_.rank(x) > 0 && b_.dtype(x) == DType::f32 && rng_() % 8 == 0) return contraction(x);
    if (rng_() % 12 == 0) return coin() ? quantised_product() : saturated(values_[0]);
    if (const auto rare = rng_() % 40; rare < 2)
      return rare == 0 ? byte_function() : coin() ? slices_in_turn() : taps_in_turn();
    if (rng_() % 5 == 0) return coin() ? requantised() : requantised_parts();
    if (rng_() % 24 == 0) return coin() ? resampled_product() : grouped();
    if (element_count(b_.shape(x)) > 300) return reduction(x);
    const auto kind = rng_() % 12;
    if (kind < 2) return movement(x);
    if (kind < 4) return reduction(x);
    if (kind < 5) return cast(x);
    return b_.dtype(x) == DType::b1 ? truth(x) : number(x);
  }

  Graph& g_;
  Builder b_;
  std::mt19937& rng_;
  std::vector<NodeId> values_;
};

}  // namespace

Graph random_algebra(std::mt19937& rng, int steps) {
  Graph g;
  Algebra(g, rng).make(steps);
  return g;
}

}  // namespace heddle::prim

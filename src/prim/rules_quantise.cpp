// Rows over the scales and bounds of quantised values: what is left of
// quantising and dequantising between two operators.
#include <algorithm>
#include <cmath>

#include "prim/fold.h"
#include "prim/rewrite.h"

namespace heddle::prim {
namespace {

using ir::Interval;
using ir::ScalarFn;
using Rewritten = std::optional<NodeId>;

constexpr std::int64_t kExact = std::int64_t{1} << 24;  ///< integers up to this are exact in f32

/// The integers that this is in f32, if it is a cast of few enough.
std::optional<NodeId> integers_under(const Graph& g, NodeId id, std::int64_t limit) {
  if (!is_map(g[id], ScalarFn::cast) || g[id].type.dtype != DType::f32) return std::nullopt;
  const NodeId x = g[id].args[0];
  if (!is_int(g[x].type.dtype)) return std::nullopt;
  const Interval range = range_of_integers(g, x);
  return range.low >= -limit && range.high <= limit ? std::optional(x) : std::nullopt;
}

/// A scale whose products and quotients neither overflow nor vanish.
std::optional<double> scale_of(const Graph& g, NodeId id) {
  const auto s = splat_value(g, id);
  return s && *s > 1e-25 && *s < 1e25 ? s : std::nullopt;
}

/// The quotient of a product and its own factor errs by less than a half.
Rewritten round_of_requantised(RewriteContext& c, const Node& n) {
  if (!is_map(n, ScalarFn::round)) return std::nullopt;
  if (integers_under(c.g, n.args[0], kExact)) return n.args[0];
  if (!is_map(c.g[n.args[0]], ScalarFn::div)) return std::nullopt;
  const Node& quotient = c.g[n.args[0]];
  const Node& product = c.g[quotient.args[0]];
  if (!is_map(product, ScalarFn::mul) || product.args[1] != quotient.args[1]) return std::nullopt;
  if (!scale_of(c.g, quotient.args[1]) || !integers_under(c.g, product.args[0], kExact / 16))
    return std::nullopt;
  return product.args[0];
}

Rewritten clamp_of_bounded(RewriteContext& c, const Node& n) {
  const bool most = is_map(n, ScalarFn::min);
  if (!most && !is_map(n, ScalarFn::max)) return std::nullopt;
  const auto limit = splat_value(c.g, n.args[1]);
  const auto x = limit ? integers_under(c.g, n.args[0], kExact) : std::nullopt;
  if (!x) return std::nullopt;
  const Interval range = range_of_integers(c.g, *x);
  const bool idle =
      most ? static_cast<double>(range.high) <= *limit : static_cast<double>(range.low) >= *limit;
  return idle ? std::optional(n.args[0]) : std::nullopt;
}

Rewritten integers_of_floats(RewriteContext& c, const Node& n) {
  const DType to = n.type.dtype;
  if (!is_map(n, ScalarFn::cast) || !is_int(to)) return std::nullopt;
  const auto x = integers_under(c.g, n.args[0], kExact);
  if (!x) return std::nullopt;
  const Interval range = range_of_integers(c.g, *x);
  const bool byte = to == DType::u8 && range.low >= 0 && range.high <= 255;
  if (!byte && to != DType::i32 && to != c.b.dtype(*x)) return std::nullopt;
  return c.b.dtype(*x) == to ? *x : c.b.cast(*x, to);
}

/// x·s with one number s for whole numbers x: what is dequantised.
bool is_dequantised(const Graph& g, NodeId id) {
  return is_map(g[id], ScalarFn::mul) && scale_of(g, g[id].args[1]) &&
         integers_under(g, g[id].args[0], kExact / 16);
}

/// The integers of a quantisation less the least of them, as bytes.
NodeId bytes_of(Builder& b, NodeId x, double scale, double low, double high) {
  const NodeId q = b.max(b.map(ScalarFn::round, {b.div(x, scale)}), b.scalar(DType::f32, low));
  const NodeId bounded = b.min(q, b.scalar(DType::f32, high));
  if (low == 0) return b.cast(bounded, DType::u8);
  const NodeId least = b.scalar_int(DType::i32, static_cast<std::int64_t>(low));
  return b.cast(b.sub(b.cast(bounded, DType::i32), least), DType::u8);
}

/// The parts of a concatenation are quantised where they are made, if each was
/// quantised before.
Rewritten quantised_parts(RewriteContext& c, const Node& n) {
  if (!is_map(n, ScalarFn::cast) || (n.type.dtype != DType::u8 && n.type.dtype != DType::i32))
    return std::nullopt;
  const Node most = c.g[n.args[0]];
  if (!is_map(most, ScalarFn::min) || !is_map(c.g[most.args[0]], ScalarFn::max))
    return std::nullopt;
  const Node least = c.g[most.args[0]];
  const auto low = splat_value(c.g, least.args[1]), high = splat_value(c.g, most.args[1]);
  const auto whole_number = [](double x) { return x == std::trunc(x) && std::abs(x) < 1 << 20; };
  if (!low || !high || !whole_number(*low) || !whole_number(*high) || *high < *low ||
      *high - *low > 255 || (n.type.dtype == DType::u8 && *low != 0))
    return std::nullopt;
  if (!is_map(c.g[least.args[0]], ScalarFn::round)) return std::nullopt;
  const Node quotient = c.g[c.g[least.args[0]].args[0]];
  const auto s = is_map(quotient, ScalarFn::div) ? scale_of(c.g, quotient.args[1]) : std::nullopt;
  const Node all = s ? c.g[quotient.args[0]] : n;
  const auto* parts = std::get_if<View>(&all.op);
  if (parts == nullptr || parts->pieces.size() < 2 || parts->fill != 0) return std::nullopt;
  if (!std::ranges::all_of(all.args, [&](NodeId x) { return is_dequantised(c.g, x); }))
    return std::nullopt;
  std::vector<NodeId> bytes;
  for (const NodeId x : all.args) bytes.push_back(bytes_of(c.b, x, *s, *low, *high));
  View joined = *parts;
  joined.fill = std::clamp(0.0, *low, *high) - *low;
  const NodeId whole = c.g.add(std::move(joined), std::move(bytes), {DType::u8, all.type.shape});
  if (n.type.dtype == DType::u8) return whole;
  const NodeId wide = c.b.cast(whole, n.type.dtype);
  const NodeId offset = c.b.scalar_int(DType::i32, static_cast<std::int64_t>(*low));
  return *low == 0 ? wide : c.b.add(wide, offset);
}

/// The window over what is reduced: a view of one piece, outside it what changes no result.
const Access* window_of(const Graph& g, const Node& n, ir::Monoid fn, double outside) {
  const auto* r = std::get_if<Reduce>(&n.op);
  if (r == nullptr || r->fn != fn || n.type.dtype != DType::f32) return nullptr;
  const auto* v = std::get_if<View>(&g[n.args[0]].op);
  if (v == nullptr || v->pieces.size() != 1) return nullptr;
  const Access& window = v->pieces[0];
  return window.inside.empty() || v->fill == outside ? &window : nullptr;
}
const Access* window_of_max(const Graph& g, const Node& n) {
  return window_of(g, n, ir::Monoid::max, -INFINITY);
}
const Access* window_of_sum(const Graph& g, const Node& n) {
  return window_of(g, n, ir::Monoid::sum, 0);
}

/// The reduction of the window of i·s is that of i, times s.
Rewritten of_scaled(RewriteContext& c, const Node& n, const Access* window) {
  if (window == nullptr) return std::nullopt;
  const Node view = c.g[n.args[0]], product = c.g[view.args[0]];
  if (!is_map(product, ScalarFn::mul) || !integers_under(c.g, product.args[0], kExact))
    return std::nullopt;
  const auto s = scale_of(c.g, product.args[1]);
  if (!s) return std::nullopt;
  const NodeId x = c.g.add(view.op, {product.args[0]}, view.type);
  return c.b.mul(c.g.add(n.op, {x}, n.type), *s);
}
Rewritten max_of_scaled(RewriteContext& c, const Node& n) {
  return of_scaled(c, n, window_of_max(c.g, n));
}
Rewritten sum_of_scaled_window(RewriteContext& c, const Node& n) {
  return of_scaled(c, n, window_of_sum(c.g, n));
}

/// Sums that 16 bits hold are exact there, of twice as many at once.
Rewritten sum_of_integers(RewriteContext& c, const Node& n) {
  const Access* found = window_of_sum(c.g, n);
  if (found == nullptr) return std::nullopt;
  const Access window = *found;
  const Node view = c.g[n.args[0]];
  const std::int64_t terms =
      element_count(view.type.shape) / std::max<std::int64_t>(1, element_count(n.type.shape));
  const auto integers =
      terms > 1 ? integers_under(c.g, view.args[0], INT16_MAX / terms) : std::nullopt;
  if (!integers) return std::nullopt;
  const auto axes = std::get<Reduce>(n.op).axes;
  const NodeId x = c.b.view(c.b.cast(*integers, DType::i16), view.type.shape, window, 0);
  return c.b.cast(c.b.reduce(ir::Monoid::sum, x, axes, false), DType::f32);
}

/// True if some place of every window lies inside, seen for each condition by
/// itself.
bool never_all_outside(const Access& window, const Shape& shape, const std::vector<int>& axes) {
  std::vector<ir::Var> seen;
  for (const ir::Condition& condition : window.inside) {
    std::vector<ir::Var> vars, place;
    ir::collect_variables(condition.expr, vars);
    for (const ir::Var v : vars)
      if (std::find(axes.begin(), axes.end(), v.index) != axes.end()) place.push_back(v);
    if (vars.size() != 2 || place.size() != 1) return false;
    if (std::find(seen.begin(), seen.end(), place[0]) != seen.end()) return false;
    seen.push_back(place[0]);
    const ir::Var kept = vars[vars[0] == place[0] ? 1 : 0];
    std::vector<std::int64_t> at(shape.size(), 0);
    const auto extent = [&](ir::Var v) { return shape[static_cast<std::size_t>(v.index)]; };
    for (std::int64_t i = 0; i < extent(kept); ++i) {
      bool inside = false;
      at[static_cast<std::size_t>(kept.index)] = i;
      for (std::int64_t k = 0; k < extent(place[0]) && !inside; ++k) {
        at[static_cast<std::size_t>(place[0].index)] = k;
        const std::int64_t value = ir::evaluate(condition.expr, at);
        inside = condition.low <= value && value < condition.high;
      }
      if (!inside) return false;
    }
  }
  return true;
}

/// Bytes are compared, four times as many at once, and least where nothing is.
Rewritten max_of_integers(RewriteContext& c, const Node& n) {
  const Access* found = window_of_max(c.g, n);
  if (found == nullptr) return std::nullopt;
  const Access window = *found;
  const Node view = c.g[n.args[0]];
  const auto integers = integers_under(c.g, view.args[0], 255);
  if (!integers || range_of_integers(c.g, *integers).low < 0) return std::nullopt;
  const auto axes = std::get<Reduce>(n.op).axes;
  if (!never_all_outside(window, view.type.shape, axes)) return std::nullopt;
  const NodeId bytes = c.b.cast(*integers, DType::u8);
  const NodeId x = c.b.view(bytes, view.type.shape, window, 0);
  return c.b.cast(c.b.reduce(ir::Monoid::max, x, axes, false), DType::f32);
}

/// Multiplying is faster; what is rounded is computed, so that it has an error
/// of its own.
Rewritten round_of_quotient(RewriteContext& c, const Node& n) {
  if (!is_map(n, ScalarFn::round) || n.type.dtype != DType::f32) return std::nullopt;
  if (!is_map(c.g[n.args[0]], ScalarFn::div)) return std::nullopt;
  const NodeId x = c.g[n.args[0]].args[0];
  const auto s = scale_of(c.g, c.g[n.args[0]].args[1]);
  if (!s || !std::holds_alternative<Map>(c.g[x].op) || is_map(c.g[x], ScalarFn::cast))
    return std::nullopt;
  return c.b.map(ScalarFn::round, {c.b.mul(x, 1 / *s)});
}

/// source(id) for a plain view of a constant.
const Tensor* source_of(const Graph& g, NodeId id) {
  return plain_view(g, id) != nullptr ? g.constant_of(g[id].args[0]) : nullptr;
}
/// The view `like` of its source times what `factor` gives.
template <class Factor>
NodeId scaled_view(RewriteContext& c, NodeId like, const Factor& factor) {
  const Node view = c.g[like];
  const Tensor source = *c.g.constant_of(view.args[0]);
  Tensor out(source.type());
  for (std::int64_t i = 0; i < out.count(); ++i) out.set(i, source.at(i) * factor(i));
  return c.g.add(view.op, {c.b.constant(std::move(out))}, view.type);
}

/// (x + C)·k → x·k + C·k where it is rounded: the factor joins those of x.
Rewritten round_of_scaled_sum(RewriteContext& c, const Node& n) {
  if (!is_map(n, ScalarFn::round) || !is_map(c.g[n.args[0]], ScalarFn::mul)) return std::nullopt;
  const Node product = c.g[n.args[0]];
  const auto k = scale_of(c.g, product.args[1]);
  if (!k || n.type.dtype != DType::f32 || !is_map(c.g[product.args[0]], ScalarFn::add))
    return std::nullopt;
  const Node sum = c.g[product.args[0]];
  if (!c.used_once(n.args[0]) || !c.used_once(product.args[0])) return std::nullopt;
  if (source_of(c.g, sum.args[1]) == nullptr || !is_map(c.g[sum.args[0]], ScalarFn::mul))
    return std::nullopt;
  const NodeId shift = scaled_view(c, sum.args[1], [&](std::int64_t) { return *k; });
  return c.b.map(ScalarFn::round, {c.b.add(c.b.mul(sum.args[0], *k), shift)});
}

/// (i·A)·B → i·(A·B) for integers i and constants.
Rewritten scales_of_integers(RewriteContext& c, const Node& n) {
  if (!is_map(n, ScalarFn::mul) || n.type.dtype != DType::f32) return std::nullopt;
  const Node inner = c.g[n.args[0]];
  if (!is_map(inner, ScalarFn::mul) || !is_map(c.g[inner.args[0]], ScalarFn::cast))
    return std::nullopt;
  if (!is_int(c.b.dtype(c.g[inner.args[0]].args[0]))) return std::nullopt;
  const Tensor *a = source_of(c.g, inner.args[1]), *b = source_of(c.g, n.args[1]);
  if (a == nullptr || b == nullptr) return std::nullopt;
  if (const auto k = scale_of(c.g, n.args[1]))
    return c.b.mul(inner.args[0], scaled_view(c, inner.args[1], [&](std::int64_t) { return *k; }));
  if (c.g[inner.args[1]].op != c.g[n.args[1]].op || a->count() != b->count()) return std::nullopt;
  const Tensor factors = *b;
  return c.b.mul(inner.args[0],
                 scaled_view(c, inner.args[1], [&](std::int64_t i) { return factors.at(i); }));
}

NodeId few_integers(Builder& b) {
  return b.cast(b.graph().add_input("q", {DType::i8, {4, 6}}), DType::f32);
}
NodeId few_bytes(Builder& b) {
  return b.cast(b.graph().add_input("q", {DType::u8, {4, 6}}), DType::f32);
}
/// Of three of the six columns, two apart, the first beginning outside.
NodeId windows(Builder& b, NodeId x, double outside = -INFINITY) {
  const ir::Expr at = ir::Expr(ir::Var{1}) * ir::Expr(2) + ir::Expr(ir::Var{2}) - ir::Expr(1);
  return b.view(x, {4, 3, 3}, {{ir::Var{0}, at}, {{at, 0, 6}}}, outside);
}
NodeId per_column(Builder& b, double first) {
  Tensor t({DType::f32, {6}});
  for (std::int64_t i = 0; i < 6; ++i) t.set(i, first + 0.25 * static_cast<double>(i));
  return b.broadcast(b.constant(t), {4, 6});
}

constexpr RewriteRule kQuantiseRules[] = {
    {"round-of-requantised", "round(i*s / s) -> i, round(i) -> i  for integers i",
     round_of_requantised,
     [](Builder& b) {
       const NodeId x = few_integers(b);
       const NodeId s = b.broadcast(b.scalar(DType::f32, 0.037), {4, 6});
       return b.map(ScalarFn::round, {b.map(ScalarFn::div, {b.mul(x, s), s})});
     }},
    {"clamp-of-bounded", "min(i, c) -> i  for integers i of at most c; max alike", clamp_of_bounded,
     [](Builder& b) { return b.min(few_integers(b), b.scalar(DType::f32, 255)); }},
    {"max-of-scaled", "max(window of i*s) -> max(window of i)*s  for integers i, s > 0",
     max_of_scaled,
     [](Builder& b) { return b.reduce_max(windows(b, b.mul(few_bytes(b), 0.037)), {2}); }},
    {"sum-of-scaled-window", "sum(window of i*s) -> sum(window of i)*s  for integers i",
     sum_of_scaled_window,
     [](Builder& b) {
       return b.reduce(ir::Monoid::sum, windows(b, b.mul(few_bytes(b), 0.037), 0), {2}, false);
     }},
    {"sum-of-integers", "sum(window of cast(q)) -> cast(sum(window of q))  in 16 bits",
     sum_of_integers,
     [](Builder& b) { return b.reduce(ir::Monoid::sum, windows(b, few_bytes(b), 0), {2}, false); }},
    {"max-of-integers", "max(window of cast(q)) -> cast(max(window of q))  for bytes q",
     max_of_integers, [](Builder& b) { return b.reduce_max(windows(b, few_bytes(b)), {2}); }},
    {"quantised-parts", "quantise(concat(q_k*s_k)) -> concat(quantise(q_k*s_k))  for bytes q_k",
     quantised_parts,
     [](Builder& b) {
       const NodeId bytes = few_bytes(b), x = b.mul(bytes, 0.02), y = b.mul(bytes, 0.03);
       const NodeId q = b.map(ScalarFn::round, {b.div(b.concat({x, y}, 1), 0.03)});
       return b.cast(b.min(b.max(q, b.scalar(DType::f32, -120)), b.scalar(DType::f32, 135)),
                     DType::i32);
     }},
    {"integers-of-floats", "cast(cast(i)) -> cast(i)  for integers i that floats hold",
     integers_of_floats,
     [](Builder& b) {
       const NodeId q = b.graph().add_input("q", {DType::i8, {4, 6}});
       const NodeId i = b.sub(b.cast(q, DType::i32), b.scalar_int(DType::i32, 5));
       return b.cast(b.cast(i, DType::f32), DType::i32);
     }},
    {"round-of-quotient", "round(x / s) -> round(x * (1/s))  for computed x", round_of_quotient,
     [](Builder& b) {
       const NodeId x = b.exp(b.graph().add_input("x", {DType::f32, {4, 6}}));
       return b.map(ScalarFn::round, {b.div(x, 0.037)});
     }},
    {"round-of-scaled-sum", "round((x*y + C)*k) -> round(x*y*k + C*k)", round_of_scaled_sum,
     [](Builder& b) {
       const NodeId x = b.graph().add_input("x", {DType::f32, {4, 6}});
       const NodeId sum = b.add(b.mul(x, x), per_column(b, 0.5));
       return b.map(ScalarFn::round, {b.mul(sum, 3.0)});
     }},
    {"scales-of-integers", "i*A*B -> i*(A*B)  for integers i and constants", scales_of_integers,
     [](Builder& b) {
       return b.mul(b.mul(few_integers(b), per_column(b, 0.5)), per_column(b, 2));
     }},
};

}  // namespace

std::span<const RewriteRule> quantise_rules() { return kQuantiseRules; }

}  // namespace heddle::prim

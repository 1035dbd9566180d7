// Rows over the scales and bounds of quantised values: what is left of quantising and dequantising
// between two operators.
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
  if (!is_map(n, ScalarFn::round) || !is_map(c.g[n.args[0]], ScalarFn::div)) return std::nullopt;
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
  if (!is_map(n, ScalarFn::cast) || n.type.dtype != DType::i32) return std::nullopt;
  const auto x = integers_under(c.g, n.args[0], kExact);
  if (!x) return std::nullopt;
  return c.b.dtype(*x) == DType::i32 ? *x : c.b.cast(*x, DType::i32);
}

/// Multiplying is faster; what is rounded is computed, so that it has an error of its own.
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
NodeId per_column(Builder& b, double first) {
  Tensor t({DType::f32, {6}});
  for (std::int64_t i = 0; i < 6; ++i) t.set(i, first + 0.25 * static_cast<double>(i));
  return b.broadcast(b.constant(t), {4, 6});
}

constexpr RewriteRule kRules[] = {
    {"round-of-requantised", "round(i*s / s) -> i  for integers i", round_of_requantised,
     [](Builder& b) {
       const NodeId x = few_integers(b);
       const NodeId s = b.broadcast(b.scalar(DType::f32, 0.037), {4, 6});
       return b.map(ScalarFn::round, {b.map(ScalarFn::div, {b.mul(x, s), s})});
     }},
    {"clamp-of-bounded", "min(i, c) -> i  for integers i of at most c; max alike", clamp_of_bounded,
     [](Builder& b) { return b.min(few_integers(b), b.scalar(DType::f32, 255)); }},
    {"integers-of-floats", "cast(cast(i)) -> cast(i)  for i32 i that floats hold",
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

std::span<const RewriteRule> quantise_rules() { return kRules; }

}  // namespace heddle::prim

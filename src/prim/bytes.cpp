#include "prim/bytes.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "prim/rewrite.h"

namespace heddle::prim {
namespace {

using ir::Interval;
using ir::ScalarFn;

constexpr double kUnknown = std::numeric_limits<double>::infinity();
constexpr int kMostSteps = 24;

double magnitude(const Graph& g, NodeId id, int steps);

double magnitude_of_map(const Graph& g, const Node& n, ScalarFn fn, int steps) {
  const auto of = [&](std::size_t arg) { return magnitude(g, n.args[arg], steps - 1); };
  switch (fn) {
    case ScalarFn::cast:
    case ScalarFn::round:
      return of(0) + 1;
    case ScalarFn::add:
    case ScalarFn::sub:
      return of(0) + of(1);
    case ScalarFn::mul: {
      const double x = of(0), y = of(1);
      return x < kUnknown && y < kUnknown ? x * y : kUnknown;
    }
    case ScalarFn::min:
    case ScalarFn::max:
      return std::max(of(0), of(1));
    default:
      return kUnknown;
  }
}

/// What no element is larger than, nor NaN; kUnknown if that is not seen.
double magnitude(const Graph& g, NodeId id, int steps) {
  const Node& n = g[id];
  if (is_int(n.type.dtype)) {
    const Interval range = range_of_integers(g, id);
    return static_cast<double>(std::max(-range.low, range.high));
  }
  if (const Tensor* t = g.constant_of(id)) {
    double most = 0;
    for (std::int64_t i = 0; i < t->count(); ++i)
      most = std::isnan(t->at(i)) ? kUnknown : std::max(most, std::abs(t->at(i)));
    return most;
  }
  if (steps == 0) return kUnknown;
  if (const auto* m = std::get_if<Map>(&n.op)) return magnitude_of_map(g, n, m->fn, steps);
  if (plain_view(g, id) != nullptr) return magnitude(g, n.args[0], steps - 1);
  return kUnknown;
}

/// Bounds of what was rounded and bounded by whole numbers, the lower ones inside.
std::optional<Interval> bounds_of_rounded(const Graph& g, NodeId x) {
  if (!is_map(g[x], ScalarFn::min) || !is_map(g[g[x].args[0]], ScalarFn::max)) return std::nullopt;
  const Node& most = g[x];
  const Node& least = g[most.args[0]];
  const auto low = splat_value(g, least.args[1]), high = splat_value(g, most.args[1]);
  if (!low || !high || !is_map(g[least.args[0]], ScalarFn::round)) return std::nullopt;
  if (!(*low <= *high && *high - *low <= 255 && std::abs(*low) < 1e6)) return std::nullopt;
  if (*low != std::floor(*low) || *high != std::floor(*high)) return std::nullopt;
  if (*low >= 0 && *high > 255) return std::nullopt;
  return Interval{static_cast<std::int64_t>(*low), static_cast<std::int64_t>(*high)};
}

/// Whether the f32 node is whole numbers of which a byte, less `low`, holds each, and never NaN.
std::optional<std::int64_t> lowest_of_bytes(const Graph& g, NodeId x) {
  if (g[x].type.dtype != DType::f32) return std::nullopt;
  const auto range = bounds_of_rounded(g, x);
  constexpr double kFinite = 1e37;
  if (!range || !(magnitude(g, g[g[x].args[0]].args[0], kMostSteps) < kFinite)) return std::nullopt;
  return range->low >= 0 ? 0 : range->low;
}

/// The node that a cast of this type is of.
std::optional<NodeId> under_cast(const Graph& g, NodeId id, DType to) {
  if (!is_map(g[id], ScalarFn::cast) || g[id].type.dtype != to) return std::nullopt;
  return g[id].args[0];
}

/// The i32 that a node is f32 of, where its elements differ by at most 255 and were rounded.
std::optional<NodeId> small_integers(const Graph& g, NodeId id) {
  const auto y = under_cast(g, id, DType::f32);
  if (!y || !under_cast(g, *y, DType::i32) || !is_float(g[g[*y].args[0]].type.dtype))
    return std::nullopt;
  const Interval range = range_of_integers(g, *y);
  return range.high - range.low <= 255 ? y : std::nullopt;
}

/// Nodes that several read, or one that is no Map; also through the integers.
std::vector<bool> worth_storing(const Graph& g) {
  std::vector<int> readers(static_cast<std::size_t>(g.size()), 0);
  for (const NodeId id : live_nodes(g))
    for (const NodeId arg : g[id].args) {
      const bool map = std::holds_alternative<Map>(g[id].op);
      readers[static_cast<std::size_t>(arg.value)] += map ? 1 : 2;
    }
  std::vector<bool> worth(readers.size());
  for (std::size_t i = 0; i < readers.size(); ++i) worth[i] = readers[i] > 1;
  return worth;
}

/// As the products of bytes have it, so that both are one node.
NodeId through_bytes(Graph& out, NodeId y) {
  Builder b(out);
  const Interval range = range_of_integers(out, y);
  if (range.low >= 0) return b.cast(b.cast(out[y].args[0], DType::u8), DType::f32);
  const NodeId q = b.cast(b.sub(y, b.scalar_int(DType::i32, range.low)), DType::u8);
  return b.add(b.cast(q, DType::f32), static_cast<double>(range.low));
}

}  // namespace

Graph with_bytes(const Graph& g) {
  const std::vector<bool> worth = worth_storing(g);
  return rebuild(g, [&](Graph& out, const Node& n, NodeId old) {
    const NodeId same = out.add(n.op, n.args, n.type);
    const auto y = small_integers(out, same);
    if (!y) return same;
    const auto at = [&](NodeId id) { return worth[static_cast<std::size_t>(id.value)]; };
    const bool free = lowest_of_bytes(out, out[*y].args[0]).has_value();
    return free || at(old) || at(g[old].args[0]) ? through_bytes(out, *y) : same;
  });
}

std::optional<ThroughBytes> without_bytes(const Graph& g, NodeId id) {
  ThroughBytes out;
  NodeId widened = id;
  double low = 0;
  if (is_map(g[id], ScalarFn::add) && g[id].type.dtype == DType::f32) {
    const auto zero = splat_value(g, g[id].args[1]);
    if (!zero) return std::nullopt;
    low = *zero;
    widened = g[id].args[0];
    out.between = {widened};
  }
  const auto bytes = under_cast(g, widened, DType::f32);
  auto x = bytes ? under_cast(g, *bytes, DType::u8) : std::nullopt;
  if (!x) return std::nullopt;
  out.between.push_back(*bytes);
  if (low != 0) {
    if (!is_map(g[*x], ScalarFn::sub) || splat_value(g, g[*x].args[1]) != low) return std::nullopt;
    const NodeId whole = g[*x].args[0];
    out.between.insert(out.between.end(), {*x, whole});
    x = under_cast(g, whole, DType::i32);
    if (!x) return std::nullopt;
  }
  out.value = *x;
  const auto lowest = lowest_of_bytes(g, out.value);
  return lowest && static_cast<double>(*lowest) == low ? std::optional(out) : std::nullopt;
}

}  // namespace heddle::prim

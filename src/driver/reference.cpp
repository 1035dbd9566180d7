#include "driver/reference.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "prim/interpret.h"

namespace heddle::driver {
namespace {

using ir::Monoid;
using ir::ScalarFn;
using prim::Graph;
using prim::Node;
using prim::NodeId;

constexpr double kRounding = 1e-5;

/// A step in each argument alone, or in how elements compare with each other.
enum class StepKind { none, value, order };

StepKind step_of(const Graph& g, const Node& n) {
  if (n.args.empty() || !is_float(g[n.args[0]].type.dtype)) return StepKind::none;
  if (std::holds_alternative<prim::Sort>(n.op)) return StepKind::order;
  if (const auto* r = std::get_if<prim::Reduce>(&n.op))
    return r->fn == Monoid::argmax || r->fn == Monoid::argmin ? StepKind::order : StepKind::none;
  const auto* m = std::get_if<prim::Map>(&n.op);
  if (m == nullptr || m->fn == ScalarFn::isnan || m->fn == ScalarFn::isinf) return StepKind::none;
  constexpr ScalarFn kSteps[] = {ScalarFn::floor,    ScalarFn::ceil, ScalarFn::round,
                                 ScalarFn::trunc,    ScalarFn::sign, ScalarFn::fmod,
                                 ScalarFn::floor_mod};
  const bool steps = std::ranges::find(kSteps, m->fn) != std::end(kSteps);
  return steps || !is_float(n.type.dtype) ? StepKind::value : StepKind::none;  // comparisons, casts
}

/// True if results are some of the arguments' numbers, up to their sign.
bool keeps_numbers(const Node& n) {
  if (const auto* m = std::get_if<prim::Map>(&n.op))
    return m->fn == ScalarFn::neg || m->fn == ScalarFn::abs || m->fn == ScalarFn::min ||
           m->fn == ScalarFn::max || m->fn == ScalarFn::select;
  if (const auto* r = std::get_if<prim::Reduce>(&n.op))
    return r->fn == Monoid::max || r->fn == Monoid::min;
  return std::holds_alternative<prim::View>(n.op) || std::holds_alternative<prim::Gather>(n.op);
}

double epsilon(DType type) {
  if (!is_float(type)) return 0;
  return type == DType::bf16 ? 0x1p-8 : type == DType::f16 ? 0x1p-11 : kRounding;
}

/// True if the result is a whole number, on whichever side of a step it lies.
bool makes_whole(const Node& n) {
  const auto* m = std::get_if<prim::Map>(&n.op);
  return m != nullptr &&
         (m->fn == ScalarFn::floor || m->fn == ScalarFn::ceil || m->fn == ScalarFn::round ||
          m->fn == ScalarFn::trunc || m->fn == ScalarFn::sign);
}

/// True if whole numbers make whole numbers, without rounding as long as the type holds them.
bool keeps_whole(const Node& n) {
  const auto* m = std::get_if<prim::Map>(&n.op);
  return m != nullptr && (m->fn == ScalarFn::add || m->fn == ScalarFn::sub ||
                          m->fn == ScalarFn::mul || m->fn == ScalarFn::cast);
}

/// Whether all elements are whole numbers so small that the type holds each of them.
bool all_whole(const Tensor& value, DType type) {
  const double most = type == DType::bf16  ? 0x1p8
                      : type == DType::f16 ? 0x1p11
                      : type == DType::f64 ? 0x1p53
                                           : 0x1p24;
  const auto elements = value.as<double>();
  return std::ranges::all_of(
      elements, [&](double v) { return std::abs(v) <= most && v == std::nearbyint(v); });
}

/// By node of a cluster: how far, as a share of the scale, rounding may move it; 0 outside. With
/// the nodes' values whole numbers are known, of which rounding changes none.
std::map<NodeId, double> slack_of(const Graph& g, const std::vector<NodeId>& nodes,
                                  const NodeValues* values) {
  std::map<NodeId, double> slack;
  for (const NodeId id : nodes) {
    const Node& n = g[id];
    const DType type = n.type.dtype;
    double worst = 0;
    for (const NodeId a : n.args)
      if (const auto at = slack.find(a); at != slack.end()) worst = std::max(worst, at->second);
    const auto whole = [&] { return values != nullptr && all_whole(values->at(id), type); };
    // What a step gives is exact, on whichever side.
    if (!is_float(type) || n.args.empty() || (makes_whole(n) && (size_of(type) > 2 || whole())))
      worst = 0;
    else if (!keeps_numbers(n) && !(worst == 0 && keeps_whole(n) && whole()))
      worst = std::max(worst, epsilon(type));
    slack[id] = worst;
  }
  return slack;
}

bool is_uncertain_step(const Graph& g, NodeId id, const std::map<NodeId, double>& slack) {
  return step_of(g, g[id]) != StepKind::none && std::ranges::any_of(g[id].args, [&](NodeId a) {
           const auto at = slack.find(a);
           return at != slack.end() && at->second > 0;
         });
}

/// `t` moved by `share` of its scale; for steps of order, every other element the other way.
Tensor moved(const Tensor& t, double share, StepKind step) {
  Tensor out(t.type());
  const auto from = t.as<double>();
  const auto to = out.as_mutable<double>();
  double scale = 0;
  for (const double v : from)
    if (std::isfinite(v)) scale = std::max(scale, std::abs(v));
  for (std::size_t i = 0; i < from.size(); ++i)
    to[i] = from[i] + (step == StepKind::order && i % 2 == 1 ? -share : share) * scale;
  return out;
}

/// What a kernel may do to its own values: keep those of 16-bit types wide, store the outputs and
/// read them again, or store all. Arguments of uncertain steps are moved up (1) or down (-1).
struct Way {
  /// `overflow`: nothing is rounded, but what the type does not hold is infinite.
  enum class Round { none, outputs, all, overflow } round = Round::none;
  int side = 0;
};

/// A cast to a shorter real type.
bool narrows(const Graph& g, NodeId id) {
  const auto* map = std::get_if<prim::Map>(&g[id].op);
  if (map == nullptr || map->fn != ScalarFn::cast) return false;
  const DType from = g[g[id].args[0]].type.dtype, to = g[id].type.dtype;
  return is_float(from) && is_float(to) && size_of(to) == 2;
}

/// Beyond it a number is stored as infinity.
double largest_of(DType type) {
  constexpr double kHalf = 65520, kBf16 = 0x1.FFp127;  // these round to the next powers of two
  if (type == DType::f16) return kHalf;
  if (type == DType::bf16) return kBf16;
  return type == DType::f64 ? std::numeric_limits<double>::max()
                            : std::numeric_limits<float>::max();
}
double held(double v, double largest) {
  return std::abs(v) > largest ? std::copysign(INFINITY, v) : v;
}

/// Values of the cluster's nodes that the kernel may give: all, or its outputs.
enum class Kept { all, outputs };
NodeValues evaluate(const Graph& g, const lower::Cluster& cluster, const NodeValues& read,
                    const std::map<NodeId, double>& slack, Way way, Kept kept) {
  NodeValues values;
  std::map<NodeId, int> left = reads_in(g, cluster);
  const auto drop_read = [&](NodeId id) {
    if (kept == Kept::outputs)
      for (const NodeId a : g[id].args)
        if (--left[a] == 0) values.erase(a);
  };
  for (const NodeId id : cluster.nodes) {
    const bool moves = way.side != 0 && is_uncertain_step(g, id, slack);
    std::vector<Tensor> args;
    for (std::size_t i = 0; i < g[id].args.size(); ++i) {
      const NodeId a = g[id].args[i];
      const auto inside = values.find(a);
      const Tensor* constant = g.constant_of(a);
      if (inside == values.end() && constant == nullptr)
        HEDDLE_CHECK(read.contains(a), "a kernel reads node {}, which nothing has made", a.value);
      args.push_back(inside != values.end() ? inside->second
                     : constant != nullptr  ? prim::to_reference(*constant)
                                            : prim::to_reference(read.at(a)));
      const auto loose = slack.find(a);
      // Both sides of a comparison move apart.
      if (moves && loose != slack.end() && loose->second > 0)
        args[i] =
            moved(args[i], loose->second * way.side * (i % 2 == 0 ? 1 : -1), step_of(g, g[id]));
    }
    const DType type = g[id].type.dtype;
    // Kernels round what they store.
    Tensor& value = values[id] = narrows(g, id) ? args[0] : prim::evaluate_node(g, id, args);
    const bool output = std::ranges::find(cluster.outputs, id) != cluster.outputs.end();
    if (is_float(type) && size_of(type) == 2 &&
        (way.round == Way::Round::all || (way.round == Way::Round::outputs && output)))
      value = prim::to_reference(prim::from_reference(value, type));
    if (type == DType::f16 && way.round == Way::Round::overflow) {
      Tensor limited = prim::to_reference(value);  // its bytes may be another node's
      for (double& v : limited.as_mutable<double>()) v = held(v, largest_of(type));
      value = std::move(limited);
    }
    drop_read(id);
  }
  return values;
}

/// A value, and how far each element may be away: empty where none is.
struct Ranged {
  Tensor exact, low, high;
  bool wide() const { return low.data() != nullptr; }
};

/// f(i, exact, low, high) for each element; low and high are not empty then.
template <class F>
void each_element(Ranged& r, F&& f) {
  if (!r.wide()) {
    r.low = prim::to_reference(r.exact);
    r.high = prim::to_reference(r.exact);
  }
  const auto all = [&](auto zero) {
    using T = decltype(zero);
    const auto exact = r.exact.as<T>();
    for (std::size_t i = 0; i < exact.size(); ++i)
      f(i, exact[i], r.low.as_mutable<T>()[i], r.high.as_mutable<T>()[i]);
  };
  r.exact.dtype() == DType::f64 ? all(double{}) : all(std::int64_t{});
}

/// Makes the range hold another value too; what is no number tells nothing.
void hold(Ranged& r, const Tensor& value) {
  each_element(r, [&](std::size_t i, auto, auto& low, auto& high) {
    using T = std::remove_reference_t<decltype(low)>;
    const T v = value.as<T>()[i];
    if (v < low) low = v;
    if (v > high) high = v;
  });
}

/// Drops ranges of width 0.
void tidy(Ranged& r) {
  bool wide = false;
  if (r.wide())
    each_element(r, [&](std::size_t, auto, auto low, auto high) { wide |= low != high; });
  if (!wide) r.low = r.high = Tensor();
}

/// f(exact, low, high) for each element.
template <class F>
Tensor of_each(Ranged r, F&& f) {
  Tensor out(r.exact.type());
  each_element(r, [&](std::size_t i, auto exact, auto low, auto high) {
    const auto v = f(exact, low, high);
    out.as_mutable<decltype(exact)>()[i] = v == v ? v : 0;
  });
  return out;
}
Tensor size(const Ranged& r) {
  return of_each(r, [](auto exact, auto, auto) { return exact < 0 ? -exact : exact; });
}
/// high - low; and twice how far the middle is from the exact value.
Tensor width(const Ranged& r) {
  return of_each(r, [](auto, auto low, auto high) { return high - low; });
}
Tensor lean(const Ranged& r) {
  return of_each(r, [](auto exact, auto low, auto high) { return (high - exact) + (low - exact); });
}

}  // namespace

bool is_sum(const Node& n) {
  if (const auto* r = std::get_if<prim::Reduce>(&n.op)) return r->fn == Monoid::sum;
  const auto* s = std::get_if<prim::Scan>(&n.op);
  return s != nullptr && s->fn == Monoid::sum;
}

namespace {

/// A sum, or one of products, each of whose terms may be away on its own: exact + (Σ w·lean ±
/// Σ |w|·width) / 2. Where both factors may be, the range is a bound.
void widen_sum(const Graph& g, NodeId id, const std::vector<Ranged>& args, Ranged& out) {
  const auto sum = [&](std::vector<Tensor> terms) { return prim::evaluate_node(g, id, terms); };
  const auto add = [&](const Tensor& leans, const Tensor& widths) {
    each_element(out, [&](std::size_t i, auto, auto& low, auto& high) {
      using T = std::remove_reference_t<decltype(low)>;
      const T l = leans.as<T>()[i], w = widths.as<T>()[i];
      if (l != l || w != w) return;
      low += (l - w) / 2;
      high += (l + w) / 2;
    });
  };
  if (is_sum(g[id])) return add(sum({lean(args[0])}), sum({width(args[0])}));
  if (args[0].wide())
    add(sum({lean(args[0]), args[1].exact}), sum({width(args[0]), size(args[1])}));
  if (args[1].wide())
    add(sum({args[0].exact, lean(args[1])}), sum({size(args[0]), width(args[1])}));
  if (args[0].wide() && args[1].wide()) {
    const Tensor both = sum({width(args[0]), width(args[1])});
    each_element(out, [&](std::size_t i, auto, auto& low, auto& high) {
      using T = std::remove_reference_t<decltype(low)>;
      low -= both.as<T>()[i];
      high += both.as<T>()[i];
    });
  }
}

/// What a node may give for arguments in these ranges: exactly so for functions that rise or fall
/// in each argument alone, and products; sums by how far each term may be away.
Ranged ranged(const Graph& g, NodeId id, const std::vector<Ranged>& args, Tensor exact) {
  Ranged out{std::move(exact), {}, {}};
  std::vector<std::size_t> wide;
  for (std::size_t i = 0; i < args.size(); ++i)
    if (args[i].wide()) wide.push_back(i);
  if (wide.empty()) return out;
  if (std::holds_alternative<prim::Contract>(g[id].op) || is_sum(g[id])) {
    widen_sum(g, id, args, out);
    return out;
  }
  const bool corners = std::holds_alternative<prim::Map>(g[id].op);  // else all together
  const std::size_t ways = corners ? std::size_t{1} << wide.size() : 2;
  for (std::size_t way = 0; way < ways; ++way) {
    std::vector<Tensor> values;
    for (const Ranged& arg : args) values.push_back(arg.exact);
    for (std::size_t k = 0; k < wide.size(); ++k)
      values[wide[k]] =
          (way >> (corners ? k : 0)) % 2 == 1 ? args[wide[k]].high : args[wide[k]].low;
    hold(out, prim::evaluate_node(g, id, values));
  }
  return out;
}

/// The outputs' ranges if each element of a step's argument is moved by its slack alone: a step may
/// be taken of sums of steps (a product of rounded numbers, rounded again).
std::vector<Ranged> ranges(const Graph& g, const lower::Cluster& cluster, const NodeValues& read,
                           const std::map<NodeId, double>& slack) {
  std::map<NodeId, Ranged> values;
  for (const NodeId id : cluster.nodes) {
    const bool steps = step_of(g, g[id]) == StepKind::value && is_uncertain_step(g, id, slack);
    std::vector<Ranged> args;
    std::vector<Tensor> exact;
    for (const NodeId a : g[id].args) {
      const auto inside = values.find(a);
      const Tensor* constant = g.constant_of(a);
      args.push_back(
          inside != values.end()
              ? inside->second
              : Ranged{prim::to_reference(constant != nullptr ? *constant : read.at(a)), {}, {}});
      Ranged& arg = args.back();
      exact.push_back(arg.exact);
      const auto loose = slack.find(a);
      if (!steps || loose == slack.end() || loose->second == 0) continue;
      if (arg.wide()) {  // its bytes are another node's
        arg.low = prim::to_reference(arg.low);
        arg.high = prim::to_reference(arg.high);
      }
      const Tensor low = moved(arg.wide() ? arg.low : arg.exact, -loose->second, StepKind::value);
      const Tensor high = moved(arg.wide() ? arg.high : arg.exact, loose->second, StepKind::value);
      hold(arg, low);
      hold(arg, high);
    }
    values[id] = ranged(g, id, args, prim::evaluate_node(g, id, exact));
    tidy(values[id]);
  }
  std::vector<Ranged> outputs;
  for (const NodeId id : cluster.outputs) outputs.push_back(values.at(id));
  return outputs;
}

/// Makes [low, high] hold `value`, element by element; NaN wherever one is.
void widen(Allowed& allowed, const Tensor& value) {
  if (allowed.low.data() == nullptr)
    allowed = {allowed.exact,
               prim::to_reference(allowed.exact),
               prim::to_reference(allowed.exact),
               {},
               {}};
  const auto take = [&](auto zero) {
    using T = decltype(zero);
    const auto v = value.as<T>();
    for (std::size_t i = 0; i < v.size(); ++i) {
      T &low = allowed.low.as_mutable<T>()[i], &high = allowed.high.as_mutable<T>()[i];
      if (v[i] < low || v[i] != v[i]) low = v[i];
      if (v[i] > high || v[i] != v[i]) high = v[i];
    }
  };
  value.dtype() == DType::f64 ? take(double{}) : take(std::int64_t{});
}

}  // namespace

bool is_step(const Graph& graph, NodeId node) {
  return step_of(graph, graph[node]) != StepKind::none;
}

std::vector<bool> depend_on_steps(const Graph& graph, const std::vector<NodeId>& nodes) {
  const std::map<NodeId, double> slack = slack_of(graph, nodes, nullptr);
  std::map<NodeId, bool> depends;
  std::vector<bool> out;
  for (const NodeId id : nodes) {
    out.push_back(is_uncertain_step(graph, id, slack) ||
                  std::ranges::any_of(graph[id].args, [&](NodeId a) { return depends[a]; }));
    depends[id] = out.back();
  }
  return out;
}

double Allowed::error_of(const Tensor& found) const {
  const Tensor& least = low.data() != nullptr ? low : exact;
  const Tensor& most = high.data() != nullptr ? high : exact;
  double scale = 0, worst = 0;
  // What float64 holds and the kernel's type does not is infinite there.
  const double largest = largest_of(found.dtype());
  for (std::int64_t i = 0; i < exact.count(); ++i) {
    if (!overflowed.empty() && overflowed[static_cast<std::size_t>(i)]) continue;
    if (!is_float(found.dtype())) {
      const std::int64_t f = found.int_at(i);
      if (f < least.int_at(i) || f > most.int_at(i)) return INFINITY;
      continue;
    }
    const double f = found.at(i), w = held(exact.at(i), largest), l = held(least.at(i), largest),
                 m = held(most.at(i), largest);
    if (std::isfinite(w)) scale = std::max(scale, std::abs(w));
    const bool nan = std::isnan(l) || std::isnan(m);
    if ((f >= l && f <= m) || (std::isnan(f) && nan)) continue;
    if (std::isnan(f) || nan) return INFINITY;
    double error = std::min(std::abs(f - l), std::abs(f - m));
    if (noise.data() != nullptr) {
      const double off = noise.at(i);
      if (f >= held(least.at(i) - off, largest) && f <= held(most.at(i) + off, largest)) continue;
      error = std::max(0.0, error - off);
    }
    worst = std::max(worst, std::isfinite(error) ? error : INFINITY);
  }
  return worst == 0 ? 0 : worst / std::max(scale, 1e-30);
}

std::map<NodeId, int> reads_in(const Graph& graph, const lower::Cluster& cluster) {
  std::map<NodeId, int> reads;
  for (const NodeId id : cluster.nodes)
    for (const NodeId a : graph[id].args) ++reads[a];
  for (const NodeId id : cluster.outputs) ++reads[id];
  return reads;
}

bool allow_overflow(const Graph& graph, const lower::Cluster& cluster, const NodeValues& read,
                    std::span<Allowed> allowed) {
  const NodeValues wide = evaluate(graph, cluster, read, {}, {}, Kept::outputs);
  const NodeValues limited =
      evaluate(graph, cluster, read, {}, {Way::Round::overflow, 0}, Kept::outputs);
  bool any = false;
  for (std::size_t o = 0; o < allowed.size(); ++o) {
    const Tensor &a = wide.at(cluster.outputs[o]), &b = limited.at(cluster.outputs[o]);
    allowed[o].overflowed.assign(static_cast<std::size_t>(a.count()), false);
    for (std::int64_t i = 0; i < a.count(); ++i) {
      const bool same = a.dtype() == DType::f64
                            ? a.at(i) == b.at(i) || (std::isnan(a.at(i)) && std::isnan(b.at(i)))
                            : a.int_at(i) == b.int_at(i);
      allowed[o].overflowed[static_cast<std::size_t>(i)] = !same;
      any = any || !same;
    }
  }
  return any;
}

std::int64_t Allowed::uncertain() const {
  std::int64_t count = 0;
  for (std::int64_t i = 0; low.data() != nullptr && i < low.count(); ++i)
    count += low.at(i) != high.at(i);
  return count;
}

std::vector<Allowed> reference_of(const Graph& graph, const lower::Cluster& cluster,
                                  const NodeValues& read) {
  const NodeValues exact = evaluate(graph, cluster, read, {}, {}, Kept::all);
  const std::map<NodeId, double> slack = slack_of(graph, cluster.nodes, &exact);
  std::vector<Allowed> out;
  for (const NodeId id : cluster.outputs) out.push_back({exact.at(id), {}, {}, {}, {}});
  if (std::ranges::none_of(cluster.nodes,
                           [&](NodeId id) { return is_uncertain_step(graph, id, slack); }))
    return out;
  const bool halves = std::ranges::any_of(
      cluster.nodes, [&](NodeId id) { return epsilon(graph[id].type.dtype) > kRounding; });
  std::vector<Way> ways = {{Way::Round::none, 1}, {Way::Round::none, -1}};
  if (halves) ways.insert(ways.end(), {{Way::Round::outputs, 0}, {Way::Round::all, 0}});
  for (const Way way : ways) {
    const NodeValues values = evaluate(graph, cluster, read, slack, way, Kept::outputs);
    for (std::size_t o = 0; o < out.size(); ++o) widen(out[o], values.at(cluster.outputs[o]));
  }
  const std::vector<Ranged> apart = ranges(graph, cluster, read, slack);
  for (std::size_t o = 0; o < out.size(); ++o) {
    if (!apart[o].wide()) continue;
    widen(out[o], apart[o].low);
    widen(out[o], apart[o].high);
  }
  return out;
}

}  // namespace heddle::driver

#include "driver/rounding.h"

#include <algorithm>
#include <cmath>

#include "prim/interpret.h"

namespace heddle::driver {
namespace {

using prim::Graph;
using prim::Node;
using prim::NodeId;

/// What an operation may be off by, as a share of its result: some units in the last place, since
/// sums are taken in another order and functions approximated.
double unit_of(DType type) {
  switch (type) {
    case DType::bf16:
      return 0x1p-8;
    case DType::f16:
      return 0x1p-11;
    case DType::f64:
      return 0x1p-49;
    default:
      return 0x1p-20;
  }
}

/// A value, and how far it may be off: empty where it is not.
struct Rounded {
  Tensor value, noise;
  bool off() const { return noise.data() != nullptr; }
};

Tensor of_each(const Tensor& x, auto&& f) {
  Tensor out(x.type());
  const auto from = x.as<double>();
  std::ranges::transform(from, out.as_mutable<double>().begin(), f);
  return out;
}
Tensor size(const Tensor& x) {
  return of_each(x, [](double v) { return std::abs(v); });
}

/// Adds share·|from| to `to`; what is no finite number tells nothing.
void add(Tensor& to, const Tensor& from, double share) {
  const auto in = from.as<double>();
  const auto out = to.as_mutable<double>();
  for (std::size_t i = 0; i < in.size(); ++i)
    if (const double more = share * std::abs(in[i]); std::isfinite(more)) out[i] += more;
}

bool moves(const Node& n) {
  return std::holds_alternative<prim::View>(n.op) || std::holds_alternative<prim::Gather>(n.op) ||
         std::holds_alternative<prim::Sort>(n.op) || n.args.empty();
}

/// Σ |terms|, and what the terms' own noise sums to: of a sum, or of a sum of products.
void add_terms(const Graph& g, NodeId id, const std::vector<Rounded>& args, Tensor& noise) {
  const auto sum = [&](std::vector<Tensor> terms) { return prim::evaluate_node(g, id, terms); };
  const double unit = unit_of(g[id].type.dtype);
  if (args.size() == 1) {
    add(noise, sum({size(args[0].value)}), unit);
    if (args[0].off()) add(noise, sum({args[0].noise}), 1);
    return;
  }
  const Tensor first = size(args[0].value), second = size(args[1].value);
  add(noise, sum({first, second}), unit);
  if (args[0].off()) add(noise, sum({args[0].noise, second}), 1);
  if (args[1].off()) add(noise, sum({first, args[1].noise}), 1);
  if (args[0].off() && args[1].off()) add(noise, sum({args[0].noise, args[1].noise}), 1);
}

/// What moving each argument alone by its noise does to the result, or all of them together where
/// that is more (the square of what should be zero).
void add_moved(const Graph& g, NodeId id, const std::vector<Rounded>& args, const Tensor& value,
               Tensor& noise) {
  std::vector<Tensor> values;
  for (const Rounded& arg : args) values.push_back(arg.value);
  const auto move = [&](std::size_t k, double side) {
    values[k] = prim::to_reference(args[k].value);
    const auto moved = values[k].as_mutable<double>();
    const auto by = args[k].noise.as<double>();
    for (std::size_t i = 0; i < moved.size(); ++i) moved[i] += side * by[i];
  };
  const auto widen = [&](Tensor& most) {
    const Tensor there = prim::evaluate_node(g, id, values);
    const auto out = most.as_mutable<double>();
    for (std::size_t i = 0; i < out.size(); ++i)
      if (const double by = std::abs(there.as<double>()[i] - value.as<double>()[i]); by > out[i])
        out[i] = by;
  };
  Tensor alone(value.type()), together(value.type());
  std::vector<std::size_t> off;
  for (std::size_t k = 0; k < args.size(); ++k)
    if (args[k].off()) off.push_back(k);
  for (const std::size_t k : off) {
    Tensor most(value.type());
    for (const double side : {1.0, -1.0}) {
      move(k, side);
      widen(most);
    }
    add(alone, most, 1);
    values[k] = args[k].value;
  }
  for (const double side : {1.0, -1.0}) {
    if (off.size() < 2) break;
    for (const std::size_t k : off) move(k, side);
    widen(together);
  }
  const auto more = together.as<double>();
  const auto out = alone.as_mutable<double>();
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = std::max(out[i], more[i]);
  add(noise, alone, 1);
}

Rounded rounded(const Graph& g, NodeId id, const std::vector<Rounded>& args) {
  const Node& n = g[id];
  std::vector<Tensor> values;
  for (const Rounded& arg : args) values.push_back(arg.value);
  Rounded out{prim::evaluate_node(g, id, values), {}};
  const bool off = std::ranges::any_of(args, &Rounded::off);
  if (!is_float(n.type.dtype) || is_step(g, id) || (moves(n) && !off)) return out;
  out.noise = Tensor(out.value.type());
  constexpr double kTiny = 0x1p-25;  // rounds to zero or to the least number of f16
  if (n.type.dtype == DType::f16) std::ranges::fill(out.noise.as_mutable<double>(), kTiny);
  if (is_sum(n) || std::holds_alternative<prim::Contract>(n.op)) {
    add_terms(g, id, args, out.noise);
    return out;
  }
  if (!moves(n)) add(out.noise, out.value, unit_of(n.type.dtype));
  if (off) add_moved(g, id, args, out.value, out.noise);
  return out;
}

}  // namespace

std::vector<Tensor> rounding_of(const Graph& graph, const lower::Cluster& cluster,
                                const NodeValues& read) {
  std::map<NodeId, Rounded> all;
  std::map<NodeId, int> left = reads_in(graph, cluster);
  for (const NodeId id : cluster.nodes) {
    std::vector<Rounded> args;
    for (const NodeId a : graph[id].args) {
      const auto inside = all.find(a);
      const Tensor* constant = graph.constant_of(a);
      args.push_back(
          inside != all.end()
              ? inside->second
              : Rounded{prim::to_reference(constant != nullptr ? *constant : read.at(a)), {}});
    }
    all[id] = rounded(graph, id, args);
    for (const NodeId a : graph[id].args)
      if (--left[a] == 0) all.erase(a);
  }
  std::vector<Tensor> out;
  for (const NodeId id : cluster.outputs) out.push_back(all.at(id).noise);
  return out;
}

}  // namespace heddle::driver

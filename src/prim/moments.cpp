#include "prim/moments.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "prim/builder.h"
#include "prim/rewrite.h"

namespace heddle::prim {
namespace {

using ir::Expr;
using ir::ScalarFn;

const Reduce* sum_at(const Graph& g, NodeId id) {
  const auto* r = std::get_if<Reduce>(&g[id].op);
  return r != nullptr && r->fn == ir::Monoid::sum ? r : nullptr;
}

double terms_of(const Graph& g, NodeId sum) {
  return static_cast<double>(element_count(g[g[sum].args[0]].type.shape)) /
         static_cast<double>(element_count(g[sum].type.shape));
}

/// The value that `id` repeats along the axes `gone`, its own axes being the others in order.
std::optional<NodeId> repeated_along(const Graph& g, NodeId id, const std::vector<int>& gone) {
  const Access* access = plain_view(g, id);
  if (access == nullptr) return std::nullopt;
  const Shape& shape = g[id].type.shape;
  std::vector<Expr> others;
  for (std::size_t k = 0; k < shape.size(); ++k)
    if (!std::binary_search(gone.begin(), gone.end(), static_cast<int>(k)))
      others.push_back(shape[k] == 1 ? Expr(0) : Expr(ir::Var{static_cast<std::int32_t>(k)}));
  if (access->index != others) return std::nullopt;
  return g[id].args[0];
}

/// x where `id` is x / n, as a quotient or as a product.
std::optional<NodeId> divided_by(const Graph& g, NodeId id, double n) {
  const Node& node = g[id];
  const bool product = is_map(node, ScalarFn::mul);
  if (!product && !is_map(node, ScalarFn::div)) return std::nullopt;
  for (std::size_t k = 0; k < (product ? 2 : 1); ++k) {
    const auto by = splat_value(g, node.args[1 - k]);
    if (by && std::abs((product ? *by * n : *by / n) - 1) < 1e-6) return node.args[k];
  }
  return std::nullopt;
}

std::optional<Deviation> deviation_at(const Graph& g, NodeId id) {
  const Reduce* squares = sum_at(g, id);
  if (squares == nullptr || g[id].type.dtype != DType::f32 || element_count(g[id].type.shape) == 0)
    return std::nullopt;
  const Node& square = g[g[id].args[0]];
  if (!is_map(square, ScalarFn::mul) || square.args[0] != square.args[1]) return std::nullopt;
  const Node& centred = g[square.args[0]];
  if (!is_map(centred, ScalarFn::sub)) return std::nullopt;
  const auto mean = repeated_along(g, centred.args[1], squares->axes);
  const auto sum = mean ? divided_by(g, *mean, terms_of(g, id)) : std::nullopt;
  if (!sum) return std::nullopt;
  const Reduce* first = sum_at(g, *sum);
  const NodeId x = centred.args[0];
  if (first == nullptr || first->axes != squares->axes || g[*sum].type.dtype != DType::f32 ||
      g[*sum].args[0] != x)
    return std::nullopt;
  return Deviation{id, x, *sum};
}

}  // namespace

std::vector<Deviation> deviations(const Graph& g) {
  std::vector<Deviation> out;
  for (const NodeId id : live_nodes(g))
    if (const auto d = deviation_at(g, id)) out.push_back(*d);
  return out;
}

Graph moments_in_one_pass(const Graph& g, const std::function<bool(const Deviation&)>& wanted) {
  std::map<NodeId, Deviation> by_sum, by_squares;
  for (const Deviation& d : deviations(g)) {
    if (!wanted(d)) continue;
    by_sum.emplace(d.sum, d);
    by_squares.emplace(d.squares, d);
  }
  std::map<NodeId, NodeId> wide;  // of a sum in the new graph: its f64 form
  return rebuild(g, [&](Graph& out, const Node& n, NodeId old) {
    Builder b(out);
    if (by_sum.contains(old)) {
      const NodeId x = b.cast(n.args[0], DType::f64);
      wide[old] = b.reduce_sum(x, std::get<Reduce>(n.op).axes, false);
      return b.cast(wide[old], DType::f32);
    }
    const auto d = by_squares.find(old);
    if (d == by_squares.end()) return out.add(n.op, n.args, n.type);
    const NodeId sum = wide.at(d->second.sum), x = out[sum].args[0];
    const NodeId squares = b.reduce_sum(b.mul(x, x), std::get<Reduce>(n.op).axes, false);
    const NodeId about_mean = b.sub(squares, b.div(b.mul(sum, sum), terms_of(g, old)));
    return b.cast(b.max(about_mean, b.scalar(DType::f64, 0)), DType::f32);
  });
}

}  // namespace heddle::prim

#include "prim/bytes.h"

#include "prim/rewrite.h"

namespace heddle::prim {
namespace {

using ir::Interval;
using ir::ScalarFn;

/// The i32 that a node is f32 of, where its elements differ by at most 255 and were rounded.
std::optional<NodeId> small_integers(const Graph& g, const Node& n) {
  if (!is_map(n, ScalarFn::cast) || n.type.dtype != DType::f32) return std::nullopt;
  const NodeId y = n.args[0];
  if (g[y].type.dtype != DType::i32 || !is_map(g[y], ScalarFn::cast)) return std::nullopt;
  if (!is_float(g[g[y].args[0]].type.dtype)) return std::nullopt;
  const Interval range = range_of_integers(g, y);
  return range.high - range.low <= 255 ? std::optional(y) : std::nullopt;
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
  if (range.low >= 0) return b.cast(b.cast(y, DType::u8), DType::f32);
  const NodeId q = b.cast(b.sub(y, b.scalar_int(DType::i32, range.low)), DType::u8);
  return b.add(b.cast(q, DType::f32), static_cast<double>(range.low));
}

}  // namespace

Graph with_bytes(const Graph& g) {
  const std::vector<bool> worth = worth_storing(g);
  return rebuild(g, [&](Graph& out, const Node& n, NodeId old) {
    const auto y = small_integers(out, n);
    const auto at = [&](NodeId id) { return worth[static_cast<std::size_t>(id.value)]; };
    if (!y || !(at(old) || at(g[old].args[0]))) return out.add(n.op, n.args, n.type);
    return through_bytes(out, *y);
  });
}

}  // namespace heddle::prim

#include "plan/reuse.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "plan/facts.h"
#include "support/median.h"

namespace heddle::plan {
namespace {

double bytes_of(const prim::Node& node) {
  return static_cast<double>(element_count(node.type.shape) * size_of(node.type.dtype));
}

/// What a node reads of an operand at the most: the elements that its loops can reach.
double bytes_read(const prim::Graph& g, NodeId id, std::size_t operand) {
  const prim::Node& node = g[id];
  const prim::Node& arg = g[node.args[operand]];
  if (std::holds_alternative<prim::Gather>(node.op)) return std::min(bytes_of(arg), bytes_of(node));
  const auto* contract = std::get_if<prim::Contract>(&node.op);
  if (!contract) return bytes_of(arg);
  std::uint64_t used = 0;
  for (const IndexFacts& i : facts_of(operand == 0 ? contract->lhs : contract->rhs))
    used |= i.variables;
  Shape extents = node.type.shape;
  extents.insert(extents.end(), contract->reduced.begin(), contract->reduced.end());
  double reached = static_cast<double>(size_of(arg.type.dtype));
  for (std::size_t d = 0; d < extents.size(); ++d)
    if (((used >> std::min<std::size_t>(d, 63)) & 1) != 0)
      reached *= static_cast<double>(extents[d]);
  return std::min(bytes_of(arg), reached);
}

}  // namespace

std::vector<double> constants_between(const prim::Graph& g) {
  double all = 0, read = 0;  // bytes; of reads so far
  // By what reads it how: phases of a transposed convolution read other parts of one constant.
  std::map<std::tuple<NodeId, std::size_t, std::size_t>, std::vector<double>> reads;
  for (const NodeId id : prim::live_nodes(g)) {
    const prim::Node& node = g[id];
    if (std::holds_alternative<prim::Constant>(node.op)) all += bytes_of(node);
    if (std::holds_alternative<prim::View>(node.op)) continue;
    for (std::size_t i = 0; i < node.args.size(); ++i) {
      const NodeId from = prim::behind_views(g, node.args[i]);
      if (!std::holds_alternative<prim::Constant>(g[from].op)) continue;
      read += std::min(bytes_read(g, id, i), bytes_of(g[from]));
      reads[{node.args[i], prim::hash_of(node.op), i}].push_back(read);
    }
  }
  std::vector<double> most(static_cast<std::size_t>(g.size()));
  for (const auto& [how, at] : reads) {
    std::vector<double> gaps{at.size() == 1 ? all : read - at.back() + at.front()};
    for (std::size_t i = 1; i < at.size(); ++i) gaps.push_back(at[i] - at[i - 1]);
    double& gap = most[static_cast<std::size_t>(prim::behind_views(g, std::get<0>(how)).value)];
    gap = std::max(gap, std::min(all, median(std::move(gaps))));
  }
  for (std::int32_t i = 0; i < g.size(); ++i) {
    double& gap = most[static_cast<std::size_t>(i)];
    if (gap == 0 && std::holds_alternative<prim::Constant>(g[NodeId{i}].op)) gap = all;
  }
  return most;
}

bool finds_constants_near(const prim::Graph& g, const lower::Cluster& c,
                          const std::vector<double>& between, std::int64_t l2_bytes) {
  const std::vector<NodeId> reads = reads_of(g, c);
  return std::all_of(reads.begin(), reads.end(), [&](NodeId id) {
    return !std::holds_alternative<prim::Constant>(g[id].op) ||
           between[static_cast<std::size_t>(id.value)] <= static_cast<double>(l2_bytes) / 2;
  });
}

}  // namespace heddle::plan

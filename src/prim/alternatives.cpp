#include "prim/alternatives.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "prim/access.h"
#include "prim/builder.h"
#include "prim/fold.h"
#include "support/options.h"

namespace heddle::prim {
namespace {

using ir::Expr;
using ir::Var;

/// The output variable along which a contraction with a constant operand can be cut: it is one
/// plain coordinate of that operand and occurs nowhere else.
struct Cut {
  std::size_t side;  ///< of the constant operand
  Var var;           ///< output variable
  std::size_t axis;  ///< of the constant operand
};

std::optional<Cut> cut_of(const Graph& g, NodeId id) {
  const Node& n = g[id];
  const auto* k = std::get_if<Contract>(&n.op);
  if (k == nullptr) return std::nullopt;
  for (std::size_t side = 0; side < 2; ++side) {
    if (g.constant_of(n.args[side]) == nullptr || g.constant_of(n.args[1 - side]) != nullptr)
      continue;
    const Access& mine = side == 0 ? k->lhs : k->rhs;
    const Access& other = side == 0 ? k->rhs : k->lhs;
    for (std::size_t axis = 0; axis < mine.index.size(); ++axis) {
      const auto v = mine.index[axis].variable();
      if (!v || v->index >= static_cast<std::int32_t>(n.type.shape.size())) continue;
      if (depends_on(other, *v)) continue;
      Access rest = mine;
      rest.index.erase(rest.index.begin() + static_cast<std::ptrdiff_t>(axis));
      if (!depends_on(rest, *v)) return Cut{side, *v, axis};
    }
  }
  return std::nullopt;
}

/// What contractions must share to be merged: everything but the constant's content and its extent
/// along the cut.
auto merge_key(const Graph& g, NodeId id, const Cut& cut) {
  const Node& n = g[id];
  Shape out = n.type.shape, operand = g[n.args[cut.side]].type.shape;
  out[static_cast<std::size_t>(cut.var.index)] = 0;
  operand[cut.axis] = 0;
  return std::tuple(n.args[1 - cut.side], cut.side, cut.var, cut.axis, std::get<Contract>(n.op),
                    n.type.dtype, std::move(out), std::move(operand));
}

std::vector<Alternative> merge_contractions(Graph& g) {
  constexpr std::int64_t kMaxBytes = std::int64_t{64} << 20;
  struct Member {
    NodeId id;
    Cut cut;
  };
  using Key = decltype(merge_key(g, NodeId{}, Cut{}));
  std::map<Key, std::vector<Member>> groups;
  for (const NodeId id : live_nodes(g))
    if (const auto cut = cut_of(g, id)) groups[merge_key(g, id, *cut)].push_back({id, *cut});
  std::vector<Alternative> found;
  Builder b(g);
  for (const auto& [key, members] : groups) {
    if (members.size() < 2) continue;
    const Cut cut = members[0].cut;
    std::vector<NodeId> operands;
    std::int64_t bytes = 0;
    for (const Member& m : members) {
      operands.push_back(g[m.id].args[cut.side]);
      bytes += g.constant_of(operands.back())->bytes();
    }
    if (bytes > kMaxBytes) continue;
    const NodeId joined = b.concat(operands, static_cast<int>(cut.axis));
    const auto constant = evaluate_constant(g, joined, {.max_bytes = kMaxBytes});
    if (!constant) continue;
    const Node first = g[members[0].id];
    const auto along = static_cast<std::size_t>(cut.var.index);
    TensorType type = first.type;
    type.shape[along] = 0;
    for (const Member& m : members) type.shape[along] += g[m.id].type.shape[along];
    std::vector<NodeId> args = first.args;
    args[cut.side] = g.add_constant(*constant);
    g.set_origin(g.origin_id(members[0].id));
    const NodeId merged = g.add(first.op, std::move(args), type);
    for (const Member& m : members) g.add_origins(merged, g.origins_of(m.id));
    std::int64_t start = 0;
    for (const Member& m : members) {
      const std::int64_t size = g[m.id].type.shape[along];
      g.set_origin(g.origin_id(m.id));
      found.push_back({m.id, b.slice_axis(merged, cut.var.index, start, size), {}});
      start += size;
    }
  }
  return found;
}

/// Sums over f32 and f64 as products with ones, which the contraction kernels then do.
std::vector<Alternative> sum_as_contraction(Graph& g) {
  std::vector<Alternative> found;
  Builder b(g);
  for (const NodeId id : live_nodes(g)) {
    const Node n = g[id];
    const auto* r = std::get_if<Reduce>(&n.op);
    const bool wide = n.type.dtype == DType::f32 || n.type.dtype == DType::f64;
    if (r == nullptr || r->fn != ir::Monoid::sum || !wide) continue;
    const Shape from = b.shape(n.args[0]);
    Shape reduced;
    Access read, ones;
    std::int32_t out = 0;
    for (std::size_t k = 0; k < from.size(); ++k) {
      const bool is_reduced =
          std::binary_search(r->axes.begin(), r->axes.end(), static_cast<int>(k));
      const auto rank = static_cast<std::int32_t>(n.type.shape.size());
      read.index.push_back(
          Var{is_reduced ? rank + static_cast<std::int32_t>(reduced.size()) : out++});
      if (!is_reduced) continue;
      ones.index.push_back(read.index.back());
      reduced.push_back(from[k]);
    }
    Tensor one({n.type.dtype, reduced});
    if (one.bytes() > (1 << 20)) continue;
    for (std::int64_t i = 0; i < one.count(); ++i) one.set(i, 1);
    g.set_origin(g.origin_id(id));
    const NodeId sum =
        b.contract(n.args[0], b.constant(one), n.type.shape, reduced, read, ones, n.type.dtype);
    g.add_origins(sum, g.origins_of(id));
    found.push_back({id, sum, {}});
  }
  return found;
}

constexpr AlternativeRule kAlternativeRules[] = {
    {"merge-contractions", "x @ w1, x @ w2 -> slices of x @ [w1 w2]  (Q, K and V)",
     merge_contractions},
    {"sum-as-contraction", "sum(x) -> x @ ones", sum_as_contraction},
    {"separable-extremes", "max over windows -> max over rows of max over columns",
     separable_extremes},
    {kPositionsAsColumns,
     "x @ w of few columns over windows -> x @ [w for neighbouring positions] (an infinity may "
     "give NaN beside it)",
     positions_as_columns},
};

}  // namespace

std::span<const AlternativeRule> alternative_rules() { return kAlternativeRules; }

std::vector<Alternative> find_alternatives(Graph& g, std::string_view disable) {
  std::vector<Alternative> all;
  for (const AlternativeRule& rule : kAlternativeRules) {
    if (lists(disable, rule.name)) continue;
    for (Alternative a : rule.find(g)) {
      a.rule = rule.name;
      if (a.node != a.equal) all.push_back(a);
    }
  }
  g.set_origin(OriginId{});
  return all;
}

std::vector<NodeId> classes_of(const Graph& g, std::span<const Alternative> alternatives) {
  std::vector<NodeId> of(static_cast<std::size_t>(g.size()));
  for (std::int32_t i = 0; i < g.size(); ++i) of[static_cast<std::size_t>(i)] = NodeId{i};
  const auto root = [&](NodeId id) {
    while (of[static_cast<std::size_t>(id.value)] != id)
      id = of[static_cast<std::size_t>(id.value)];
    return id;
  };
  for (const Alternative& a : alternatives) {
    const NodeId x = root(a.node), y = root(a.equal);
    // The older node stands for the class: the outputs name it.
    of[static_cast<std::size_t>(std::max(x, y).value)] = std::min(x, y);
  }
  for (std::int32_t i = 0; i < g.size(); ++i) of[static_cast<std::size_t>(i)] = root(NodeId{i});
  return of;
}

}  // namespace heddle::prim

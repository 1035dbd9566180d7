#include "lower/joins.h"

#include <algorithm>
#include <optional>
#include <unordered_map>
#include <unordered_set>

namespace heddle::lower {
namespace {

using ir::Expr;
using ir::Var;

/// What a piece reads: all of a value, `first` positions further along the axis than its own.
struct Shifted {
  int axis;
  std::int64_t first;
};
std::optional<Shifted> shifted(const prim::Access& piece, const Shape& part, const Shape& whole) {
  if (piece.inside.size() != 1) return std::nullopt;
  const ir::Condition& inside = piece.inside[0];
  const auto along = inside.expr.variable();
  if (!along) return std::nullopt;
  const auto axis = static_cast<std::size_t>(along->index);
  if (axis >= whole.size() || part.size() != whole.size() ||
      inside.high - inside.low != part[axis] ||
      piece.index[axis] != Expr(*along) - Expr(inside.low))
    return std::nullopt;
  for (std::size_t d = 0; d < whole.size(); ++d) {
    const Expr own = whole[d] == 1 ? Expr(0) : Expr(Var{static_cast<std::int32_t>(d)});
    if (d != axis && (part[d] != whole[d] || piece.index[d] != own)) return std::nullopt;
  }
  return Shifted{static_cast<int>(axis), inside.low};
}

/// As if it were its own root.
std::optional<Join> join_at(const prim::Graph& g, NodeId id) {
  constexpr std::int64_t kAligned = 16;  // bytes; vectors of less would be of many parts
  const auto* view = std::get_if<prim::View>(&g[id].op);
  if (view == nullptr || view->pieces.size() < 2) return std::nullopt;
  const auto& [dtype, shape] = g[id].type;
  Join join{id, id, 0, 0, {}};
  std::int64_t end = 0;
  for (std::size_t k = 0; k < view->pieces.size(); ++k) {
    const NodeId part = g[id].args[k];
    const Shape& extents = g[part].type.shape;
    const auto at = shifted(view->pieces[k], extents, shape);
    if (!at || element_count(extents) == 0 || at->first != end || (k > 0 && at->axis != join.axis))
      return std::nullopt;
    join.axis = at->axis;
    end += extents[static_cast<std::size_t>(at->axis)];
    if (at->first * size_of(dtype) % kAligned != 0) return std::nullopt;
    join.parts.push_back({part, at->first});
  }
  const std::int64_t all = shape[static_cast<std::size_t>(join.axis)];
  if (end != all || all * size_of(dtype) % kAligned != 0) return std::nullopt;
  return join;
}

bool is_computed(const prim::Graph& g, NodeId id) {
  return !std::holds_alternative<prim::Input>(g[id].op) &&
         !std::holds_alternative<prim::Constant>(g[id].op);
}

}  // namespace

std::vector<Join> joins_of(const prim::Graph& g, const Target& target) {
  std::vector<Join> all, out;
  if (target.is_gpu() || !target.joins) return out;
  std::unordered_set<NodeId> outputs;
  for (const prim::GraphOutput& o : g.outputs) outputs.insert(o.node);
  const auto stays = [&](NodeId id) { return is_computed(g, id) && !outputs.contains(id); };
  for (const NodeId id : prim::live_nodes(g))
    if (auto join = join_at(g, id);
        join && stays(id) &&
        std::ranges::all_of(join->parts, [&](const Join::Part& p) { return stays(p.node); }))
      all.push_back(*std::move(join));
  std::ranges::stable_sort(all, std::greater{},
                           [&](const Join& j) { return element_count(g[j.whole].type.shape); });
  std::unordered_map<NodeId, Member> placed;
  for (Join& join : all) {
    // Parts of a longer one, one after the other there, too; or of none.
    const auto first = placed.find(join.parts[0].node);
    const Member root = first == placed.end() ? Member{join.whole, join.axis, 0} : first->second;
    const bool fresh = first == placed.end();
    std::unordered_set<NodeId> own;
    const bool fits = std::ranges::all_of(join.parts, [&](const Join::Part& p) {
      const auto at = placed.find(p.node);
      if (!own.insert(p.node).second) return false;
      if (fresh) return at == placed.end();
      return at != placed.end() && at->second == Member{root.root, join.axis, root.first + p.first};
    });
    if (!fits || (fresh && placed.contains(join.whole))) continue;
    join.root = root.root;
    join.first = root.first;
    for (Join::Part& p : join.parts) {
      p.first += root.first;
      placed.try_emplace(p.node, Member{root.root, join.axis, p.first});
    }
    placed.try_emplace(join.whole, root);
    out.push_back(std::move(join));
  }
  return out;
}

Place place_in(const Layout& root, const Shape& part, int axis, std::int64_t first) {
  Place place{{root.strides, 1}, first * root.strides[static_cast<std::size_t>(axis)]};
  for (std::size_t d = 0; d < part.size(); ++d)
    place.layout.size += (part[d] - 1) * root.strides[d];
  return place;
}

}  // namespace heddle::lower

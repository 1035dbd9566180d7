#include <algorithm>
#include <map>

#include "plan/regions.h"

namespace heddle::plan {
namespace {

/// Nodes are named by position, arguments outside the region by first use.
struct Naming {
  const Facts& f;
  std::map<NodeId, int> names = {};
  int outside = 0;
  Naming(const Facts& facts, const Region& r) : f(facts) {
    for (std::size_t i = 0; i < r.nodes.size(); ++i) names[r.nodes[i]] = static_cast<int>(i);
  }
  int of(NodeId id) {
    auto [it, fresh] = names.try_emplace(id, -1 - outside);
    if (fresh) ++outside;
    return it->second;
  }
  int kind_of(NodeId id) const {
    return f.is_inlined(id) ? 0 : f.as<prim::Constant>(id) ? 1 : f.is_leaf(id) ? 2 : 3;
  }
};

bool is_region_output(const Region& r, NodeId id) {
  return std::binary_search(r.outputs.begin(), r.outputs.end(), id);
}

/// A view of one part as if it started at the origin.
prim::Op without_offsets(const prim::Op& op) {
  const auto* view = std::get_if<prim::View>(&op);
  if (view == nullptr || view->pieces.size() != 1) return op;
  prim::View moved = *view;
  for (ir::Expr& e : moved.pieces[0].index) {
    const ir::IndexNode& n = e.node();
    if (n.kind == ir::IndexNode::Kind::sum && n.constant != 0 && n.constant != INT64_MIN)
      e = e - n.constant;
  }
  return moved;
}

}  // namespace

std::size_t structural_hash(const Facts& f, const Region& r) {
  Naming naming(f, r);
  std::size_t h = r.nodes.size();
  for (NodeId id : r.nodes) {
    h = combine(h, prim::hash_of(without_offsets(f[id].op)));
    h = combine(h, static_cast<std::size_t>(f[id].type.dtype));
    for (std::int64_t e : f[id].type.shape) h = combine(h, static_cast<std::size_t>(e));
    for (NodeId a : f[id].args) {
      h = combine(h, static_cast<std::size_t>(naming.of(a)));
      h = combine(h, static_cast<std::size_t>(naming.kind_of(a)));
    }
    h = combine(h, is_region_output(r, id));
  }
  return h;
}

Likeness likeness(const Facts& f, const Region& a, const Region& b) {
  if (a.nodes.size() != b.nodes.size()) return Likeness::none;
  Likeness found = Likeness::same;
  Naming in_a(f, a), in_b(f, b);
  for (std::size_t i = 0; i < a.nodes.size(); ++i) {
    const prim::Node &x = f[a.nodes[i]], &y = f[b.nodes[i]];
    if (x.type != y.type || x.args.size() != y.args.size()) return Likeness::none;
    if (x.op != y.op) {
      if (without_offsets(x.op) != without_offsets(y.op)) return Likeness::none;
      found = Likeness::like;
    }
    if (is_region_output(a, a.nodes[i]) != is_region_output(b, b.nodes[i])) return Likeness::none;
    const NodeId class_a = f.class_of_node(a.nodes[i]), class_b = f.class_of_node(b.nodes[i]);
    if (in_a.of(class_a) != in_b.of(class_b)) return Likeness::none;
    for (std::size_t k = 0; k < x.args.size(); ++k) {
      if (in_a.of(x.args[k]) != in_b.of(y.args[k]) ||
          in_a.kind_of(x.args[k]) != in_b.kind_of(y.args[k]) ||
          f[x.args[k]].type != f[y.args[k]].type) {
        return Likeness::none;
      }
    }
  }
  return found;
}

}  // namespace heddle::plan

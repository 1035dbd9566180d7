#include "plan/loops.h"

#include <algorithm>

namespace heddle::plan {

namespace {
constexpr std::size_t kMaxUses = 8;
}  // namespace

Loops::Loops(const Facts& facts) : f(facts) {
  local.resize(static_cast<std::size_t>(f.graph->size()), -1);
}

void Loops::enter(const std::vector<NodeId>& nodes) {
  extents.clear();
  reductions.clear();
  hoists.clear();
  reads.clear();
  uses.assign(nodes.size(), {});
  for (std::size_t i = 0; i < nodes.size(); ++i)
    local[static_cast<std::size_t>(nodes[i].value)] = static_cast<int>(i);
}

void Loops::leave(const std::vector<NodeId>& nodes) {
  for (NodeId id : nodes) local[static_cast<std::size_t>(id.value)] = -1;
}

double Loops::product(std::uint64_t mask) const {
  double p = 1;
  for (std::size_t l = 0; mask && l < extents.size() && l < 64; ++l)
    if (mask >> l & 1) p *= extents[l];
  return p;
}

int Loops::new_loop(std::int64_t extent) {
  extents.push_back(static_cast<double>(extent));
  return static_cast<int>(std::min<std::size_t>(extents.size() - 1, 63));
}

void Loops::add_use(NodeId id, Use use) {
  const int position = local[static_cast<std::size_t>(id.value)];
  std::vector<Use>* list = nullptr;
  if (position >= 0) {
    list = &uses[static_cast<std::size_t>(position)];
  } else if (!f.is_inlined(id)) {
    auto r = std::find_if(reads.begin(), reads.end(), [&](const Read& x) { return x.node == id; });
    if (r == reads.end()) r = reads.insert(reads.end(), {id, {}});
    list = &r->uses;
  } else {
    return;
  }
  if (std::find(list->begin(), list->end(), use) != list->end()) return;
  if (list->size() >= kMaxUses) {
    list->back().scale += use.scale;
    return;
  }
  list->push_back(std::move(use));
}

Use Loops::through(const AccessFacts& access, const std::vector<Dim>& vars, const Use& reader) {
  Use out;
  out.innermost = reader.innermost;
  out.instead = reader.instead;
  out.scale = reader.scale;
  out.operand = reader.operand;
  for (const IndexFacts& index : access) {
    Dim d;
    for (std::size_t v = 0; v < vars.size(); ++v) {
      const std::uint64_t b = std::uint64_t{1} << std::min<std::size_t>(v, 63);
      if (index.variables & b) d.loops |= vars[v].loops;
      if (index.unit & b) d.unit |= vars[v].unit;
    }
    out.dims.push_back(d);
  }
  return out;
}

Use Loops::root_use(NodeId id, std::vector<std::pair<Shape, Use>>& roots) {
  const Shape& shape = f[id].type.shape;
  for (const auto& [s, use] : roots)
    if (s == shape) return use;
  Use use;
  for (std::int64_t extent : shape) {
    const int l = new_loop(extent);
    use.dims.push_back({bit(l), bit(l)});
    if (extent > 1) use.innermost = l;
  }
  roots.push_back({shape, use});
  return use;
}

std::vector<int> Loops::loops_for(std::uint64_t outer, const Shape& over, int depth) {
  for (const Reduction& r : reductions)
    if (r.outer == outer && r.extents == over && r.depth == depth) return r.loops;
  Reduction r{outer, over, depth, {}};
  for (std::int64_t e : over) r.loops.push_back(new_loop(e));
  reductions.push_back(r);
  return r.loops;
}

std::uint64_t Loops::hoist(std::uint64_t mask, double& scale) {
  std::uint64_t more = 0;
  for (std::uint64_t h : hoists)
    if ((h & ~mask) && (mask & ~h)) more |= h & ~mask;
  if (more) scale *= product(more);
  hoists.push_back(mask | more);
  return mask | more;
}

std::uint64_t Loops::outermost() const {
  std::uint64_t mask = ~std::uint64_t{0};
  for (std::uint64_t h : hoists) mask &= h;
  return mask;
}

std::uint64_t Loops::first_loops(const std::vector<std::pair<Shape, Use>>& roots) {
  std::uint64_t mask = 0;
  for (const auto& [shape, use] : roots) mask |= use.mask();
  return mask;
}

}  // namespace heddle::plan

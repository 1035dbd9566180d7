// Values that many rows of a nest share, along the lanes: the gates of squeeze-and-excitation, a
// normalisation's factors by channel. A task computes them once, before its loops; what the lanes
// do not change is left to the compiler, which takes it out of the loops.
#include <algorithm>
#include <map>

#include "lower/stitch/nest.h"

namespace heddle::lower::stitch {

using kernel::Store;

namespace {

constexpr double kWorthKeeping = 8;  // vector operations
constexpr std::int64_t kLeastRepeats = 4;
constexpr std::int64_t kMostKept = 4096;  // elements of all, which stay in the first-level cache

/// What the values of a nest are computed from, at one position.
struct Shared {
  double work = 0;  ///< vector operations, from what lies in memory
  bool reduces = false;
  bool follows = true;  ///< each coordinate is one of the nest's, or the only one there is
  std::vector<Var> vars;
};

}  // namespace

/// All of a node in scratch memory, from the current level on.
void Emitter::keep(NodeId node) {
  const Shape& shape = g_[node].type.shape;
  std::size_t last = shape.size();
  for (std::size_t d = 0; d < shape.size(); ++d)
    if (shape[d] > 1) last = d;
  HEDDLE_CHECK(last < shape.size(), "%{} is a number", node.value);
  Saved s{{}, ++phases_, Index(shape.size(), Expr(0)), {}, false, nullptr, current_};
  std::vector<std::pair<Var, std::int64_t>> loops;
  for (std::size_t d = 0; d < shape.size(); ++d) {
    s.inner.push_back(shape[d] > 1);
    if (shape[d] == 1 || d == last) continue;
    loops.emplace_back(open(shape[d]), shape[d]);
    s.index[d] = Expr(loops.back().first);
  }
  s.size = element_count(shape);
  s.buffer = scratch("kept", compute_type(g_[node].type.dtype), s.size, kernel::Scope::block, 1);
  vector_parts(shape[last], [&](const Expr& at) {
    s.index[last] = at;
    store({Store{s.buffer, *saved_offset(s, node, s.index), values_.at(node, s.index), {}}});
  });
  for (std::size_t i = loops.size(); i-- > 0;) close(loops[i].first, loops[i].second);
  done_.push_back(s.phase);
  saved_[node].push_back(std::move(s));
}

void Nest::choose_kept(const Traced& t) {
  if (!vector_ || tiled_) return;
  const prim::Graph& g = out_.graph();
  std::map<NodeId, Shared> seen;
  Evaluator probe = out_.values().blank();
  probe.set_combine([](const Reduction& r) { return identity_value(r.fn, r.type); });
  probe.set_observer([&](NodeId id, const Index& index, const Value&) {
    Shared s;
    const auto* map = std::get_if<prim::Map>(&g[id].op);
    if (map) s.work = ir::info(map->fn).flops;
    s.reduces = is_reduction(g, id);
    for (NodeId arg : g[id].args) {
      const auto from = seen.find(arg);
      if (from == seen.end()) continue;
      s.work += from->second.work;
      s.reduces |= from->second.reduces;
    }
    for (std::size_t d = 0; d < index.size(); ++d) {
      const auto var = index[d].variable();
      const auto dim = std::ranges::find_if(t.dims, [&](const Axis& a) { return a.var == var; });
      const bool whole = dim != t.dims.end() && dim->extent == g[id].type.shape[d];
      s.follows &= whole || g[id].type.shape[d] == 1;
      if (whole) s.vars.push_back(*var);
    }
    // At another position the same node is another value.
    if (const auto [at, fresh] = seen.emplace(id, s); !fresh) at->second.follows = false;
  });
  for (const NestOutput& o : outputs_)
    if (!o.row) o.value(probe, own_index(o, t.position));

  const std::int64_t points = element_count(domain_.extent);
  std::int64_t room = kMostKept;
  std::set<NodeId> inside;  // of what is kept
  for (auto at = seen.rbegin(); at != seen.rend(); ++at) {
    const auto& [id, s] = *at;
    const std::int64_t size = element_count(g[id].type.shape);
    const bool moves = std::ranges::any_of(s.vars, [&](Var v) { return on_vector(v); });
    const bool worth =
        s.work >= kWorthKeeping && moves && size <= room && size * tasks_ * kLeastRepeats <= points;
    if (!inside.contains(id)) {
      if (!worth || !s.follows || s.reduces) continue;
      kept_.push_back(id);
      room -= size;
    }
    inside.insert(g[id].args.begin(), g[id].args.end());
  }
}

/// Whether the lanes change what the variable of the domain is.
bool Nest::on_vector(Var v) const {
  return std::ranges::any_of(axes_.originals, [&](const auto& o) {
    return o.first == v && ir::depends_on(o.second, axes_.loops[*vector_].var);
  });
}

}  // namespace heddle::lower::stitch

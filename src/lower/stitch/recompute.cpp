#include "lower/stitch/recompute.h"

#include <algorithm>
#include <map>
#include <unordered_set>

#include "lower/reduction.h"
#include "lower/stitch/cluster.h"
#include "lower/stitch/emitter.h"

namespace heddle::lower::stitch {
namespace {

constexpr double kMaxRecompute = 2;        // times a reduction may be done over
constexpr std::int64_t kSmallWork = 4096;  // terms in all that are cheap however often
constexpr std::size_t kMaxTouches = 3000;
constexpr std::size_t kFewValues = 1000;  // at different positions, that need not be counted better

/// A coordinate `scale · variable + offset`; no variable: the offset.
struct Coordinate {
  std::int32_t variable = -1;
  std::int64_t scale = 0, offset = 0;
};
using Position = std::vector<Coordinate>;

/// nullopt: of several variables, or of one in another way.
std::optional<Coordinate> coordinate_of(const Expr& e) {
  if (const auto value = e.constant()) return Coordinate{-1, 0, *value};
  std::vector<Var> used;
  ir::collect_variables(e, used);
  if (used.size() != 1) return std::nullopt;
  const auto scale = ir::coefficient_of(e, used[0]);
  if (!scale || *scale == 0) return std::nullopt;
  return Coordinate{used[0].index, *scale, (e - Expr(used[0]) * *scale).constant().value_or(0)};
}

std::optional<Position> position_of(const prim::Access& access) {
  if (!access.inside.empty()) return std::nullopt;
  Position out;
  for (const Expr& e : access.index) {
    const auto at = coordinate_of(e);
    if (!at) return std::nullopt;
    out.push_back(*at);
  }
  return out;
}

/// Follows accesses in which each coordinate is that of one variable. At such positions a reduction
/// has at most as many results as its node has elements, however many nodes are in between: nothing
/// is repeated. What is left to be seen is that there are not too many accesses.
class PlainAccesses {
 public:
  PlainAccesses(const prim::Graph& g, const Cluster& c) : g_(g), c_(c) {}

  /// nullopt: some access is of another kind.
  static std::optional<PlainAccesses> of(const prim::Graph& g, const Cluster& c) {
    PlainAccesses out(g, c);
    for (NodeId id : c.nodes)
      if (!out.add(id)) return std::nullopt;
    return out;
  }

  bool are_few() {
    for (NodeId o : c_.outputs)
      if (!visit(o, own_position(o), 0)) return false;
    return true;
  }

 private:
  const prim::Graph& g_;
  const Cluster& c_;
  std::map<NodeId, std::vector<Position>> accesses_;  // of views and contractions, by argument
  std::unordered_set<std::size_t> seen_;              // nodes at positions
  std::map<std::pair<int, Shape>, std::int32_t> reduced_;
  std::int32_t variables_ = 0;

  bool add(NodeId id) {
    std::vector<const prim::Access*> accesses;
    const prim::Op& op = g_[id].op;
    if (const auto* view = std::get_if<prim::View>(&op)) {
      if (view->pieces.size() != 1) return false;
      accesses = {&view->pieces[0]};
    } else if (const auto* contract = std::get_if<prim::Contract>(&op)) {
      accesses = {&contract->lhs, &contract->rhs};
    } else {
      return std::holds_alternative<prim::Map>(op) || std::holds_alternative<prim::Reduce>(op) ||
             std::holds_alternative<prim::Iota>(op);
    }
    for (const prim::Access* access : accesses) {
      auto position = position_of(*access);
      if (!position) return false;
      accesses_[id].push_back(*std::move(position));
    }
    return true;
  }

  Position own_position(NodeId id) {
    Position out;
    for (std::size_t d = 0; d < g_[id].type.shape.size(); ++d) out.push_back({variables_++, 1, 0});
    return out;
  }

  static Position composed(const Position& access, const Position& at) {
    Position out;
    for (const Coordinate& a : access) {
      if (a.variable < 0) {
        out.push_back(a);
        continue;
      }
      const Coordinate& b = at[static_cast<std::size_t>(a.variable)];
      out.push_back({b.variable, a.scale * b.scale, a.scale * b.offset + a.offset});
    }
    return out;
  }

  /// The variables of a reduction's terms: shared by reductions side by side, as when they are
  /// traced.
  Position reduced_position(int depth, const Shape& extents) {
    const auto [at, fresh] = reduced_.emplace(std::pair{depth, extents}, variables_);
    if (fresh) variables_ += static_cast<std::int32_t>(extents.size());
    Position out;
    for (std::size_t i = 0; i < extents.size(); ++i)
      out.push_back({at->second + static_cast<std::int32_t>(i), 1, 0});
    return out;
  }

  /// False once too much has been seen.
  bool visit(NodeId id, const Position& at, int depth) {
    if (inlined_constant(g_, id)) return true;
    std::size_t key = static_cast<std::size_t>(id.value);
    for (const Coordinate& x : at) {
      key = combine(key, static_cast<std::size_t>(x.variable));
      key = combine(key, static_cast<std::size_t>(x.scale));
      key = combine(key, static_cast<std::size_t>(x.offset));
    }
    if (!seen_.insert(key).second) return true;
    if (seen_.size() > kFewValues) return false;
    if (!inside(c_, id)) return true;
    const prim::Node& node = g_[id];
    if (const auto* reduce = std::get_if<prim::Reduce>(&node.op))
      return visit(node.args[0], terms_of(*reduce, g_[node.args[0]].type.shape, at, depth),
                   depth + 1);
    const auto* contract = std::get_if<prim::Contract>(&node.op);
    Position variables = at;
    if (contract) {
      const Position terms = reduced_position(depth, contract->reduced);
      variables.insert(variables.end(), terms.begin(), terms.end());
    }
    const auto accesses = accesses_.find(id);
    for (std::size_t k = 0; k < node.args.size(); ++k) {
      const bool moved = accesses != accesses_.end();
      if (!visit(node.args[k], moved ? composed(accesses->second[k], variables) : at,
                 depth + (contract ? 1 : 0)))
        return false;
    }
    return true;
  }

  Position terms_of(const prim::Reduce& reduce, const Shape& shape, const Position& at, int depth) {
    Shape extents;
    for (int axis : reduce.axes) extents.push_back(shape[static_cast<std::size_t>(axis)]);
    const Position terms = reduced_position(depth, extents);
    Position out;
    std::size_t kept = 0, reduced = 0;
    for (std::size_t d = 0; d < shape.size(); ++d) {
      const bool is_reduced =
          reduced < reduce.axes.size() && reduce.axes[reduced] == static_cast<int>(d);
      out.push_back(is_reduced ? terms[reduced++] : at[kept++]);
    }
    return out;
  }
};

/// Terms of all evaluations of `r` from the loops its position depends on.
double evaluations(const Reduction& r, const ir::Ranges& ranges) {
  std::vector<Var> used;
  for (const Expr& e : r.depends) ir::collect_variables(e, used);
  std::sort(used.begin(), used.end());
  used.erase(std::unique(used.begin(), used.end()), used.end());
  double count = 1;
  for (Var v : used) {
    const auto& range = ranges[static_cast<std::size_t>(v.index)];
    if (range) count *= static_cast<double>(range->high - range->low + 1);
  }
  return count;
}

/// The same, by following every access through the index expressions of all that is between.
bool traced_little(const prim::Graph& g, const Cluster& c) {
  kernel::Kernel k;
  Evaluator values(g);
  const Target target;
  Emitter emitter(g, k, target, values);
  for (NodeId node : inputs_of(g, c)) {
    const TensorType& type = g[node].type;
    const Layout layout = row_major(type.shape);
    values.place(node, k.add_buffer({"", type.dtype, layout.size, kernel::Scope::grid, -1}),
                 layout);
  }
  for (NodeId o : c.outputs) {
    bool fits = true;
    Index position;
    for (std::int64_t extent : g[o].type.shape)
      position.push_back(extent == 1 ? Expr(0) : Expr(emitter.fresh(extent)));
    const auto touches = emitter.touches_of(
        [&](Evaluator& v) { return std::vector<Value>{v.at(o, position)}; },
        [&](const Reduction& r) {
          if (!r.node) return;
          const double count = evaluations(r, values.ranges());
          const double terms = static_cast<double>(element_count(r.extents));
          const double natural = static_cast<double>(element_count(g[r.node].type.shape));
          fits = fits && (count <= kMaxRecompute * natural || count * terms <= kSmallWork);
        });
    if (!fits || touches.size() > kMaxTouches) return false;
  }
  return true;
}

}  // namespace

bool recomputes_little(const prim::Graph& g, const Cluster& c) {
  // Most clusters are of the plain kind, and asking about them is most of what planning does.
  if (auto plain = PlainAccesses::of(g, c); plain && plain->are_few()) return true;
  return traced_little(g, c);
}

}  // namespace heddle::lower::stitch

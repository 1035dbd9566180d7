#include <algorithm>
#include <map>

#include "lower/reduction.h"
#include "lower/stitch/cluster.h"
#include "lower/stitch/phases.h"

namespace heddle::lower::stitch {
namespace {

constexpr double kMaxRecompute = 2;        // times a reduction may be done over
constexpr std::int64_t kSmallWork = 4096;  // terms in all that are cheap however often
constexpr std::size_t kMaxTouches = 3000;
constexpr std::int64_t kMaxCases = 64;

bool inside(const Cluster& c, NodeId id) {
  return std::binary_search(c.nodes.begin(), c.nodes.end(), id);
}

bool structure_fits(const prim::Graph& g, const Cluster& c) {
  for (NodeId o : c.outputs)
    if (!inside(c, o)) return false;
  for (NodeId id : c.nodes) {
    const prim::Op& op = g[id].op;
    if (std::holds_alternative<prim::Input>(op) || std::holds_alternative<prim::Constant>(op))
      return false;
    // Data-dependent positions are read from memory.
    if (std::holds_alternative<prim::Gather>(op) && inside(c, g[id].args[0])) return false;
  }
  const auto special = special_node(g, c);
  if (!special) return true;
  if (c.outputs != std::vector<NodeId>{*special}) return false;
  // Operands are computed at one position at a time.
  return std::all_of(c.nodes.begin(), c.nodes.end(), [&](NodeId id) {
    return id == *special || !(is_reduction(g, id) || special_node(g, {{id}, {id}}));
  });
}

/// True if no value is chosen among very many: each level of concatenations within concatenations
/// multiplies the cases that a kernel must tell apart.
bool few_cases(const prim::Graph& g, const Cluster& c) {
  std::map<NodeId, std::int64_t> cases;  // that the value of a node of the cluster may come from
  for (NodeId id : c.nodes) {            // arguments first
    const bool chooses = std::holds_alternative<prim::View>(g[id].op);
    std::int64_t count = chooses ? 0 : 1;
    for (NodeId a : g[id].args) {
      const auto it = cases.find(a);
      const std::int64_t n = it == cases.end() ? 1 : it->second;
      count = chooses ? count + n : std::max(count, n);
    }
    if (count > kMaxCases) return false;
    cases[id] = count;
  }
  return true;
}

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

/// True if no reduction is repeated for each of many positions.
bool recomputes_little(const prim::Graph& g, const Cluster& c) {
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

/// True if a reduction of small operands only is broadcast over much larger outputs (the gates of
/// squeeze-and-excitation): nothing large is read once instead of twice, and the loops that write
/// the outputs in the order of memory would repeat it.
bool broadcasts_small_reduction(const prim::Graph& g, const Cluster& c) {
  constexpr std::int64_t kLarge = 1 << 14, kReuse = 64, kSmall = 16;
  std::int64_t largest = 0;
  for (NodeId o : c.outputs) largest = std::max(largest, element_count(g[o].type.shape));
  if (largest < kLarge) return false;
  std::map<NodeId, std::int64_t> reads;  // elements of the largest operand from outside
  for (NodeId id : c.nodes) {            // arguments first
    std::int64_t& most = reads[id];
    for (NodeId a : g[id].args) {
      const auto it = reads.find(a);
      most = std::max(most, it == reads.end() ? element_count(g[a].type.shape) : it->second);
    }
    if (is_reduction(g, id) && element_count(g[id].type.shape) * kReuse <= largest &&
        most * kSmall <= largest)
      return true;
  }
  return false;
}

}  // namespace

bool supports(const prim::Graph& g, const Cluster& c) {
  if (c.nodes.empty() || c.outputs.empty() || !structure_fits(g, c)) return false;
  if (c.nodes.size() == 1) return true;
  if (!few_cases(g, c)) return false;
  const auto reductions =
      std::count_if(c.nodes.begin(), c.nodes.end(), [&](NodeId id) { return is_reduction(g, id); });
  return reductions == 0 || (!broadcasts_small_reduction(g, c) && recomputes_little(g, c));
}

Result<Lowered> lower(const Request& request) {
  const prim::Graph& g = *request.graph;
  if (!structure_fits(g, request.cluster)) {
    std::string nodes;
    for (NodeId id : request.cluster.nodes)
      nodes += fmt::format(" %{} ({})", id.value, prim::kind_name(g[id].op));
    return unsupported("no stitched kernel for the cluster of{}", nodes);
  }
  if (!request.target.is_gpu()) return Phases(request).run();
  Lowered lowered = HEDDLE_TRY(Phases(request).run());
  // Every access is inside its buffer and every barrier is reached by all threads, provably.
  auto sound = kernel::with_proven_bounds(lowered.kernel);
  if (!sound) return unsupported("no GPU kernel: {}", sound.error().message);
  lowered.kernel = *std::move(sound);
  return lowered;
}

}  // namespace heddle::lower::stitch

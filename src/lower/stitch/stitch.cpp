#include <algorithm>
#include <map>

#include "lower/reduction.h"
#include "lower/stitch/cluster.h"
#include "lower/stitch/phases.h"
#include "lower/stitch/recompute.h"

namespace heddle::lower::stitch {
namespace {

constexpr std::int64_t kMaxCases = 64;

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

/// With resident blocks where that pays and the tuning ("resident") does not forbid it: several
/// phases, where what one leaves in global memory is met by the next behind a grid barrier
/// (AStitch, ASPLOS'22, section 3: global scope), or more tasks than fit at once, which then are
/// packed into one wave (section 4: vertical packing).
std::optional<Lowered> with_resident_blocks(const Request& request, const Lowered& apart) {
  constexpr int kMostThreads = 512;              // more leave each too few registers
  constexpr std::int64_t kThreadsAtOnce = 2048;  // of a multiprocessor
  for (const auto& [name, value] : request.tuning)
    if (name == "resident" && value != 1) return std::nullopt;
  int phases = 0, threads = 0;
  std::int64_t tasks = 0;
  for (const kernel::Stmt& s : apart.kernel.body)
    if (const auto* phase = std::get_if<kernel::For>(&s.op)) {
      ++phases;
      tasks = std::max(tasks, phase->end);
      threads = std::max(threads, kernel::threads_of(*phase));
    }
  const std::int64_t wave =
      request.target.multiprocessors * (kThreadsAtOnce / std::max(kernel::kWarp, threads));
  if (phases == 1 && tasks > wave && kernel::can_be_resident(apart.kernel)) {
    Lowered one = apart;
    one.kernel.resident = true;
    one.schedule += " in one wave";
    return one;
  }
  if (phases < 2 || !request.target.grid_barriers) return std::nullopt;
  threads = std::clamp((threads + kernel::kWarp - 1) / kernel::kWarp * kernel::kWarp, kernel::kWarp,
                       kMostThreads);
  auto lowered = Phases(request, threads).run();
  if (!lowered || !kernel::can_be_resident(lowered->kernel)) return std::nullopt;
  lowered->kernel.resident = true;
  lowered->schedule += "; in one launch";
  return *std::move(lowered);
}

}  // namespace

std::vector<Tuning> tuning_space(const Request& request) {
  if (!request.target.is_gpu()) return {};
  const auto lowered = stitch::lower(request);
  if (!lowered || !lowered->kernel.resident) return {};
  return {{{"resident", 1}}, {{"resident", 0}}};
}

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
  if (const int threads = request.target.stage_threads; threads > 0)
    if (auto stages = Phases(request, threads).run()) return *std::move(stages);
  Lowered lowered = HEDDLE_TRY(Phases(request).run());
  if (request.target.stage_threads > 0) return lowered;
  if (auto resident = with_resident_blocks(request, lowered)) lowered = *std::move(resident);
  // Every access is inside its buffer and every barrier is reached by all threads, provably.
  auto sound = kernel::with_proven_bounds(lowered.kernel);
  if (!sound) return unsupported("no GPU kernel: {}", sound.error().message);
  lowered.kernel = *std::move(sound);
  return lowered;
}

}  // namespace heddle::lower::stitch

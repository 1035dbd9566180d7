#pragma once
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lower/joins.h"
#include "lower/lower.h"
#include "plan/machine.h"
#include "prim/graph.h"
#include "support/result.h"

namespace heddle {
class ThreadPool;
}

namespace heddle::plan {

using lower::Cluster;
using prim::NodeId;

/// What the lowering can do, asked by candidate enumeration. A cluster of one primitive is never
/// asked about: it is always a candidate, so that a plan exists for every graph.
struct Legality {
  std::function<bool(const prim::Graph&, const Cluster&)> supports;
  /// True if this Contract gets a register-tiled main loop; a cluster holds at most one such.
  std::function<bool(const prim::Graph&, NodeId)> main_loop;
  /// Ways to compute such a Contract; may be empty: as it is written.
  std::function<std::vector<lower::contract::Algorithm>(const prim::Graph&, NodeId)> algorithms =
      {};
  /// Kernels of several contractions (attention, layers band by band) over some of these live
  /// nodes; may be empty: there are none.
  std::function<std::vector<Cluster>(const prim::Graph&, const std::vector<NodeId>&)> chains = {};
  /// Concatenations whose parts cost nothing to store in place; may be empty: there are none.
  std::function<std::vector<lower::Join>(const prim::Graph&)> joins = {};
};
/// Rules on the structure of the graph alone; what the planner's tests use.
Legality structural_legality();
/// What src/lower says it supports on a target.
Legality lowering_legality(const lower::Target& target = {});

/// Steps of the ablation.
enum class Strategy {
  single,     ///< every primitive is a kernel (broadcasts are part of their readers)
  operators,  ///< rule-based fusion of whole source operators: no fission
  greedy,     ///< rule-based fusion: elementwise into consumers and producers, reductions last
  partition,  ///< binary program, each node computed in exactly one kernel
  recompute,  ///< fan-in cones: interior values are private copies
  full,       ///< and kernels with several outputs
};
std::string_view name_of(Strategy s);
std::optional<Strategy> strategy_named(std::string_view name);

enum class Provenance { modelled, measured };
std::string_view name_of(Provenance p);

/// Time of one cluster in microseconds, as the cost model sees it.
struct Cost {
  double us = 0;
  double memory_us = 0, compute_us = 0, launch_us = 0;
  double bytes = 0;    ///< moved to and from memory beyond the core's own caches
  double flops = 0;    ///< executed, recomputation included
  bool tiles = false;  ///< its products are made in tile registers, of bf16 or of bytes
  Provenance provenance = Provenance::modelled;
  /// "memory", "compute" or "launch", whichever is largest.
  std::string_view bound() const;
};

struct Options {
  Strategy strategy = Strategy::full;
  Legality legality = structural_legality();
  MachineModel machine = {};
  /// Kept fan-in cones per node.
  int cuts_per_node = 12;
  /// Primitives in one kernel, at most.
  int max_cluster = 96;
  /// Branch-and-bound nodes per region; 0: the dynamic-programming cover is the answer.
  int node_budget = 500;
  /// Added per byte written to memory (the memory term of the objective), microseconds.
  double us_per_byte = 0;
  /// Representative of the equivalence class of each node (by id): alternatives of one value.
  /// Empty: every node is alone in its class.
  std::vector<NodeId> class_of = {};
  /// A measured time in microseconds overrides the model; nullopt: not measured.
  std::function<std::optional<double>(const prim::Graph&, const Cluster&)> measured = {};
  /// Regions are solved on these threads, which call the functions above; null: on the caller's.
  /// The plan is the same.
  ThreadPool* pool = nullptr;
};

/// A candidate that could have produced what a chosen kernel produces, and what it would cost.
struct Rejected {
  Cluster cluster;
  Cost cost;
  double plan_delta_us = 0;  ///< how much dearer the plan becomes with it (repaired greedily)
  std::string reason;        ///< parts that add up to it: "moving 12.60 MB more +90.2 us, …"
  bool operator==(const Rejected& o) const { return cluster == o.cluster; }
};

struct Kernel {
  Cluster cluster;
  std::vector<NodeId> inputs;  ///< read from memory, scalar constants apart
  Cost cost;
  std::vector<prim::OriginId> origins;  ///< source operators it covers, by first node
  std::vector<Rejected> rejected;
  lower::Tuning tuning;  ///< the fastest schedule measured; empty: the lowering's own choice
};

/// `wanted` is not computed: its equivalent `instead` is in memory and is read in its place.
struct Substitute {
  NodeId wanted, instead;
  auto operator<=>(const Substitute&) const = default;
};

struct PlanStats {
  int nodes = 0, regions = 0, unique_regions = 0, candidates = 0;
  int solver_nodes = 0, cut_rows = 0;
  int cuts_per_node = 0;  ///< kept: Options::cuts_per_node, or fewer in a large graph
};

/// The chosen kernels in execution order.
struct Plan {
  std::vector<Kernel> kernels;
  std::vector<Substitute> substitutes;
  Strategy strategy = Strategy::full;
  double cost_us = 0;
  /// No plan over the same candidates and regions is cheaper than this.
  double lower_bound_us = 0;
  PlanStats stats;
  double gap() const { return cost_us > 0 ? (cost_us - lower_bound_us) / cost_us : 0; }
};

/// A graph in which every output is computed by some kernel: outputs that are inputs, constants or
/// the same value as another output become copies (identity views). Call before orchestrate().
/// On a CPU so do large results of main loops whose rows of results would be scattered over the
/// output: the plan decides whether they are stored there, or as they are made and then copied.
prim::Graph with_copied_outputs(const prim::Graph& g, bool gpu = false);
/// Whether the main loop that makes an output would store each row of results over all of it: the
/// last dimension of a row-major output is no column of the product (channels of an image, unless
/// they are few and the product one of lower/contract/dots.h).
bool is_scattered(const prim::Graph& g, NodeId output);

/// Chooses the kernels. Errors: an output that is a leaf (see with_copied_outputs).
Result<Plan> orchestrate(const prim::Graph& g, const Options& options = {});

/// Every output produced, every input of a kernel produced before it, no leaf produced. The message
/// names the kernel.
Status verify(const prim::Graph& g, const Plan& plan);

/// Nodes a cluster reads from memory, in order of first use; scalar constants are not listed.
std::vector<NodeId> reads_of(const prim::Graph& g, const Cluster& c);
/// Sum of the kernels' costs under the model, for plans made elsewhere.
Cost cost_of(const prim::Graph& g, const Cluster& c, const Options& options);

/// Text form: one kernel a line, `parse` accepts what `print` writes (costs rounded to 1 ns).
std::string print(const prim::Graph& g, const Plan& plan);
Result<Plan> parse(const prim::Graph& g, std::string_view text);

}  // namespace heddle::plan

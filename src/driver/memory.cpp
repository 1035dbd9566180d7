#include "driver/memory.h"

#include <algorithm>
#include <numeric>
#include <unordered_set>

namespace heddle::driver {
namespace {

using prim::NodeId;
using runtime::Lifetime;

std::int64_t aligned(std::int64_t bytes) { return (bytes + 63) / 64 * 64; }

}  // namespace

Blocks blocks_of(const prim::Graph& graph, const std::vector<CompiledKernel>& kernels) {
  std::unordered_set<NodeId> outputs;
  for (const prim::GraphOutput& output : graph.outputs) outputs.insert(output.node);
  Blocks blocks;
  std::unordered_map<NodeId, std::size_t> latest;
  for (std::size_t k = 0; k < kernels.size(); ++k) {
    const CompiledKernel& kernel = kernels[k];
    const int step = static_cast<int>(k);
    auto& here = blocks.of.emplace_back();
    const auto& made = kernel.planned.cluster.outputs;
    for (const lower::Argument& argument : kernel.lowered.arguments) {
      if (argument.kind != lower::Argument::Kind::value) continue;
      const auto placed = kernel.placed.find(argument.node);
      if (placed != kernel.placed.end()) {
        const auto [root, fresh] = latest.try_emplace(placed->second.root, blocks.lifetimes.size());
        const std::int64_t width = size_of(graph[argument.node].type.dtype);
        if (fresh) blocks.lifetimes.push_back({placed->second.size * width, step, step});
        blocks.lifetimes[root->second].last = step;
        here[argument.node] = root->second;
        continue;
      }
      const auto block = latest.find(argument.node);
      if (block == latest.end() || std::ranges::find(made, argument.node) != made.end()) continue;
      blocks.lifetimes[block->second].last = step;
      here.insert(*block);
    }
    for (std::size_t o = 0; o < made.size(); ++o) {
      if (outputs.contains(made[o]) || kernel.placed.contains(made[o])) continue;
      const std::int64_t bytes =
          kernel.lowered.output_layouts[o].size * size_of(graph[made[o]].type.dtype);
      here[made[o]] = latest[made[o]] = blocks.lifetimes.size();
      blocks.lifetimes.push_back({bytes, step, step});
    }
    blocks.first_local.push_back(blocks.lifetimes.size());
    for (std::int64_t bytes : kernel.code.local_bytes)
      blocks.lifetimes.push_back({bytes, step, step});
  }
  return blocks;
}

namespace {

/// An order of kernels, some of them more than once, and what is alive in each step.
class Schedule {
 public:
  Schedule(const prim::Graph& graph, const std::vector<CompiledKernel>& kernels) {
    const Blocks blocks = blocks_of(graph, kernels);
    for (std::size_t k = 0; k < kernels.size(); ++k) {
      Kernel& kernel = kernels_.emplace_back();
      kernel.us = kernels[k].planned.cost.us;
      const auto& made = kernels[k].planned.cluster.outputs;
      for (const auto& [node, block] : blocks.of[k]) {
        const bool makes = std::ranges::find(made, node) != made.end();
        if (makes)
          kernel.makes.push_back({node, aligned(blocks.lifetimes[block].bytes)});
        else
          kernel.reads.push_back(node);
      }
      kernel.again = !made.empty() && kernel.makes.size() == made.size();
      for (std::int64_t bytes : kernels[k].code.local_bytes) kernel.locals += aligned(bytes);
      order_.push_back(k);
    }
  }

  const std::vector<std::size_t>& order() const { return order_; }

  /// Inserts kernels until no step needs more than `target` bytes; false if nothing helps.
  bool fit(std::int64_t target) {
    State now = state_of(order_, target);
    const std::size_t longest = 3 * kernels_.size();
    while (now.excess > 0) {
      if (order_.size() >= longest) return false;
      std::optional<State> best;
      std::vector<std::size_t> best_order;
      double best_rate = 0;
      for (const auto& [kernel, before] : chances(now)) {
        std::vector<std::size_t> order = order_;
        order.insert(order.begin() + before, kernel);
        State after = state_of(order, target);
        const double rate = (now.excess - after.excess) / (1e-3 + kernels_[kernel].us);
        if (rate <= best_rate) continue;
        best = std::move(after), best_order = std::move(order), best_rate = rate;
      }
      if (!best) return false;
      now = *std::move(best);
      order_ = std::move(best_order);
    }
    return true;
  }

 private:
  struct Kernel {
    std::vector<std::pair<NodeId, std::int64_t>> makes;  ///< in the arena, bytes
    std::vector<NodeId> reads;                           ///< from the arena
    std::int64_t locals = 0;
    double us = 0;
    bool again = false;  ///< all that it makes is in the arena
  };
  /// A value from one making to its last reading.
  struct Life {
    std::int64_t bytes;
    std::vector<std::ptrdiff_t> steps;
  };
  struct State {
    std::vector<Life> lives;
    std::ptrdiff_t peak = 0;
    double excess = 0;  ///< bytes above the target, over all steps
  };

  State state_of(const std::vector<std::size_t>& order, std::int64_t target) const {
    State state;
    std::unordered_map<NodeId, std::size_t> latest;
    std::vector<std::int64_t> change(order.size() + 1);
    for (std::size_t s = 0; s < order.size(); ++s) {
      const Kernel& kernel = kernels_[order[s]];
      const auto step = static_cast<std::ptrdiff_t>(s);
      for (NodeId node : kernel.reads) state.lives[latest.at(node)].steps.push_back(step);
      for (const auto& [node, bytes] : kernel.makes) {
        latest[node] = state.lives.size();
        state.lives.push_back({bytes, {step}});
      }
      change[s] += kernel.locals;
      change[s + 1] -= kernel.locals;
    }
    for (const Life& life : state.lives) {
      change[static_cast<std::size_t>(life.steps.front())] += life.bytes;
      change[static_cast<std::size_t>(life.steps.back()) + 1] -= life.bytes;
    }
    std::int64_t alive = 0, most = -1;
    for (std::size_t s = 0; s < order.size(); ++s) {
      alive += change[s];
      if (alive > most) most = alive, state.peak = static_cast<std::ptrdiff_t>(s);
      state.excess += static_cast<double>(std::max<std::int64_t>(0, alive - target));
    }
    return state;
  }

  /// Kernels whose results lie over the peak without being read there, and where they would run.
  std::vector<std::pair<std::size_t, std::ptrdiff_t>> chances(const State& state) const {
    std::vector<std::pair<std::size_t, std::ptrdiff_t>> out;
    for (const Life& life : state.lives) {
      const auto next = std::ranges::lower_bound(life.steps, state.peak);
      if (next == life.steps.begin() || next == life.steps.end() || *next == state.peak) continue;
      const std::size_t kernel = order_[static_cast<std::size_t>(life.steps.front())];
      if (kernels_[kernel].again) out.emplace_back(kernel, *next);
    }
    std::ranges::sort(out);
    out.erase(std::ranges::unique(out).begin(), out.end());
    return out;
  }

  std::vector<Kernel> kernels_;
  std::vector<std::size_t> order_;
};

}  // namespace

bool run_again(const prim::Graph& graph, plan::Plan& plan, std::vector<CompiledKernel>& kernels,
               std::int64_t arena_bytes) {
  constexpr int kRounds = 6;  // blocks do not always lie as closely as their bytes allow
  Schedule schedule(graph, kernels);
  const std::vector<CompiledKernel> once = kernels;
  bool fits = false;
  std::int64_t target = arena_bytes;
  for (int round = 0; round < kRounds && !fits && target >= 0; ++round) {
    const bool more = schedule.fit(target);
    kernels.clear();
    for (const std::size_t k : schedule.order()) kernels.push_back(once[k]);
    const std::int64_t needs = runtime::plan_memory(blocks_of(graph, kernels).lifetimes).bytes;
    fits = needs <= arena_bytes;
    if (!more) break;
    target -= needs - arena_bytes;
  }
  plan.kernels.clear();
  plan.cost_us = 0;
  for (const CompiledKernel& kernel : kernels) {
    plan.kernels.push_back(kernel.planned);
    plan.cost_us += kernel.planned.cost.us;
  }
  return fits;
}

}  // namespace heddle::driver

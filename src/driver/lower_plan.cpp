#include "driver/lower_plan.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "driver/constant_bytes.h"
#include "driver/cuda_code.h"
#include "driver/joined.h"
#include "driver/source_map.h"
#include "lower/joins.h"
#include "plan/tuning_db.h"
#include "support/hash.h"
#include "support/tensor_store.h"

namespace heddle::driver {

using prim::NodeId;

namespace {

Result<CompiledKernel> lower_kernel(const lower::Request& request, const plan::Kernel& planned,
                                    const Platform& platform) {
  CompiledKernel kernel{planned, HEDDLE_TRY(lower::lower(request)), {}, {}, {}};
  if (platform.cuda) name_origins(kernel.lowered, planned.cluster, *request.graph);
  if (platform.cuda)
    kernel.code = HEDDLE_TRY(cuda_text(kernel.lowered.kernel, platform,
                                       paging_of(kernel.lowered, *request.graph, platform)));
  return kernel;
}

}  // namespace

Hash key_of(const prim::Graph& graph, const lower::Cluster& cluster) {
  return hash_bytes(plan::structure_of(graph, cluster, 0));
}

namespace {

constexpr std::int64_t kLarge = 64 << 10;  // bytes of a constant that is worth dropping

class PlanLowering {
 public:
  PlanLowering(const prim::Graph& graph, const plan::Plan& plan, const Platform& platform,
               const Tunings& tunings)
      : graph_(graph), plan_(plan), platform_(platform), tunings_(tunings) {
    // A value that is not computed is read from its equivalent.
    for (const plan::Substitute& s : plan.substitutes) instead_[s.wanted] = s.instead;
    for (const prim::GraphOutput& output : graph.outputs) is_output_.insert(actual(output.node));
    if (platform.target().tiles) find_images();
  }

  /// Without the bytes of packed constants (on a GPU with them).
  Status run() {
    while (true) {
      lowered_ = {};
      root_layouts_.clear();
      joined_ = join_in_place(
          graph_, plan_, platform_.target(), [this](NodeId id) { return actual(id); }, apart_);
      if (HEDDLE_TRY(lower_kernels())) break;
    }
    lowered_.joins = joined_.joins;
    for (const auto& [id, member] : joined_.members)
      if (const auto place = place_of(id)) lowered_.layouts[id] = place->layout;
    if (!platform_.cuda && lowered_.refusals.empty()) take_smaller_forms();
    return Ok{};
  }

  /// False if some kernel cannot store what it makes as a part of a concatenation, or read it
  /// there: that is in apart_ then.
  Result<bool> lower_kernels() {
    for (std::size_t k = 0; k < joined_.kernels.size(); ++k) {
      const lower::Cluster& cluster = joined_.kernels[k].cluster;
      auto made = first_choice(k);
      if (made && settle_roots(cluster, *made)) made = first_choice(k);
      if (!made) {
        if (made.error().code != ErrorCode::unsupported) return made.error();
        std::vector<NodeId> values = lower::inputs_of(graph_, cluster);
        values.insert(values.end(), cluster.outputs.begin(), cluster.outputs.end());
        const auto part = std::ranges::find_if(
            values, [&](NodeId id) { return joined_.members.contains(actual(id)); });
        if (part != values.end()) {
          apart_.push_back(joined_.members.at(actual(*part)).root);
          return false;
        }
        lowered_.refusals.push_back({joined_.planned[k], made.error()});
        continue;
      }
      for (std::size_t o = 0; o < cluster.outputs.size(); ++o)
        lowered_.layouts[cluster.outputs[o]] = made->lowered.output_layouts[o];
      lowered_.kernels.push_back(*std::move(made));
    }
    return true;
  }

  /// A concatenation lies as the first of its parts would by itself. True if one does from now on.
  bool settle_roots(const lower::Cluster& cluster, const CompiledKernel& made) {
    bool fresh = false;
    for (std::size_t o = 0; o < cluster.outputs.size(); ++o) {
      const auto member = joined_.members.find(cluster.outputs[o]);
      if (member == joined_.members.end() || root_layouts_.contains(member->second.root)) continue;
      const NodeId root = member->second.root;
      const Shape& part = graph_[cluster.outputs[o]].type.shape;
      root_layouts_[root] = lower::ordered(
          graph_[root].type.shape, lower::storage_order(made.lowered.output_layouts[o], part));
      fresh = true;
    }
    return fresh;
  }

  /// Where such a value is, once that is settled.
  std::optional<lower::Place> place_of(NodeId id) const {
    const auto member = joined_.members.find(id);
    if (member == joined_.members.end()) return std::nullopt;
    const auto root = root_layouts_.find(member->second.root);
    if (root == root_layouts_.end()) return std::nullopt;
    return lower::place_in(root->second, graph_[id].type.shape, member->second.axis,
                           member->second.first);
  }

  bool refused() const { return !lowered_.refusals.empty(); }
  LoweredPlan take() { return std::move(lowered_); }

  Status pack_constants(const DoneWith& done_with) {
    auto& kernels = lowered_.kernels;
    std::unordered_map<NodeId, std::size_t> last;  // kernel that reads a constant
    std::unordered_set<NodeId> as_they_are;
    for (std::size_t k = 0; k < kernels.size(); ++k) {
      for (const NodeId id : kernels[k].planned.cluster.nodes)
        for (const NodeId a : graph_[id].args)
          if (graph_.constant_of(a) != nullptr) last[a] = k;
      for (const lower::Argument& a : kernels[k].lowered.arguments)
        if (a.kind == lower::Argument::Kind::value) as_they_are.insert(a.node);
    }
    std::vector<std::vector<NodeId>> done(kernels.size());
    for (const auto& [id, k] : last)
      if (!as_they_are.contains(id) && graph_.constant_of(id)->bytes() >= kLarge)
        done[k].push_back(id);
    if (done_with) {  // those of alternatives that the plan has not taken
      for (std::int32_t i = 0; i < graph_.size(); ++i) {
        const NodeId id{i};
        const Tensor* constant = graph_.constant_of(id);
        if (constant != nullptr && constant->bytes() >= kLarge && !last.contains(id) &&
            !as_they_are.contains(id))
          done_with(id);
      }
    }
    for (std::size_t k = 0; k < kernels.size(); ++k) {
      HEDDLE_TRY(pack(k, kernels[k]));
      if (done_with) std::ranges::for_each(done[k], done_with);
    }
    return Ok{};
  }

 private:
  NodeId actual(NodeId node) const {
    const auto found = instead_.find(node);
    return found != instead_.end() ? found->second : node;
  }

  lower::Layout layout_of(NodeId node) const {
    if (const auto place = place_of(actual(node))) return place->layout;
    const auto found = lowered_.layouts.find(actual(node));
    return found != lowered_.layouts.end() ? found->second
                                           : lower::row_major(graph_[node].type.shape);
  }

  /// Images of few channels that main loops in tile registers read, and nothing else, lie
  /// channels-last: a line of a window then is all channels of its taps, of which a tile has more
  /// than of one channel's taps, where those are no whole vectors.
  void find_images() {
    constexpr std::int64_t kFewChannels = 16, kVector = 16;  // terms, half a tile's row
    const std::vector<int> last{0, 2, 3, 1};
    std::unordered_set<NodeId> others;
    for (const plan::Kernel& kernel : plan_.kernels)
      for (const NodeId id : kernel.cluster.nodes)
        for (const NodeId arg : graph_[id].args) {
          const auto* contract = std::get_if<prim::Contract>(&graph_[id].op);
          // Channels, lines and columns of a window.
          if (!contract || contract->reduced.size() != 3 || contract->reduced[2] % kVector == 0)
            others.insert(actual(arg));
        }
    for (const plan::Kernel& kernel : plan_.kernels) {
      const bool elementwise = std::ranges::all_of(kernel.cluster.nodes, [&](NodeId id) {
        return std::holds_alternative<prim::Map>(graph_[id].op);
      });
      for (const NodeId id : kernel.cluster.outputs) {
        const auto& [dtype, shape] = graph_[id].type;
        if (elementwise && dtype == DType::bf16 && shape.size() == last.size() && shape[1] > 1 &&
            shape[1] < kFewChannels && !others.contains(id) && !is_output_.contains(id))
          required_.emplace(id, lower::ordered(shape, last));
      }
    }
  }

  lower::Request request_for(std::size_t k, const lower::Tuning& tuning, bool contents) const {
    const auto required = [this](NodeId node) -> std::optional<lower::Layout> {
      if (const auto place = place_of(node)) return place->layout;
      if (const auto image = required_.find(node); image != required_.end()) return image->second;
      if (!is_output_.contains(node)) return std::nullopt;
      return lower::row_major(graph_[node].type.shape);
    };
    return {&graph_,
            joined_.kernels[k].cluster,
            platform_.target(),
            [this](NodeId node) { return layout_of(node); },
            required,
            tuning,
            contents};
  }

  Result<CompiledKernel> make(std::size_t k, const lower::Tuning& tuning) const {
    const plan::Kernel& planned = joined_.kernels[k];
    CompiledKernel kernel =
        HEDDLE_TRY(lower_kernel(request_for(k, tuning, platform_.cuda), planned, platform_));
    for (lower::Argument& argument : kernel.lowered.arguments) {
      const bool value = argument.kind == lower::Argument::Kind::value;
      kernel.input_layouts.push_back(value ? layout_of(argument.node) : lower::Layout{});
      const auto& outputs = planned.cluster.outputs;
      if (value && std::find(outputs.begin(), outputs.end(), argument.node) == outputs.end())
        argument.node = actual(argument.node);
      if (!value) continue;
      if (const auto place = place_of(argument.node)) {
        const NodeId root = joined_.members.at(argument.node).root;
        kernel.placed[argument.node] = {root, place->first, root_layouts_.at(root).size};
      }
    }
    kernel.planned.tuning = tuning;
    return kernel;
  }

  /// By what was learnt of it, by its own measurement, as a tuned kernel of its structure, or as
  /// the lowering chooses.
  Result<CompiledKernel> first_choice(std::size_t k) const {
    const plan::Kernel& planned = joined_.kernels[k];
    if (!tunings_.empty())
      if (const auto learnt = tunings_.find(key_of(graph_, planned.cluster));
          learnt != tunings_.end())
        return make(k, learnt->second);
    const Hash structure =
        hash_bytes(plan::structure_of(graph_, planned.cluster, platform_.threads,
                                      [this](NodeId node) { return layout_of(node); }));
    const bool measured = planned.cost.provenance == plan::Provenance::measured;
    if (platform_.schedules && !measured) {
      const auto row = platform_.schedules->rows.find(structure);
      if (row != platform_.schedules->rows.end()) {
        // What has become of a schedule since is no error: the lowering's own is as right.
        if (auto made = make(k, row->second.tuning)) {
          made->structure = structure;
          made->schedule_from = ScheduleFrom::shipped;
          return made;
        }
      }
    }
    auto made = make(k, planned.tuning);
    if (made) made->structure = structure;
    if (made && measured) made->schedule_from = ScheduleFrom::measurement;
    return made;
  }

  void take_smaller_forms() {
    for (const SmallerForm& form : smaller_forms(graph_, lowered_.kernels)) {
      CompiledKernel& kernel = lowered_.kernels[form.kernel];
      auto made = make(form.kernel, form.tuning);
      if (!made || made->lowered.output_layouts != kernel.lowered.output_layouts) continue;
      made->structure = kernel.structure;
      made->planned.cost.flops += form.more_flops;
      kernel = *std::move(made);
    }
  }

  /// Lowers once more, now with the bytes: what is made of them is not kept where it is not needed.
  Status pack(std::size_t k, CompiledKernel& kernel) {
    auto& arguments = kernel.lowered.arguments;
    const auto packed = [](const lower::Argument& a) {
      return a.kind == lower::Argument::Kind::packed;
    };
    if (std::ranges::none_of(arguments, packed)) return Ok{};
    lower::Lowered whole = HEDDLE_TRY(lower::lower(request_for(k, kernel.planned.tuning, true)));
    HEDDLE_CHECK(
        whole.arguments.size() == arguments.size() && whole.schedule == kernel.lowered.schedule,
        "lowered again, '{}' is '{}'", kernel.lowered.schedule, whole.schedule);
    for (std::size_t i = 0; i < arguments.size(); ++i)
      if (packed(arguments[i]))
        arguments[i].packed = kept(std::exchange(whole.arguments[i].packed, {}));
    return Ok{};
  }

  /// The same constant in the store, each content once.
  Tensor kept(const Tensor& packed) {
    const auto [known, fresh] = kept_.try_emplace(hash_of(packed));
    if (fresh) known->second = store_.keep(packed);
    return known->second;
  }

  const prim::Graph& graph_;
  const plan::Plan& plan_;
  const Platform& platform_;
  const Tunings& tunings_;
  LoweredPlan lowered_;
  TensorStore store_;  ///< of packed constants
  std::unordered_map<Hash, Tensor> kept_;
  std::unordered_map<NodeId, NodeId> instead_;
  std::unordered_set<NodeId> is_output_;
  std::unordered_map<NodeId, lower::Layout> required_;
  JoinedPlan joined_;
  std::vector<NodeId> apart_;  ///< roots that cannot be joined in place
  std::unordered_map<NodeId, lower::Layout> root_layouts_;
};

}  // namespace

Result<LoweredPlan> lower_plan(const prim::Graph& graph, const plan::Plan& plan,
                               const Platform& platform, const Tunings& tunings,
                               const DoneWith& done_with) {
  PlanLowering lowering(graph, plan, platform, tunings);
  HEDDLE_TRY(lowering.run());
  if (!platform.cuda && !lowering.refused()) HEDDLE_TRY(lowering.pack_constants(done_with));
  return lowering.take();
}

Result<std::unordered_map<NodeId, lower::Layout>> layouts_of(const prim::Graph& graph,
                                                             const plan::Plan& plan,
                                                             const Platform& platform) {
  const Tunings none;
  PlanLowering lowering(graph, plan, platform, none);
  HEDDLE_TRY(lowering.run());
  return lowering.take().layouts;
}

std::function<lower::Layout(NodeId)> likely_layouts(
    const prim::Graph& graph, std::unordered_map<NodeId, lower::Layout> known) {
  // Ids are topological: an operand's order is settled before its users ask.
  for (std::int32_t i = 0; i < graph.size(); ++i) {
    const NodeId id{i};
    if (known.contains(id)) continue;
    const Shape& shape = graph[id].type.shape;
    for (NodeId operand : graph[id].args) {
      const auto layout = known.find(operand);
      const Shape& from = graph[operand].type.shape;
      if (layout == known.end() || from.size() != shape.size()) continue;
      known[id] = lower::ordered(shape, lower::storage_order(layout->second, from));
      break;
    }
  }
  return [&graph, known = std::move(known)](NodeId id) {
    const auto found = known.find(id);
    return found != known.end() ? found->second : lower::row_major(graph[id].type.shape);
  };
}

}  // namespace heddle::driver

#include "driver/fusion.h"

#include <algorithm>
#include <map>
#include <set>

namespace heddle::driver {
namespace {

using nlohmann::json;
using prim::Graph;
using prim::NodeId;

enum class Place {
  epilogue,  ///< of what a matrix product or convolution makes, in its kernel
  prologue,  ///< before such a product, in its kernel
  other,     ///< with other arithmetic
  alone,     ///< a kernel of views and reductions only
};

/// Where reductions are computed: each counts once, at its first place in the order above.
struct Places {
  std::map<NodeId, std::vector<Place>> of;
  void add(NodeId id, Place place) { of[id].push_back(place); }
  int at(Place place) const {
    return static_cast<int>(std::ranges::count_if(
        of, [&](const auto& entry) { return std::ranges::min(entry.second) == place; }));
  }
  json as_json() const {
    int again = 0;
    for (const auto& [id, places] : of) again += static_cast<int>(places.size()) - 1;
    return {{"epilogues", at(Place::epilogue)},
            {"prologues", at(Place::prologue)},
            {"with_others", at(Place::other)},
            {"alone", at(Place::alone)},
            {"again", again}};
  }
};

bool moves_only(const prim::Node& node) {
  return std::holds_alternative<prim::View>(node.op) ||
         std::holds_alternative<prim::Constant>(node.op) ||
         std::holds_alternative<prim::Iota>(node.op) ||
         std::holds_alternative<prim::Input>(node.op);
}

/// By node: whether the outputs chosen need it.
template <class Chosen>
std::vector<bool> needed(const Graph& g, Chosen chosen) {
  std::vector<bool> live(static_cast<std::size_t>(g.size()));
  for (const prim::GraphOutput& o : g.outputs)
    if (chosen(o)) live[static_cast<std::size_t>(o.node.value)] = true;
  for (std::int32_t id = g.size() - 1; id >= 0; --id)
    if (live[static_cast<std::size_t>(id)])
      for (NodeId arg : g[NodeId{id}].args) live[static_cast<std::size_t>(arg.value)] = true;
  return live;
}

struct FusedKernel {
  bool contraction = false, arithmetic = false;
  std::set<NodeId> behind;  ///< of a contraction of the kernel
  std::vector<NodeId> reductions;
};
FusedKernel kernel_of(const Graph& g, const lower::Cluster& c) {
  FusedKernel k;
  for (NodeId id : c.nodes) {
    const bool contract = std::holds_alternative<prim::Contract>(g[id].op);
    k.contraction |= contract;
    k.arithmetic |= std::holds_alternative<prim::Map>(g[id].op);
    if (std::holds_alternative<prim::Reduce>(g[id].op)) k.reductions.push_back(id);
    const auto& args = g[id].args;
    if (contract ||
        std::any_of(args.begin(), args.end(), [&](NodeId a) { return k.behind.contains(a); }))
      k.behind.insert(id);
  }
  return k;
}

Place place_of(const FusedKernel& k, NodeId id) {
  return k.behind.contains(id) ? Place::epilogue
         : k.contraction       ? Place::prologue
         : k.arithmetic        ? Place::other
                               : Place::alone;
}

/// A sum of a normalisation, of its forward pass or of its gradient.
bool is_statistic(const Graph& g, NodeId id, bool backward) {
  const prim::OriginId from = g.origin_id(id);
  if (!from || !std::holds_alternative<prim::Reduce>(g[id].op)) return false;
  const std::string& op = g.origin(from).op;
  return op.find("Normalization") != std::string::npos && op.ends_with(".grad") == backward;
}

/// Stores results of the optimiser, weights or moments; corrections that others read are none.
bool is_update(const Graph& g, const plan::Kernel& k) {
  return std::ranges::any_of(k.origins,
                             [&](auto o) { return o && g.origin(o).op == "Optimizer"; }) &&
         std::ranges::any_of(k.cluster.outputs, [&](NodeId id) {
           return std::ranges::find(g.outputs, id, &prim::GraphOutput::node) != g.outputs.end();
         });
}

/// What the operators of a graph are; those that only move data are no kernels anywhere.
json operators_of(const Graph& g) {
  std::set<prim::Origin> forward, backward, updates;
  const auto live = needed(g, [](const auto&) { return true; });
  for (std::int32_t id = 0; id < g.size(); ++id) {
    if (!live[static_cast<std::size_t>(id)] || moves_only(g[NodeId{id}])) continue;
    const prim::OriginId from = g.origin_id(NodeId{id});
    if (!from) continue;
    const std::string& op = g.origin(from).op;
    (op == "Optimizer"       ? updates
     : op.ends_with(".grad") ? backward
                             : forward)
        .insert(g.origin(from));
  }
  return {{"forward", forward.size()}, {"backward", backward.size()}, {"updates", updates.size()}};
}

/// Primitives that only the loss' value needs, and the kernels that compute them.
json loss_of(const Compiled& compiled) {
  const Graph& g = compiled.graph;
  const auto is_value = [](const prim::GraphOutput& o) { return o.name == "loss"; };
  const auto value = needed(g, is_value),
             step = needed(g, [&](const auto&o) { return !is_value(o); });
  const auto value_only = [&](NodeId id) {
    const auto i = static_cast<std::size_t>(id.value);
    return value[i] && !step[i] && !moves_only(g[id]);
  };
  int primitives = 0, kernels = 0, alone = 0;
  double us = 0;
  for (std::int32_t id = 0; id < g.size(); ++id) primitives += value_only(NodeId{id});
  for (const CompiledKernel& kernel : compiled.kernels) {
    const auto& nodes = kernel.planned.cluster.nodes;
    if (std::none_of(nodes.begin(), nodes.end(), value_only)) continue;
    const auto& outputs = kernel.planned.cluster.outputs;
    const bool only = std::all_of(outputs.begin(), outputs.end(), [&](NodeId id) {
      return !step[static_cast<std::size_t>(id.value)];
    });
    ++kernels;
    alone += only;
    us += only ? kernel.planned.cost.us : 0;
  }
  return {{"wanted", std::any_of(g.outputs.begin(), g.outputs.end(), is_value)},
          {"primitives", primitives},
          {"kernels", kernels},
          {"alone", alone},
          {"us", us}};
}

}  // namespace

json fusion_of(const Compiled& compiled) {
  const Graph& g = compiled.graph;
  Places reductions, statistics, gradients;
  int updates = 0, updates_in_epilogues = 0;
  int contractions = 0, with_more = 0, several = 0;
  for (const CompiledKernel& kernel : compiled.kernels) {
    const lower::Cluster& cluster = kernel.planned.cluster;
    const FusedKernel k = kernel_of(g, cluster);
    contractions += k.contraction;
    with_more += k.contraction && (k.arithmetic || !k.reductions.empty());
    several += k.contraction && cluster.outputs.size() > 1;
    const bool update = is_update(g, kernel.planned);
    updates += update;
    updates_in_epilogues += update && k.contraction;
    for (NodeId id : k.reductions) {
      reductions.add(id, place_of(k, id));
      if (is_statistic(g, id, false)) statistics.add(id, place_of(k, id));
      if (is_statistic(g, id, true)) gradients.add(id, place_of(k, id));
    }
  }
  return {{"kernels", compiled.kernels.size()},
          {"plan_us", compiled.plan.cost_us},
          {"operators", operators_of(g)},
          {"loss", loss_of(compiled)},
          {"contractions",
           {{"kernels", contractions}, {"with_more", with_more}, {"several_outputs", several}}},
          {"updates", {{"kernels", updates}, {"in_epilogues", updates_in_epilogues}}},
          {"norm_statistics", statistics.as_json()},
          {"moments_us", compiled.moments_us ? json(*compiled.moments_us) : json()},
          {"norm_gradients", gradients.as_json()},
          {"reductions", reductions.as_json()}};
}

namespace {

std::string loss_line(const json& loss, double plan_us) {
  if (!loss["wanted"].get<bool>())
    return "loss: eliminated: nothing is computed for its value, only its gradient";
  return fmt::format(
      "loss: {} primitives are for its value alone, which is an output ({} kernels, {} of them for "
      "nothing else: {:.1f} us, {:.2f} %); its gradient reads none of them",
      loss["primitives"].get<int>(), loss["kernels"].get<int>(), loss["alone"].get<int>(),
      loss["us"].get<double>(), 100 * loss["us"].get<double>() / plan_us);
}

std::string places_line(const char* what, const json& p) {
  const std::pair<const char*, const char*> rows[] = {
      {"epilogues", "in epilogues of contractions"},
      {"prologues", "before a contraction, in its kernel"},
      {"with_others", "with other arithmetic"},
      {"alone", "in kernels of their own"}};
  int all = 0;
  std::string parts;
  for (const auto& [place, words] : rows) {
    const int count = p[place];
    all += count;
    if (count > 0) parts += fmt::format("{}{} {}", parts.empty() ? "" : ", ", count, words);
  }
  const int again = p["again"];
  if (again > 0) parts += fmt::format("; {} times one is computed again in another kernel", again);
  return fmt::format("{}: {}{}{}", what, all, parts.empty() ? "" : ": ", parts);
}

/// Why statistics are outside epilogues, where some are.
std::string statistics_line(const json& fusion) {
  const json& p = fusion["norm_statistics"];
  std::string line = places_line("statistics of normalisations", p);
  if (p["prologues"].get<int>() + p["with_others"].get<int>() + p["alone"].get<int>() == 0)
    return line;
  const json& us = fusion["moments_us"];
  if (us.is_null()) return line;
  return line + fmt::format(
                    "; as sums of x and of x^2 in f64, which one epilogue can make: "
                    "{:+.1f} us{}",
                    us.get<double>(), us.get<double>() < 0 ? "" : ", so not taken");
}

}  // namespace

std::vector<std::string> fusion_lines(const json& fusion) {
  if (!fusion.contains("operators")) return {};
  const json& operators = fusion["operators"];
  const int forward = operators["forward"], backward = operators["backward"],
            parameters = operators["updates"];
  if (backward == 0) return {};
  const json &contractions = fusion["contractions"], &updates = fusion["updates"];
  return {
      fmt::format("{} kernels; one for each operator would be {}: {} forward, {} backward, {} "
                  "updates of a parameter (what only moves data not counted)",
                  fusion["kernels"].get<int>(), forward + backward + parameters, forward, backward,
                  parameters),
      loss_line(fusion["loss"], fusion["plan_us"]),
      fmt::format("contractions: {} kernels, {} with other work in them, {} that write several "
                  "values",
                  contractions["kernels"].get<int>(), contractions["with_more"].get<int>(),
                  contractions["several_outputs"].get<int>()),
      statistics_line(fusion),
      places_line("gradients of normalisations", fusion["norm_gradients"]),
      places_line("all reductions", fusion["reductions"]),
      fmt::format("updates: {} kernels for {} parameters, {} of them in the epilogue of the "
                  "contraction that makes the gradient",
                  updates["kernels"].get<int>(), parameters, updates["in_epilogues"].get<int>())};
}

}  // namespace heddle::driver

#include <algorithm>
#include <map>

#include "lower/bands/bands.h"

namespace heddle::lower::bands {

using ir::Expr;
using ir::Var;
using prim::Contract;
using prim::Graph;

namespace {

constexpr std::size_t kMostLayers = 3, kMostNodes = 64;
constexpr std::size_t kRank = 4;

bool is_image(const Graph& g, NodeId id) {
  return g[id].type.shape.size() == kRank && g[id].type.dtype == DType::f32;
}

/// Fewer values than positions: read at each of them, not stored.
bool is_broadcast(const Graph& g, NodeId id) {
  const auto* view = std::get_if<prim::View>(&g[id].op);
  return view && g[id].type.shape.size() <= kRank && view->pieces.size() == 1 &&
         view->pieces[0].inside.empty() &&
         element_count(g[id].type.shape) > element_count(g[g[id].args[0]].type.shape);
}

/// A number for each channel, or fewer: cheap to compute at every position. What has more would be
/// computed again for each tap that reads it.
bool is_of_channels(const Graph& g, NodeId id) {
  const Shape& shape = g[id].type.shape;
  return shape.size() < 2 || element_count(shape) <= shape[0] * shape[1];
}

/// The view of the windows N×C×H×W×… that are reduced to an image.
std::optional<NodeId> windows_of(const Graph& g, NodeId reduction) {
  const auto* reduce = std::get_if<prim::Reduce>(&g[reduction].op);
  if (!reduce || !is_image(g, reduction)) return std::nullopt;
  const NodeId windows = g[reduction].args[0];
  const auto* view = std::get_if<prim::View>(&g[windows].op);
  const bool fits = view && view->pieces.size() == 1 && is_image(g, g[windows].args[0]) &&
                    element_count(g[windows].type.shape) > element_count(g[reduction].type.shape) &&
                    std::ranges::all_of(reduce->axes, [](int axis) { return axis >= int{kRank}; });
  return fits ? std::optional(windows) : std::nullopt;
}

/// Where a layer reads `image`, over the variables of the extents; nullptr: twice.
const prim::Access* access_of(const Graph& g, NodeId root, NodeId image, Shape& extents) {
  const prim::Node& node = g[root];
  extents = node.type.shape;
  if (const auto* view = std::get_if<prim::View>(&node.op)) return &view->pieces[0];
  const auto& contract = std::get<Contract>(node.op);
  extents.insert(extents.end(), contract.reduced.begin(), contract.reduced.end());
  if (node.args[0] == node.args[1]) return nullptr;
  return node.args[0] == image ? &contract.lhs : &contract.rhs;
}

/// Sets which rows of `image` the layer reads; false if it reads it otherwise.
bool read_rows(const Graph& g, NodeId image, Layer& layer) {
  Shape extents;
  const prim::Access* found = access_of(g, layer.root, image, extents);
  if (!found) return false;
  const prim::Access& access = *found;
  const ir::Ranges ranges = ir::ranges_of(extents);
  const Var row{static_cast<std::int32_t>(kRowDim)};
  const Expr batch = extents[0] == 1 ? Expr(0) : Expr(Var{0});
  if (ir::simplify(access.index[0], ranges) != batch) return false;
  for (const std::size_t d : {kChannelDim, kColumnDim})
    if (ir::depends_on(access.index[d], row)) return false;
  const auto step = ir::coefficient_of(access.index[kRowDim], row);
  if (!step || *step < 1) return false;
  const Expr rest = access.index[kRowDim] - Expr(row) * Expr(*step);
  for (const int d : {0, 1, 3})
    if (ir::depends_on(rest, Var{d})) return false;
  const auto window = ir::bounds(rest, ranges);
  if (!window) return false;
  layer.step = *step;
  layer.first = window->low;
  layer.last = window->high;
  return true;
}

/// The nodes of a cluster by layer.
class Divider {
 public:
  Divider(const Graph& g, const Cluster& c) : g_(g), c_(c) {}

  std::vector<Layer> run() {
    if (c_.outputs.size() != 1) return {};
    for (const NodeId id : c_.nodes)
      if (!place(id)) return {};
    if (layers_.size() < 2 || layers_.size() > kMostLayers) return {};
    for (const auto& [id, layer] : layer_of_)
      if (layer >= 0) take(id, static_cast<std::size_t>(layer));
    if (!link()) return {};
    return std::move(layers_);
  }

 private:
  bool inside(NodeId id) const { return std::ranges::binary_search(c_.nodes, id); }

  /// A contraction or view of windows begins a layer; a map belongs to that of its arguments; -1:
  /// to its readers'.
  bool place(NodeId id) {
    int latest = -1;
    for (const NodeId arg : g_[id].args)
      if (inside(arg)) latest = std::max(latest, layer_of_.at(arg));
    const int last = static_cast<int>(layers_.size()) - 1;
    if (std::holds_alternative<Contract>(g_[id].op) || is_windows(id)) {
      if (latest != last) return false;
      layers_.push_back({{}, id});
      layer_of_[id] = last + 1;
      return std::holds_alternative<Contract>(g_[id].op) ? is_image(g_, id) : true;
    }
    layer_of_[id] = latest;
    const bool map = std::holds_alternative<prim::Map>(g_[id].op);
    if (latest < 0) return is_broadcast(g_, id) || (map && is_of_channels(g_, id));
    if (const auto windows = windows_of(g_, id)) return *windows == root_of(latest);
    const Shape& root = g_[root_of(latest)].type.shape;
    return map && is_image(g_, id) &&
           std::equal(root.begin(), root.begin() + kRank, g_[id].type.shape.begin());
  }
  NodeId root_of(int layer) const { return layers_[static_cast<std::size_t>(layer)].root; }
  bool is_windows(NodeId id) const {
    return std::ranges::any_of(c_.nodes, [&](NodeId n) { return windows_of(g_, n) == id; });
  }

  void take(NodeId id, std::size_t layer) {
    std::vector<NodeId>& nodes = layers_[layer].cluster.nodes;
    const auto at = std::ranges::lower_bound(nodes, id);
    if (at != nodes.end() && *at == id) return;
    nodes.insert(at, id);
    for (const NodeId arg : g_[id].args)
      if (inside(arg) && layer_of_.at(arg) < 0) take(arg, layer);
  }

  /// Each layer has one value that the next one's root reads, and nothing else reads it.
  bool link() {
    for (const auto& [id, layer] : layer_of_)
      for (const NodeId arg : g_[id].args) {
        if (!inside(arg)) continue;
        const int from = layer_of_.at(arg);
        if (from < 0 || from == layer) continue;
        Cluster& before = layers_[static_cast<std::size_t>(from)].cluster;
        if (id != root_of(layer) || from + 1 != layer || !before.outputs.empty()) return false;
        before.outputs = {arg};
        if (!read_rows(g_, arg, layers_[static_cast<std::size_t>(layer)])) return false;
      }
    const auto of_output = layer_of_.find(c_.outputs[0]);
    if (of_output == layer_of_.end() || of_output->second + 1 != static_cast<int>(layers_.size()))
      return false;
    layers_.back().cluster.outputs = c_.outputs;
    return std::ranges::none_of(layers_, [](const Layer& l) { return l.cluster.outputs.empty(); });
  }

  const Graph& g_;
  const Cluster& c_;
  std::vector<Layer> layers_;
  std::map<NodeId, int> layer_of_;
};

/// Chains of a graph.
class Finder {
 public:
  Finder(const Graph& g, const Target& target)
      : g_(g), target_(target), live_(prim::live_nodes(g)), readers_(prim::consumers(g)) {
    for (const prim::GraphOutput& o : g.outputs) outputs_.push_back(o.node);
  }

  std::vector<Cluster> run() {
    std::vector<Cluster> out;
    for (std::size_t i = 0; i < live_.size(); ++i) {
      const auto root = root_of(live_[i]);
      if (!root || !is_image(g_, live_[i])) continue;
      Cluster c = with_followers(i);
      add({*root}, c.nodes);
      NodeId first = *root;
      for (std::size_t layers = 1; layers < kMostLayers; ++layers) {
        const auto before = layer_before(first);
        if (!before) break;
        first = before->root;
        add(before->nodes, c.nodes);
        if (bands::supports(g_, c, target_)) out.push_back(c);
      }
    }
    return out;
  }

 private:
  static void add(const std::vector<NodeId>& more, std::vector<NodeId>& sorted) {
    for (const NodeId id : more)
      if (const auto at = std::ranges::lower_bound(sorted, id); at == sorted.end() || *at != id)
        sorted.insert(at, id);
  }
  /// Of the layer that the node's result is: the contraction itself, or the view of its windows.
  std::optional<NodeId> root_of(NodeId id) const {
    if (std::holds_alternative<Contract>(g_[id].op)) return id;
    return windows_of(g_, id);
  }
  const std::vector<NodeId>& readers(NodeId id) const {
    return readers_[static_cast<std::size_t>(id.value)];
  }
  bool read_only_in(NodeId id, const std::vector<NodeId>& sorted) const {
    return std::ranges::find(outputs_, id) == outputs_.end() &&
           std::ranges::all_of(readers(id),
                               [&](NodeId r) { return std::ranges::binary_search(sorted, r); });
  }

  /// The contraction or reduction and the most of its pointwise followers that have one result.
  Cluster with_followers(std::size_t at) const {
    const NodeId contract = live_[at];
    std::vector<NodeId> nodes{contract}, views, dependent{contract};
    Cluster best{{contract}, {contract}};
    for (std::size_t i = at + 1; i < std::min(live_.size(), at + kMostNodes); ++i) {
      const NodeId id = live_[i];
      const auto of_it = [&](NodeId a) { return std::ranges::binary_search(dependent, a); };
      if (std::ranges::none_of(g_[id].args, of_it)) continue;
      dependent.push_back(id);
      const bool joins = std::holds_alternative<prim::Map>(g_[id].op) && is_image(g_, id) &&
                         g_[id].type.shape == g_[contract].type.shape &&
                         std::ranges::all_of(g_[id].args, [&](NodeId a) {
                           return !of_it(a) || std::ranges::binary_search(nodes, a);
                         });
      if (!joins) continue;
      nodes.push_back(id);
      for (const NodeId a : g_[id].args)
        if (is_broadcast(g_, a)) views.push_back(a);
      const auto closed = [&](NodeId n) { return n == id || read_only_in(n, nodes); };
      if (!std::ranges::all_of(nodes, closed)) continue;
      best = {nodes, {id}};
      add(views, best.nodes);
    }
    return best;
  }

  struct Before {
    NodeId root;
    std::vector<NodeId> nodes;
  };
  /// The layer whose image the next one's root reads.
  std::optional<Before> layer_before(NodeId next) const {
    for (const NodeId image : g_[next].args) {
      if (!is_image(g_, image) || readers(image) != std::vector{next} ||
          std::ranges::find(outputs_, image) != outputs_.end())
        continue;
      std::vector<NodeId> nodes{image}, waiting{image};
      std::optional<NodeId> root;
      while (!waiting.empty() && nodes.size() < kMostNodes) {
        const NodeId id = waiting.back();  // the last: all its readers are decided
        waiting.pop_back();
        if (const auto here = root_of(id); here && !root) {
          root = here;
          add({*root}, nodes);
          continue;
        }
        for (const NodeId arg : g_[id].args) {
          if (!joins_before(arg, nodes, image, root.has_value())) continue;
          add({arg}, nodes);
          add({arg}, waiting);
        }
      }
      if (root) return Before{*root, nodes};
    }
    return std::nullopt;
  }
  bool joins_before(NodeId id, const std::vector<NodeId>& nodes, NodeId image,
                    bool has_root) const {
    if (is_broadcast(g_, id)) return true;
    const bool begins = root_of(id).has_value();
    return (begins ? !has_root : std::holds_alternative<prim::Map>(g_[id].op)) &&
           is_image(g_, id) && g_[id].type.shape == g_[image].type.shape && read_only_in(id, nodes);
  }

  const Graph& g_;
  const Target& target_;
  std::vector<NodeId> live_, outputs_;
  std::vector<std::vector<NodeId>> readers_;
};

}  // namespace

std::vector<Layer> layers_of(const Graph& g, const Cluster& c) {
  const auto roots = std::ranges::count_if(c.nodes, [&](NodeId id) {
    return std::holds_alternative<Contract>(g[id].op) || windows_of(g, id).has_value();
  });
  return roots < 2 ? std::vector<Layer>() : Divider(g, c).run();
}

std::vector<Cluster> clusters(const Graph& g, const Target& target) {
  if (target.is_gpu()) return {};
  return Finder(g, target).run();
}

}  // namespace heddle::lower::bands

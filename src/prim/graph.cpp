#include "prim/graph.h"

#include <algorithm>

#include "support/match.h"

namespace heddle::prim {
namespace {

std::size_t hash_of(const std::vector<ir::Expr>& exprs) {
  std::size_t h = exprs.size();
  for (const ir::Expr& e : exprs) h = combine(h, e.hash());
  return h;
}
template <class T>
std::size_t hash_of_ints(const std::vector<T>& values) {
  std::size_t h = values.size();
  for (const T v : values) h = combine(h, static_cast<std::size_t>(v));
  return h;
}
std::size_t hash_of(const Access& a) {
  std::size_t h = hash_of(a.index);
  for (const ir::Condition& c : a.inside) {
    h = combine(h, c.expr.hash());
    h = combine(h, static_cast<std::size_t>(c.low));
    h = combine(h, static_cast<std::size_t>(c.high));
  }
  return h;
}

std::size_t hash_of(const Op& op, const std::vector<NodeId>& args, const TensorType& type) {
  std::size_t h = hash_of(op);
  for (const NodeId a : args) h = combine(h, static_cast<std::size_t>(a.value));
  h = combine(h, static_cast<std::size_t>(type.dtype));
  return combine(h, hash_of_ints(type.shape));
}

}  // namespace

std::string_view kind_name(const Op& op) {
  static constexpr std::string_view kNames[] = {
      "input",  "constant", "iota", "map",  "view",   "reduce",    "contract",
      "gather", "scatter",  "scan", "sort", "random", "all_reduce"};
  static_assert(std::size(kNames) == std::variant_size_v<Op>);
  return kNames[op.index()];
}

bool folds(const Op& op) {
  return !std::holds_alternative<Input>(op) && !std::holds_alternative<Random>(op) &&
         !std::holds_alternative<AllReduce>(op);
}

std::size_t hash_of(const Op& op) {
  const std::size_t h = match(
      op, [](const Input& o) { return static_cast<std::size_t>(o.slot); },
      [](const Constant& o) { return std::hash<Hash>{}(o.content); },
      [](const Iota& o) { return static_cast<std::size_t>(o.axis); },
      [](const Map& o) { return static_cast<std::size_t>(o.fn); },
      [](const View& o) {
        std::size_t h = std::hash<double>{}(o.fill);
        for (const Access& a : o.pieces) h = combine(h, hash_of(a));
        return h;
      },
      [](const Reduce& o) { return combine(static_cast<std::size_t>(o.fn), hash_of_ints(o.axes)); },
      [](const Contract& o) {
        return combine(combine(hash_of_ints(o.reduced), hash_of(o.lhs)), hash_of(o.rhs));
      },
      [](const Gather& o) { return combine(hash_of_ints(o.axes), hash_of(o.base)); },
      [](const Scatter& o) {
        return combine(combine(hash_of_ints(o.axes), hash_of(o.base)),
                       static_cast<std::size_t>(o.combine));
      },
      [](const Scan& o) {
        return combine(static_cast<std::size_t>(o.fn) * 4 + o.exclusive * 2 + o.reverse,
                       static_cast<std::size_t>(o.axis));
      },
      [](const Sort& o) {
        return combine(static_cast<std::size_t>(o.count) * 2 + o.descending,
                       static_cast<std::size_t>(o.axis));
      },
      [](const Random& o) { return combine(static_cast<std::size_t>(o.kind), o.seed); },
      [](const AllReduce& o) { return static_cast<std::size_t>(o.channel); });
  return combine(op.index(), h);
}

NodeId Graph::add(Op op, std::vector<NodeId> args, TensorType type) {
  for (const NodeId a : args)
    HEDDLE_CHECK(a.value >= 0 && a.value < nodes_.size(), "{} reads %{}, but there are {} nodes",
                 kind_name(op), a.value, nodes_.size());
  const std::size_t h = hash_of(op, args, type);
  const auto [begin, end] = index_.equal_range(h);
  for (auto it = begin; it != end; ++it) {
    const Node& n = nodes_[it->second];
    if (n.op == op && n.args == args && n.type == type) return it->second;
  }
  const NodeId id = nodes_.add({std::move(op), std::move(args), std::move(type)});
  origins_of_.push_back(current_origin_);
  index_.emplace(h, id);
  return id;
}

NodeId Graph::add_input(std::string name, TensorType type) {
  const int slot = static_cast<int>(inputs.size());
  inputs.push_back({std::move(name), type});
  return add(Input{slot}, {}, std::move(type));
}

NodeId Graph::add_constant(const Tensor& value) {
  const Hash content = heddle::hash_of(value);
  constants_.try_emplace(content, value);
  return add(Constant{content}, {}, value.type());
}

const Tensor* Graph::constant_of(NodeId id) const {
  const auto* c = std::get_if<Constant>(&nodes_[id].op);
  return c != nullptr ? &constants_.at(c->content) : nullptr;
}

void Graph::drop_constant(NodeId id) {
  Tensor& tensor = constants_.at(std::get<Constant>(nodes_[id].op).content);
  tensor = Tensor(tensor.type(), nullptr, nullptr);
}

void Graph::adopt_constant(const Graph& from, const Constant& c) {
  constants_.try_emplace(c.content, from.constant(c));
}

OriginId Graph::set_origin(Origin origin) {
  const std::int32_t last = origins_.size() - 1;
  if (last >= 0 && origins_[OriginId{last}] == origin)
    current_origin_ = OriginId{last};
  else
    current_origin_ = origins_.add(std::move(origin));
  return current_origin_;
}

std::vector<OriginId> Graph::origins_of(NodeId id) const {
  std::vector<OriginId> all;
  if (const auto more = more_origins_.find(id); more != more_origins_.end()) all = more->second;
  if (const OriginId own = origin_id(id)) all.insert(std::ranges::lower_bound(all, own), own);
  return all;
}

void Graph::add_origins(NodeId id, const std::vector<OriginId>& more) {
  for (const OriginId o : more) {
    if (!o || o == origin_id(id)) continue;
    std::vector<OriginId>& list = more_origins_[id];
    const auto at = std::ranges::lower_bound(list, o);
    if (at == list.end() || *at != o) list.insert(at, o);
  }
}

NodeId behind_views(const Graph& g, NodeId id) {
  while (std::holds_alternative<View>(g[id].op) && g[id].args.size() == 1) id = g[id].args[0];
  return id;
}

std::vector<NodeId> live_nodes(const Graph& g) {
  std::vector<bool> live(static_cast<std::size_t>(g.size()), false);
  for (const GraphOutput& o : g.outputs) live[static_cast<std::size_t>(o.node.value)] = true;
  std::vector<NodeId> ids;
  // Ids are a topological order, so one sweep backwards reaches everything.
  for (std::int32_t i = g.size(); i-- > 0;) {
    // A collective acts on other processes, whether or not its value is read here.
    if (!live[static_cast<std::size_t>(i)] && !std::holds_alternative<AllReduce>(g[NodeId{i}].op))
      continue;
    ids.push_back(NodeId{i});
    for (const NodeId a : g[NodeId{i}].args) live[static_cast<std::size_t>(a.value)] = true;
  }
  std::reverse(ids.begin(), ids.end());
  return ids;
}

std::vector<std::vector<NodeId>> consumers(const Graph& g) {
  std::vector<std::vector<NodeId>> result(static_cast<std::size_t>(g.size()));
  for (const NodeId id : live_nodes(g)) {
    for (const NodeId a : g[id].args) {
      auto& list = result[static_cast<std::size_t>(a.value)];
      if (list.empty() || list.back() != id) list.push_back(id);
    }
  }
  return result;
}

namespace {

/// Gives each node's origins to its image. Where that is dead or an input, a rewrite has absorbed
/// the node, and its readers have them. Constants are computed by the compiler and stand for
/// nothing.
void carry_origins(const Graph& g, const std::vector<NodeId>& live,
                   const std::vector<NodeId>& mapped, Graph& out) {
  std::vector<bool> there(static_cast<std::size_t>(out.size()), false);
  for (const NodeId id : live_nodes(out))
    there[static_cast<std::size_t>(id.value)] = !std::holds_alternative<Input>(out[id].op);
  std::vector<bool> constant(static_cast<std::size_t>(g.size()), false);
  std::unordered_map<NodeId, std::vector<OriginId>> absorbed;
  for (const NodeId id : live) {
    const Node& n = g[id];
    bool all = folds(n.op);
    for (const NodeId a : n.args) all = all && constant[static_cast<std::size_t>(a.value)];
    constant[static_cast<std::size_t>(id.value)] = all;
    if (all) continue;
    std::vector<OriginId> origins = g.origins_of(id);
    for (const NodeId a : n.args)
      if (const auto from = absorbed.find(a); from != absorbed.end())
        origins.insert(origins.end(), from->second.begin(), from->second.end());
    if (origins.empty()) continue;
    const NodeId image = mapped[static_cast<std::size_t>(id.value)];
    if (there[static_cast<std::size_t>(image.value)]) {
      out.add_origins(image, origins);
      continue;
    }
    std::ranges::sort(origins);
    const auto [end, last] = std::ranges::unique(origins);
    origins.erase(end, last);
    absorbed.emplace(id, std::move(origins));
  }
}

}  // namespace

Graph rebuild(const Graph& g,
              const std::function<NodeId(Graph& out, const Node& node, NodeId old)>& rewrite) {
  Graph out;
  out.inputs = g.inputs;
  out.adopt_origins(g);
  std::vector<NodeId> mapped(static_cast<std::size_t>(g.size()));
  const std::vector<NodeId> live = live_nodes(g);
  for (const NodeId id : live) {
    Node node = g[id];
    for (NodeId& a : node.args) a = mapped[static_cast<std::size_t>(a.value)];
    if (const auto* c = std::get_if<Constant>(&node.op)) out.adopt_constant(g, *c);
    out.set_origin(g.origin_id(id));
    mapped[static_cast<std::size_t>(id.value)] = rewrite(out, node, id);
  }
  out.set_origin(OriginId{});
  for (const GraphOutput& o : g.outputs)
    out.outputs.push_back({o.name, mapped[static_cast<std::size_t>(o.node.value)]});
  carry_origins(g, live, mapped, out);
  return out;
}

}  // namespace heddle::prim

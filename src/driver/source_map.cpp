#include "driver/source_map.h"

#include <algorithm>
#include <set>
#include <sstream>
#include <utility>

#include "kernel/traverse.h"
#include "prim/text.h"

namespace heddle::driver {
namespace {

using nlohmann::json;
using prim::NodeId;
using Nodes = std::set<NodeId>;
using namespace kernel;

/// What a cluster's contraction needs, up to the cluster's inputs.
Nodes needs_of(const prim::Graph& graph, const lower::Cluster& cluster, NodeId contraction) {
  Nodes out;
  std::vector<NodeId> open = graph[contraction].args;
  while (!open.empty()) {
    const NodeId id = open.back();
    open.pop_back();
    if (!out.insert(id).second) continue;
    const bool inside = std::ranges::find(cluster.nodes, id) != cluster.nodes.end();
    if (inside || std::holds_alternative<prim::View>(graph[id].op))
      open.insert(open.end(), graph[id].args.begin(), graph[id].args.end());
  }
  return out;
}

/// True if `v` is to + x·y, of no primitive alone: a step of a product.
bool is_product_step(const Value& v, BufferId to) {
  const Apply* sum = std::get_if<Apply>(&v->op);
  if (v->origin >= 0 || !sum || sum->fn != ir::ScalarFn::add) return false;
  const auto is_acc = [&](const Value& a) {
    const Load* l = std::get_if<Load>(&a->op);
    return l && l->buffer == to;
  };
  const auto is_product = [](const Value& a) {
    const Apply* p = std::get_if<Apply>(&a->op);
    return p && p->fn == ir::ScalarFn::mul;
  };
  return std::ranges::any_of(sum->args, is_acc) && std::ranges::any_of(sum->args, is_product);
}

/// By buffer: the arguments that flow into it, and whose work is stored there.
struct Flow {
  std::vector<Nodes> from;
  std::vector<std::set<std::int32_t>> own;
  std::vector<bool> tiles;     ///< of a product: accumulators and what is copied for them
  std::vector<bool> computed;  ///< otherwise, by nobody named

  Flow(const Kernel& k, const std::vector<lower::Argument>& arguments)
      : from(static_cast<std::size_t>(k.buffers.size())),
        own(from.size()),
        tiles(from.size()),
        computed(from.size()) {
    for (std::int32_t i = 0; i < k.buffers.size(); ++i) {
      const Buffer& b = k.buffers[BufferId{i}];
      if (b.argument >= 0 && !b.written)
        from[at(BufferId{i})] = {arguments[static_cast<std::size_t>(b.argument)].node};
    }
    for (bool more = true; more;) {
      more = false;
      for_each_stmt(k.body, [&](const Stmt& s) { more = visit(s) || more; });
    }
  }

 private:
  static std::size_t at(BufferId id) { return static_cast<std::size_t>(id.value); }
  bool add(BufferId to, BufferId source) {
    const std::size_t before = from[at(to)].size();
    from[at(to)].insert(from[at(source)].begin(), from[at(source)].end());
    return from[at(to)].size() != before;
  }
  bool visit(const Stmt& s) {
    bool more = false;
    if (const Store* x = std::get_if<Store>(&s.op)) {
      if (x->value->origin >= 0)
        own[at(x->buffer)].insert(x->value->origin);
      else if (is_product_step(x->value, x->buffer))
        tiles[at(x->buffer)] = true;
      else
        for_each_value(x->value, [&](const Value& v) {
          if (std::holds_alternative<Apply>(v->op)) computed[at(x->buffer)] = true;
        });
      for_each_value(x->value, [&](const Value& v) {
        if (const Load* l = std::get_if<Load>(&v->op)) more = add(x->buffer, l->buffer) || more;
      });
    }
    const auto tile = [&](BufferId to, BufferId source) {
      tiles[at(to)] = true;
      more = add(to, source) || more;
    };
    if (const Copy* x = std::get_if<Copy>(&s.op)) tile(x->to, x->from);
    if (const TileCopy* x = std::get_if<TileCopy>(&s.op)) tile(x->to, x->from);
    if (const Mma* x = std::get_if<Mma>(&s.op))
      tile(x->acc, x->a.buffer), tile(x->acc, x->b.buffer);
    return more;
  }
};

/// One line's worth of a name that a file has given: no line may end in what continues it.
std::string harmless(std::string text) {
  for (char& c : text)
    if (static_cast<unsigned char>(c) < ' ' || c == '\\') c = '?';
  return text;
}

}  // namespace

void name_origins(lower::Lowered& lowered, const lower::Cluster& cluster,
                  const prim::Graph& graph) {
  Kernel& k = lowered.kernel;
  const Flow flow(k, lowered.arguments);
  std::vector<std::pair<Nodes, NodeId>> contractions;  // in order
  for (const NodeId id : cluster.nodes)
    if (std::holds_alternative<prim::Contract>(graph[id].op))
      contractions.emplace_back(needs_of(graph, cluster, id), id);
  std::ranges::sort(contractions, {}, &std::pair<Nodes, NodeId>::second);
  for (std::int32_t i = 0; i < k.buffers.size(); ++i) {
    const auto at = static_cast<std::size_t>(i);
    Buffer& b = k.buffers[BufferId{i}];
    if (b.written && b.argument >= 0) {
      b.origin = lowered.arguments[static_cast<std::size_t>(b.argument)].node.value;
      continue;
    }
    if (!flow.tiles[at] && flow.own[at].size() == 1) b.origin = *flow.own[at].begin();
    if (b.origin >= 0 || flow.from[at].empty() || (flow.computed[at] && !flow.tiles[at])) continue;
    const auto needing = std::ranges::find_if(
        contractions, [&](const auto& c) { return std::ranges::includes(c.first, flow.from[at]); });
    if (needing != contractions.end()) b.origin = needing->second.value;
  }
}

json source_map(const prim::Graph& graph, const std::vector<std::int32_t>& origins) {
  json lines = json::array(), primitives = json::object();
  std::int32_t last = -1;
  for (std::size_t i = 0; i < origins.size(); ++i) {
    const std::int32_t id = origins[i], before = std::exchange(last, id);
    if (id < 0) continue;
    if (id == before)
      lines.back()[1] = i + 1;
    else
      lines.push_back({i + 1, i + 1, id});
    json& entry = primitives[std::to_string(id)];
    if (!entry.is_null()) continue;
    const NodeId node{id};
    entry = {{"primitive", prim::describe(graph, node)}, {"sources", json::array()}};
    std::string text;
    for (const prim::OriginId origin : graph.origins_of(node)) {
      const prim::Origin& from = graph.origin(origin);
      entry["sources"].push_back({{"op", from.op}, {"name", from.name}});
      text += fmt::format("{}{} '{}'", text.empty() ? "" : " + ", from.op, from.name);
    }
    entry["text"] = harmless(text.empty() ? entry["primitive"].get<std::string>() : text);
  }
  return {{"lines", lines}, {"primitives", primitives}};
}

std::string annotated(const std::string& source, const json& map) {
  if (!map.is_object()) return source;
  std::map<std::size_t, std::string> comments;
  std::string last;
  for (const json& run : map["lines"]) {
    const std::string id = std::to_string(run[2].get<int>());
    if (std::exchange(last, id) == id) continue;
    comments[run[0]] =
        fmt::format("  // %{} {}", id, map["primitives"][id]["text"].get<std::string>());
  }
  std::string out, line;
  std::istringstream lines(source);
  for (std::size_t n = 1; std::getline(lines, line); ++n) {
    out += line;
    if (const auto found = comments.find(n); found != comments.end()) out += found->second;
    out += '\n';
  }
  return out;
}

}  // namespace heddle::driver

#include "plan/plan.h"

#include <algorithm>
#include <set>

#include "lower/contract/dots.h"
#include "plan/clusters.h"

namespace heddle::plan {

std::string_view name_of(Strategy s) {
  switch (s) {
    case Strategy::single:
      return "single";
    case Strategy::operators:
      return "operators";
    case Strategy::greedy:
      return "greedy";
    case Strategy::partition:
      return "partition";
    case Strategy::recompute:
      return "recompute";
    case Strategy::full:
      return "full";
  }
  return "";
}

std::optional<Strategy> strategy_named(std::string_view name) {
  for (Strategy s : {Strategy::single, Strategy::operators, Strategy::greedy, Strategy::partition,
                     Strategy::recompute, Strategy::full}) {
    if (name_of(s) == name) return s;
  }
  return std::nullopt;
}

std::string_view name_of(Provenance p) {
  return p == Provenance::modelled ? "modelled" : "measured";
}

std::string_view Cost::bound() const {
  if (launch_us >= std::max(memory_us, compute_us)) return "launch";
  return memory_us >= compute_us ? "memory" : "compute";
}

std::vector<NodeId> reads_of(const prim::Graph& g, const Cluster& c) {
  std::vector<NodeId> out;
  for (NodeId id : c.nodes) {
    for (NodeId arg : g[id].args) {
      if (std::binary_search(c.nodes.begin(), c.nodes.end(), arg)) continue;
      if (g.constant_of(arg) && element_count(g[arg].type.shape) == 1) continue;
      if (std::find(out.begin(), out.end(), arg) == out.end()) out.push_back(arg);
    }
  }
  return out;
}

Cost cost_of(const prim::Graph& g, const Cluster& c, const Options& options) {
  const Facts facts = facts_of(g, options.legality, options.class_of);
  return CostModel(facts, options.machine)(c);
}

namespace {

bool is_leaf(const prim::Graph& g, NodeId id) {
  return std::holds_alternative<prim::Input>(g[id].op) ||
         std::holds_alternative<prim::Constant>(g[id].op);
}

NodeId add_copy(prim::Graph& g, NodeId id) {
  const TensorType type = g[id].type;
  prim::Access same;
  for (std::size_t d = 0; d < type.shape.size(); ++d)
    same.index.push_back(ir::Var{static_cast<std::int32_t>(d)});
  return g.add(prim::View{{std::move(same)}, 0}, {id}, type);
}

}  // namespace

bool is_scattered(const prim::Graph& g, NodeId output) {
  constexpr std::int64_t kLarge = 4096;
  const Shape& shape = g[output].type.shape;
  if (shape.empty() || shape.back() < 2 || element_count(shape) < kLarge) return false;
  // Maps of one shape end in the contraction whose epilogue they may be.
  NodeId id = output;
  while (!std::holds_alternative<prim::Contract>(g[id].op)) {
    const auto of_shape = std::ranges::find_if(g[id].args, [&](NodeId a) {
      return g[a].type.shape == shape && !is_leaf(g, a) &&
             !std::holds_alternative<prim::Iota>(g[a].op);
    });
    if (!std::holds_alternative<prim::Map>(g[id].op) || of_shape == g[id].args.end()) return false;
    id = *of_shape;
  }
  if (!lower::contract::worth_main_loop(g, id)) return false;
  // Vectors run along what the constant operand alone depends on, or along the terms: then results
  // come one by one, or side by side as the rows are.
  if (lower::contract::dots_everywhere(g, id)) return false;
  const lower::contract::Roles roles = lower::contract::roles_of(g, id);
  const std::vector<int>& n = g.constant_of(g[id].args[0]) ? roles.m : roles.n;
  const int last = static_cast<int>(shape.size()) - 1;
  return std::ranges::find(n, last) == n.end() &&
         std::ranges::any_of(n, [&](int d) { return shape[static_cast<std::size_t>(d)] > 1; });
}

prim::Graph with_copied_outputs(const prim::Graph& g, bool gpu) {
  prim::Graph out = prim::rebuild(g, [](prim::Graph& into, const prim::Node& node, NodeId) {
    return into.add(node.op, node.args, node.type);
  });
  std::set<NodeId> given;
  for (prim::GraphOutput& o : out.outputs) {
    if (!gpu && is_scattered(out, o.node)) o.node = add_copy(out, o.node);
    // A copy of a copy, where a value is an output several times: equal nodes are one.
    while (is_leaf(out, o.node) || given.contains(o.node)) o.node = add_copy(out, o.node);
    given.insert(o.node);
  }
  return out;
}

namespace {

Status verify_kernel(const prim::Graph& g, const Kernel& k, std::size_t i,
                     const std::set<NodeId>& made, const std::vector<Substitute>& substitutes) {
  if (k.cluster.outputs.empty()) return fail("kernel {}: no output", i);
  if (!std::is_sorted(k.cluster.nodes.begin(), k.cluster.nodes.end())) {
    return fail("kernel {}: nodes are not sorted", i);
  }
  for (NodeId id : k.cluster.nodes) {
    if (id.value < 0 || id.value >= g.size()) return fail("kernel {}: no node %{}", i, id.value);
    if (is_leaf(g, id)) return fail("kernel {}: computes the leaf %{}", i, id.value);
  }
  for (NodeId o : k.cluster.outputs) {
    if (!std::binary_search(k.cluster.nodes.begin(), k.cluster.nodes.end(), o)) {
      return fail("kernel {}: output %{} is not among its nodes", i, o.value);
    }
  }
  for (NodeId in : reads_of(g, k.cluster)) {
    auto s = std::find_if(substitutes.begin(), substitutes.end(),
                          [&](const Substitute& x) { return x.wanted == in; });
    const NodeId read = s == substitutes.end() ? in : s->instead;
    if (!is_leaf(g, read) && !made.count(read)) {
      return fail("kernel {}: reads %{}, which no earlier kernel makes", i, read.value);
    }
  }
  return Ok{};
}

}  // namespace

Status verify(const prim::Graph& g, const Plan& plan) {
  std::set<NodeId> made;
  for (std::size_t i = 0; i < plan.kernels.size(); ++i) {
    HEDDLE_TRY(verify_kernel(g, plan.kernels[i], i, made, plan.substitutes));
    made.insert(plan.kernels[i].cluster.outputs.begin(), plan.kernels[i].cluster.outputs.end());
  }
  for (const Substitute& s : plan.substitutes) {
    if (!made.count(s.instead)) return fail("substitute %{} is not made", s.instead.value);
    if (g[s.instead].type != g[s.wanted].type) {
      return fail("substitute %{} has another type than %{}", s.instead.value, s.wanted.value);
    }
    made.insert(s.wanted);
  }
  for (const prim::GraphOutput& o : g.outputs) {
    if (!made.count(o.node)) return fail("output '{}': no kernel makes %{}", o.name, o.node.value);
  }
  return Ok{};
}

}  // namespace heddle::plan

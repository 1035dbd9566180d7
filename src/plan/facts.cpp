#include "plan/facts.h"

#include <algorithm>

#include "plan/reuse.h"

namespace heddle::plan {
namespace {

bool has_fold(const ir::Expr& e) {
  const ir::IndexNode& n = e.node();
  using Kind = ir::IndexNode::Kind;
  if (n.kind != Kind::sum && n.kind != Kind::var) return true;
  for (const ir::Expr& a : n.args) {
    if (has_fold(a)) return true;
  }
  for (const auto& t : n.terms) {
    if (has_fold(t.atom)) return true;
  }
  return false;
}

std::uint64_t bit(int i) { return std::uint64_t{1} << std::min(i, 63); }

/// i % c with c of some vectors' length: neighbours are neighbours but for the seams.
bool long_run(const ir::Expr& e, ir::Var v) {
  constexpr std::int64_t kLong = 16;
  const ir::IndexNode& n = e.node();
  if (n.kind == ir::IndexNode::Kind::mod) {
    return n.constant >= kLong && ir::coefficient_of(n.args[0], v) == 1;
  }
  if (n.kind != ir::IndexNode::Kind::sum) return false;
  int runs = 0;
  for (const auto& t : n.terms) {
    if (t.coefficient == 1 && long_run(t.atom, v)) ++runs;
  }
  return runs == 1;
}

IndexFacts facts_of_index(const ir::Expr& e) {
  IndexFacts out;
  std::vector<ir::Var> vars;
  ir::collect_variables(e, vars);
  for (ir::Var v : vars) {
    out.variables |= bit(v.index);
    if (ir::coefficient_of(e, v) == 1 || long_run(e, v)) out.unit |= bit(v.index);
  }
  out.folds = has_fold(e);
  return out;
}

std::vector<AccessFacts> accesses_of(const prim::Node& node) {
  std::vector<AccessFacts> out;
  if (const auto* view = std::get_if<prim::View>(&node.op)) {
    for (const prim::Access& piece : view->pieces) out.push_back(facts_of(piece));
  } else if (const auto* contract = std::get_if<prim::Contract>(&node.op)) {
    out = {facts_of(contract->lhs), facts_of(contract->rhs)};
  } else if (const auto* gather = std::get_if<prim::Gather>(&node.op)) {
    out = {facts_of(prim::Access{gather->base, {}})};
    // Dimensions addressed by data depend on where in the output we are.
    std::uint64_t all = 0;
    for (std::size_t d = 0; d < node.type.shape.size(); ++d) all |= bit(static_cast<int>(d));
    for (int axis : gather->axes) {
      out[0][static_cast<std::size_t>(axis)] = {.variables = all, .unit = 0, .folds = true};
    }
  }
  return out;
}

void add_once(std::vector<NodeId>& list, NodeId id) {
  if (std::find(list.begin(), list.end(), id) == list.end()) list.push_back(id);
}

void find_classes(Facts& f, const std::vector<NodeId>& class_of) {
  const std::int32_t n = f.graph->size();
  f.class_of = class_of;
  for (auto i = static_cast<std::int32_t>(f.class_of.size()); i < n; ++i) {
    f.class_of.push_back(NodeId{i});
  }
  bool any = false;
  for (std::int32_t i = 0; i < n; ++i) any = any || f.class_of_node(NodeId{i}) != NodeId{i};
  if (!any) return;
  f.class_members.resize(static_cast<std::size_t>(n));
  for (std::int32_t i = 0; i < n; ++i) {
    f.class_members[static_cast<std::size_t>(f.class_of_node(NodeId{i}).value)].push_back(
        NodeId{i});
  }
  for (auto& members : f.class_members) {
    if (members.size() < 2) members.clear();
  }
}

void find_live(Facts& f) {
  f.is_live.assign(static_cast<std::size_t>(f.graph->size()), false);
  std::vector<NodeId> work;
  auto reach = [&](NodeId id) {
    auto live = f.is_live[static_cast<std::size_t>(id.value)];
    if (!live) work.push_back(id);
    f.is_live[static_cast<std::size_t>(id.value)] = true;
  };
  for (const prim::GraphOutput& o : f.graph->outputs) reach(o.node);
  while (!work.empty()) {
    const NodeId id = work.back();
    work.pop_back();
    for (NodeId a : f[id].args) reach(a);
    for (NodeId m : f.members_of(id)) reach(m);
  }
  f.written.assign(f.is_live.size(), false);
  for (NodeId id : prim::live_nodes(*f.graph)) f.written[static_cast<std::size_t>(id.value)] = true;
  for (std::int32_t i = 0; i < f.graph->size(); ++i) {
    if (f.is_live[static_cast<std::size_t>(i)]) f.live.push_back(NodeId{i});
  }
}

void find_consumers(Facts& f) {
  f.consumers.resize(static_cast<std::size_t>(f.graph->size()));
  for (NodeId id : f.live) {
    for (NodeId a : f[id].args) add_once(f.consumers[static_cast<std::size_t>(a.value)], id);
  }
  if (f.class_members.empty()) return;
  f.class_consumers = f.consumers;
  for (const auto& members : f.class_members) {
    std::vector<NodeId> all;
    for (NodeId m : members) {
      for (NodeId r : f.consumers_of(m)) add_once(all, r);
    }
    for (NodeId m : members) f.class_consumers[static_cast<std::size_t>(m.value)] = all;
  }
}

}  // namespace

AccessFacts facts_of(const prim::Access& access) {
  AccessFacts out;
  for (const ir::Expr& e : access.index) out.push_back(facts_of_index(e));
  return out;
}

namespace {

double made_among(const Facts& f, NodeId id) {
  if (f.is_leaf(id)) return 0;
  double here = f.bytes_of(id), before = 0;
  for (const NodeId arg : f[id].args) {
    here += f.bytes_of(arg);
    before = std::max(before, f.made_among[static_cast<std::size_t>(arg.value)]);
  }
  return f.is_main_loop(id) ? here : std::max(here, before);
}

}  // namespace

Facts facts_of(const prim::Graph& g, const Legality& legality,
               const std::vector<NodeId>& class_of) {
  Facts f;
  f.graph = &g;
  f.between = constants_between(g);
  find_classes(f, class_of);
  find_live(f);
  find_consumers(f);
  const auto n = static_cast<std::size_t>(g.size());
  f.leaf.resize(n);
  f.inlined.resize(n);
  f.main_loop.resize(n);
  f.output.resize(n);
  f.scattered.resize(n);
  f.joined.resize(n);
  f.elements.resize(n);
  f.bytes.resize(n);
  f.made_among.resize(n);
  f.accesses.resize(n);
  f.algorithms.resize(n);
  for (NodeId id : f.live) {
    const auto i = static_cast<std::size_t>(id.value);
    const prim::Node& node = g[id];
    f.elements[i] = static_cast<double>(element_count(node.type.shape));
    f.bytes[i] = f.elements[i] * static_cast<double>(size_of(node.type.dtype));
    const bool constant = std::holds_alternative<prim::Constant>(node.op);
    f.leaf[i] = constant || std::holds_alternative<prim::Input>(node.op);
    f.inlined[i] = constant && f.elements[i] == 1;
    if (f.leaf[i] && !constant) f.input_bytes += f.bytes[i];
    f.accesses[i] = accesses_of(node);
    f.main_loop[i] = std::holds_alternative<prim::Contract>(node.op) && legality.main_loop(g, id);
    f.made_among[i] = made_among(f, id);
    if (f.main_loop[i] && legality.algorithms) f.algorithms[i] = legality.algorithms(g, id);
  }
  if (legality.chains) f.chains = legality.chains(g, f.live);
  std::sort(f.chains.begin(), f.chains.end());
  if (legality.joins)
    for (const lower::Join& join : legality.joins(g))
      f.joined[static_cast<std::size_t>(join.whole.value)] = true;
  for (const prim::GraphOutput& o : g.outputs) {
    f.output[static_cast<std::size_t>(o.node.value)] = true;
    f.output_bytes += f.bytes_of(o.node);
    const bool copy = std::holds_alternative<prim::View>(g[o.node].op);
    f.scattered[static_cast<std::size_t>(o.node.value)] =
        copy && is_scattered(g, g[o.node].args[0]);
  }
  return f;
}

MatmulShape matmul_shape(const Facts& facts, NodeId id) {
  const auto& contract = std::get<prim::Contract>(facts[id].op);
  const auto& accesses = facts.accesses[static_cast<std::size_t>(id.value)];
  std::uint64_t in_lhs = 0, in_rhs = 0;
  for (const IndexFacts& i : accesses[0]) in_lhs |= i.variables;
  for (const IndexFacts& i : accesses[1]) in_rhs |= i.variables;
  MatmulShape s;
  const Shape& out = facts[id].type.shape;
  for (std::size_t d = 0; d < out.size(); ++d) {
    const auto extent = static_cast<double>(out[d]);
    const bool l = in_lhs & bit(static_cast<int>(d)), r = in_rhs & bit(static_cast<int>(d));
    (l && r ? s.batch : r ? s.n : s.m) *= extent;
  }
  for (std::int64_t extent : contract.reduced) s.k *= static_cast<double>(extent);
  return s;
}

}  // namespace heddle::plan

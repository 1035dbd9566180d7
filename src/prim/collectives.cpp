#include "prim/collectives.h"

#include <algorithm>

#include "prim/interpret.h"
#include "prim/text.h"

namespace heddle::prim {
namespace {

std::size_t at(NodeId id) { return static_cast<std::size_t>(id.value); }
const AllReduce* collective(const Graph& g, NodeId id) { return std::get_if<AllReduce>(&g[id].op); }

/// What `outputs` need, up to collectives.
std::vector<bool> needed(const Graph& g, const std::vector<GraphOutput>& outputs) {
  std::vector<bool> need(static_cast<std::size_t>(g.size()));
  for (const GraphOutput& o : outputs) need[at(o.node)] = true;
  for (std::int32_t i = g.size(); i-- > 0;)
    if (need[static_cast<std::size_t>(i)] && collective(g, NodeId{i}) == nullptr)
      for (const NodeId a : g[NodeId{i}].args) need[at(a)] = true;
  return need;
}

/// The nodes in `need` as a graph of its own; `sums` are inputs of the given names.
Graph part(const Graph& g, const std::vector<GraphOutput>& outputs, const std::vector<bool>& need,
           const std::vector<bool>& slots, std::span<const NodeId> sums,
           std::span<const std::string> names) {
  Graph out;
  out.adopt_origins(g);
  std::vector<NodeId> inputs(g.inputs.size()), mapped(static_cast<std::size_t>(g.size()));
  for (std::size_t slot = 0; slot < slots.size(); ++slot)
    if (slots[slot]) inputs[slot] = out.add_input(g.inputs[slot].name, g.inputs[slot].type);
  for (std::size_t i = 0; i < sums.size(); ++i)
    if (need[at(sums[i])]) mapped[at(sums[i])] = out.add_input(names[i], g[sums[i]].type);
  for (std::int32_t i = 0; i < g.size(); ++i) {
    const NodeId id{i};
    if (!need[at(id)] || collective(g, id) != nullptr) continue;
    Node node = g[id];
    if (const auto* input = std::get_if<Input>(&node.op)) {
      mapped[at(id)] = inputs[static_cast<std::size_t>(input->slot)];
      continue;
    }
    for (NodeId& a : node.args) a = mapped[at(a)];
    if (const auto* c = std::get_if<Constant>(&node.op)) out.adopt_constant(g, *c);
    out.set_origin(g.origin_id(id));
    mapped[at(id)] = out.add(std::move(node.op), std::move(node.args), std::move(node.type));
    out.add_origins(mapped[at(id)], g.origins_of(id));
  }
  out.set_origin(OriginId{});
  for (const GraphOutput& o : outputs) out.outputs.push_back({o.name, mapped[at(o.node)]});
  return out;
}

/// Slots of the inputs among `need`.
std::vector<bool> slots_of(const Graph& g, const std::vector<bool>& need) {
  std::vector<bool> slots(g.inputs.size());
  for (std::int32_t i = 0; i < g.size(); ++i)
    if (const auto* input = std::get_if<Input>(&g[NodeId{i}].op);
        input != nullptr && need[static_cast<std::size_t>(i)])
      slots[static_cast<std::size_t>(input->slot)] = true;
  return slots;
}

Tensor sum_of(const std::vector<Tensor>& terms) {
  Tensor sum(terms[0].type());
  for (const Tensor& t : terms)
    for (std::int64_t i = 0; i < sum.count(); ++i)
      sum.as_mutable<double>()[static_cast<std::size_t>(i)] +=
          t.as<double>()[static_cast<std::size_t>(i)];
  return sum;
}

}  // namespace

std::vector<NodeId> collectives(const Graph& g) {
  std::vector<NodeId> all;
  for (const NodeId id : live_nodes(g))
    if (collective(g, id) != nullptr) all.push_back(id);
  std::ranges::sort(all, {}, [&](NodeId id) { return collective(g, id)->channel; });
  return all;
}

Status want_no_collective(const Graph& g, std::span<const NodeId> nodes) {
  for (const NodeId id : nodes) {
    if (collective(g, id) == nullptr) continue;
    const OriginId from = g.origin_id(id);
    return unsupported(
        "%{} {}{}: a collective outside of a distributed training step, want it "
        "between programs: no kernel can contain it",
        id.value, describe(g, id),
        from ? fmt::format(" of {} '{}'", g.origin(from).op, g.origin(from).name) : std::string());
  }
  return Ok{};
}

Result<SplitGraph> split_at_collectives(const Graph& g, std::span<const std::string> names) {
  const std::vector<NodeId> sums = collectives(g);
  if (sums.size() != names.size())
    return fail("{} collectives in the graph, want {}", sums.size(), names.size());
  std::vector<bool> late(static_cast<std::size_t>(g.size()));  // reached by a collective
  for (std::int32_t i = 0; i < g.size(); ++i)
    late[static_cast<std::size_t>(i)] =
        collective(g, NodeId{i}) != nullptr ||
        std::ranges::any_of(g[NodeId{i}].args, [&](NodeId a) { return late[at(a)]; });
  SplitGraph split;
  std::vector<GraphOutput> before, after;
  for (const GraphOutput& o : g.outputs) (late[at(o.node)] ? after : before).push_back(o);
  for (std::size_t i = 0; i < sums.size(); ++i) {
    const NodeId summed = g[sums[i]].args[0];
    if (late[at(summed)])
      return unsupported("%{} all_reduce needs the sum of another one, want one exchange a step",
                         sums[i].value);
    split.summed.push_back(before.size());
    before.push_back({names[i], summed});
  }
  const std::vector<bool> first = needed(g, before), second = needed(g, after);
  const std::vector<bool> read = slots_of(g, second);
  std::vector<bool> given = slots_of(g, first);
  for (std::size_t slot = 0; slot < given.size(); ++slot) given[slot] = given[slot] || !read[slot];
  split.before = part(g, before, first, given, {}, {});
  split.after = part(g, after, second, read, sums, names);
  return split;
}

Result<std::vector<std::vector<Tensor>>> interpret_ranks(
    const Graph& g, const std::vector<std::vector<Tensor>>& inputs) {
  const std::size_t ranks = inputs.size();
  for (const auto& of_rank : inputs) HEDDLE_TRY(check_inputs(g, of_rank));
  // By node, then rank.
  std::vector<std::vector<Tensor>> values(static_cast<std::size_t>(g.size()));
  for (const NodeId id : live_nodes(g)) {
    const Node& n = g[id];
    auto& here = values[static_cast<std::size_t>(id.value)];
    for (std::size_t r = 0; r < ranks; ++r) {
      std::vector<Tensor> args;
      for (const NodeId a : n.args) args.push_back(values[static_cast<std::size_t>(a.value)][r]);
      const auto* input = std::get_if<Input>(&n.op);
      here.push_back(input != nullptr
                         ? to_reference(inputs[r][static_cast<std::size_t>(input->slot)])
                         : evaluate_node(g, id, args));
    }
    if (std::holds_alternative<AllReduce>(n.op) && ranks > 0) here.assign(ranks, sum_of(here));
  }
  std::vector<std::vector<Tensor>> outputs(ranks);
  for (const GraphOutput& o : g.outputs)
    for (std::size_t r = 0; r < ranks; ++r)
      outputs[r].push_back(
          from_reference(values[static_cast<std::size_t>(o.node.value)][r], g[o.node].type.dtype));
  return outputs;
}

}  // namespace heddle::prim

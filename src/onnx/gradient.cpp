// Gradient (ai.onnx.preview.training): reverse mode (grad/) inside a model.
#include <algorithm>

#include "grad/grad.h"
#include "onnx/importer.h"

namespace heddle::onnx {

using ::onnx::NodeProto;
using prim::NodeId;

namespace {

/// Gradients of gradients, at most.
constexpr int kMaxGradientDepth = 4;

std::vector<std::string> strings_attribute(const NodeProto& node, std::string_view name) {
  const auto* a = find_attribute(node, name);
  if (a == nullptr) return {};
  return {a->strings().begin(), a->strings().end()};
}

/// The nodes that `y` needs when `given` are there already.
Nodes nodes_between(const Nodes& nodes, const std::set<std::string>& given, const std::string& y) {
  std::unordered_map<std::string, int> producer;
  for (int i = 0; i < nodes.size(); ++i)
    for (const std::string& output : nodes[i].output()) producer.emplace(output, i);
  std::vector<bool> needed(static_cast<std::size_t>(nodes.size()));
  std::vector<std::string> todo = {y};
  while (!todo.empty()) {
    const std::string name = std::move(todo.back());
    todo.pop_back();
    const auto at = producer.find(name);
    if (given.contains(name) || at == producer.end() ||
        needed[static_cast<std::size_t>(at->second)])
      continue;
    needed[static_cast<std::size_t>(at->second)] = true;
    for (const std::string& read : names_read(nodes[at->second])) todo.push_back(read);
  }
  Nodes out;
  for (int i = 0; i < nodes.size(); ++i)
    if (needed[static_cast<std::size_t>(i)]) *out.Add() = nodes[i];
  return out;
}

/// Adds to `to` what `values` of `from` need beyond the first `shared` nodes, which both have, with
/// some inputs replaced.
std::vector<NodeId> transplant(const prim::Graph& from, std::int32_t shared,
                               const std::map<NodeId, NodeId>& replaced,
                               const std::vector<NodeId>& values, prim::Graph& to) {
  const auto index = [&](NodeId id) { return static_cast<std::size_t>(id.value - shared); };
  std::vector<bool> needed(static_cast<std::size_t>(from.size() - shared));
  std::vector<NodeId> mapped(needed.size());
  const auto need = [&](NodeId id) {
    if (id.value >= shared) needed[index(id)] = true;
  };
  std::for_each(values.begin(), values.end(), need);
  for (std::int32_t i = from.size(); i-- > shared;)
    if (needed[index(NodeId{i})])
      std::for_each(from[NodeId{i}].args.begin(), from[NodeId{i}].args.end(), need);
  const auto moved = [&](NodeId id) { return id.value < shared ? id : mapped[index(id)]; };
  for (std::int32_t i = shared; i < from.size(); ++i) {
    const NodeId id{i};
    if (!needed[index(id)]) continue;
    if (const auto at = replaced.find(id); at != replaced.end()) {
      mapped[index(id)] = at->second;
      continue;
    }
    prim::Node node = from[id];
    for (NodeId& arg : node.args) arg = moved(arg);
    if (const auto* c = std::get_if<prim::Constant>(&node.op)) to.adopt_constant(from, *c);
    mapped[index(id)] = to.add(node.op, node.args, node.type);
  }
  std::vector<NodeId> out;
  for (const NodeId id : values) out.push_back(moved(id));
  return out;
}

}  // namespace

/// What leads from the names in `inner`, which are bound to stand-ins, to y is computed again, and
/// its gradients after it.
Result<std::vector<NodeId>> Importer::gradients_of(const NodeProto& node, const std::string& y,
                                                   const std::vector<NodeId>& xs,
                                                   const Opsets& opsets, Scope& inner) {
  std::set<std::string> given;
  for (const auto& [name, value] : inner.values) given.insert(name);
  HEDDLE_TRY(add_nodes(nodes_between(model_->graph().node(), given, y), opsets, inner));
  const Value* result = inner.find(y);
  if (result == nullptr) return node_error(node, "no node of the main graph makes '{}'", y);
  if (!result->is_tensor()) return node_unsupported(node, "'{}' is not known, or no tensor", y);
  graph_.set_origin(prim::Origin{node.op_type(), label_of(node)});
  const grad::Seed seed{result->node(), builder_.full(builder_.type(result->node()), 1)};
  auto gradients = grad::gradients(graph_, {&seed, 1}, xs);
  if (!gradients) return node_unsupported(node, "{}", gradients.error().message);
  return gradients;
}

/// d y / d xs[i] at the node's inputs, which xs and zs are bound to: first to stand-ins, so that
/// equal values and constants keep apart, in a graph that is thrown away.
Status Importer::add_gradient(const NodeProto& node, const Opsets& opsets, Scope& scope) {
  const std::vector<std::string> xs = strings_attribute(node, "xs");
  std::vector<std::string> names = xs;
  for (const std::string& z : strings_attribute(node, "zs")) names.push_back(z);
  const auto* y = find_attribute(node, "y");
  if (xs.empty() || y == nullptr) return node_error(node, "attributes xs and y are missing");
  if (node.input_size() != static_cast<int>(names.size()) ||
      node.output_size() > static_cast<int>(xs.size()))
    return node_error(node, "found {} inputs and {} outputs for {} xs and {} zs", node.input_size(),
                      node.output_size(), xs.size(), names.size() - xs.size());
  if (scope.call_attributes != nullptr || scope.depth >= kMaxGradientDepth)
    return node_unsupported(node, "gradients are not taken inside functions, or {} deep",
                            kMaxGradientDepth);
  const prim::Graph before = graph_;
  std::map<NodeId, NodeId> given;
  std::vector<NodeId> stand_ins;
  Scope inner;
  inner.parent = &scope;
  inner.depth = scope.depth + 1;
  for (int i = 0; i < node.input_size(); ++i) {
    const Value* value = HEDDLE_TRY(argument(node, i, scope));
    if (!value->is_tensor())
      return node_unsupported(node, "input {} is not known, or no tensor", i);
    const std::string& name = names[static_cast<std::size_t>(i)];
    stand_ins.push_back(graph_.add_input("gradient." + name, builder_.type(value->node())));
    given.emplace(stand_ins.back(), value->node());
    inner.values[name] = Value::of(stand_ins.back(), value->format);
  }
  stand_ins.resize(xs.size());
  // What is computed again here has other arguments than what earlier stages have made.
  Staging* const staging = std::exchange(staging_, nullptr);
  const auto gradients = gradients_of(node, y->s(), stand_ins, opsets, inner);
  staging_ = staging;
  const prim::Graph scratch = std::exchange(graph_, before);
  fixed_.resize(std::min(fixed_.size(), static_cast<std::size_t>(graph_.size())));
  graph_.set_origin(prim::Origin{node.op_type(), label_of(node)});
  std::vector<Value> values;
  for (const NodeId id : transplant(scratch, before.size(), given, HEDDLE_TRY(gradients), graph_))
    values.push_back(Value::of(id));
  return bind_outputs(node, values, scope);
}

}  // namespace heddle::onnx

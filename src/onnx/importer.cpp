#include "onnx/importer.h"

#include <algorithm>

#include "ops/host.h"
#include "prim/fold.h"
#include "prim/rewrite.h"

namespace heddle::onnx {

using ::onnx::AttributeProto;
using ::onnx::GraphProto;
using ::onnx::NodeProto;
using ops::Attribute;
using ops::Call;
using prim::NodeId;

namespace {

/// Nodes after functions and loops are expanded, at most: small files can ask for a great many.
constexpr int kMaxNodes = 1 << 18;
constexpr std::int32_t kMaxPrimitives = 1 << 22;

int version_of(std::int64_t version) {
  return static_cast<int>(std::clamp<std::int64_t>(version, 0, 1000));
}

/// Old files leave out the attribute's type.
AttributeProto::AttributeType type_of(const AttributeProto& a) {
  if (a.has_type() && a.type() != AttributeProto::UNDEFINED) return a.type();
  if (a.has_f()) return AttributeProto::FLOAT;
  if (a.has_i()) return AttributeProto::INT;
  if (a.has_s()) return AttributeProto::STRING;
  if (a.has_t()) return AttributeProto::TENSOR;
  if (a.has_g()) return AttributeProto::GRAPH;
  if (a.floats_size() > 0) return AttributeProto::FLOATS;
  if (a.strings_size() > 0) return AttributeProto::STRINGS;
  return AttributeProto::INTS;
}

}  // namespace

std::string canonical_domain(const std::string& domain) {
  return domain == "ai.onnx" ? "" : domain;
}

const AttributeProto* find_attribute(const NodeProto& node, std::string_view name) {
  for (const AttributeProto& a : node.attribute())
    if (a.name() == name) return &a;
  return nullptr;
}

std::int64_t int_attribute(const NodeProto& node, std::string_view name, std::int64_t otherwise) {
  const AttributeProto* a = find_attribute(node, name);
  return a != nullptr && type_of(*a) == AttributeProto::INT ? a->i() : otherwise;
}

std::vector<std::int64_t> ints_attribute(const NodeProto& node, std::string_view name) {
  const AttributeProto* a = find_attribute(node, name);
  if (a == nullptr) return {};
  return {a->ints().begin(), a->ints().end()};
}

const Value* Scope::find(const std::string& name) const {
  for (const Scope* scope = this; scope != nullptr; scope = scope->parent)
    if (const auto it = scope->values.find(name); it != scope->values.end()) return &it->second;
  return nullptr;
}

Importer::Importer(std::shared_ptr<const ::onnx::ModelProto> model, std::string folder,
                   const ImportOptions& options, std::vector<Problem>* problems)
    : model_(std::move(model)),
      source_{std::move(folder), model_, {}},
      options_(options),
      problems_(problems),
      builder_(graph_) {
  for (const auto& entry : model_->opset_import())
    opsets_[canonical_domain(entry.domain())] = version_of(entry.version());
  for (const auto& function : model_->functions())
    functions_[fmt::format("{}::{}:{}", canonical_domain(function.domain()), function.name(),
                           overload_of(function))] = &function;
}

Result<prim::Graph> Importer::run() {
  const GraphProto& graph = model_->graph();
  Scope scope;
  source_.take = takes_bytes_;
  HEDDLE_TRY(add_initializers(graph, scope));
  source_.take = false;
  HEDDLE_TRY(bind_dimensions(graph));
  HEDDLE_TRY(add_inputs(graph, scope));
  HEDDLE_TRY(add_nodes(graph.node(), opsets_, scope));
  HEDDLE_TRY(add_outputs(graph, scope));
  if (graph_.outputs.empty() && problems_ == nullptr && staging_ == nullptr)
    return fail("the model has no outputs");
  graph_.set_origin(prim::OriginId{});
  return std::move(graph_);
}

Result<NodeId> Importer::add_initializer(const ::onnx::TensorProto& proto) {
  const auto add = [&]() -> Result<NodeId> {
    if (shared_.graph != nullptr)
      if (const auto found = shared_.initializers->find(&proto);
          found != shared_.initializers->end()) {
        const prim::Node& node = (*shared_.graph)[found->second];
        graph_.adopt_constant(*shared_.graph, std::get<prim::Constant>(node.op));
        return graph_.add(node.op, {}, node.type);
      }
    return graph_.add_constant(HEDDLE_TRY(tensor_from_proto(proto, source_)));
  };
  const NodeId id = HEDDLE_TRY(add());
  initializers_.emplace(&proto, id);
  return id;
}

Status Importer::add_initializers(const GraphProto& graph, Scope& scope) {
  for (const auto& proto : graph.initializer()) {
    const Result<NodeId> node = add_initializer(proto);
    if (!node) HEDDLE_TRY(noted(proto.name(), "initializer", node.error()));
    const Value constant =
        node ? Value::of(*node, ops::format_of_onnx(proto.data_type())) : Value{};
    if (!scope.values.emplace(proto.name(), constant).second)
      return fail("initializer '{}' is given twice", proto.name());
  }
  if (graph.sparse_initializer_size() > 0)
    return unsupported("initializer '{}': sparse tensors are not supported",
                       graph.sparse_initializer(0).values().name());
  return Ok{};
}

Status Importer::noted(const std::string& name, const std::string& kind, const Error& error) {
  if (problems_ == nullptr) return error;
  problems_->push_back({name, kind, error.message});
  return Ok{};
}

Status Importer::add_nodes(const Nodes& nodes, const Opsets& opsets, Scope& scope) {
  for (const int i : HEDDLE_TRY(execution_order(nodes))) {
    if (++nodes_ > kMaxNodes || graph_.size() > kMaxPrimitives)
      return unsupported("the model has more than {} nodes with its functions and loops expanded",
                         kMaxNodes);
    if (staging_ != nullptr) {
      if (is_made(nodes[i], scope)) continue;
      if (reads_waiting(nodes[i], scope) || reads_bounded(nodes[i], scope)) {
        leave(nodes[i], scope);
        continue;
      }
    }
    wanted_.clear();
    const Status status = add_node(nodes[i], opsets, scope);
    if (!status && staging_ != nullptr && ask_inputs(nodes[i], scope)) {
      leave(nodes[i], scope);  // a later stage has the numbers
      wanted_.clear();
      continue;
    }
    wanted_.clear();
    if (status) continue;
    HEDDLE_TRY(noted(label_of(nodes[i]), nodes[i].op_type(), status.error()));
    bind_unknown(nodes[i], scope, false);
  }
  return Ok{};
}

std::span<const Importer::Control> Importer::controls() {
  static constexpr Control kControls[] = {
      {"If", 1, &Importer::add_if},
      {"Loop", 1, &Importer::add_loop},
      {"Scan", 9, &Importer::add_scan},
      {"Scan", 8, &Importer::add_batched_scan},
      {"SequenceMap", 17, &Importer::add_sequence_map},
      {"ai.onnx.preview::FlexAttention", 1, &Importer::add_flex_attention},
      {"ai.onnx.preview.training::Gradient", 1, &Importer::add_gradient},
  };
  return kControls;
}

std::vector<std::pair<std::string_view, int>> control_operators() {
  std::vector<std::pair<std::string_view, int>> out;
  for (const Importer::Control& control : Importer::controls())
    out.emplace_back(control.name, control.since);
  return out;
}

const ::onnx::FunctionProto* Importer::function_of(const NodeProto& node) const {
  const auto found = functions_.find(
      fmt::format("{}::{}:{}", canonical_domain(node.domain()), node.op_type(), overload_of(node)));
  return found == functions_.end() ? nullptr : found->second;
}

void Importer::note_unknown_operators() {
  note_unknown_operators(model_->graph().node(), opsets_);
  for (const auto& [name, function] : functions_)
    note_unknown_operators(function->node(), opsets_of(*function));
}

void Importer::note_unknown_operators(const Nodes& nodes, const Opsets& opsets) {
  for (const NodeProto& node : nodes) {
    for (const AttributeProto& a : node.attribute())
      if (a.has_g()) note_unknown_operators(a.g().node(), opsets);
    const std::string domain = canonical_domain(node.domain());
    const auto imported = opsets.find(domain);
    const int opset = imported == opsets.end() ? 1 : imported->second;
    const std::string name = domain.empty() ? node.op_type() : domain + "::" + node.op_type();
    const bool controlled = std::ranges::any_of(controls(), [&](const Control& control) {
      return control.name == name && opset >= control.since;
    });
    const bool noted = std::ranges::any_of(*problems_, [&](const Problem& p) {
      return p.node == label_of(node) && p.op == node.op_type();
    });
    if (controlled || noted || (domain.empty() && is_sequence_operator(name)) ||
        function_of(node) != nullptr || ops::find_op(name, opset) != nullptr)
      continue;
    const Error error =
        node_unsupported(node, "operator {} (opset {}) is not supported", name, opset);
    problems_->push_back({label_of(node), node.op_type(), error.message});
  }
}

Status Importer::add_node(const NodeProto& node, const Opsets& opsets, Scope& scope) {
  for (const std::string& output : node.output())
    if (!output.empty() && scope.values.contains(output))
      return node_error(node, "makes '{}', which is an input or initializer already", output);
  const std::string domain = canonical_domain(node.domain());
  if (const auto* function = function_of(node)) return call_function(node, *function, scope);
  const auto imported = opsets.find(domain);
  const int opset = imported == opsets.end() ? 1 : imported->second;
  const std::string name = domain.empty() ? node.op_type() : domain + "::" + node.op_type();
  for (const Control& control : controls())
    if (control.name == name && opset >= control.since)
      return (this->*control.add)(node, opsets, scope);
  if (domain.empty())
    if (auto status = add_sequence_node(node, opset, scope)) return *std::move(status);
  return add_operator(node, name, opset, scope);
}

Status Importer::add_operator(const NodeProto& node, const std::string& name, int opset,
                              Scope& scope) {
  Call call;
  call.op = node.op_type();
  call.name = label_of(node);
  call.opset = opset;
  call.graph = &graph_;
  for (const std::string& output : node.output()) call.output_used.push_back(!output.empty());
  while (!call.output_used.empty() && !call.output_used.back()) call.output_used.pop_back();
  call.outputs = static_cast<int>(call.output_used.size());
  if (ops::find_op(name, opset) == nullptr)
    return node_unsupported(node, "operator {} (opset {}) is not supported", name, opset);
  bool known = true;
  HEDDLE_TRY(collect_arguments(node, scope, call, known));
  HEDDLE_TRY(collect_attributes(node, scope, call));
  if (!known) {  // a failed node upstream has been reported already
    bind_unknown(node, scope, false);
    return Ok{};
  }
  const prim::OriginId origin = graph_.set_origin(prim::Origin{call.op, call.name});
  call.op = name;
  if (ops::runs_on_host(call)) return add_host_call(node, std::move(call), scope);
  const Result<ops::Values> expanded = expand(call);
  wanted_ = call.wanted;
  const bool refused = !expanded && expanded.error().code == ErrorCode::unsupported;
  if (refused && wanted_.empty() && staging_ != nullptr && ops::may_run_on_host(call))
    return add_host_call(node, std::move(call), scope);
  const ops::Values values = HEDDLE_TRY(expanded);
  for (int i = 0; i < call.outputs; ++i) {
    if (!call.output_used[static_cast<std::size_t>(i)]) continue;
    const NodeId result = folded(values[static_cast<std::size_t>(i)]);
    const bool carries = call.result_format == ops::Format::plain ||
                         builder_.dtype(result) == ops::carrier_of(call.result_format);
    Value value = Value::of(result, carries ? call.result_format : ops::Format::plain);
    graph_.add_origins(value.node(), {origin});  // it may be another operator's value (Identity)
    for (const Call::Bounded& bound : call.bounded)
      if (bound.output == i) value = Value::bounded(value.node(), bound.extent, bound.axis);
    bind(scope, node.output(i), std::move(value));
  }
  return Ok{};
}

Result<ops::Values> Importer::expand_steps(Call call) {
  const bool batch_first = call.attribute_int("layout", 0) != 0;
  const Shape x = builder_.shape(call.in(0));
  const std::size_t time = batch_first ? 1 : 0;
  const std::int64_t steps = x[time], batch = x[1 - time];
  std::int64_t& most = steps_[call.name];
  most = std::max(most, steps);
  const auto wanted = options_.steps.find(call.name);
  if (wanted == options_.steps.end() || wanted->second < steps) return ops::expand(call, builder_);
  Shape before(3, 0), after(3, 0);
  after[time] = wanted->second - steps;
  call.args[0] = builder_.pad(call.in(0), before, after, 0);
  call.args.resize(std::max<std::size_t>(call.args.size(), 5));
  call.formats.resize(call.args.size(), ops::Format::plain);
  if (!call.args[4]) {
    Tensor lengths(TensorType{DType::i32, {batch}});
    for (std::int64_t i = 0; i < batch; ++i) lengths.set_int(i, steps);
    call.args[4] = builder_.constant(lengths);
  }
  ops::Values values = HEDDLE_TRY(ops::expand(call, builder_));
  values[0] = builder_.slice_axis(values[0], static_cast<int>(time), 0, steps);
  return values;
}

/// The fission. A misfit that the operator overlooked is a bug of ours: it is thrown on with the
/// node's name, or listed when checking.
Result<ops::Values> Importer::expand(const Call& call) {
  const bool recurrent = call.op == "LSTM" || call.op == "GRU" || call.op == "RNN";
  try {
    if (recurrent && call.has(0) && builder_.rank(call.in(0)) == 3) return expand_steps(call);
    return ops::expand(call, builder_);
  } catch (const InternalError& e) {
    const std::string text = fmt::format("{} '{}': {}", call.op, call.name, e.what());
    if (problems_ == nullptr) throw InternalError(text);
    return fail("{}", text);
  }
}

Status Importer::collect_arguments(const NodeProto& node, const Scope& scope, Call& call,
                                   bool& known) {
  for (int i = 0; i < node.input_size(); ++i) {
    if (node.input(i).empty()) {
      call.args.emplace_back();
      continue;
    }
    const Value* value = HEDDLE_TRY(argument(node, i, scope));
    switch (value->kind) {
      case Value::Kind::tensor:
        call.args.emplace_back(value->node());
        call.formats.resize(call.args.size(), ops::Format::plain);
        call.formats.back() = value->format;
        break;
      case Value::Kind::absent:
        call.args.emplace_back();
        break;
      case Value::Kind::sequence:
        return node_unsupported(node, "input {} is a sequence, want a tensor", i);
      case Value::Kind::bounded:
        return node_unsupported(node,
                                "input {}: the extent of dimension {} is known only while running",
                                i, value->axis);
      case Value::Kind::unknown:
        call.args.emplace_back();
        known = false;
        break;
    }
  }
  while (!call.args.empty() && !call.args.back() && known) call.args.pop_back();
  return Ok{};
}

Status Importer::collect_attributes(const NodeProto& node, const Scope& scope, Call& call) {
  for (const AttributeProto& attribute : node.attribute()) {
    const AttributeProto* source = &attribute;
    if (!attribute.ref_attr_name().empty()) {
      if (scope.call_attributes == nullptr)
        return node_error(node, "attribute '{}' refers to a function's, outside a function",
                          attribute.name());
      const auto found = scope.call_attributes->find(attribute.ref_attr_name());
      if (found == scope.call_attributes->end()) continue;  // optional, not given
      source = found->second;
    }
    auto value = attribute_of(*source);
    if (!value)
      return fail(value.error().code, "{} '{}': attribute '{}': {}", call.op, call.name,
                  attribute.name(), value.error().message);
    if (!*value)
      return node_unsupported(node, "attribute '{}' holds a graph, a sparse tensor or a type",
                              attribute.name());
    call.attributes.insert_or_assign(attribute.name(), **std::move(value));
    if (source->has_t() && (attribute.name() == "value" || attribute.name() == "values_tensor"))
      call.value_format = ops::format_of_onnx(source->t().data_type());
  }
  return Ok{};
}

Result<std::optional<Attribute>> Importer::attribute_of(const AttributeProto& a) {
  using Found = std::optional<Attribute>;
  switch (type_of(a)) {
    case AttributeProto::INT:
      return Found(a.i());
    case AttributeProto::FLOAT:
      return Found(static_cast<double>(a.f()));
    case AttributeProto::STRING:
      return Found(a.s());
    case AttributeProto::TENSOR:
      return Found(HEDDLE_TRY(tensor_from_proto(a.t(), source_)));
    case AttributeProto::INTS:
      return Found(std::vector<std::int64_t>(a.ints().begin(), a.ints().end()));
    case AttributeProto::FLOATS:
      return Found(std::vector<double>(a.floats().begin(), a.floats().end()));
    case AttributeProto::STRINGS:
      return Found(std::vector<std::string>(a.strings().begin(), a.strings().end()));
    default:
      return Found();
  }
}

bool Importer::is_fixed(NodeId id) {
  // Ids are a topological order, so everything before is decided when a node is reached.
  for (auto i = static_cast<std::int32_t>(fixed_.size()); i <= id.value; ++i) {
    const prim::Node& node = graph_[NodeId{i}];
    const bool fixed =
        prim::folds(node.op) && std::all_of(node.args.begin(), node.args.end(), [&](NodeId a) {
          return fixed_[static_cast<std::size_t>(a.value)];
        });
    fixed_.push_back(fixed);
  }
  return fixed_[static_cast<std::size_t>(id.value)];
}

/// Integers times a scale, as one operator gave them: products want the integers.
bool Importer::is_dequantised(NodeId value) const {
  if (!prim::is_map(graph_[value], ir::ScalarFn::mul)) return false;
  const NodeId number = graph_[value].args[0];
  return prim::is_map(graph_[number], ir::ScalarFn::cast) &&
         is_int(graph_[graph_[number].args[0]].type.dtype);
}

NodeId Importer::folded(NodeId value) {
  if (graph_.constant_of(value) != nullptr || !is_fixed(value)) return value;
  const TensorType& type = builder_.type(value);
  if (element_count(type.shape) > options_.fold_elements || is_dequantised(value)) return value;
  prim::FoldLimits limits;
  limits.max_bytes = 64 * options_.fold_elements;
  limits.max_work = 64.0 * static_cast<double>(options_.fold_elements);
  const auto constant = prim::evaluate_constant(graph_, value, limits);
  return constant ? graph_.add_constant(*constant) : value;
}

}  // namespace heddle::onnx

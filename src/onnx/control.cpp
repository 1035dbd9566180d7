// Functions, If, Scan and others with bodies, which are expanded where they are used.
#include <algorithm>
#include <cmath>

#include "onnx/importer.h"

namespace heddle::onnx {

using ::onnx::AttributeProto;
using ::onnx::GraphProto;
using ::onnx::NodeProto;
using ::onnx::TensorProto;
using prim::NodeId;

namespace {

/// Nesting of functions and bodies, at most, for the sake of the native stack; how much they make
/// is bounded by the number of nodes (importer.cpp).
constexpr int kMaxNesting = 256;

/// Scope::path of a call or body of the node, whose outputs' names are its own.
std::string path_inside(const Scope& scope, const NodeProto& node, std::int64_t turn) {
  const auto named = std::find_if(node.output().begin(), node.output().end(),
                                  [](const std::string& name) { return !name.empty(); });
  return fmt::format("{}{}.{}/", scope.path, named == node.output().end() ? label_of(node) : *named,
                     turn);
}

}  // namespace

Result<const GraphProto*> body_of(const NodeProto& node, std::string_view name) {
  const AttributeProto* attribute = find_attribute(node, name);
  if (attribute == nullptr || !attribute->has_g())
    return node_error(node, "attribute '{}' is missing, want a graph", name);
  return &attribute->g();
}

Result<const Value*> Importer::argument(const NodeProto& node, int i, const Scope& scope) const {
  static const Value kAbsent{Value::Kind::absent, {}, {}, 0, false, {}};
  if (i >= node.input_size() || node.input(i).empty()) return &kAbsent;
  const Value* value = scope.find(node.input(i));
  if (value == nullptr)
    return node_error(node, "input {}: no node, input or initializer makes '{}'", i, node.input(i));
  return value;
}

std::optional<std::int64_t> Importer::known_int(const Value* value) const {
  if (!value->is_tensor()) return std::nullopt;
  const Tensor* tensor = graph_.constant_of(value->node());
  if (tensor == nullptr || tensor->count() != 1) return std::nullopt;
  return tensor->int_at(0);
}

Status Importer::bind_outputs(const NodeProto& node, const std::vector<Value>& results,
                              Scope& scope) {
  for (int i = 0; i < node.output_size(); ++i) {
    if (node.output(i).empty()) continue;
    if (i >= static_cast<int>(results.size()))
      return node_error(node, "output {}: its body makes {}", i, results.size());
    bind(scope, node.output(i), results[static_cast<std::size_t>(i)]);
  }
  return Ok{};
}

Opsets Importer::opsets_of(const ::onnx::FunctionProto& function) const {
  Opsets opsets = opsets_;
  for (const auto& entry : function.opset_import())
    opsets[canonical_domain(entry.domain())] =
        static_cast<int>(std::clamp<std::int64_t>(entry.version(), 0, 1000));
  return opsets;
}

Status Importer::call_function(const NodeProto& node, const ::onnx::FunctionProto& function,
                               Scope& scope) {
  if (std::find(calls_.begin(), calls_.end(), &function) != calls_.end())
    return node_error(node, "function '{}' calls itself", function.name());
  if (scope.depth >= kMaxNesting)
    return node_error(node, "functions are nested deeper than {}", kMaxNesting);
  if (node.input_size() > function.input_size())
    return node_error(node, "has {} inputs, want at most {}", node.input_size(),
                      function.input_size());
  Scope body;
  body.depth = scope.depth + 1;
  body.path = path_inside(scope, node, 0);
  std::map<std::string, const AttributeProto*> attributes;
  const std::vector<AttributeProto> defaults = default_attributes(function);
  for (const AttributeProto& a : defaults) attributes[a.name()] = &a;
  for (const AttributeProto& a : node.attribute()) {
    const AttributeProto* source = &a;
    if (!a.ref_attr_name().empty()) {  // handed down from an outer function
      if (scope.call_attributes == nullptr || !scope.call_attributes->contains(a.ref_attr_name()))
        continue;
      source = scope.call_attributes->at(a.ref_attr_name());
    }
    attributes[a.name()] = source;
  }
  body.call_attributes = &attributes;
  for (int i = 0; i < function.input_size(); ++i)
    bind(body, function.input(i), *HEDDLE_TRY(argument(node, i, scope)));
  calls_.push_back(&function);
  const Status added = add_nodes(function.node(), opsets_of(function), body);
  calls_.pop_back();
  HEDDLE_TRY(added);
  std::vector<Value> results;
  for (const std::string& name : function.output()) {
    const Value* value = body.find(name);
    if (value == nullptr) return node_error(node, "nothing in the function makes '{}'", name);
    results.push_back(*value);
  }
  return bind_outputs(node, results, scope);
}

Result<std::vector<Value>> Importer::run_body(const NodeProto& node, const Body& body,
                                              const std::vector<Value>& inputs) {
  if (body.parent->depth >= kMaxNesting)
    return node_error(node, "bodies are nested deeper than {}", kMaxNesting);
  Scope scope;
  scope.parent = body.parent;
  scope.depth = body.parent->depth + 1;
  scope.path = path_inside(*body.parent, node, body.turn);
  scope.call_attributes = body.parent->call_attributes;
  HEDDLE_TRY(add_initializers(*body.graph, scope));
  for (int i = 0; i < body.graph->input_size(); ++i) {
    if (i >= static_cast<int>(inputs.size()))
      return node_error(node, "its body wants {} inputs, there are {}", body.graph->input_size(),
                        inputs.size());
    bind(scope, body.graph->input(i).name(), inputs[static_cast<std::size_t>(i)]);
  }
  HEDDLE_TRY(add_nodes(body.graph->node(), *body.opsets, scope));
  std::vector<Value> results;
  for (const auto& output : body.graph->output()) {
    const Value* value = scope.find(output.name());
    if (value == nullptr) return node_error(node, "nothing in its body makes '{}'", output.name());
    if (value->is_tensor()) {
      const Status fits = check_declared(
          output, fmt::format("{} '{}': its body's output", node.op_type(), label_of(node)),
          builder_.type(value->node()),
          body.turn == 0 && (staging_ == nullptr || staging_->made->empty()));
      if (!fits) return fits.error();
    }
    results.push_back(*value);
  }
  return results;
}

namespace {

/// That the branches declare as many outputs as the node has, of the same types; also where only
/// one of them is ever taken.
Status check_branches(const NodeProto& node) {
  const GraphProto* yes = HEDDLE_TRY(body_of(node, "then_branch"));
  const GraphProto* no = HEDDLE_TRY(body_of(node, "else_branch"));
  if (yes->output_size() != no->output_size() || yes->output_size() < node.output_size())
    return node_error(node, "the branches make {} and {} outputs, want {}", yes->output_size(),
                      no->output_size(), node.output_size());
  for (int i = 0; i < yes->output_size(); ++i) {
    const auto &a = yes->output(i).type(), &b = no->output(i).type();
    if (!a.has_tensor_type() || !b.has_tensor_type()) continue;
    const auto one = static_cast<TensorProto::DataType>(a.tensor_type().elem_type());
    const auto other = static_cast<TensorProto::DataType>(b.tensor_type().elem_type());
    if (one != other && one != TensorProto::UNDEFINED && other != TensorProto::UNDEFINED)
      return node_error(node, "output {} is {} in one branch and {} in the other", i,
                        TensorProto::DataType_Name(one), TensorProto::DataType_Name(other));
  }
  return Ok{};
}

}  // namespace

/// With a known condition, the branch it takes; otherwise both, and a choice between their results,
/// which must be tensors of equal types. If they are not, a later stage has the condition.
Status Importer::add_if(const NodeProto& node, const Opsets& opsets, Scope& scope) {
  HEDDLE_TRY(check_branches(node));
  const Value condition = *HEDDLE_TRY(argument(node, 0, scope));
  if (const auto known = known_int(&condition)) {
    const GraphProto* taken =
        HEDDLE_TRY(body_of(node, *known != 0 ? "then_branch" : "else_branch"));
    return bind_outputs(node, HEDDLE_TRY(run_body(node, {taken, &opsets, &scope}, {})), scope);
  }
  if (condition.kind == Value::Kind::unknown) {
    bind_unknown(node, scope, false);
    return Ok{};
  }
  if (!condition.is_tensor() || builder_.dtype(condition.node()) != DType::b1 ||
      element_count(builder_.shape(condition.node())) != 1)
    return node_error(node, "input 0 is no single boolean");
  if (staging_ == nullptr) return add_choice(node, opsets, condition, scope);
  Mark before = mark();
  const Status chosen = add_choice(node, opsets, condition, scope);
  const bool waits = staging_->stage.waiting.size() > before.stage.waiting.size() ||
                     staging_->stage.calls.size() > before.stage.calls.size();
  if (chosen && !waits) return Ok{};
  back_to(std::move(before));
  wanted_ = {0};
  return node_unsupported(node, "the branch it takes is known only while running");
}

Status Importer::add_choice(const NodeProto& node, const Opsets& opsets, const Value& condition,
                            Scope& scope) {
  const GraphProto* yes = HEDDLE_TRY(body_of(node, "then_branch"));
  const GraphProto* no = HEDDLE_TRY(body_of(node, "else_branch"));
  std::vector<Value> a = HEDDLE_TRY(run_body(node, {yes, &opsets, &scope, 0}, {}));
  const std::vector<Value> b = HEDDLE_TRY(run_body(node, {no, &opsets, &scope, 1}, {}));
  graph_.set_origin(prim::Origin{node.op_type(), label_of(node)});
  const NodeId choice = builder_.reshape(condition.node(), {});
  for (std::size_t i = 0; i < a.size() && i < b.size(); ++i) {
    if (a[i].kind == Value::Kind::unknown || b[i].kind == Value::Kind::unknown) {
      a[i] = Value{};
      continue;
    }
    if (!a[i].is_tensor() || !b[i].is_tensor() ||
        builder_.type(a[i].node()) != builder_.type(b[i].node()) || a[i].format != b[i].format)
      return node_unsupported(
          node,
          "the condition is computed while running, and the branches' output {} "
          "differs in type",
          i);
    a[i] = Value::of(builder_.select(choice, a[i].node(), b[i].node()), a[i].format);
  }
  return bind_outputs(node, a, scope);
}

/// The values of one scan output, stacked along `axis`.
Result<Value> Importer::gather_scans(const NodeProto& node, const std::vector<Value>& parts,
                                     const ::onnx::ValueInfoProto& declared, int axis) {
  std::vector<NodeId> items;
  for (const Value& part : parts) {
    if (part.kind == Value::Kind::unknown) return part;
    if (!part.is_tensor()) return node_unsupported(node, "a scan output is a sequence");
    if (builder_.type(part.node()) != builder_.type(parts[0].node()))
      return node_unsupported(node, "scan output '{}' changes its type from {} to {}",
                              declared.name(), to_string(builder_.type(parts[0].node())),
                              to_string(builder_.type(part.node())));
    items.push_back(part.node());
  }
  graph_.set_origin(prim::Origin{node.op_type(), label_of(node)});
  if (!items.empty()) {
    const int rank = builder_.rank(items[0]) + 1;
    if (axis < -rank || axis >= rank)
      return node_error(node, "scan output axis is {}, rank {}", axis, rank);
    return Value::of(folded(builder_.stack(items, axis < 0 ? axis + rank : axis)), parts[0].format);
  }
  // No iteration: the declared type tells the other extents.
  TensorType type{HEDDLE_TRY(tensor_type(declared, "scan output")), {0}};
  for (const auto& dim : declared.type().tensor_type().shape().dim()) {
    if (!dim.has_dim_value() || dim.dim_value() < 0)
      return node_unsupported(node, "no iteration, and scan output '{}' has no fixed shape",
                              declared.name());
    type.shape.push_back(dim.dim_value());
  }
  return Value::of(graph_.add_constant(Tensor(type)));
}

/// The body once for each position of the sources; final state, then what the outputs are made of.
Result<std::vector<Value>> Importer::run_scan(const NodeProto& node, const Body& body,
                                              const Scanned& scan) {
  const std::size_t carried = scan.state.size();
  const std::size_t outputs = static_cast<std::size_t>(body.graph->output_size()) - carried;
  std::vector<Value> state = scan.state;
  std::int64_t length = -1;
  for (const Scanned::Source& s : scan.sources) {
    const std::int64_t extent = builder_.shape(s.node)[static_cast<std::size_t>(s.axis)];
    if (length >= 0 && extent != length)
      return node_error(node, "scan inputs have lengths {} and {}", length, extent);
    length = extent;
  }
  if (length > kMaxIterations)
    return node_unsupported(node, "runs {} iterations, want at most {}", length, kMaxIterations);
  std::vector<std::vector<Value>> scans(outputs);
  for (std::int64_t i = 0; i < length; ++i) {
    std::vector<Value> inputs = state;
    for (const Scanned::Source& s : scan.sources) {
      const NodeId part = builder_.slice_axis(s.node, s.axis, s.backwards ? length - 1 - i : i, 1);
      inputs.push_back(Value::of(folded(builder_.squeeze(part, {s.axis}))));
    }
    Body turn = body;
    turn.turn = body.turn + i;
    std::vector<Value> results = HEDDLE_TRY(run_body(node, turn, inputs));
    std::copy_n(results.begin(), carried, state.begin());
    for (std::size_t s = 0; s < outputs; ++s) {
      const bool backwards = s < scan.directions.size() && scan.directions[s] == 1;
      scans[s].insert(backwards ? scans[s].begin() : scans[s].end(), results[carried + s]);
    }
  }
  for (std::size_t s = 0; s < outputs; ++s) {
    const std::int64_t given = s < scan.axes.size() ? scan.axes[s] : 0;
    const std::int64_t axis = std::clamp<std::int64_t>(given, -64, 64);
    state.push_back(
        HEDDLE_TRY(gather_scans(node, scans[s], body.graph->output(static_cast<int>(carried + s)),
                                static_cast<int>(axis))));
  }
  return state;
}

/// Inputs from number `first`: carried values, then `num_scan_inputs` tensors that are taken apart
/// along an axis.
Result<Importer::Scanned> Importer::scanned(const NodeProto& node, const Scope& scope, int first,
                                            const GraphProto& graph) {
  Scanned scan;
  const std::int64_t count = int_attribute(node, "num_scan_inputs", 0);
  if (count < 1 || count > node.input_size() - first)
    return node_error(node, "num_scan_inputs is {}, there are {} inputs", count,
                      node.input_size() - first);
  const int carried = node.input_size() - first - static_cast<int>(count);
  if (graph.output_size() < carried)
    return node_error(node, "its body makes {} outputs, want at least {}", graph.output_size(),
                      carried);
  for (int i = 0; i < carried; ++i)
    scan.state.push_back(*HEDDLE_TRY(argument(node, first + i, scope)));
  const auto axes = ints_attribute(node, "scan_input_axes");
  const auto directions = ints_attribute(node, first > 0 ? "directions" : "scan_input_directions");
  for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
    const int number = first + carried + static_cast<int>(i);
    const Value* value = HEDDLE_TRY(argument(node, number, scope));
    if (!value->is_tensor()) return node_unsupported(node, "scan input {} is no tensor", i);
    const auto rank = static_cast<std::int64_t>(builder_.shape(value->node()).size());
    const std::int64_t axis = i < axes.size() ? axes[i] : 0;
    if (axis < -rank || axis >= rank) return node_error(node, "scan input axis is {}", axis);
    scan.sources.push_back({value->node(), static_cast<int>(axis < 0 ? axis + rank : axis),
                            i < directions.size() && directions[i] == 1});
  }
  scan.axes = ints_attribute(node, "scan_output_axes");
  scan.directions = ints_attribute(node, "scan_output_directions");
  return scan;
}

Status Importer::add_scan(const NodeProto& node, const Opsets& opsets, Scope& scope) {
  const GraphProto* graph = HEDDLE_TRY(body_of(node, "body"));
  const Scanned scan = HEDDLE_TRY(scanned(node, scope, 0, *graph));
  return bind_outputs(node, HEDDLE_TRY(run_scan(node, {graph, &opsets, &scope}, scan)), scope);
}

/// Opset 8: input 0 is the lengths of the sequences, and everything has a batch dimension in front,
/// over which the scan is repeated.
Status Importer::add_batched_scan(const NodeProto& node, const Opsets& opsets, Scope& scope) {
  const GraphProto* graph = HEDDLE_TRY(body_of(node, "body"));
  if (node.input_size() < 1) return node_error(node, "has no inputs");
  if (!node.input(0).empty())
    return node_unsupported(node, "sequences of different lengths (sequence_lens)");
  const Scanned all = HEDDLE_TRY(scanned(node, scope, 1, *graph));
  std::int64_t batch = -1;
  const auto item = [&](NodeId x, std::int64_t i) {
    return Value::of(builder_.squeeze(builder_.slice_axis(x, 0, i, 1), {0}));
  };
  const auto check = [&](const Value& value, std::size_t rank) -> Status {
    if (!value.is_tensor() || builder_.shape(value.node()).size() < rank)
      return node_unsupported(node, "an input has no batch dimension");
    const std::int64_t own = builder_.shape(value.node())[0];
    if (batch >= 0 && own != batch)
      return node_error(node, "inputs have batches of {} and {}", batch, own);
    batch = own;
    return Ok{};
  };
  for (const Value& value : all.state) HEDDLE_TRY(check(value, 1));
  for (const Scanned::Source& s : all.sources) HEDDLE_TRY(check(Value::of(s.node), 2));
  if (batch < 1 || batch > kMaxIterations)
    return node_unsupported(node, "a batch of {}, want 1 to {}", batch, kMaxIterations);
  std::vector<std::vector<NodeId>> made(static_cast<std::size_t>(graph->output_size()));
  for (std::int64_t i = 0; i < batch; ++i) {
    Scanned one = all;
    for (Value& value : one.state) value = item(value.node(), i);
    for (Scanned::Source& s : one.sources) s.node = item(s.node, i).node();
    const auto results =
        HEDDLE_TRY(run_scan(node, {graph, &opsets, &scope, i * kMaxIterations}, one));
    for (std::size_t k = 0; k < results.size(); ++k) {
      if (!results[k].is_tensor() ||
          (i > 0 && builder_.type(results[k].node()) != builder_.type(made[k][0])))
        return node_unsupported(node, "output {} is no tensor of one type", k);
      made[k].push_back(results[k].node());
    }
  }
  std::vector<Value> outputs;
  for (std::vector<NodeId>& parts : made) outputs.push_back(Value::of(builder_.stack(parts, 0)));
  return bind_outputs(node, outputs, scope);
}

/// The body for each item of the first sequence; other inputs are sequences of that length, or
/// tensors that every call sees.
Status Importer::add_sequence_map(const NodeProto& node, const Opsets& opsets, Scope& scope) {
  const GraphProto* graph = HEDDLE_TRY(body_of(node, "body"));
  std::vector<Value> given;
  for (int i = 0; i < node.input_size(); ++i) {
    given.push_back(*HEDDLE_TRY(argument(node, i, scope)));
    if (given.back().kind == Value::Kind::unknown)
      return bind_outputs(node, std::vector<Value>(static_cast<std::size_t>(node.output_size())),
                          scope);
  }
  if (given.empty() || given[0].kind != Value::Kind::sequence)
    return node_error(node, "input 0 is no sequence");
  std::vector<Value> results(static_cast<std::size_t>(graph->output_size()), Value::list({}));
  for (std::size_t i = 0; i < given[0].items.size(); ++i) {
    std::vector<Value> inputs;
    for (const Value& value : given) {
      if (value.kind == Value::Kind::sequence && i >= value.items.size())
        return node_error(node, "the sequences differ in length");
      inputs.push_back(value.kind == Value::Kind::sequence ? Value::of(value.items[i]) : value);
    }
    const auto turn = static_cast<std::int64_t>(i);
    const std::vector<Value> made =
        HEDDLE_TRY(run_body(node, {graph, &opsets, &scope, turn}, inputs));
    for (std::size_t k = 0; k < made.size(); ++k) {
      if (!made[k].is_tensor())
        return node_unsupported(node, "its body's output {} is no tensor", k);
      results[k].items.push_back(made[k].node());
    }
  }
  return bind_outputs(node, results, scope);
}

/// softmax(score_mod(scale·Q·Kᵀ)) → prob_mod → ·V, the two modifications being bodies.
Status Importer::add_flex_attention(const NodeProto& node, const Opsets& opsets, Scope& scope) {
  NodeId qkv[3];
  for (int i = 0; i < 3; ++i) {
    const Value* value = HEDDLE_TRY(argument(node, i, scope));
    if (value->kind == Value::Kind::unknown) return bind_outputs(node, {*value}, scope);
    if (!value->is_tensor() || builder_.rank(value->node()) != 4 ||
        !is_float(builder_.dtype(value->node())))
      return node_error(node, "input {} is no floating tensor of rank 4", i);
    qkv[i] = value->node();
  }
  const auto [q, k, v] = qkv;
  const Shape qs = builder_.shape(q), ks = builder_.shape(k), vs = builder_.shape(v);
  const DType type = builder_.dtype(q);
  if (qs[0] != ks[0] || ks[0] != vs[0] || qs[3] != ks[3] || ks[2] != vs[2] || ks[1] != vs[1] ||
      ks[1] < 1 || qs[1] % ks[1] != 0 || ks[2] < 1 || qs[3] < 1 || builder_.dtype(k) != type ||
      builder_.dtype(v) != type)
    return node_error(node, "query {}, key {}, value {} do not fit", to_string(builder_.type(q)),
                      to_string(builder_.type(k)), to_string(builder_.type(v)));
  if (!checked_element_count({qs[0], qs[1], qs[2], ks[2]}, DType::f64))
    return node_unsupported(node, "scores of {} and {} are too large", to_string(qs),
                            to_string(ks));
  graph_.set_origin(prim::Origin{node.op_type(), label_of(node)});
  const DType precise = find_attribute(node, "softmax_precision") != nullptr
                            ? HEDDLE_TRY(dtype_from_onnx(
                                  static_cast<int>(int_attribute(node, "softmax_precision", 1))))
                            : compute_type(type);
  if (!is_float(precise)) return node_error(node, "softmax_precision is no floating type");
  const AttributeProto* given = find_attribute(node, "scale");
  const double scale = given != nullptr ? given->f() : 1 / std::sqrt(static_cast<double>(qs[3]));
  const auto shared = [&](NodeId x) {  // each head of keys serves several of queries
    const std::int64_t times = qs[1] / ks[1];
    Shape shape = builder_.shape(x);
    shape[1] = qs[1];
    const auto var = [](int i) { return ir::Expr(ir::Var{i}); };
    return times == 1 ? x
                      : builder_.view(x, shape,
                                      {{var(0), ir::floor_div(var(1), times), var(2), var(3)}, {}});
  };
  const auto modified = [&](NodeId x, std::string_view name) -> Result<NodeId> {
    if (find_attribute(node, name) == nullptr) return x;
    const Body body{HEDDLE_TRY(body_of(node, name)), &opsets, &scope};
    const auto results = HEDDLE_TRY(run_body(node, body, {Value::of(x)}));
    if (results.size() != 1 || !results[0].is_tensor() ||
        builder_.type(results[0].node()) != builder_.type(x))
      return node_error(node, "{} does not give one {}", name, to_string(builder_.type(x)));
    return results[0].node();
  };
  const NodeId raw =
      builder_.mul(builder_.matmul(q, builder_.transpose(shared(k), {0, 1, 3, 2})), scale);
  const NodeId scores = HEDDLE_TRY(modified(builder_.cast(raw, precise), "score_mod"));
  const NodeId weights = HEDDLE_TRY(modified(builder_.softmax(scores, {3}), "prob_mod"));
  graph_.set_origin(prim::Origin{node.op_type(), label_of(node)});
  const NodeId y = builder_.matmul(weights, builder_.cast(shared(v), precise));
  return bind_outputs(node, {Value::of(builder_.cast(y, type))}, scope);
}

}  // namespace heddle::onnx

#include "onnx/reader.h"

#include <algorithm>
#include <filesystem>
#include <unordered_map>

#include "onnx/model.h"
#include "onnx/tensor_file.h"
#include "ops/ops.h"
#include "prim/interpret.h"

namespace heddle::onnx {
namespace {

using ::onnx::AttributeProto;
using ::onnx::GraphProto;
using ::onnx::NodeProto;
using ops::Attribute;
using ops::Call;
using prim::NodeId;

/// Nesting of functions and subgraphs, at most.
constexpr int kMaxDepth = 16;

/// Values by name in one graph or function body; an unknown value came from a failed node.
struct Scope {
  std::unordered_map<std::string, std::optional<NodeId>> values;
  const Scope* parent = nullptr;
  int depth = 0;
  /// Attributes of the call that a function body refers to.
  const std::map<std::string, const AttributeProto*>* function_attributes = nullptr;

  const std::optional<NodeId>* find(const std::string& name) const {
    for (const Scope* scope = this; scope != nullptr; scope = scope->parent)
      if (const auto value = scope->values.find(name); value != scope->values.end())
        return &value->second;
    return nullptr;
  }
};

class Importer {
 public:
  Importer(const ::onnx::ModelProto& model, std::string folder, const ImportOptions& options,
           std::vector<Problem>* problems)
      : model_(model), folder_(std::move(folder)), options_(options), problems_(problems) {
    for (const auto& entry : model.opset_import())
      opsets_[canonical_domain(entry.domain())] =
          static_cast<int>(std::clamp<std::int64_t>(entry.version(), 0, 1000));
    for (const auto& function : model.functions())
      functions_[canonical_domain(function.domain()) + "::" + function.name()] = &function;
  }

  Result<prim::Graph> run() {
    Scope scope;
    HEDDLE_TRY(add_initializers(model_.graph(), scope));
    HEDDLE_TRY(add_inputs(model_.graph(), scope));
    HEDDLE_TRY(add_nodes(model_.graph().node(), opsets_, scope));
    for (const auto& output : model_.graph().output()) {
      const std::optional<NodeId>* value = scope.find(output.name());
      if (value == nullptr) return fail("output '{}': no node makes it", output.name());
      if (*value) graph_.outputs.push_back({output.name(), **value});
    }
    if (graph_.outputs.empty() && problems_ == nullptr) return fail("the model has no outputs");
    return std::move(graph_);
  }
  int nodes() const { return nodes_; }

 private:
  using Opsets = std::map<std::string, int>;

  static std::string canonical_domain(const std::string& domain) {
    return domain == "ai.onnx" ? "" : domain;
  }

  /// Notes the error of a node when checking, passes it on when importing.
  Status failed(const NodeProto& node, Error error) {
    if (problems_ == nullptr) return error;
    problems_->push_back({label_of(node), node.op_type(), std::move(error.message)});
    return Ok{};
  }

  Status add_initializers(const GraphProto& graph, Scope& scope) {
    for (const auto& proto : graph.initializer())
      scope.values[proto.name()] =
          graph_.add_constant(HEDDLE_TRY(tensor_from_proto(proto, folder_)));
    if (graph.sparse_initializer_size() > 0)
      return unsupported("sparse initializer '{}': sparse tensors are not supported",
                         graph.sparse_initializer(0).values().name());
    return Ok{};
  }

  Status add_inputs(const GraphProto& graph, Scope& scope) {
    for (const auto& input : graph.input()) {
      if (scope.values.contains(input.name())) continue;  // an initializer with a declaration
      const Result<DType> type = tensor_type(input, "input");
      if (!type) return type.error();
      const auto& proto = input.type().tensor_type();
      const Shape shape = HEDDLE_TRY(input_shape(input.name(), proto));
      if (!checked_element_count(shape, *type))
        return fail(ErrorCode::out_of_memory, "input '{}': found impossible shape {}", input.name(),
                    to_string(shape));
      if (const auto bound = options_.values.find(input.name()); bound != options_.values.end()) {
        if (bound->second.type() != TensorType{*type, shape})
          return fail(ErrorCode::usage, "input '{}': given {}, want {}", input.name(),
                      to_string(bound->second.type()), to_string(TensorType{*type, shape}));
        scope.values[input.name()] = graph_.add_constant(bound->second);
        continue;
      }
      scope.values[input.name()] = graph_.add_input(input.name(), {*type, shape});
    }
    return Ok{};
  }

  Result<Shape> input_shape(const std::string& name, const ::onnx::TypeProto_Tensor& proto) {
    const auto given = options_.shapes.find(name);
    const int rank = proto.shape().dim_size();
    if (!proto.has_shape() && given == options_.shapes.end())
      return unsupported("input '{}': the model gives no shape; give one with --shape {}=…", name,
                         name);
    if (given != options_.shapes.end()) {
      if (proto.has_shape() && static_cast<int>(given->second.size()) != rank)
        return fail(ErrorCode::usage, "input '{}': --shape has rank {}, want {}", name,
                    given->second.size(), rank);
      for (int d = 0; d < rank; ++d)
        if (proto.shape().dim(d).has_dim_value() &&
            proto.shape().dim(d).dim_value() != given->second[static_cast<std::size_t>(d)])
          return fail(ErrorCode::usage,
                      "input '{}': --shape has {}, the model fixes dimension {} to {}", name,
                      to_string(given->second), d, proto.shape().dim(d).dim_value());
      return given->second;
    }
    Shape shape;
    for (const auto& dim : proto.shape().dim()) {
      if (!dim.has_dim_value())
        return unsupported(
            "input '{}': dimension {} is symbolic ('{}'); give the shape with --shape {}=…", name,
            shape.size(), dim.dim_param(), name);
      if (dim.dim_value() < 0) return fail("input '{}': found extent {}", name, dim.dim_value());
      shape.push_back(dim.dim_value());
    }
    return shape;
  }

  Status add_nodes(const google::protobuf::RepeatedPtrField<NodeProto>& nodes, const Opsets& opsets,
                   Scope& scope) {
    for (int i : HEDDLE_TRY(execution_order(nodes))) {
      ++nodes_;
      if (Status status = add_node(nodes[i], opsets, scope); !status) {
        HEDDLE_TRY(failed(nodes[i], status.error()));
        for (const std::string& output : nodes[i].output())
          if (!output.empty()) scope.values[output] = std::nullopt;
      }
    }
    return Ok{};
  }

  Status add_node(const NodeProto& node, const Opsets& opsets, Scope& scope) {
    const std::string domain = canonical_domain(node.domain());
    const auto opset = opsets.find(domain);
    if (const auto function = functions_.find(domain + "::" + node.op_type());
        function != functions_.end())
      return call_function(node, *function->second, scope);
    if (domain.empty() && node.op_type() == "If") return inline_if(node, opsets, scope);

    Call call;
    call.op = node.op_type();
    call.name = label_of(node);
    call.opset = opset == opsets.end() ? 1 : opset->second;
    call.outputs = node.output_size();
    call.graph = &graph_;
    for (const std::string& output : node.output()) call.output_used.push_back(!output.empty());
    bool known = true;
    HEDDLE_TRY(collect_arguments(node, scope, call, known));
    const std::string name = domain.empty() ? call.op : domain + "::" + call.op;
    if (ops::find_op(name, call.opset) == nullptr)
      return heddle::unsupported("{} '{}': operator {} (opset {}) is not supported", call.op,
                                 call.name, name, call.opset);
    HEDDLE_TRY(collect_attributes(node, scope, call));
    if (!known) {  // a failed node upstream was reported already
      for (const std::string& output : node.output()) scope.values[output] = std::nullopt;
      return Ok{};
    }
    graph_.set_origin(prim::Origin{call.op, call.name});
    call.op = name;
    ops::Values values = HEDDLE_TRY(expand(call));
    for (int i = 0; i < node.output_size() && i < static_cast<int>(values.size()); ++i) {
      if (node.output(i).empty()) continue;
      scope.values[node.output(i)] =
          HEDDLE_TRY(folded(values[static_cast<std::size_t>(i)], call));
    }
    for (int i = static_cast<int>(values.size()); i < node.output_size(); ++i)
      if (!node.output(i).empty())
        return heddle::unsupported("{} '{}': output {} is not supported", call.op, call.name, i);
    return Ok{};
  }

  /// The fission; a misfit that the operator overlooked is an error of this node, not the end.
  Result<ops::Values> expand(const Call& call) {
    prim::Builder builder(graph_);
    try {
      return ops::expand(call, builder);
    } catch (const InternalError& e) {
      return fail("{} '{}': internal error: {}", call.op, call.name, e.what());
    }
  }

  Status collect_arguments(const NodeProto& node, const Scope& scope, Call& call, bool& known) {
    for (const std::string& input : node.input()) {
      if (input.empty()) {
        call.args.push_back(std::nullopt);
        continue;
      }
      const std::optional<NodeId>* value = scope.find(input);
      if (value == nullptr)
        return fail("{} '{}': input '{}' is made by no node", call.op, call.name, input);
      known &= value->has_value();
      call.args.push_back(*value);
    }
    return Ok{};
  }

  Status collect_attributes(const NodeProto& node, const Scope& scope, Call& call) {
    for (const AttributeProto& attribute : node.attribute()) {
      const AttributeProto* source = &attribute;
      if (!attribute.ref_attr_name().empty()) {
        if (scope.function_attributes == nullptr)
          return fail("{} '{}': attribute '{}' refers to a function's, outside a function", call.op,
                      call.name, attribute.name());
        const auto found = scope.function_attributes->find(attribute.ref_attr_name());
        if (found == scope.function_attributes->end()) continue;  // optional, not given
        source = found->second;
      }
      call.attributes.insert_or_assign(attribute.name(), HEDDLE_TRY(attribute_of(*source, call)));
    }
    return Ok{};
  }

  Result<Attribute> attribute_of(const AttributeProto& a, const Call& call) {
    switch (a.type()) {
      case AttributeProto::INT:
        return Attribute(a.i());
      case AttributeProto::FLOAT:
        return Attribute(static_cast<double>(a.f()));
      case AttributeProto::STRING:
        return Attribute(a.s());
      case AttributeProto::TENSOR:
        return Attribute(HEDDLE_TRY(tensor_from_proto(a.t(), folder_)));
      case AttributeProto::INTS:
        return Attribute(std::vector<std::int64_t>(a.ints().begin(), a.ints().end()));
      case AttributeProto::FLOATS:
        return Attribute(std::vector<double>(a.floats().begin(), a.floats().end()));
      case AttributeProto::STRINGS:
        return Attribute(std::vector<std::string>(a.strings().begin(), a.strings().end()));
      default:
        return call.unsupported("attribute '{}' holds a graph, sparse tensor or type", a.name());
    }
  }

  /// A result whose inputs are all constants becomes a constant if it is small.
  Result<NodeId> folded(NodeId value, const Call& call) {
    if (std::holds_alternative<prim::Constant>(graph_[value].op)) return value;
    if (element_count(graph_[value].type.shape) > options_.fold_elements) return value;
    for (const auto& arg : call.args)
      if (arg && graph_.constant_of(*arg) == nullptr) return value;
    prim::Graph part;
    std::unordered_map<NodeId, NodeId> copied;
    const auto result = copy_constant_part(value, part, copied, 0);
    if (!result) return value;
    part.outputs.push_back({"folded", *result});
    std::vector<Tensor> values = HEDDLE_TRY(prim::interpret(part, {}));
    return graph_.add_constant(values[0]);
  }

  std::optional<NodeId> copy_constant_part(NodeId id, prim::Graph& part,
                                           std::unordered_map<NodeId, NodeId>& copied, int depth) {
    if (const auto done = copied.find(id); done != copied.end()) return done->second;
    const prim::Node& node = graph_[id];
    if (depth > 256 || std::holds_alternative<prim::Input>(node.op) ||
        std::holds_alternative<prim::Random>(node.op) ||
        element_count(node.type.shape) > 16 * options_.fold_elements)
      return std::nullopt;
    NodeId made;
    if (const Tensor* constant = graph_.constant_of(id)) {
      made = part.add_constant(*constant);
    } else {
      std::vector<NodeId> args;
      for (NodeId arg : node.args) {
        const auto mapped = copy_constant_part(arg, part, copied, depth + 1);
        if (!mapped) return std::nullopt;
        args.push_back(*mapped);
      }
      made = part.add(node.op, std::move(args), node.type);
    }
    copied.emplace(id, made);
    return made;
  }

  Status call_function(const NodeProto& node, const ::onnx::FunctionProto& function, Scope& scope) {
    if (scope.depth >= kMaxDepth)
      return fail("{} '{}': functions are nested deeper than {}", node.op_type(), label_of(node),
                  kMaxDepth);
    Scope body;
    body.depth = scope.depth + 1;
    std::map<std::string, const AttributeProto*> attributes;
    for (const AttributeProto& attribute : node.attribute())
      attributes[attribute.name()] = &attribute;
    body.function_attributes = &attributes;
    for (int i = 0; i < node.input_size() && i < function.input_size(); ++i) {
      if (node.input(i).empty()) continue;
      const std::optional<NodeId>* value = scope.find(node.input(i));
      if (value == nullptr)
        return fail("{} '{}': input '{}' is made by no node", node.op_type(), label_of(node),
                    node.input(i));
      body.values[function.input(i)] = *value;
    }
    Opsets opsets = opsets_;
    for (const auto& entry : function.opset_import())
      opsets[canonical_domain(entry.domain())] =
          static_cast<int>(std::clamp<std::int64_t>(entry.version(), 0, 1000));
    HEDDLE_TRY(add_nodes(function.node(), opsets, body));
    return copy_outputs(node, function.output(), body, scope);
  }

  /// An If whose condition is known while importing is the branch it takes.
  Status inline_if(const NodeProto& node, const Opsets& opsets, Scope& scope) {
    const std::optional<NodeId>* condition =
        node.input_size() == 1 ? scope.find(node.input(0)) : nullptr;
    const Tensor* value =
        condition != nullptr && *condition ? graph_.constant_of(**condition) : nullptr;
    if (value == nullptr || value->count() != 1)
      return heddle::unsupported("If '{}': the condition is not a constant", label_of(node));
    if (scope.depth >= kMaxDepth)
      return fail("If '{}': nested deeper than {}", label_of(node), kMaxDepth);
    const std::string wanted = value->int_at(0) != 0 ? "then_branch" : "else_branch";
    for (const AttributeProto& attribute : node.attribute()) {
      if (attribute.name() != wanted || attribute.type() != AttributeProto::GRAPH) continue;
      Scope body;
      body.parent = &scope;
      body.depth = scope.depth + 1;
      body.function_attributes = scope.function_attributes;
      HEDDLE_TRY(add_initializers(attribute.g(), body));
      HEDDLE_TRY(add_nodes(attribute.g().node(), opsets, body));
      google::protobuf::RepeatedPtrField<std::string> names;
      for (const auto& output : attribute.g().output()) *names.Add() = output.name();
      return copy_outputs(node, names, body, scope);
    }
    return fail("If '{}': it has no {}", label_of(node), wanted);
  }

  Status copy_outputs(const NodeProto& node,
                      const google::protobuf::RepeatedPtrField<std::string>& names,
                      const Scope& body, Scope& scope) {
    for (int i = 0; i < node.output_size(); ++i) {
      if (node.output(i).empty()) continue;
      const std::optional<NodeId>* value = i < names.size() ? body.find(names[i]) : nullptr;
      if (value == nullptr)
        return fail("{} '{}': its body makes no output {}", node.op_type(), label_of(node), i);
      scope.values[node.output(i)] = *value;
    }
    return Ok{};
  }

  const ::onnx::ModelProto& model_;
  std::string folder_;
  const ImportOptions& options_;
  std::vector<Problem>* problems_;
  prim::Graph graph_;
  Opsets opsets_;
  std::map<std::string, const ::onnx::FunctionProto*> functions_;
  int nodes_ = 0;
};

struct Loaded {
  FileBytes file;
  std::unique_ptr<::onnx::ModelProto> model;
  std::string folder;
};

Result<Loaded> open(const std::string& path) {
  const std::string file_path = model_file(path);
  Loaded loaded;
  loaded.file = HEDDLE_TRY(map_file(file_path));
  auto model = parse_model(loaded.file.data, loaded.file.size);
  if (!model) return fail(model.error().code, "{}: {}", file_path, model.error().message);
  loaded.model = *std::move(model);
  const std::filesystem::path parent = std::filesystem::path(file_path).parent_path();
  loaded.folder = parent.empty() ? "." : parent.string();
  return loaded;
}

}  // namespace

Result<prim::Graph> import(const std::string& path, const ImportOptions& options) {
  const Loaded loaded = HEDDLE_TRY(open(path));
  return Importer(*loaded.model, loaded.folder, options, nullptr).run();
}

Result<prim::Graph> import_bytes(const std::byte* data, std::size_t size, const std::string& folder,
                                 const ImportOptions& options) {
  const auto model = HEDDLE_TRY(parse_model(data, size));
  return Importer(*model, folder, options, nullptr).run();
}

Result<CheckReport> check(const std::string& path, const ImportOptions& options) {
  const Loaded loaded = HEDDLE_TRY(open(path));
  CheckReport report;
  Importer importer(*loaded.model, loaded.folder, options, &report.problems);
  if (Result<prim::Graph> graph = importer.run(); !graph)
    report.problems.push_back({"", "", graph.error().message});
  report.nodes = importer.nodes();
  return report;
}

}  // namespace heddle::onnx

#pragma once
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "onnx/model.h"
#include "onnx/stages.h"
#include "onnx/tensor_file.h"
#include "ops/ops.h"

namespace heddle::onnx {

using Names = google::protobuf::RepeatedPtrField<std::string>;
using Nodes = google::protobuf::RepeatedPtrField<::onnx::NodeProto>;

/// What a name stands for: a tensor; one whose extent along an axis is known only while running; a
/// list of tensors (a sequence whose length is known); nothing (an optional value that is absent);
/// or unknown, because the node that makes it failed.
struct Value {
  enum class Kind : std::uint8_t { tensor, bounded, sequence, absent, unknown };
  Kind kind = Kind::unknown;
  std::vector<prim::NodeId> items;          ///< tensor: one; bounded: the tensor and its extent
  ops::Format format = ops::Format::plain;  ///< of the tensors
  int axis = 0;                             ///< bounded: along which
  bool waits = false;                       ///< unknown: until host operators have run

  static Value of(prim::NodeId id, ops::Format format = ops::Format::plain) {
    return {Kind::tensor, {id}, format, 0, false};
  }
  static Value bounded(prim::NodeId id, prim::NodeId extent, int axis) {
    return {Kind::bounded, {id, extent}, ops::Format::plain, axis, false};
  }
  static Value list(std::vector<prim::NodeId> ids) {
    return {Kind::sequence, std::move(ids), ops::Format::plain, 0, false};
  }
  bool is_tensor() const { return kind == Kind::tensor; }
  prim::NodeId node() const { return items[0]; }
};

/// Values by name in a graph, subgraph (which sees its parent's) or function body (which does not).
struct Scope {
  std::unordered_map<std::string, Value> values;
  const Scope* parent = nullptr;
  int depth = 0;
  /// Attributes of the call that a function body refers to; null outside functions.
  const std::map<std::string, const ::onnx::AttributeProto*>* call_attributes = nullptr;

  const Value* find(const std::string& name) const;
};

using Opsets = std::map<std::string, int>;

/// Translates one model into a primitive graph, node by node: names become nodes through ops'
/// fissions, functions and control flow are expanded in place, constants are folded on the way.
class Importer {
 public:
  /// With `problems`, failures of nodes are noted there and the rest goes on.
  Importer(std::shared_ptr<const ::onnx::ModelProto> model, std::string folder,
           const ImportOptions& options, std::vector<Problem>* problems);
  Result<prim::Graph> run();
  /// What can be computed before host operators that have not run yet.
  Result<Stage> run_stage(const HostTypes& made, const std::set<std::string>& done);
  int nodes() const { return nodes_; }
  /// The initializers as they were added to the graph of run(), for an import of the same model.
  std::vector<prim::NodeId> initializers() const { return initializers_; }
  /// Steps of the recurrent operators met, by node.
  const std::map<std::string, std::int64_t>& steps() const { return steps_; }
  /// Operators that need more than their arguments: bodies, or the graph around them.
  struct Control {
    std::string_view name;
    int since;
    Status (Importer::*add)(const ::onnx::NodeProto&, const Opsets&, Scope&);
  };
  static std::span<const Control> controls();
  /// Takes the initializers from there; both must live until run() has returned.
  void share(const prim::Graph& graph, const std::vector<prim::NodeId>& initializers) {
    shared_ = {&graph, &initializers};
  }

 private:
  // importer.cpp: graphs and plain nodes.
  Status add_initializers(const ::onnx::GraphProto& graph, Scope& scope);
  Result<prim::NodeId> add_initializer(const ::onnx::TensorProto& proto);
  /// Takes note of the error when checking, and passes it on when importing.
  Status noted(const std::string& name, const std::string& kind, const Error& error);
  Status add_nodes(const Nodes& nodes, const Opsets& opsets, Scope& scope);
  Status add_node(const ::onnx::NodeProto& node, const Opsets& opsets, Scope& scope);
  Status add_operator(const ::onnx::NodeProto& node, const std::string& name, int opset,
                      Scope& scope);
  Status collect_arguments(const ::onnx::NodeProto& node, const Scope& scope, ops::Call& call,
                           bool& known);
  Status collect_attributes(const ::onnx::NodeProto& node, const Scope& scope, ops::Call& call);
  Result<std::optional<ops::Attribute>> attribute_of(const ::onnx::AttributeProto& a);
  Result<ops::Values> expand(const ops::Call& call);
  /// A recurrent operator over a sequence that is padded to ImportOptions::steps.
  Result<ops::Values> expand_steps(ops::Call call);
  /// The value as a constant, if it depends on constants only and is small.
  bool is_dequantised(prim::NodeId value) const;
  prim::NodeId folded(prim::NodeId value);
  bool is_fixed(prim::NodeId id);

  // ports.cpp
  Status bind_dimensions(const ::onnx::GraphProto& graph);
  Status add_inputs(const ::onnx::GraphProto& graph, Scope& scope);
  Result<Value> add_input(const ::onnx::ValueInfoProto& input);
  Result<prim::NodeId> add_tensor_input(const std::string& name, const TensorType& type);
  Result<Shape> input_shape(const std::string& name,
                            const ::onnx::TypeProto::Tensor& declared) const;
  Status add_outputs(const ::onnx::GraphProto& graph, const Scope& scope);
  Status add_output(const ::onnx::ValueInfoProto& output, prim::NodeId node);

  // control.cpp: what has a body. All are expanded, so trip counts must be known.
  Status call_function(const ::onnx::NodeProto& node, const ::onnx::FunctionProto& function,
                       Scope& scope);
  Status add_if(const ::onnx::NodeProto& node, const Opsets& opsets, Scope& scope);
  Status add_loop(const ::onnx::NodeProto& node, const Opsets& opsets, Scope& scope);
  Status add_sequence_map(const ::onnx::NodeProto& node, const Opsets& opsets, Scope& scope);
  Status add_flex_attention(const ::onnx::NodeProto& node, const Opsets& opsets, Scope& scope);
  Status add_scan(const ::onnx::NodeProto& node, const Opsets& opsets, Scope& scope);
  Status add_batched_scan(const ::onnx::NodeProto& node, const Opsets& opsets, Scope& scope);
  struct Body {
    const ::onnx::GraphProto* graph;
    const Opsets* opsets;
    const Scope* parent;
  };
  /// The body's outputs for these inputs.
  Result<std::vector<Value>> run_body(const ::onnx::NodeProto& node, const Body& body,
                                      const std::vector<Value>& inputs);
  /// What a Scan runs over.
  struct Scanned {
    struct Source {
      prim::NodeId node;
      int axis = 0;
      bool backwards = false;
    };
    std::vector<Value> state;
    std::vector<Source> sources;
    std::vector<std::int64_t> axes, directions;  ///< of the outputs
  };
  Result<Scanned> scanned(const ::onnx::NodeProto& node, const Scope& scope, int first,
                          const ::onnx::GraphProto& graph);
  Result<std::vector<Value>> run_scan(const ::onnx::NodeProto& node, const Body& body,
                                      const Scanned& scan);
  Result<Value> gather_scans(const ::onnx::NodeProto& node, const std::vector<Value>& parts,
                             const ::onnx::ValueInfoProto& declared, int axis);
  /// Passes the body's results on under the names of the node's outputs.
  Status bind_outputs(const ::onnx::NodeProto& node, const std::vector<Value>& results,
                      Scope& scope);
  Result<const Value*> argument(const ::onnx::NodeProto& node, int i, const Scope& scope) const;
  std::optional<std::int64_t> known_int(const Value* value) const;

  // gradient.cpp
  Result<std::vector<prim::NodeId>> gradients_of(const ::onnx::NodeProto& node,
                                                 const std::string& y,
                                                 const std::vector<prim::NodeId>& xs,
                                                 const Opsets& opsets, Scope& inner);
  Status add_gradient(const ::onnx::NodeProto& node, const Opsets& opsets, Scope& scope);

  // stages.cpp: host operators.
  Status add_host_call(const ::onnx::NodeProto& node, ops::Call call, Scope& scope);
  bool is_waiting(const ::onnx::NodeProto& node, const Scope& scope) const;
  void set_waiting(const ::onnx::NodeProto& node, Scope& scope);
  struct Staging {
    const HostTypes* made;
    const std::set<std::string>* done;
    Stage stage;
  };

  // sequence.cpp: lists of tensors, which exist only while importing.
  /// nullopt if the node is no operator on sequences or optional values.
  std::optional<Status> add_sequence_node(const ::onnx::NodeProto& node, int opset, Scope& scope);
  Result<Value> sequence_result(const ::onnx::NodeProto& node, int opset, const Scope& scope);
  Result<Value> split_to_sequence(const ::onnx::NodeProto& node, const Scope& scope);
  Result<Value> concat_from_sequence(const ::onnx::NodeProto& node, int opset, const Scope& scope);
  Result<std::size_t> position(const ::onnx::NodeProto& node, int i, std::size_t count,
                               const Scope& scope) const;

  std::shared_ptr<const ::onnx::ModelProto> model_;
  TensorSource source_;
  const ImportOptions& options_;
  std::vector<Problem>* problems_;
  prim::Graph graph_;
  prim::Builder builder_;
  Opsets opsets_;
  std::map<std::string, const ::onnx::FunctionProto*> functions_;
  std::map<std::string, std::int64_t> dimensions_;  ///< symbolic extents, from the shapes given
  std::vector<bool> fixed_;                         ///< by node: depends on constants only
  int nodes_ = 0;
  std::vector<prim::NodeId> initializers_;  ///< in the file's order
  struct {
    const prim::Graph* graph = nullptr;
    const std::vector<prim::NodeId>* initializers = nullptr;
  } shared_;
  std::map<std::string, std::int64_t> steps_;
  Staging* staging_ = nullptr;  ///< null: host operators are refused
  int host_calls_ = 0;
};

/// Some exporters write -1 for an extent that is not fixed.
bool is_fixed_dim(const ::onnx::TensorShapeProto::Dimension& dim);
/// What ImportOptions::dimensions calls a symbolic dimension; "?" is nobody's name.
std::string dimension_name(const std::string& input, int axis,
                           const ::onnx::TensorShapeProto::Dimension& dim);
/// "ai.onnx" is the default domain's other name.
std::string canonical_domain(const std::string& domain);
/// An error of the node: "Add 'sum': …"
template <class... A>
Error node_error(const ::onnx::NodeProto& node, fmt::format_string<A...> format, A&&... a) {
  return fail("{} '{}': {}", node.op_type(), label_of(node),
              fmt::format(format, std::forward<A>(a)...));
}
template <class... A>
Error node_unsupported(const ::onnx::NodeProto& node, fmt::format_string<A...> format, A&&... a) {
  return unsupported("{} '{}': {}", node.op_type(), label_of(node),
                     fmt::format(format, std::forward<A>(a)...));
}
const ::onnx::AttributeProto* find_attribute(const ::onnx::NodeProto& node, std::string_view name);
std::int64_t int_attribute(const ::onnx::NodeProto& node, std::string_view name,
                           std::int64_t otherwise);
std::vector<std::int64_t> ints_attribute(const ::onnx::NodeProto& node, std::string_view name);

}  // namespace heddle::onnx

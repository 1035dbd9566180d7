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
  bool waits = false;                       ///< unknown: until a stage has run (stages.h)
  std::string key;                          ///< when importing stages: who made it

  static Value of(prim::NodeId id, ops::Format format = ops::Format::plain) {
    return {Kind::tensor, {id}, format, 0, false, {}};
  }
  static Value bounded(prim::NodeId id, prim::NodeId extent, int axis) {
    return {Kind::bounded, {id, extent}, ops::Format::plain, axis, false, {}};
  }
  static Value list(std::vector<prim::NodeId> ids) {
    return {Kind::sequence, std::move(ids), ops::Format::plain, 0, false, {}};
  }
  bool is_tensor() const { return kind == Kind::tensor; }
  prim::NodeId node() const { return items[0]; }
};

/// Values by name in a graph, subgraph (which sees its parent's) or function body (which does not).
struct Scope {
  std::unordered_map<std::string, Value> values;
  const Scope* parent = nullptr;
  int depth = 0;
  std::string path;  ///< of the calls and iterations around it
  /// Attributes of the call that a function body refers to; null outside functions.
  const std::map<std::string, const ::onnx::AttributeProto*>* call_attributes = nullptr;

  const Value* find(const std::string& name) const;
};

using Opsets = std::map<std::string, int>;

/// Iterations that are unrolled, at most.
inline constexpr std::int64_t kMaxIterations = 1 << 12;

/// Translates one model into a primitive graph, node by node: names become nodes through ops'
/// fissions, functions and control flow are expanded in place, constants are folded on the way.
class Importer {
 public:
  /// With `problems`, failures of nodes are noted there and the rest goes on.
  Importer(std::shared_ptr<const ::onnx::ModelProto> model, std::string folder,
           const ImportOptions& options, std::vector<Problem>* problems);
  /// The model is this importer's alone, and is imported once: initializers become tensors that
  /// own their bytes, so that each can be freed by itself.
  void take_bytes() { takes_bytes_ = true; }
  Result<prim::Graph> run();
  /// What can be computed before the values that other stages have to make.
  Result<Stage> run_stage(const MadeValues& made, const std::set<std::string>& done,
                          const Cuts& cuts = {});
  int nodes() const { return nodes_; }
  /// Notes nodes anywhere in the model, also where nothing is imported yet, whose operator there is
  /// not.
  void note_unknown_operators();
  /// The initializers as they were added to the graph of run(), for an import of the same model.
  const Initializers& initializers() const { return initializers_; }
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
  void share(const prim::Graph& graph, const Initializers& initializers) {
    shared_ = {&graph, &initializers};
  }

 private:
  // importer.cpp: graphs and plain nodes.
  Status add_initializers(const ::onnx::GraphProto& graph, Scope& scope);
  Result<prim::NodeId> add_initializer(const ::onnx::TensorProto& proto);
  /// Takes note of the error when checking, and passes it on when importing.
  Status noted(const std::string& name, const std::string& kind, const Error& error);
  /// The model's function that the node calls; null if it is an operator.
  const ::onnx::FunctionProto* function_of(const ::onnx::NodeProto& node) const;
  void note_unknown_operators(const Nodes& nodes, const Opsets& opsets);
  Opsets opsets_of(const ::onnx::FunctionProto& function) const;
  Status add_nodes(const Nodes& nodes, const Opsets& opsets, Scope& scope);
  /// Gives the value its name, or what an earlier stage has made of it.
  void bind(Scope& scope, const std::string& name, Value value);
  void bind_unknown(const ::onnx::NodeProto& node, Scope& scope, bool waits);
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

  // dimensions.cpp
  Status bind_dimensions(const ::onnx::GraphProto& graph);

  // ports.cpp
  Status add_inputs(const ::onnx::GraphProto& graph, Scope& scope);
  Result<Value> add_input(const ::onnx::ValueInfoProto& input);
  Result<prim::NodeId> add_tensor_input(const std::string& name, const TensorType& type);
  Result<Shape> input_shape(const std::string& name,
                            const ::onnx::TypeProto::Tensor& declared) const;
  Status add_outputs(const ::onnx::GraphProto& graph, const Scope& scope);
  Status add_output(const ::onnx::ValueInfoProto& output, prim::NodeId node);
  /// Where other cases of the stage tell it.
  void tell_extent(const std::string& output, prim::NodeId node);
  /// What a model declares of an output must be of its type; extents are only hints in many
  /// exported models: with `warn`, others are said.
  static Status check_declared(const ::onnx::ValueInfoProto& output, const std::string& subject,
                               const TensorType& type, bool warn);

  // control.cpp: what has a body. All are expanded where trip counts are known.
  Status call_function(const ::onnx::NodeProto& node, const ::onnx::FunctionProto& function,
                       Scope& scope);
  Status add_if(const ::onnx::NodeProto& node, const Opsets& opsets, Scope& scope);
  Status add_choice(const ::onnx::NodeProto& node, const Opsets& opsets, const Value& condition,
                    Scope& scope);
  Status add_sequence_map(const ::onnx::NodeProto& node, const Opsets& opsets, Scope& scope);
  Status add_flex_attention(const ::onnx::NodeProto& node, const Opsets& opsets, Scope& scope);
  Status add_scan(const ::onnx::NodeProto& node, const Opsets& opsets, Scope& scope);
  Status add_batched_scan(const ::onnx::NodeProto& node, const Opsets& opsets, Scope& scope);
  struct Body {
    const ::onnx::GraphProto* graph;
    const Opsets* opsets;
    const Scope* parent;
    std::int64_t turn = 0;  ///< tells the uses of a node's bodies apart
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

  // loops.cpp
  struct LoopParts {
    const ::onnx::GraphProto* body;
    Value trips, condition;
    std::vector<Value> state;
  };
  Status add_loop(const ::onnx::NodeProto& node, const Opsets& opsets, Scope& scope);
  Result<LoopParts> loop_parts(const ::onnx::NodeProto& node, const Scope& scope);
  /// Iterations one after another, as long as it is known that there is one; then the value that
  /// would tell.
  Result<std::optional<Value>> unroll(const ::onnx::NodeProto& node, const Opsets& opsets,
                                      LoopParts& loop, std::vector<std::vector<Value>>& scans,
                                      const Scope& scope);
  std::shared_ptr<::onnx::ModelProto> body_model(const ::onnx::GraphProto& body,
                                                 const Opsets& opsets) const;
  /// Whether the host can run it: its body is a program of tensors.
  Result<bool> add_host_loop(const ::onnx::NodeProto& node, const Opsets& opsets,
                             const LoopParts& loop, Scope& scope);

  // stages.cpp: what later stages compute.
  Status add_host_call(const ::onnx::NodeProto& node, ops::Call call, Scope& scope);
  /// Notes a call; results are the node's outputs.
  Status add_call(const ::onnx::NodeProto& node, HostCall call, const std::vector<Value>& arguments,
                  Scope& scope);
  bool reads_waiting(const ::onnx::NodeProto& node, const Scope& scope) const;
  bool reads_bounded(const ::onnx::NodeProto& node, const Scope& scope) const;
  bool is_made(const ::onnx::NodeProto& node, Scope& scope);
  /// The node is left to a later stage, which what it reads is kept for.
  void leave(const ::onnx::NodeProto& node, Scope& scope);
  void keep(const Value& value);
  /// Makes what follows wait for the value, where the stage is to end there.
  void cut(Value& value);
  /// Later stages are for its numbers; false if there are none to ask for.
  bool ask(const Value& value);
  /// Null if it is no input of the graph.
  const std::string* input_name(const Value& value) const;
  bool ask_inputs(const ::onnx::NodeProto& node, const Scope& scope);
  struct Staging {
    const MadeValues* made;
    const std::set<std::string>* done;
    const Cuts* cuts;
    Stage stage;
    std::map<std::string, Value> bound = {};  ///< made values, by key
  };
  /// What has been noted of a stage so far, to be gone back to.
  struct Mark {
    Stage stage;
    std::vector<prim::GraphOutput> outputs;
  };
  Mark mark() const { return {staging_->stage, graph_.outputs}; }
  void back_to(Mark mark);

  // sequence.cpp: lists of tensors, which exist only while importing.
  static bool is_sequence_operator(const std::string& op);
  /// nullopt if the node is no operator on sequences or optional values.
  std::optional<Status> add_sequence_node(const ::onnx::NodeProto& node, int opset, Scope& scope);
  Result<Value> sequence_result(const ::onnx::NodeProto& node, int opset, const Scope& scope);
  Result<Value> split_to_sequence(const ::onnx::NodeProto& node, const Scope& scope);
  Result<Value> concat_from_sequence(const ::onnx::NodeProto& node, int opset, const Scope& scope);
  Result<std::size_t> position(const ::onnx::NodeProto& node, int i, std::size_t count,
                               const Scope& scope);

  std::shared_ptr<const ::onnx::ModelProto> model_;
  TensorSource source_;
  bool takes_bytes_ = false;
  const ImportOptions& options_;
  std::vector<Problem>* problems_;
  prim::Graph graph_;
  prim::Builder builder_;
  Opsets opsets_;
  std::map<std::string, const ::onnx::FunctionProto*> functions_;
  std::vector<const ::onnx::FunctionProto*> calls_;  ///< the functions around what is imported
  std::map<std::string, std::int64_t> dimensions_;   ///< symbolic extents, from the shapes given
  DimensionFacts facts_;                             ///< of those that follow from others
  std::vector<bool> fixed_;                          ///< by node: depends on constants only
  int nodes_ = 0;
  Initializers initializers_;
  struct {
    const prim::Graph* graph = nullptr;
    const Initializers* initializers = nullptr;
  } shared_;
  std::map<std::string, std::int64_t> steps_;
  Staging* staging_ = nullptr;  ///< null: the model has to be one program
  /// Inputs of the node that failed which it would have needed the numbers of.
  std::vector<int> wanted_;
};

Result<Dimensions> dimensions_of(const ::onnx::GraphProto& graph, const ImportOptions& options);
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
Result<const ::onnx::GraphProto*> body_of(const ::onnx::NodeProto& node, std::string_view name);
std::int64_t int_attribute(const ::onnx::NodeProto& node, std::string_view name,
                           std::int64_t otherwise);
std::vector<std::int64_t> ints_attribute(const ::onnx::NodeProto& node, std::string_view name);

}  // namespace heddle::onnx

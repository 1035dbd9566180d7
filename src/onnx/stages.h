#pragma once
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "onnx/reader.h"
#include "onnx/tensor_file.h"
#include "ops/ops.h"

namespace onnx {
class TensorProto;
}

/// Models that are no single program: host operators (ops/host.h: on strings, on encoded pictures),
/// numbers that decide shapes or how often a loop runs and are computed by the model itself. Tensor
/// programs and the host take turns: a stage computes what can be computed before the host, and
/// later stages are imported when what it made, or its type, is known.
namespace heddle::onnx {

/// Runs a compiled graph on inputs by position.
using Runner = std::function<Result<std::vector<Tensor>>(const std::vector<Tensor>&)>;
using Engine = std::function<Result<Runner>(const prim::Graph&)>;

/// What the host does between two stages.
struct HostCall {
  std::string op, name;
  std::vector<std::string> arguments;  ///< outputs or inputs of the stage; "": absent
  std::vector<std::string> results;    ///< keys of what it makes; "": not used
  std::function<Result<std::vector<ops::HostValue>>(std::span<const Tensor>, const Engine&)> run;
};
/// "Op 'name'" of each.
std::set<std::string> labels_of(const std::vector<HostCall>& calls);

/// A value that an earlier stage or the host has made: an input of the next one, or a constant of
/// it where its numbers decide shapes.
struct Made {
  TensorType type;
  ops::Format format = ops::Format::plain;
  std::optional<Tensor> numbers;
};
/// By key: the names of the calls and iterations around it, and its own.
using MadeValues = std::map<std::string, Made>;
/// The name that the value has as an output or input of a stage.
std::string made_name(const std::string& key);

/// A value that later stages read.
struct Asked {
  ops::Format format = ops::Format::plain;
  int axis = -1;         ///< along which its extent is told; -1: the extents are known
  bool numbers = false;  ///< they are for its numbers
  std::string input;     ///< it is this input of the stage; else an output, made_name(key)
};
struct Stage {
  prim::Graph graph;
  std::vector<HostCall> calls;                 ///< to be run after it
  std::map<std::string, Asked> asked;          ///< by key
  std::vector<std::string> waiting;            ///< nodes left to later stages, by label
  std::map<std::string, ops::Format> formats;  ///< of outputs that are not plain
  /// Outputs of the model that are made already, by the input that holds them.
  std::map<std::string, std::string> there;
  bool is_last() const { return calls.empty() && asked.empty(); }
};
/// Where a stage is to end in all of several cases, although in some of them more could be computed
/// at once: nothing comes out of a filter to which nothing goes in.
struct Cuts {
  struct Cut {
    int axis = -1;
    bool numbers = false;
    bool operator==(const Cut&) const = default;
  };
  std::map<std::string, Cut> asked;    ///< by key
  std::map<std::string, int> extents;  ///< outputs that tell theirs, and along which axis
  bool operator==(const Cuts&) const = default;
};
/// Where initializers, of the model and of bodies, are in a graph imported from it.
using Initializers = std::map<const ::onnx::TensorProto*, prim::NodeId>;
struct Loaded;
/// One stage, without the outputs in `done`.
Result<Stage> import_stage(const Loaded& model, const ImportOptions& options,
                           const MadeValues& made, const std::set<std::string>& done);
/// The first one.
Result<Stage> import_stage(const std::string& path, const ImportOptions& options);

/// Whether the model has string inputs or outputs, or host operators: it runs in stages.
Result<bool> runs_in_stages(const std::string& path);

/// A model that runs in stages, each compiled when the types of its inputs, and the numbers that
/// decide shapes, are first met. What a stage has made is not computed again.
class StagedModel {
 public:
  StagedModel(std::string path, ImportOptions options, Engine engine)
      : path_(std::move(path)), options_(std::move(options)), engine_(std::move(engine)) {}
  StagedModel(std::shared_ptr<const Loaded> model, ImportOptions options, Engine engine)
      : model_(std::move(model)), options_(std::move(options)), engine_(std::move(engine)) {}
  /// Inputs by name (strings as their numbers); gives outputs by name, cut to their extents.
  Result<std::map<std::string, Output>> run(const std::map<std::string, Tensor>& inputs);
  /// Stages compiled so far.
  std::size_t compiled() const { return compiled_; }
  /// What the host did, "Op 'name'".
  const std::set<std::string>& host_operators() const { return host_operators_; }

 private:
  struct Ready {
    Stage stage;
    Runner runner;
  };
  struct State;
  Result<const Ready*> ready(const State& state);
  Status run_stage(const Ready& now, State& state);

  std::string path_;
  std::shared_ptr<const Loaded> model_;  ///< read when first needed
  ImportOptions options_;
  Engine engine_;
  std::map<std::string, Ready> stages_;  ///< by the types of inputs and of what has been made
  std::size_t compiled_ = 0;
  std::set<std::string> host_operators_;
};

}  // namespace heddle::onnx

#pragma once
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "onnx/reader.h"
#include "onnx/tensor_file.h"
#include "ops/ops.h"

/// Models with host operators (ops/host.h: on strings, on encoded pictures): tensor programs and
/// host operators take turns. A stage computes what can be computed before the next host operators;
/// the shapes of what those make are known only when they have run, so later stages are imported
/// then.
namespace heddle::onnx {

/// A host operator whose arguments a stage computes.
struct HostCall {
  int number = 0;  ///< among the model's host operators, in the order of import
  ops::Call call;
  std::vector<std::string> arguments;  ///< graph outputs of the stage; "": absent
};
/// "Op 'name'" of each.
std::set<std::string> labels_of(const std::vector<HostCall>& calls);

/// What the host operators have made so far, by number; the next stage's inputs host_name(…).
using HostTypes = std::map<int, std::vector<std::pair<TensorType, ops::Format>>>;
std::string host_name(int number, std::size_t result);

struct Stage {
  prim::Graph graph;
  std::vector<HostCall> calls;                 ///< to be run after it; none: it is the last one
  std::vector<std::string> waiting;            ///< host operators that need those first, by label
  std::map<std::string, ops::Format> formats;  ///< of graph outputs that are not plain
};
/// One stage, without the outputs in `done`.
Result<Stage> import_stage(const std::string& path, const ImportOptions& options,
                           const HostTypes& made, const std::set<std::string>& done);

/// Whether the model has string inputs or outputs, or host operators: it runs in stages.
Result<bool> runs_in_stages(const std::string& path);

/// Runs a compiled graph on inputs by position.
using Runner = std::function<Result<std::vector<Tensor>>(const std::vector<Tensor>&)>;
using Engine = std::function<Result<Runner>(const prim::Graph&)>;
/// A model that runs in stages, each compiled when the shapes of its inputs are first met. Where
/// small inputs decide shapes (axes, repeats), it is compiled for their values.
class StagedModel {
 public:
  StagedModel(std::string path, ImportOptions options, Engine engine)
      : path_(std::move(path)), options_(std::move(options)), engine_(std::move(engine)) {}
  /// Inputs by name (strings as their numbers); gives outputs by name, cut to their extents.
  Result<std::map<std::string, Output>> run(const std::map<std::string, Tensor>& inputs);
  /// Stages compiled so far.
  std::size_t compiled() const { return stages_.size(); }
  /// Those that those stages end with, "Op 'name'".
  std::set<std::string> host_operators() const;

 private:
  struct Ready {
    Stage stage;
    Runner runner;
  };
  Result<const Ready*> ready(const std::map<std::string, Tensor>& inputs, const HostTypes& made,
                             const std::set<std::string>& done);

  std::string path_;
  ImportOptions options_;
  Engine engine_;
  std::map<std::string, Ready> stages_;  ///< by the types of inputs and host results
  std::set<std::string> by_value_;       ///< those that also hold for certain small inputs only
};

}  // namespace heddle::onnx

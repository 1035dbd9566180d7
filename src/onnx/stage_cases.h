#pragma once
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "onnx/stages.h"

namespace heddle::onnx {

/// What earlier stages have made, in one of several cases: the outputs there are, and the types of
/// values (whose extents, or numbers, differ from case to case), as do sizes of inputs.
struct StageCase {
  std::map<std::string, std::int64_t> dimensions;  ///< ImportOptions::dimensions
  MadeValues made;
  std::set<std::string> done;
};

/// Imports a stage in many cases; the file is read, and its weights are hashed, once.
class StageImporter {
 public:
  static Result<StageImporter> open(const std::string& path, ImportOptions options);
  Result<Stage> import(const StageCase& of, const Cuts& cuts = {});
  /// The label and operator of the node that makes a value of the model's graph, "NonMaxSuppression
  /// 'nms'"; empty for values of bodies and functions.
  std::string maker_of(const std::string& key) const;
  /// The label alone.
  std::string label_of_maker(const std::string& key) const;

 private:
  std::shared_ptr<const Loaded> model_;
  ImportOptions options_;
  /// The first stage imported, and its initializers, which others share.
  std::shared_ptr<const prim::Graph> shared_;
  Initializers initializers_;
};

}  // namespace heddle::onnx

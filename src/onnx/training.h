#pragma once
#include <map>
#include <string>
#include <vector>

#include "onnx/reader.h"

namespace heddle::onnx {

/// A model read for training.
struct TrainingModel {
  /// Inputs: the model's own, then parameters and statistics by name. Outputs: the model's own,
  /// then the updated statistics, under the statistics' names.
  prim::Graph graph;
  struct Named {
    std::string name;  ///< of the initializer
    Tensor value;
    std::string port = name;  ///< of the graph's input, and of the output that replaces it
  };
  std::vector<Named> parameters;  ///< floating initializers that are trained
  std::vector<Named> statistics;  ///< running means and variances of batch normalisations
  std::size_t outputs = 0;        ///< how many outputs are the model's own
};

/// Reads an ONNX model so that its floating initializers are inputs. Not trained: single numbers
/// (rank 0), arguments that say how an operator works (scales of Resize, limits of Clip, …), and
/// names in `frozen`. Batch normalisation normalises by the batch and updates its statistics; it
/// needs opset 14; where several share statistics, each updates what the one before has made.
/// Dropout drops. What the model holds in 16 bits is trained in 32. Errors as of import().
Result<TrainingModel> import_for_training(const std::string& path, const ImportOptions& options,
                                          const std::vector<std::string>& frozen = {});

/// Writes the model at `path` to `out`, for inference, with these initializers replaced, rounded to
/// what the model holds; the file is complete or
/// not there at all. Errors: a name that is no initializer, a type that differs, a model of more
/// than 2 GB.
Status export_trained(const std::string& path, const std::string& out,
                      const std::map<std::string, Tensor>& values);

}  // namespace heddle::onnx

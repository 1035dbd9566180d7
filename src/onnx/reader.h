#pragma once
#include <cstddef>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "prim/graph.h"
#include "support/dimensions.h"
#include "support/result.h"

namespace heddle::onnx {

struct ImportOptions {
  /// Extents of inputs, by name; needed where the model has symbolic ones.
  std::map<std::string, Shape> shapes;
  /// Extents by the name of a symbolic dimension, or by "input.axis" where it has none.
  std::map<std::string, std::int64_t> dimensions;
  /// Dimensions, by those names, that follow from others whatever the model calls them.
  DimensionFacts facts;
  /// Inputs that are fixed to a value: they become constants, and may then decide shapes.
  std::map<std::string, Tensor> values;
  /// Inputs that are sequences: the shapes of their items, which become inputs "name[0]", ….
  std::map<std::string, std::vector<Shape>> sequences;
  /// Optional inputs that are not given.
  std::set<std::string> absent;
  /// Steps that a recurrent operator is unrolled to at least, by its node; those after the end of
  /// its sequence change nothing. So graphs for several lengths are alike.
  std::map<std::string, std::int64_t> steps;
  /// Nodes whose inputs are all constants are evaluated while importing if their results hold at
  /// most this many elements, so that shape arithmetic becomes constants.
  std::int64_t fold_elements = 1 << 16;
};

/// Reads an ONNX file, or the model.onnx of a test-data folder, into a primitive graph. Errors name
/// node, operator and reason; no allocation exceeds what the file's own size justifies.
Result<prim::Graph> import(const std::string& path, const ImportOptions& options = {});
/// The same from bytes; external data is looked up under `folder` (empty: refused).
Result<prim::Graph> import_bytes(const std::byte* data, std::size_t size, const std::string& folder,
                                 const ImportOptions& options = {});

/// The model for each of several sizes, ImportOptions::dimensions of each; the file is read and its
/// weights are hashed once. The last one has the longest sequences: recurrent operators take as
/// many steps in all. The error names the sizes at which there is none.
Result<std::vector<prim::Graph>> import_sizes(
    const std::string& path, const ImportOptions& options,
    const std::vector<std::map<std::string, std::int64_t>>& sizes);
/// The symbolic dimensions of a model's inputs, by those names. One follows from others where
/// ImportOptions::facts say so, and where its name is an expression over names of other dimensions
/// (or of ImportOptions::dimensions): "past + seq".
struct Dimensions {
  std::set<std::string> names;
  DimensionFacts facts;                          ///< those that follow, by name
  std::map<std::string, std::string> described;  ///< "'past' (input 'past_key', dimension 2)"
  std::map<std::string, std::vector<std::string>> of_inputs;  ///< by axis; "": the extent is fixed
  /// Those of which no other one follows, and the names that are only in facts.
  std::set<std::string> free() const;
};
Result<Dimensions> dimensions(const std::string& path, const ImportOptions& options);

/// Operators that the importer expands itself (control flow, Gradient), and since which opset.
std::vector<std::pair<std::string_view, int>> control_operators();

struct Problem {
  std::string node, op, reason;
};
struct CheckReport {
  int nodes = 0;
  std::vector<Problem> problems;
  bool staged = false;  ///< it runs in stages (onnx/stages.h)
  /// By label: what the host does after the first stage, and what is left to later ones.
  std::set<std::string> host;
  std::vector<std::string> waiting;
};
/// Everything that stands in the way of importing the model, not only the first thing.
Result<CheckReport> check(const std::string& path, const ImportOptions& options = {});

/// The path of the model inside a test-data folder, or the path itself.
std::string model_file(const std::string& path);
/// A declared input or output. A sequence, or an optional value, of anything else than tensors is
/// `other`.
struct Port {
  std::string name;
  enum class Kind : std::uint8_t { tensor, sequence, optional, optional_sequence, other } kind;
  bool text = false;  ///< of strings
};
struct Ports {
  std::vector<Port> inputs;  ///< those that no initializer gives a value, in the file's order
  std::vector<Port> outputs;
};
Result<Ports> ports(const std::string& path);
/// An output whose extent along an axis is known only while running has room for the most there can
/// be; the graph's output of this name (i64[]) says how many positions count.
std::string extent_name(const std::string& output, int axis);
/// Outputs by name, cut to their extents, which are left out.
std::map<std::string, Tensor> trimmed(const std::vector<std::string>& names,
                                      const std::vector<Tensor>& outputs);
/// Paths of the files that a model is made of: itself (of a test-data folder the model.onnx), then
/// those of external data, as far as it can be parsed.
std::vector<std::string> model_files(const std::string& path);

}  // namespace heddle::onnx

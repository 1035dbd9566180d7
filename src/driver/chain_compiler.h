#pragma once
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "driver/chain.h"
#include "driver/size_compiler.h"
#include "onnx/stage_cases.h"

namespace heddle::driver {

using runtime::Chain;

/// A case of all sizes found so far.
struct Branch {
  Sizes sizes;
  onnx::StageCase stage;
};

/// Values that are known when a link has run; those whose extents are one number are together.
struct Question {
  std::string name;                               ///< of the first value, and of the size
  std::vector<std::pair<std::string, int>> keys;  ///< values and their axes
  int axis = 0;       ///< of the first; -1: the number of the only value
  std::string value;  ///< what tells the size at run time
};

class ChainCompiler {
 public:
  ChainCompiler(onnx::StageImporter importer, const std::vector<SizeRange>& ranges,
                const CompileOptions& options)
      : importer_(std::move(importer)), ranges_(ranges), options_(options) {}
  Result<CompiledChain> run(const onnx::Ports& ports, const onnx::Dimensions& known);

 private:
  /// The sizes of inputs that are wanted are the first ones.
  Status start(const onnx::Dimensions& known);
  using Stages = std::vector<onnx::Stage>;
  Result<Stages> import_all();
  Result<Stages> import_all(const onnx::Cuts& cuts);
  Status check_alike(const Stages& stages) const;
  Status add_link(const Stages& stages);
  /// Adds what the stage makes to each branch, once for each size that it may have.
  /// (`given`: the questions are about inputs of the stage, which has not run.)
  Status go_on(const Stages& stages, bool given);
  Result<std::vector<Question>> questions_of(const onnx::Stage& stage, bool given) const;
  Result<std::vector<Branch>> with_sizes(const std::vector<Branch>& branches, const Stages& stages,
                                         const Question& question);
  Result<SizeRange> range_of(const Question& question, std::int64_t most, bool flag);
  const SizeRange* stated(const Question& question);
  Status note_results(const Stages& stages);
  std::string found_sizes() const;
  Status add_ports(const onnx::Ports& ports);
  std::string label(const std::string& key) const;
  Error other_way(const Branch& branch, std::string_view what) const;

  onnx::StageImporter importer_;
  const std::vector<SizeRange>& ranges_;
  const CompileOptions& options_;
  std::vector<Branch> branches_ = {{}};
  std::vector<Chain::Count> counts_;
  std::map<std::string, std::vector<std::int64_t>> programs_;  ///< of each count
  std::set<std::string> used_;                                 ///< of ranges_
  struct Output {
    std::string value;
    TensorType most;
    std::set<int> varies;  ///< axes
  };
  std::map<std::string, Output> outputs_;
  Chain chain_;
  CompiledChain out_;
  std::map<std::string, double> seconds_;
};

// chain_questions.cpp: what the ports of a stage tell.

const TensorType& output_type(const prim::Graph& graph, std::size_t port);
std::optional<std::size_t> port_named(const prim::Graph& graph, const std::string& name);
/// Of an output, or an input.
std::optional<TensorType> type_of(const prim::Graph& graph, const std::string& name);
/// The outputs that tell the extents of another, by axis.
std::vector<std::pair<int, std::size_t>> extents_of(const prim::Graph& graph, std::size_t port);
/// The ports that tell extents only.
std::set<std::size_t> telling_ports(const prim::Graph& graph);

}  // namespace heddle::driver

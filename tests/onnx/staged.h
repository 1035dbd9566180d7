#pragma once
#include <cstdio>
#include <fstream>
#include <map>

#include "models.h"
#include "onnx/stages.h"

namespace heddle::onnx::test {

/// A model in a file, run in stages by the interpreter.
class Staged {
 public:
  explicit Staged(const ModelProto& m)
      : path_(::testing::TempDir() + "staged.onnx"),
        model_(path_, {}, [this](const prim::Graph& graph) -> Result<Runner> {
          ++compiled;
          graphs.push_back(graph);
          return Runner(
              [graph](const std::vector<Tensor>& in) { return prim::interpret(graph, in); });
        }) {
    std::ofstream(path_, std::ios::binary) << m.SerializeAsString();
  }
  ~Staged() { std::remove(path_.c_str()); }
  Result<std::map<std::string, Output>> run(const std::map<std::string, Tensor>& inputs) {
    return model_.run(inputs);
  }
  const std::string& path() const { return path_; }
  int compiled = 0;
  std::vector<prim::Graph> graphs;

 private:
  std::string path_;
  StagedModel model_;
};

}  // namespace heddle::onnx::test

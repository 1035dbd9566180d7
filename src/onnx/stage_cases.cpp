#include "onnx/stage_cases.h"

#include "onnx/importer.h"

namespace heddle::onnx {
namespace {

const ::onnx::NodeProto* maker(const Loaded& model, const std::string& key) {
  for (const auto& node : model.model->graph().node())
    for (const std::string& output : node.output())
      if (output == key && !output.empty()) return &node;
  return nullptr;
}

}  // namespace

Result<StageImporter> StageImporter::open(const std::string& path, ImportOptions options) {
  StageImporter out;
  out.model_ = std::make_shared<const Loaded>(HEDDLE_TRY(load_model(path)));
  out.options_ = std::move(options);
  return out;
}

Result<Stage> StageImporter::import(const StageCase& of, const Cuts& cuts) {
  ImportOptions options = options_;
  for (const auto& [name, size] : of.dimensions) options.dimensions.insert_or_assign(name, size);
  Importer importer(model_->model, model_->folder, options, nullptr);
  if (shared_) importer.share(*shared_, initializers_);
  Stage stage = HEDDLE_TRY(importer.run_stage(of.made, of.done, cuts));
  if (!shared_) {
    shared_ = std::make_shared<const prim::Graph>(stage.graph);
    initializers_ = importer.initializers();
  }
  return stage;
}

std::string StageImporter::label_of_maker(const std::string& key) const {
  const ::onnx::NodeProto* node = maker(*model_, key);
  return node == nullptr ? "" : label_of(*node);
}

std::string StageImporter::maker_of(const std::string& key) const {
  const ::onnx::NodeProto* node = maker(*model_, key);
  return node == nullptr ? "" : fmt::format("{} '{}'", node->op_type(), label_of(*node));
}

}  // namespace heddle::onnx

#include "onnx/training.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>

#include "onnx/importer.h"

namespace heddle::onnx {
namespace {

using ::onnx::AttributeProto;
using ::onnx::ModelProto;
using ::onnx::NodeProto;
using ::onnx::TensorProto;

/// Their floating arguments beyond the first say how they work.
constexpr std::string_view kSettings[] = {"Resize",         "Upsample",         "Pad",
                                          "Clip",           "Dropout",          "Range",
                                          "QuantizeLinear", "DequantizeLinear", "OneHot"};

struct Roles {
  std::set<std::string> settings, statistics;
};

Roles roles_of(const ModelProto& model) {
  Roles roles;
  for (const NodeProto& node : model.graph().node()) {
    const bool setting = std::find(std::begin(kSettings), std::end(kSettings), node.op_type()) !=
                         std::end(kSettings);
    for (int i = 1; i < node.input_size(); ++i) {
      if (setting) roles.settings.insert(node.input(i));
      if (node.op_type() == "BatchNormalization" && i >= 3) roles.statistics.insert(node.input(i));
    }
  }
  return roles;
}

void add_port(const TensorProto& initializer, ::onnx::ValueInfoProto& port) {
  port.set_name(initializer.name());
  auto& type = *port.mutable_type()->mutable_tensor_type();
  type.set_elem_type(initializer.data_type());
  type.mutable_shape();
  for (const std::int64_t extent : initializer.dims())
    type.mutable_shape()->add_dim()->set_dim_value(extent);
}

int default_opset(const ModelProto& model) {
  for (const auto& set : model.opset_import())
    if (canonical_domain(set.domain()).empty()) return static_cast<int>(set.version());
  return 0;
}

constexpr std::string_view kUpdated = "heddle.updated:";

/// Batch normalisations use the batch's statistics, and give updated ones as outputs of the graph.
Status train_batch_norms(ModelProto& model) {
  const int opset = default_opset(model);
  for (NodeProto& node : *model.mutable_graph()->mutable_node()) {
    if (node.op_type() != "BatchNormalization" || node.input_size() != 5) continue;
    if (opset < 14)
      return node_unsupported(node, "training needs opset 14, the model imports opset {}", opset);
    AttributeProto* mode = nullptr;
    for (AttributeProto& a : *node.mutable_attribute())
      if (a.name() == "training_mode") mode = &a;
    if (mode == nullptr) mode = node.add_attribute();
    mode->set_name("training_mode");
    mode->set_type(AttributeProto::INT);
    mode->set_i(1);
    const std::string first = node.output(0);
    node.clear_output();
    node.add_output(first);
    for (int i = 3; i < 5; ++i) {
      const std::string name = std::string(kUpdated) + node.input(i);
      node.add_output(name);
      for (const TensorProto& t : model.graph().initializer())
        if (t.name() == node.input(i)) {
          auto& port = *model.mutable_graph()->add_output();
          add_port(t, port);
          port.set_name(name);
        }
    }
  }
  return Ok{};
}

/// Dropout drops (ops/norm.cpp).
void train_dropouts(ModelProto& model) {
  for (NodeProto& node : *model.mutable_graph()->mutable_node()) {
    if (node.op_type() != "Dropout" || !canonical_domain(node.domain()).empty()) continue;
    AttributeProto& mode = *node.add_attribute();
    mode.set_name("training_mode");
    mode.set_type(AttributeProto::INT);
    mode.set_i(1);
  }
}

bool is_floating(const TensorProto& t) {
  const auto dtype = dtype_from_onnx(t.data_type());
  return dtype && is_float(*dtype);
}

/// A name with a typing error would be trained after all.
Status want_initializers(const ModelProto& model, const std::vector<std::string>& frozen) {
  const Roles roles = roles_of(model);
  std::set<std::string> known;
  for (const TensorProto& t : model.graph().initializer())
    if (is_floating(t)) known.insert(t.name());
  for (const std::string& name : frozen) {
    if (known.contains(name) && roles.statistics.contains(name))
      return fail(ErrorCode::usage,
                  "--freeze: '{}' is a running statistic: these are not trained, they follow the "
                  "batches",
                  name);
    if (known.contains(name)) continue;
    for (const std::string& statistic : roles.statistics) known.erase(statistic);
    return fail(ErrorCode::usage, "--freeze: found '{}', want floating initializers: {}", name,
                fmt::join(known, ", "));
  }
  return Ok{};
}

/// Moves an initializer to the inputs and keeps its value.
Status free_initializers(ModelProto& model, const std::vector<std::string>& frozen,
                         const std::string& folder, TrainingModel& out) {
  const Roles roles = roles_of(model);
  TensorSource source{folder, nullptr, {}};
  auto& graph = *model.mutable_graph();
  std::set<std::string> listed;
  for (const auto& in : graph.input()) listed.insert(in.name());
  google::protobuf::RepeatedPtrField<TensorProto> kept;
  for (const TensorProto& t : graph.initializer()) {
    const bool floating = is_floating(t);
    const bool statistic = floating && roles.statistics.contains(t.name());
    const bool named = std::find(frozen.begin(), frozen.end(), t.name()) != frozen.end();
    if (!statistic &&
        (!floating || t.dims_size() == 0 || named || roles.settings.contains(t.name()))) {
      *kept.Add() = t;
      continue;
    }
    Tensor value = HEDDLE_TRY(tensor_from_proto(t, source));
    (statistic ? out.statistics : out.parameters).push_back({t.name(), std::move(value)});
    if (!listed.contains(t.name())) add_port(t, *graph.add_input());
  }
  graph.mutable_initializer()->Swap(&kept);
  return Ok{};
}

}  // namespace

Result<TrainingModel> import_for_training(const std::string& path, const ImportOptions& options,
                                          const std::vector<std::string>& frozen) {
  const auto [shared, folder] = HEDDLE_TRY(load_model(path));
  const auto model = std::make_shared<ModelProto>(*shared);
  TrainingModel out;
  out.outputs = static_cast<std::size_t>(model->graph().output_size());
  HEDDLE_TRY(want_initializers(*model, frozen));
  HEDDLE_TRY(train_batch_norms(*model));
  train_dropouts(*model);
  HEDDLE_TRY(free_initializers(*model, frozen, folder, out));
  if (out.parameters.empty()) return fail("{}: no initializer can be trained", path);
  out.graph = HEDDLE_TRY(Importer(model, folder, options, nullptr).run());
  for (auto& port : out.graph.outputs)
    if (port.name.starts_with(kUpdated)) port.name = port.name.substr(kUpdated.size());
  return out;
}

Status export_trained(const std::string& path, const std::string& out,
                      const std::map<std::string, Tensor>& values) {
  const auto [shared, folder] = HEDDLE_TRY(load_model(path));
  const auto model = std::make_shared<ModelProto>(*shared);
  std::size_t replaced = 0;
  TensorSource source{folder, nullptr, {}};
  for (TensorProto& t : *model->mutable_graph()->mutable_initializer()) {
    const auto it = values.find(t.name());
    // External data would have to be copied beside the new file: it is stored inside instead.
    if (it == values.end() && t.data_location() != TensorProto::EXTERNAL) continue;
    const Tensor value = it == values.end() ? HEDDLE_TRY(tensor_from_proto(t, source)) : it->second;
    replaced += it != values.end();
    TensorProto fresh;
    fresh.set_name(t.name());
    fresh.set_data_type(t.data_type());
    for (const std::int64_t extent : value.shape()) fresh.add_dims(extent);
    if (dtype_to_onnx(value.dtype()) != t.data_type())
      return fail("initializer '{}' is written as {}, which the model does not declare", t.name(),
                  to_string(value.type()));
    fresh.set_raw_data(value.data(), static_cast<std::size_t>(value.bytes()));
    t = std::move(fresh);
  }
  if (replaced != values.size())
    return fail("{}: {} of {} values are initializers of the model", path, replaced, values.size());
  const std::string part = out + ".part";
  {
    std::ofstream file(part, std::ios::binary);
    if (!model->SerializeToOstream(&file) || !file.flush())
      return fail("{}: cannot be written", part);
  }
  std::error_code failed;
  std::filesystem::rename(part, out, failed);
  if (failed) return fail("{}: {}", out, failed.message());
  return Ok{};
}

}  // namespace heddle::onnx

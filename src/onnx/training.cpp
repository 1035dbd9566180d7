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
using ::onnx::FunctionProto;
using ::onnx::GraphProto;
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

bool any_name_starts(const GraphProto& graph, const std::string& with);
bool any_name_starts(const NodeProto& node, const std::string& with) {
  const auto starts = [&](const std::string& name) { return name.starts_with(with); };
  return std::ranges::any_of(node.input(), starts) || std::ranges::any_of(node.output(), starts) ||
         std::ranges::any_of(node.attribute(),
                             [&](const AttributeProto& a) { return any_name_starts(a.g(), with); });
}
bool any_name_starts(const GraphProto& graph, const std::string& with) {
  const auto starts = [&](const auto& named) { return named.name().starts_with(with); };
  return std::ranges::any_of(graph.input(), starts) ||
         std::ranges::any_of(graph.initializer(), starts) ||
         std::ranges::any_of(graph.node(),
                             [&](const NodeProto& n) { return any_name_starts(n, with); });
}

/// Before the names of updated statistics, and of values that the model holds in 16 bits and that
/// are trained in 32: no name of the model starts so.
struct Marks {
  std::string updated, wide;
  explicit Marks(const ModelProto& model) {
    std::string own = "heddle.";
    while (any_name_starts(model.graph(), own)) own += '.';
    updated = own + "updated:";
    wide = own + "wide:";
  }
};

bool is_half(const TensorProto& t) {
  return t.data_type() == TensorProto::FLOAT16 || t.data_type() == TensorProto::BFLOAT16;
}

NodeProto cast(const std::string& from, const std::string& to, int type) {
  NodeProto node;
  node.set_op_type("Cast");
  node.set_name(to);
  node.add_input(from);
  node.add_output(to);
  AttributeProto& a = *node.add_attribute();
  a.set_name("to");
  a.set_type(AttributeProto::INT);
  a.set_i(type);
  return node;
}

void set_integer(NodeProto& node, const char* name, std::int64_t value) {
  AttributeProto* found = nullptr;
  for (AttributeProto& a : *node.mutable_attribute())
    if (a.name() == name) found = &a;
  if (found == nullptr) found = node.add_attribute();
  found->set_name(name);
  found->set_type(AttributeProto::INT);
  found->set_i(value);
}

bool is_batch_norm(const NodeProto& node) {
  return node.op_type() == "BatchNormalization" && node.input_size() == 5 &&
         canonical_domain(node.domain()).empty();
}

/// A statistic after all updates, as an output of the graph.
void give_updated(const std::string& name, const std::string& last, const Marks& marks,
                  GraphProto& graph) {
  for (const TensorProto& t : graph.initializer()) {
    if (t.name() != name) continue;
    // Kept in 32 bits where the model has 16.
    *graph.add_node() = cast(last, marks.updated + name,
                             is_half(t) ? static_cast<int>(TensorProto::FLOAT) : t.data_type());
    ::onnx::ValueInfoProto& port = *graph.add_output();
    add_port(t, port);
    if (is_half(t)) port.mutable_type()->mutable_tensor_type()->set_elem_type(TensorProto::FLOAT);
    port.set_name(marks.updated + name);
  }
}

/// Batch normalisations use the batch's statistics, and give updated ones as outputs of the graph.
/// Where several share a statistic, each updates what the one before has made.
Status train_batch_norms(ModelProto& model, const Marks& marks) {
  const int opset = default_opset(model);
  std::vector<std::string> order;
  std::map<std::string, std::string> latest;
  for (NodeProto& node : *model.mutable_graph()->mutable_node()) {
    if (!is_batch_norm(node)) continue;
    if (opset < 14)
      return node_unsupported(node, "training needs opset 14, the model imports opset {}", opset);
    if (node.input(3) == node.input(4))
      return node_unsupported(node, "training with '{}' as both mean and variance", node.input(3));
    set_integer(node, "training_mode", 1);
    const std::vector<std::string> given(node.output().begin(), node.output().end());
    const std::string& first = given.at(0);
    node.clear_output();
    node.add_output(first);
    for (int i = 3; i < 5; ++i) {
      const std::string name = node.input(i);
      const auto before = latest.find(name);
      if (before == latest.end())
        order.push_back(name);
      else
        node.set_input(i, before->second);
      const auto at = static_cast<std::size_t>(i - 2);
      latest[name] = at < given.size() && !given[at].empty()
                         ? given[at]
                         : fmt::format("{}{}:{}", marks.updated, first, name);
      node.add_output(latest[name]);
    }
  }
  for (const std::string& name : order)
    give_updated(name, latest[name], marks, *model.mutable_graph());
  return Ok{};
}

/// Normalisations and dropouts inside of functions and branches would stay as for inference.
Status want_none_inside(const NodeProto& node) {
  const bool dropout = node.op_type() == "Dropout" && canonical_domain(node.domain()).empty();
  if (is_batch_norm(node) || dropout)
    return node_unsupported(node, "training of it inside of a function, branch or loop body");
  for (const auto& attribute : node.attribute()) {
    for (const NodeProto& inner : attribute.g().node()) HEDDLE_TRY(want_none_inside(inner));
  }
  return Ok{};
}
/// Functions that the nodes call, their branches, and the functions that are called.
void add_called(const ModelProto& model, const auto& nodes,
                std::set<const FunctionProto*>& called) {
  for (const NodeProto& node : nodes) {
    for (const auto& attribute : node.attribute()) add_called(model, attribute.g().node(), called);
    for (const auto& function : model.functions())
      if (function.name() == node.op_type() &&
          canonical_domain(function.domain()) == canonical_domain(node.domain()) &&
          called.insert(&function).second)
        add_called(model, function.node(), called);
  }
}
Status want_none_inside(const ModelProto& model) {
  std::set<const FunctionProto*> called;
  add_called(model, model.graph().node(), called);
  for (const auto* function : called)
    for (const NodeProto& node : function->node()) HEDDLE_TRY(want_none_inside(node));
  for (const NodeProto& node : model.graph().node())
    for (const auto& attribute : node.attribute())
      for (const NodeProto& inner : attribute.g().node()) HEDDLE_TRY(want_none_inside(inner));
  return Ok{};
}

/// Dropout drops (ops/norm.cpp).
void train_dropouts(ModelProto& model) {
  for (NodeProto& node : *model.mutable_graph()->mutable_node()) {
    if (node.op_type() != "Dropout" || !canonical_domain(node.domain()).empty()) continue;
    set_integer(node, "training_mode", 1);
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

Tensor converted(const Tensor& value, DType dtype) {
  Tensor out({dtype, value.shape()});
  for (std::int64_t i = 0; i < out.count(); ++i) out.set(i, value.at(i));
  return out;
}

/// The initializer becomes an input; one of 16 bits an input of 32, cast before the first node.
void free_one(const TensorProto& t, const Marks& marks, GraphProto& graph,
              std::vector<NodeProto>& casts) {
  ::onnx::ValueInfoProto* port = nullptr;
  for (auto& in : *graph.mutable_input())
    if (in.name() == t.name()) port = &in;
  if (port == nullptr) add_port(t, *(port = graph.add_input()));
  if (!is_half(t)) return;
  port->mutable_type()->mutable_tensor_type()->set_elem_type(TensorProto::FLOAT);
  port->set_name(marks.wide + t.name());
  casts.push_back(cast(port->name(), t.name(), t.data_type()));
}

/// Moves initializers to the inputs and keeps their values.
Status free_initializers(ModelProto& model, const Marks& marks,
                         const std::vector<std::string>& frozen, const std::string& folder,
                         TrainingModel& out) {
  const Roles roles = roles_of(model);
  TensorSource source{folder, nullptr, {}};
  auto& graph = *model.mutable_graph();
  std::vector<NodeProto> casts;
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
    if (is_half(t)) value = converted(value, DType::f32);
    (statistic ? out.statistics : out.parameters).push_back({t.name(), std::move(value)});
    free_one(t, marks, graph, casts);
  }
  graph.mutable_initializer()->Swap(&kept);
  google::protobuf::RepeatedPtrField<NodeProto> nodes(casts.begin(), casts.end());
  nodes.MergeFrom(graph.node());
  graph.mutable_node()->Swap(&nodes);
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
  HEDDLE_TRY(want_none_inside(*model));
  const Marks marks(*model);
  HEDDLE_TRY(train_batch_norms(*model, marks));
  train_dropouts(*model);
  HEDDLE_TRY(free_initializers(*model, marks, frozen, folder, out));
  if (out.parameters.empty()) return fail("{}: no initializer can be trained", path);
  out.graph = HEDDLE_TRY(Importer(model, folder, options, nullptr).run());
  for (auto& port : out.graph.outputs)
    if (port.name.starts_with(marks.updated)) port.name = port.name.substr(marks.updated.size());
  for (auto& port : out.graph.inputs)
    if (port.name.starts_with(marks.wide)) port.name = port.name.substr(marks.wide.size());
  return out;
}

namespace {

/// The model may have been written for training: Dropout is the identity again, and batch
/// normalisations use the running statistics.
void infer(ModelProto& model) {
  google::protobuf::RepeatedPtrField<NodeProto> nodes;
  for (NodeProto& node : *model.mutable_graph()->mutable_node()) {
    if (node.op_type() == "Dropout" && canonical_domain(node.domain()).empty())
      while (node.input_size() > 2) node.mutable_input()->RemoveLast();
    std::vector<std::string> statistics;
    if (is_batch_norm(node) && default_opset(model) >= 14) {
      set_integer(node, "training_mode", 0);
      statistics.assign(node.output().begin() + 1, node.output().end());
      while (node.output_size() > 1) node.mutable_output()->RemoveLast();
    }
    *nodes.Add() = node;
    // Who reads updated statistics finds those that there are.
    for (std::size_t i = 0; i < std::min<std::size_t>(2, statistics.size()); ++i) {
      if (statistics[i].empty()) continue;
      NodeProto& same = *nodes.Add();
      same.set_op_type("Identity");
      same.add_input(node.input(static_cast<int>(i) + 3));
      same.add_output(statistics[i]);
    }
  }
  model.mutable_graph()->mutable_node()->Swap(&nodes);
}

}  // namespace

namespace {

/// The tensor's data become these bytes.
void hold(const Tensor& bytes, TensorProto& t) {
  TensorProto fresh;
  fresh.set_name(t.name());
  fresh.set_data_type(t.data_type());
  *fresh.mutable_dims() = t.dims();
  fresh.set_raw_data(bytes.data(), static_cast<std::size_t>(bytes.bytes()));
  t = std::move(fresh);
}

}  // namespace

Status export_trained(const std::string& path, const std::string& out,
                      const std::map<std::string, Tensor>& values) {
  const auto [shared, folder] = HEDDLE_TRY(load_model(path));
  const auto model = std::make_shared<ModelProto>(*shared);
  infer(*model);
  std::size_t replaced = 0;
  TensorSource source{folder, nullptr, {}};
  for (TensorProto& t : *model->mutable_graph()->mutable_initializer()) {
    const auto it = values.find(t.name());
    if (it == values.end()) continue;
    Tensor value = it->second;
    if (is_half(t)) value = converted(value, *dtype_from_onnx(t.data_type()));
    ++replaced;
    const Shape declared(t.dims().begin(), t.dims().end());
    if (dtype_to_onnx(value.dtype()) != t.data_type() || value.shape() != declared)
      return fail("initializer '{}' is written as {}, which the model does not declare", t.name(),
                  to_string(value.type()));
    hold(value, t);
  }
  // External data would have to be copied beside the new file: it is stored inside instead.
  for (const TensorProto* t : external_tensors(*model)) {
    const Tensor bytes = HEDDLE_TRY(external_bytes(*t, source));
    hold(bytes, const_cast<TensorProto&>(*t));  // of this function's own copy
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

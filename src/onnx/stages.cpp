#include "onnx/stages.h"

#include <algorithm>

#include "onnx/importer.h"
#include "ops/host.h"
#include "support/hash.h"

namespace heddle::onnx {

std::string host_name(int number, std::size_t result) {
  return fmt::format("host{}[{}]", number, result);
}

bool Importer::is_waiting(const ::onnx::NodeProto& node, const Scope& scope) const {
  if (staging_ == nullptr) return false;
  for (const std::string& name : names_read(node))
    if (const Value* value = scope.find(name); value != nullptr && value->waits) return true;
  return false;
}

void Importer::set_waiting(const ::onnx::NodeProto& node, Scope& scope) {
  for (const std::string& output : node.output()) {
    if (output.empty()) continue;
    scope.values[output] = Value{};
    scope.values[output].waits = true;
  }
}

/// Computed at once if its arguments are constants; otherwise its results are inputs of this stage
/// or it is noted to be run after it.
Status Importer::add_host_call(const ::onnx::NodeProto& node, ops::Call call, Scope& scope) {
  const int number = host_calls_++;
  bool fixed = true;
  std::vector<Tensor> constants;
  for (const auto& arg : call.args) {
    const Tensor* value = arg ? graph_.constant_of(*arg) : nullptr;
    fixed &= !arg || value != nullptr;
    constants.push_back(value != nullptr ? *value : Tensor());
  }
  const auto bind = [&](std::size_t i, prim::NodeId id, ops::Format format) {
    const int at = static_cast<int>(i);
    if (at < node.output_size() && !node.output(at).empty())
      scope.values[node.output(at)] = Value::of(id, format);
  };
  if (fixed) {
    const auto values = HEDDLE_TRY(ops::run_on_host(call, constants));
    for (std::size_t i = 0; i < values.size(); ++i)
      bind(i, graph_.add_constant(values[i].tensor), values[i].format);
    return Ok{};
  }
  if (staging_ == nullptr)
    return node_unsupported(node,
                            "it works on the host: `heddle run` and `heddle verify` do "
                            "that, in stages; it cannot be part of one compiled program");
  if (const auto made = staging_->made->find(number); made != staging_->made->end()) {
    for (std::size_t i = 0; i < made->second.size(); ++i) {
      const auto& [type, format] = made->second[i];
      bind(i, graph_.add_input(host_name(number, i), type), format);
    }
    return Ok{};
  }
  HostCall& noted = staging_->stage.calls.emplace_back(HostCall{number, std::move(call), {}});
  for (std::size_t i = 0; i < noted.call.args.size(); ++i) {
    if (!noted.call.args[i]) {
      noted.arguments.emplace_back();
      continue;
    }
    noted.arguments.push_back(fmt::format("host{}.{}", number, i));
    graph_.outputs.push_back({noted.arguments.back(), *noted.call.args[i]});
  }
  noted.call.graph = nullptr;
  set_waiting(node, scope);
  return Ok{};
}

namespace {

/// An operator that only the host has, or a cast to strings.
bool runs_on_host(const Nodes& nodes) {
  for (const auto& node : nodes) {
    const ops::OpDef* row = node.domain().empty() ? ops::find_op(node.op_type(), 1000) : nullptr;
    if (row != nullptr && row->host != nullptr &&
        (row->fission == nullptr || int_attribute(node, "to", 0) == ::onnx::TensorProto::STRING))
      return true;
    for (const auto& attribute : node.attribute())
      if (attribute.has_g() && runs_on_host(attribute.g().node())) return true;
  }
  return false;
}

bool is_text(const ::onnx::ValueInfoProto& port) {
  const PortType type = port_type(port.type());
  return type.tensor != nullptr &&
         ops::format_of_onnx(type.tensor->elem_type()) == ops::Format::text;
}

}  // namespace

Result<bool> runs_in_stages(const std::string& path) {
  const FileBytes file = HEDDLE_TRY(map_file(model_file(path)));
  const auto model = HEDDLE_TRY(parse_model(file.data, file.size));
  const auto& graph = model->graph();
  std::set<std::string> read;  // what nothing reads needs no host
  for (const auto& node : graph.node()) read.merge(names_read(node));
  const auto reads_text = [&](const auto& port) {
    return is_text(port) && read.contains(port.name());
  };
  return std::any_of(graph.input().begin(), graph.input().end(), reads_text) ||
         std::any_of(graph.output().begin(), graph.output().end(), is_text) ||
         runs_on_host(graph.node()) ||
         std::any_of(model->functions().begin(), model->functions().end(),
                     [](const auto& function) { return runs_on_host(function.node()); });
}

std::set<std::string> labels_of(const std::vector<HostCall>& calls) {
  std::set<std::string> labels;
  for (const HostCall& call : calls)
    labels.insert(fmt::format("{} '{}'", call.call.op, call.call.name));
  return labels;
}

Result<Stage> Importer::run_stage(const HostTypes& made, const std::set<std::string>& done) {
  Staging staging{&made, &done, {}};
  staging_ = &staging;
  auto graph = run();
  staging_ = nullptr;
  staging.stage.graph = HEDDLE_TRY(std::move(graph));
  return std::move(staging.stage);
}

namespace {

bool may_decide_shapes(const Tensor& t) { return t.shape().size() <= 1 && t.count() <= 64; }

std::string key_of(const std::map<std::string, Tensor>& inputs, const HostTypes& made) {
  std::string key;
  for (const auto& [name, tensor] : inputs)
    key += fmt::format("{}:{};", name, to_string(tensor.type()));
  for (const auto& [number, results] : made)
    for (const auto& [type, format] : results)
      key += fmt::format("{}:{}{};", number, to_string(type), name_of(format));
  return key;
}

std::string values_of(const std::map<std::string, Tensor>& inputs) {
  std::string key;
  for (const auto& [name, tensor] : inputs)
    if (may_decide_shapes(tensor))
      key.append(reinterpret_cast<const char*>(tensor.data()),
                 static_cast<std::size_t>(tensor.bytes()));
  return to_string(hash_bytes(key));
}

}  // namespace

Result<const StagedModel::Ready*> StagedModel::ready(const std::map<std::string, Tensor>& inputs,
                                                     const HostTypes& made,
                                                     const std::set<std::string>& done) {
  const std::string shapes = key_of(inputs, made);
  std::string key = by_value_.contains(shapes) ? shapes + values_of(inputs) : shapes;
  if (const auto found = stages_.find(key); found != stages_.end()) return &found->second;
  ImportOptions options = options_;
  for (const auto& [name, tensor] : inputs) options.shapes[name] = tensor.shape();
  Ready fresh;
  auto stage = import_stage(path_, options, made, done);
  if (!stage && stage.error().code == ErrorCode::unsupported) {
    for (const auto& [name, tensor] : inputs)
      if (may_decide_shapes(tensor)) options.values[name] = tensor;
    if (auto bound = import_stage(path_, options, made, done); bound) {
      stage = std::move(bound);
      by_value_.insert(shapes);
      key = shapes + values_of(inputs);
    }
  }
  fresh.stage = HEDDLE_TRY(std::move(stage));
  if (!fresh.stage.graph.outputs.empty()) fresh.runner = HEDDLE_TRY(engine_(fresh.stage.graph));
  return &stages_.emplace(key, std::move(fresh)).first->second;
}

std::set<std::string> StagedModel::host_operators() const {
  std::set<std::string> labels;
  for (const auto& [key, ready] : stages_) labels.merge(labels_of(ready.stage.calls));
  return labels;
}

Result<std::map<std::string, Output>> StagedModel::run(
    const std::map<std::string, Tensor>& inputs) {
  std::map<std::string, Output> outputs;
  std::map<std::string, Tensor> values = inputs;  // and what the host makes
  HostTypes made;
  std::set<std::string> done;
  for (;;) {
    const Ready& now = *HEDDLE_TRY(ready(inputs, made, done));
    std::vector<Tensor> arguments;
    for (const prim::GraphInput& port : now.stage.graph.inputs) {
      const auto found = values.find(port.name);
      if (found == values.end()) return fail(ErrorCode::usage, "input '{}' is missing", port.name);
      if (found->second.type() != port.type)
        return fail(ErrorCode::usage, "input '{}': given {}, want {}", port.name,
                    to_string(found->second.type()), to_string(port.type));
      arguments.push_back(found->second);
    }
    std::vector<std::string> names;
    for (const prim::GraphOutput& output : now.stage.graph.outputs) names.push_back(output.name);
    std::vector<Tensor> results;
    if (now.runner) results = HEDDLE_TRY(now.runner(arguments));
    std::map<std::string, Tensor> found = trimmed(names, results);
    for (const HostCall& call : now.stage.calls) {
      std::vector<Tensor> args;
      for (const std::string& name : call.arguments)
        args.push_back(name.empty() ? Tensor() : found.at(name));
      const auto host = HEDDLE_TRY(ops::run_on_host(call.call, args));
      for (std::size_t i = 0; i < host.size(); ++i) {
        made[call.number].emplace_back(host[i].tensor.type(), host[i].format);
        values.insert_or_assign(host_name(call.number, i), host[i].tensor);
      }
    }
    for (const HostCall& call : now.stage.calls)
      for (const std::string& name : call.arguments) found.erase(name);
    for (auto& [name, tensor] : found) {
      const auto format = now.stage.formats.find(name);
      done.insert(name);
      outputs.insert_or_assign(
          name, Output{std::move(tensor),
                       format == now.stage.formats.end() ? ops::Format::plain : format->second});
    }
    if (now.stage.calls.empty()) return outputs;
  }
}

}  // namespace heddle::onnx

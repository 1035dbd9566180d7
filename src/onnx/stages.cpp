#include "onnx/stages.h"

#include <algorithm>

#include "onnx/importer.h"
#include "ops/host.h"
#include "support/hash.h"

namespace heddle::onnx {

std::string made_name(const std::string& key) { return "made:" + key; }

void Importer::bind(Scope& scope, const std::string& name, Value value) {
  if (staging_ != nullptr && value.key.empty()) value.key = scope.path + name;
  if (staging_ != nullptr)
    if (const auto made = staging_->made->find(value.key); made != staging_->made->end()) {
      const auto [at, fresh] = staging_->bound.try_emplace(value.key);
      if (fresh) {
        const Made& is = made->second;
        at->second = Value::of(is.numbers ? graph_.add_constant(*is.numbers)
                                          : graph_.add_input(made_name(value.key), is.type),
                               is.format);
        at->second.key = value.key;
      }
      value = at->second;
    }
  if (staging_ != nullptr) cut(value);
  scope.values.insert_or_assign(name, std::move(value));
}

void Importer::bind_unknown(const ::onnx::NodeProto& node, Scope& scope, bool waits) {
  for (const std::string& output : node.output()) {
    if (output.empty()) continue;
    Value value;
    value.waits = waits;
    bind(scope, output, std::move(value));
  }
}

bool Importer::reads_waiting(const ::onnx::NodeProto& node, const Scope& scope) const {
  for (const std::string& name : names_read(node))
    if (const Value* value = scope.find(name); value != nullptr && value->waits) return true;
  return false;
}

/// Identity passes such a value on.
bool Importer::reads_bounded(const ::onnx::NodeProto& node, const Scope& scope) const {
  if (node.op_type() == "Identity" && node.domain().empty()) return false;
  for (const std::string& name : names_read(node))
    if (const Value* value = scope.find(name);
        value != nullptr && value->kind == Value::Kind::bounded)
      return true;
  return false;
}

/// Whether all that the node makes has been made; it then has its names.
bool Importer::is_made(const ::onnx::NodeProto& node, Scope& scope) {
  bool any = false;
  for (const std::string& output : node.output()) {
    if (output.empty()) continue;
    if (!staging_->made->contains(scope.path + output)) return false;
    any = true;
  }
  if (any) bind_unknown(node, scope, false);
  return any;
}

const std::string* Importer::input_name(const Value& value) const {
  const auto* input = std::get_if<prim::Input>(&graph_[value.node()].op);
  return input == nullptr ? nullptr : &graph_.inputs[static_cast<std::size_t>(input->slot)].name;
}

void Importer::keep(const Value& value) {
  if (value.key.empty() || staging_->stage.asked.contains(value.key)) return;
  const bool fixed = value.is_tensor() && graph_.constant_of(value.node()) != nullptr &&
                     !staging_->cuts->asked.contains(value.key);
  if (value.kind != Value::Kind::bounded &&
      (!value.is_tensor() || fixed || input_name(value) != nullptr))
    return;
  Asked& asked = staging_->stage.asked[value.key];
  asked.format = value.format;
  graph_.outputs.push_back({made_name(value.key), value.items[0]});
  if (value.kind != Value::Kind::bounded) return;
  asked.axis = value.axis;
  graph_.outputs.push_back({extent_name(made_name(value.key), value.axis), value.items[1]});
}

void Importer::cut(Value& value) {
  const auto found = staging_->cuts->asked.find(value.key);
  if (found == staging_->cuts->asked.end() || !value.is_tensor()) return;
  const auto made = staging_->made->find(value.key);
  const auto& [axis, numbers] = found->second;
  if (axis >= 0 && axis < builder_.rank(value.node()) && made == staging_->made->end()) {
    const prim::NodeId extent = builder_.scalar_int(
        DType::i64, builder_.shape(value.node())[static_cast<std::size_t>(axis)]);
    value =
        Value{Value::Kind::bounded, {value.node(), extent}, value.format, axis, false, value.key};
    return;
  }
  if (!numbers || (made != staging_->made->end() && made->second.numbers)) return;
  keep(value);
  Asked& asked = staging_->stage.asked[value.key];
  asked.numbers = true;
  if (const std::string* input = input_name(value)) asked.input = *input;
  value = Value{Value::Kind::unknown, {}, ops::Format::plain, 0, true, value.key};
}

bool Importer::ask(const Value& value) {
  if (value.waits) return true;
  if (value.kind == Value::Kind::bounded) {  // cut first, then asked for
    keep(value);
    return true;
  }
  if (!value.is_tensor() || value.key.empty() || graph_.constant_of(value.node()) != nullptr)
    return false;
  keep(value);
  Asked& asked = staging_->stage.asked[value.key];
  asked.format = value.format;
  asked.numbers = true;
  if (const std::string* input = input_name(value)) asked.input = *input;
  return true;
}

/// What the node wanted and, since it may want them next, others like it: starts and ends of a
/// Slice.
bool Importer::ask_inputs(const ::onnx::NodeProto& node, const Scope& scope) {
  const auto decides = [&](const Value* value) {
    return value != nullptr && value->is_tensor() && is_int(builder_.dtype(value->node())) &&
           builder_.rank(value->node()) <= 1 && element_count(builder_.shape(value->node())) <= 64;
  };
  bool asked = false, alike = false;
  for (const int input : wanted_) {
    const Value* value = input < node.input_size() ? scope.find(node.input(input)) : nullptr;
    if (value == nullptr || !ask(*value)) continue;
    asked = true;
    alike |= decides(value);
  }
  for (int i = 1; alike && i < node.input_size(); ++i)
    if (const Value* value = scope.find(node.input(i)); decides(value)) ask(*value);
  return asked;
}

void Importer::leave(const ::onnx::NodeProto& node, Scope& scope) {
  staging_->stage.waiting.push_back(label_of(node));
  for (const std::string& name : names_read(node))
    if (const Value* value = scope.find(name); value != nullptr) keep(*value);
  bind_unknown(node, scope, true);
}

void Importer::back_to(Mark mark) {
  staging_->stage = std::move(mark.stage);
  graph_.outputs = std::move(mark.outputs);
}

Status Importer::add_call(const ::onnx::NodeProto& node, HostCall call,
                          const std::vector<Value>& arguments, Scope& scope) {
  for (const std::string& output : node.output())
    call.results.push_back(output.empty() ? output : scope.path + output);
  const std::string prefix = fmt::format("host:{}{}.", scope.path, label_of(node));
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    call.arguments.emplace_back();
    if (arguments[i].kind == Value::Kind::absent) continue;
    if (const std::string* input = input_name(arguments[i])) {
      call.arguments.back() = *input;
      continue;
    }
    call.arguments.back() = fmt::format("{}{}", prefix, i);
    graph_.outputs.push_back({call.arguments.back(), arguments[i].node()});
  }
  staging_->stage.calls.push_back(std::move(call));
  bind_unknown(node, scope, true);
  return Ok{};
}

/// Computed at once if its arguments are constants; otherwise noted to be run after this stage.
Status Importer::add_host_call(const ::onnx::NodeProto& node, ops::Call call, Scope& scope) {
  bool fixed = true;
  std::vector<Tensor> constants;
  std::vector<Value> arguments;
  std::vector<TensorType> types;
  for (const auto& arg : call.args) {
    types.push_back(arg ? graph_[*arg].type : TensorType{});
    const Tensor* value = arg ? graph_.constant_of(*arg) : nullptr;
    fixed &= !arg || value != nullptr;
    constants.push_back(value != nullptr ? *value : Tensor());
    arguments.push_back(arg ? Value::of(*arg) : Value{Value::Kind::absent, {}, {}, 0, false, {}});
  }
  call.graph = nullptr;
  HEDDLE_TRY(ops::check_host_call(call, types));
  if (fixed) {
    const auto values = HEDDLE_TRY(ops::run_on_host(call, constants));
    for (int i = 0; i < node.output_size() && i < static_cast<int>(values.size()); ++i) {
      const ops::HostValue& value = values[static_cast<std::size_t>(i)];
      if (!node.output(i).empty())
        bind(scope, node.output(i), Value::of(graph_.add_constant(value.tensor), value.format));
    }
    return Ok{};
  }
  if (staging_ == nullptr)
    return node_unsupported(node,
                            "it works on the host: `heddle run` and `heddle verify` do "
                            "that, in stages; it cannot be part of one compiled program");
  HostCall noted{call.op, call.name, {}, {}, {}};
  noted.run = [call = std::move(call)](std::span<const Tensor> args, const Engine&) {
    return ops::run_on_host(call, args);
  };
  return add_call(node, std::move(noted), arguments, scope);
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
  const auto model = HEDDLE_TRY(parse_model_file(model_file(path)));
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
  for (const HostCall& call : calls) labels.insert(fmt::format("{} '{}'", call.op, call.name));
  return labels;
}

Result<Stage> Importer::run_stage(const MadeValues& made, const std::set<std::string>& done,
                                  const Cuts& cuts) {
  Staging staging{&made, &done, &cuts, {}};
  staging_ = &staging;
  auto graph = run();
  staging_ = nullptr;
  staging.stage.graph = HEDDLE_TRY(std::move(graph));
  for (const auto& [key, asked] : staging.stage.asked)
    HEDDLE_CHECK(!made.contains(key) || (asked.numbers && !made.at(key).numbers),
                 "stages make no progress: '{}' is asked for again", key);
  HEDDLE_CHECK(!staging.stage.is_last() || staging.stage.waiting.empty(),
               "stages make no progress: '{}' waits for nothing", staging.stage.waiting[0]);
  return std::move(staging.stage);
}

/// Where a run has got to.
struct StagedModel::State {
  const std::map<std::string, Tensor>& inputs;
  std::map<std::string, Tensor> values;  ///< inputs, and what has been made
  MadeValues made;
  std::set<std::string> done;  ///< outputs there are
  std::map<std::string, Output> outputs;

  std::string key() const {
    std::string key;
    for (const auto& [name, tensor] : inputs)
      key += fmt::format("{}:{};", name, to_string(tensor.type()));
    for (const auto& [name, value] : made) {
      key += fmt::format("{}:{}{}", name, to_string(value.type), name_of(value.format));
      if (value.numbers)
        key += to_string(
            hash_bytes(std::string_view(reinterpret_cast<const char*>(value.numbers->data()),
                                        static_cast<std::size_t>(value.numbers->bytes()))));
      key += ';';
    }
    return key;
  }
};

Result<const StagedModel::Ready*> StagedModel::ready(const State& state) {
  constexpr std::size_t kMostReady = 256;
  const std::string key = state.key();
  if (const auto found = stages_.find(key); found != stages_.end()) return &found->second;
  if (model_ == nullptr) model_ = std::make_shared<const Loaded>(HEDDLE_TRY(load_model(path_)));
  ImportOptions options = options_;
  for (const auto& [name, tensor] : state.inputs) options.shapes[name] = tensor.shape();
  Ready fresh{HEDDLE_TRY(import_stage(*model_, options, state.made, state.done)), {}};
  const bool known = std::any_of(fresh.stage.asked.begin(), fresh.stage.asked.end(),
                                 [](const auto& asked) { return !asked.second.input.empty(); });
  if (!fresh.stage.graph.outputs.empty() && !known) {
    fresh.runner = HEDDLE_TRY(engine_(fresh.stage.graph));
    ++compiled_;
  }
  if (stages_.size() >= kMostReady) stages_.clear();
  return &stages_.emplace(key, std::move(fresh)).first->second;
}

Status StagedModel::run_stage(const Ready& now, State& state) {
  std::vector<Tensor> arguments;
  for (const prim::GraphInput& port : now.stage.graph.inputs) {
    const auto found = state.values.find(port.name);
    if (found == state.values.end())
      return fail(ErrorCode::usage, "input '{}' is missing", port.name);
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
  const auto make = [&](const std::string& key, const Tensor& tensor, ops::Format format,
                        bool numbers) {
    state.made[key] = {tensor.type(), format, numbers ? std::optional(tensor) : std::nullopt};
    state.values.insert_or_assign(made_name(key), tensor);
  };
  for (const HostCall& call : now.stage.calls) {
    std::vector<Tensor> args;
    for (const std::string& name : call.arguments) {
      const auto made = found.find(name);
      const auto given = state.values.find(name);
      if (!name.empty() && made == found.end() && given == state.values.end())
        return fail(ErrorCode::usage, "input '{}' is missing", name);
      args.push_back(name.empty() ? Tensor() : made != found.end() ? made->second : given->second);
    }
    const auto host = HEDDLE_TRY(call.run(args, engine_));
    for (std::size_t i = 0; i < host.size() && i < call.results.size(); ++i)
      if (!call.results[i].empty()) make(call.results[i], host[i].tensor, host[i].format, false);
  }
  host_operators_.merge(labels_of(now.stage.calls));
  for (const HostCall& call : now.stage.calls)
    for (const std::string& name : call.arguments) found.erase(name);
  for (const auto& [key, asked] : now.stage.asked) {
    const auto at = found.find(made_name(key));
    make(key, at->second, asked.format, asked.numbers);
    found.erase(at);
  }
  for (const auto& [name, input] : now.stage.there) found.emplace(name, state.values.at(input));
  for (auto& [name, tensor] : found) {
    const auto format = now.stage.formats.find(name);
    state.done.insert(name);
    state.outputs.insert_or_assign(
        name, Output{std::move(tensor),
                     format == now.stage.formats.end() ? ops::Format::plain : format->second});
  }
  return Ok{};
}

Result<std::map<std::string, Output>> StagedModel::run(
    const std::map<std::string, Tensor>& inputs) {
  constexpr int kMostStages = 1 << 13;
  State state{inputs, inputs, {}, {}, {}};
  for (int stages = 0; stages < kMostStages; ++stages) {
    const Ready& now = *HEDDLE_TRY(ready(state));
    bool known = false;  // what decides shapes is given: the stage is made for its numbers
    for (const auto& [key, asked] : now.stage.asked) {
      if (asked.input.empty()) continue;
      const auto given = state.values.find(asked.input);
      if (given == state.values.end())
        return fail(ErrorCode::usage, "input '{}' is missing", asked.input);
      state.made[key] = {given->second.type(), asked.format, given->second};
      known = true;
    }
    if (known) continue;
    HEDDLE_TRY(run_stage(now, state));
    if (now.stage.is_last()) return std::move(state.outputs);
  }
  return unsupported("the model runs in more than {} stages", kMostStages);
}

}  // namespace heddle::onnx

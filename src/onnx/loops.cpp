// Loops: unrolled, or run by the host with a body that is a model of its own.
#include <algorithm>
#include <cstring>
#include <limits>

#include "onnx/importer.h"

namespace heddle::onnx {

using ::onnx::GraphProto;
using ::onnx::ModelProto;
using ::onnx::NodeProto;

namespace {

/// A Loop that nobody knows the end of before it has run (as PyTorch's and ONNX Runtime's): its
/// body is compiled once for each combination of types that it carries.
class HostLoop {
 public:
  struct Names {
    std::vector<std::string> inputs;    ///< of the body: iteration, condition, carried
    std::vector<std::string> captured;  ///< read from around it
    std::vector<std::string> outputs;   ///< of the body: condition, carried, scanned
    std::vector<ops::Format> carried;   ///< formats
  };
  HostLoop(std::string label, std::shared_ptr<const Loaded> model, ImportOptions options,
           Names names, std::vector<TensorType> no_scans)
      : label_(std::move(label)),
        model_(std::move(model)),
        options_(std::move(options)),
        names_(std::move(names)),
        no_scans_(std::move(no_scans)) {}

  /// Arguments: trip count, condition (both may be absent: empty), carried values, captured ones.
  Result<std::vector<ops::HostValue>> run(std::span<const Tensor> args, bool counted,
                                          bool conditional, const Engine& engine);

 private:
  std::string label_;
  std::shared_ptr<const Loaded> model_;
  ImportOptions options_;
  Names names_;
  std::vector<TensorType> no_scans_;  ///< of the scan outputs without iterations
  std::optional<StagedModel> body_;
};

Result<Tensor> stacked(const std::string& label, const std::vector<Tensor>& parts,
                       const TensorType& none) {
  if (parts.empty()) return Tensor(none);
  TensorType type = parts[0].type();
  type.shape.insert(type.shape.begin(), static_cast<std::int64_t>(parts.size()));
  if (!checked_element_count(type.shape, type.dtype))
    return fail(ErrorCode::out_of_memory, "{}: a scan output of {} is too large", label,
                to_string(type));
  Tensor out(type);
  std::int64_t at = 0;
  for (const Tensor& part : parts) {
    if (part.type() != parts[0].type())
      return fail("{}: a scan output changes its type from {} to {}", label,
                  to_string(parts[0].type()), to_string(part.type()));
    if (part.bytes() > 0)
      std::memcpy(out.mutable_data() + at, part.data(), static_cast<std::size_t>(part.bytes()));
    at += part.bytes();
  }
  return out;
}

Result<std::vector<ops::HostValue>> HostLoop::run(std::span<const Tensor> args, bool counted,
                                                  bool conditional, const Engine& engine) {
  // As often as is said; a loop that only its condition ends might never end.
  constexpr std::int64_t kMostCounted = std::int64_t{1} << 31, kMost = 1 << 20;
  constexpr std::int64_t kMostBytes = std::int64_t{1} << 30, kMostScanned = 8 * kMostBytes;
  if (!body_) body_.emplace(model_, options_, engine);
  const std::size_t carried = names_.inputs.size() - 2;
  const std::size_t scans = names_.outputs.size() - 1 - carried;
  std::map<std::string, Tensor> inputs;
  for (std::size_t i = 0; i < names_.captured.size(); ++i)
    inputs[names_.captured[i]] = args[2 + carried + i];
  std::vector<ops::HostValue> state(carried);
  for (std::size_t i = 0; i < carried; ++i) state[i] = {args[2 + i], names_.carried[i]};
  if ((counted && args[0].count() != 1) || (conditional && args[1].count() != 1))
    return fail("{}: the trip count or condition is no single number", label_);
  bool go = !conditional || args[1].int_at(0) != 0;
  std::vector<std::vector<Tensor>> parts(scans);
  std::vector<ops::Format> formats(scans, ops::Format::plain);
  const std::int64_t trips = counted ? args[0].int_at(0) : std::numeric_limits<std::int64_t>::max();
  const std::int64_t most = trips <= kMostCounted ? trips : kMost;
  std::int64_t scanned = 0;
  for (std::int64_t i = 0; go && i < trips; ++i) {
    if (i >= most) return fail("{}: runs more than {} iterations", label_, most);
    Tensor number({DType::i64, {}}), condition({DType::b1, {}});
    number.set_int(0, i);
    condition.set_int(0, 1);
    inputs[names_.inputs[0]] = number;
    inputs[names_.inputs[1]] = condition;
    for (std::size_t k = 0; k < carried; ++k) inputs[names_.inputs[2 + k]] = state[k].tensor;
    const auto outputs = body_->run(inputs);
    if (!outputs) {  // what the body is given is not the user's doing
      const ErrorCode code = outputs.error().code;
      return fail(code == ErrorCode::usage ? ErrorCode::failed : code, "{}, iteration {}: {}",
                  label_, i, outputs.error().message);
    }
    for (std::size_t k = 0; k < names_.outputs.size(); ++k) {
      const auto found = outputs->find(names_.outputs[k]);
      if (found == outputs->end())
        return unsupported("{}: its body's output '{}' is no tensor", label_, names_.outputs[k]);
      const auto& [tensor, format] = found->second;
      if (k == 0 && tensor.count() != 1)
        return fail("{}: its body's condition is no scalar", label_);
      if (k == 0) go = tensor.int_at(0) != 0;
      if (tensor.bytes() > kMostBytes)
        return fail(ErrorCode::out_of_memory, "{}: after iteration {} '{}' is {}", label_, i,
                    names_.outputs[k], to_string(tensor.type()));
      if (k > 0 && k <= carried) state[k - 1] = {tensor, format};
      if (k > carried) {
        parts[k - 1 - carried].push_back(tensor);
        scanned += tensor.bytes() + 128;  // and what holds it
        if (scanned > kMostScanned)
          return fail(ErrorCode::out_of_memory,
                      "{}: after iteration {} its scan outputs are {} bytes", label_, i, scanned);
        formats[k - 1 - carried] = format;
      }
    }
  }
  for (std::size_t s = 0; s < scans; ++s)
    state.push_back({HEDDLE_TRY(stacked(label_, parts[s], no_scans_[s])), formats[s]});
  return state;
}

/// What a scan output is without iterations: extents that are not declared are 0.
TensorType no_scan(const ::onnx::ValueInfoProto& declared) {
  const auto dtype = tensor_type(declared, "scan output");
  TensorType type{dtype ? *dtype : DType::f32, {0}};
  for (const auto& dim : declared.type().tensor_type().shape().dim())
    type.shape.push_back(is_fixed_dim(dim) ? std::max<std::int64_t>(dim.dim_value(), 0) : 0);
  return type;
}

/// Adds an input; without a shape, the run says it.
void declare(GraphProto& graph, const std::string& name, DType dtype, ops::Format format,
             const std::optional<Shape>& shape) {
  auto& input = *graph.add_input();
  input.set_name(name);
  auto& type = *input.mutable_type()->mutable_tensor_type();
  type.set_elem_type(onnx_number(dtype, format));
  if (!shape) return;
  type.mutable_shape();
  for (const std::int64_t extent : *shape) type.mutable_shape()->add_dim()->set_dim_value(extent);
}

}  // namespace

/// Inputs: trip count, condition (both optional), carried values. Body: iteration, condition,
/// carried → condition, carried, scan outputs.
Result<Importer::LoopParts> Importer::loop_parts(const NodeProto& node, const Scope& scope) {
  LoopParts loop{HEDDLE_TRY(body_of(node, "body")),
                 *HEDDLE_TRY(argument(node, 0, scope)),
                 *HEDDLE_TRY(argument(node, 1, scope)),
                 {}};
  const int carried = std::max(0, node.input_size() - 2);
  if (loop.body->input_size() != carried + 2)
    return node_error(node, "its body wants {} inputs, there are {}", loop.body->input_size(),
                      carried + 2);
  if (loop.body->output_size() < carried + 1)
    return node_error(node, "its body makes {} outputs, want at least {}", loop.body->output_size(),
                      carried + 1);
  for (int i = 0; i < carried; ++i) loop.state.push_back(*HEDDLE_TRY(argument(node, i + 2, scope)));
  return loop;
}

Result<std::optional<Value>> Importer::unroll(const NodeProto& node, const Opsets& opsets,
                                              LoopParts& loop,
                                              std::vector<std::vector<Value>>& scans,
                                              const Scope& scope) {
  const auto limit = known_int(&loop.trips);
  if (loop.trips.kind != Value::Kind::absent && !limit) return std::optional(loop.trips);
  Value condition = loop.condition;
  for (std::int64_t i = 0;; ++i) {
    if (condition.kind != Value::Kind::absent) {
      const auto known = known_int(&condition);
      if (!known) return std::optional(condition);
      if (*known == 0) break;
    }
    if (limit && i >= *limit) break;
    if (i >= kMaxIterations)
      return node_unsupported(node, "runs more than {} iterations", kMaxIterations);
    if (condition.kind == Value::Kind::absent)
      condition = Value::of(builder_.scalar_int(DType::b1, 1));
    std::vector<Value> inputs{Value::of(builder_.scalar_int(DType::i64, i)), condition};
    inputs.insert(inputs.end(), loop.state.begin(), loop.state.end());
    std::vector<Value> results =
        HEDDLE_TRY(run_body(node, {loop.body, &opsets, &scope, i}, inputs));
    condition = results[0];
    std::copy_n(results.begin() + 1, loop.state.size(), loop.state.begin());
    for (std::size_t s = 0; s < scans.size(); ++s)
      scans[s].push_back(results[1 + loop.state.size() + s]);
  }
  return std::optional<Value>();
}

/// The body as a model: of the loop's opsets and functions, without inputs yet.
std::shared_ptr<ModelProto> Importer::body_model(const GraphProto& body,
                                                 const Opsets& opsets) const {
  auto model = std::make_shared<ModelProto>();
  model->set_ir_version(model_->ir_version());
  for (const auto& [domain, version] : opsets) {
    auto& entry = *model->add_opset_import();
    entry.set_domain(domain);
    entry.set_version(version);
  }
  *model->mutable_functions() = model_->functions();
  *model->mutable_graph() = body;
  model->mutable_graph()->clear_input();
  return model;
}

/// Not if it carries or captures what is no tensor, or refers to attributes of a function's call.
Result<bool> Importer::add_host_loop(const NodeProto& node, const Opsets& opsets,
                                     const LoopParts& loop, Scope& scope) {
  const auto fits = [](const Value& v) { return v.is_tensor() && !v.waits; };
  const bool counted = loop.trips.kind != Value::Kind::absent;
  const bool conditional = loop.condition.kind != Value::Kind::absent;
  if (scope.call_attributes != nullptr || (counted && !fits(loop.trips)) ||
      (conditional && !fits(loop.condition)) ||
      !std::all_of(loop.state.begin(), loop.state.end(), fits))
    return false;
  const auto model = body_model(*loop.body, opsets);
  GraphProto& graph = *model->mutable_graph();
  HostLoop::Names names;
  std::vector<Value> arguments{loop.trips, loop.condition};
  for (int i = 0; i < loop.body->input_size(); ++i) {
    names.inputs.push_back(loop.body->input(i).name());
    if (i < 2) {
      declare(graph, names.inputs.back(), i == 0 ? DType::i64 : DType::b1, ops::Format::plain,
              Shape());
      continue;
    }
    arguments.push_back(loop.state[static_cast<std::size_t>(i) - 2]);
    names.carried.push_back(arguments.back().format);
    declare(graph, names.inputs.back(), builder_.dtype(arguments.back().node()),
            arguments.back().format, std::nullopt);
  }
  ImportOptions options;
  options.fold_elements = options_.fold_elements;
  for (const std::string& name : names_read(*loop.body)) {
    const Value* value = scope.find(name);
    if (value == nullptr) continue;  // its own error is said when the body is read
    if (!fits(*value)) return false;
    const TensorType& type = builder_.type(value->node());
    if (const Tensor* constant = graph_.constant_of(value->node())) {
      options.values.emplace(name, *constant);
      declare(graph, name, type.dtype, value->format, type.shape);
      continue;
    }
    declare(graph, name, type.dtype, value->format, std::nullopt);
    names.captured.push_back(name);
    arguments.push_back(*value);
  }
  std::vector<TensorType> no_scans;
  for (int i = 0; i < loop.body->output_size(); ++i) {
    names.outputs.push_back(loop.body->output(i).name());
    if (i > static_cast<int>(loop.state.size())) no_scans.push_back(no_scan(loop.body->output(i)));
  }
  const auto host =
      std::make_shared<HostLoop>(fmt::format("Loop '{}'", label_of(node)),
                                 std::make_shared<const Loaded>(Loaded{model, source_.folder}),
                                 std::move(options), std::move(names), std::move(no_scans));
  HostCall call{node.op_type(), label_of(node), {}, {}, {}};
  call.run = [host, counted, conditional](std::span<const Tensor> args, const Engine& engine) {
    return host->run(args, counted, conditional, engine);
  };
  HEDDLE_TRY(add_call(node, std::move(call), arguments, scope));
  return true;
}

/// Unrolled where it is known how often it runs. Otherwise the host runs it after this stage, or,
/// if it carries a sequence, as many iterations as are known to come are part of each stage.
Status Importer::add_loop(const NodeProto& node, const Opsets& opsets, Scope& scope) {
  const LoopParts given = HEDDLE_TRY(loop_parts(node, scope));
  LoopParts loop = given;
  std::vector<std::vector<Value>> scans(static_cast<std::size_t>(loop.body->output_size()) - 1 -
                                        loop.state.size());
  std::optional<Mark> before;
  if (staging_ != nullptr) before = mark();
  const auto stuck = unroll(node, opsets, loop, scans, scope);
  const bool fails = !stuck && stuck.error().code == ErrorCode::unsupported;
  const bool waits =
      staging_ != nullptr && staging_->stage.waiting.size() > before->stage.waiting.size();
  if (staging_ != nullptr && (fails || waits || (stuck && *stuck))) {
    Mark after = mark();
    back_to(std::move(*before));
    if (HEDDLE_TRY(add_host_loop(node, opsets, given, scope))) return Ok{};
    back_to(std::move(after));
  }
  const std::optional<Value> teller = HEDDLE_TRY(stuck);
  if (teller && teller->kind == Value::Kind::unknown && !teller->waits) {
    bind_unknown(node, scope, false);
    return Ok{};
  }
  if (teller && staging_ != nullptr && ask(*teller)) {
    for (const Value& value : loop.state) keep(value);
    leave(node, scope);
    return Ok{};
  }
  if (teller)
    return node_unsupported(
        node, "how often it runs is computed while running, want a constant trip count");
  for (std::size_t s = 0; s < scans.size(); ++s)
    loop.state.push_back(HEDDLE_TRY(gather_scans(
        node, scans[s], loop.body->output(static_cast<int>(1 + given.state.size() + s)), 0)));
  return bind_outputs(node, loop.state, scope);
}

}  // namespace heddle::onnx

// Inputs and outputs of a model as those of the graph.
#include <algorithm>
#include <cstring>

#include "onnx/importer.h"
#include "support/log.h"

namespace heddle::onnx {

using ::onnx::GraphProto;
using prim::NodeId;

Status Importer::add_inputs(const GraphProto& graph, Scope& scope) {
  for (const auto& [name, shape] : options_.shapes)
    if (std::none_of(graph.input().begin(), graph.input().end(), [&](const auto& input) {
          return input.name() == name || (options_.sequences.contains(input.name()) &&
                                          name.starts_with(input.name() + "["));
        }))
      return fail(ErrorCode::usage, "shape given for '{}', which is no input of the model", name);
  for (const auto& input : graph.input()) {
    if (const auto known = scope.values.find(input.name()); known != scope.values.end()) {
      const bool initializer =
          !known->second.is_tensor() || graph_.constant_of(known->second.node()) != nullptr;
      if (initializer) continue;
      return fail("input '{}' is declared twice", input.name());
    }
    const Result<Value> value = add_input(input);
    if (!value) HEDDLE_TRY(noted(input.name(), "input", value.error()));
    bind(scope, input.name(), value ? *value : Value{});
  }
  return Ok{};
}

Result<Value> Importer::add_input(const ::onnx::ValueInfoProto& input) {
  const std::string& name = input.name();
  const DType dtype = HEDDLE_TRY(tensor_type(input, "input"));
  const PortType port = port_type(input.type());
  if (port.kind != Port::Kind::tensor && options_.absent.contains(name))
    return Value{Value::Kind::absent, {}, {}, 0, false, {}};
  if (port.kind == Port::Kind::tensor || port.kind == Port::Kind::optional)
    return Value::of(
        HEDDLE_TRY(add_tensor_input(name, {dtype, HEDDLE_TRY(input_shape(name, *port.tensor))})),
        ops::format_of_onnx(port.tensor->elem_type()));
  const auto given = options_.sequences.find(name);
  if (given == options_.sequences.end())
    return unsupported(
        "input '{0}': it is a sequence; how many items it has and their shapes come from a "
        "file: run --as-given --input {0}=FILE.pb",
        name);
  std::vector<NodeId> items;
  for (const Shape& shape : given->second)
    items.push_back(
        HEDDLE_TRY(add_tensor_input(fmt::format("{}[{}]", name, items.size()), {dtype, shape})));
  return Value::list(std::move(items));
}

Result<NodeId> Importer::add_tensor_input(const std::string& name, const TensorType& type) {
  if (!checked_element_count(type.shape, type.dtype))
    return fail(ErrorCode::unsupported, "input '{}': {} is negative or above the limit of {} bytes",
                name, to_string(type), kMaxTensorBytes);
  const auto bound = options_.values.find(name);
  if (bound == options_.values.end()) return graph_.add_input(name, type);
  if (bound->second.type() != type)
    return fail(ErrorCode::usage, "input '{}': given {}, want {}", name,
                to_string(bound->second.type()), to_string(type));
  return graph_.add_constant(bound->second);
}

/// A sequence becomes outputs "name[0]", …; where an extent is known only while running, an output
/// that tells it follows; of an optional value that is absent there is none.
Status Importer::add_outputs(const GraphProto& graph, const Scope& scope) {
  for (const auto& output : graph.output()) {
    const std::string& name = output.name();
    const Value* value = scope.find(name);
    if (value == nullptr) return fail("output '{}': no node makes it", name);
    if (staging_ != nullptr) {
      if (value->waits || staging_->done->contains(name)) continue;
      if (value->format != ops::Format::plain) staging_->stage.formats[name] = value->format;
      if (const auto made = staging_->bound.find(value->key);
          made != staging_->bound.end() && input_name(made->second) != nullptr) {
        staging_->stage.there[name] = *input_name(made->second);
        continue;
      }
    }
    if (value->kind == Value::Kind::absent && output.type().has_tensor_type())
      return fail("output '{}': the optional value it is made from is absent", name);
    if (value->is_tensor()) {
      HEDDLE_TRY(add_output(output, value->node()));
      if (staging_ != nullptr) tell_extent(name, value->node());
    }
    if (value->kind == Value::Kind::bounded) {
      graph_.outputs.push_back({name, value->items[0]});
      graph_.outputs.push_back({extent_name(name, value->axis), value->items[1]});
    }
    if (value->kind == Value::Kind::sequence)
      for (std::size_t i = 0; i < value->items.size(); ++i)
        graph_.outputs.push_back({fmt::format("{}[{}]", name, i), value->items[i]});
  }
  return Ok{};
}

void Importer::tell_extent(const std::string& output, NodeId node) {
  const auto told = staging_->cuts->extents.find(output);
  if (told == staging_->cuts->extents.end() || told->second >= builder_.rank(node)) return;
  const std::int64_t extent = builder_.shape(node)[static_cast<std::size_t>(told->second)];
  graph_.outputs.push_back(
      {extent_name(output, told->second), builder_.scalar_int(DType::i64, extent)});
}

Status Importer::check_declared(const ::onnx::ValueInfoProto& output, const std::string& subject,
                                const TensorType& type, bool warn) {
  const auto& declared = output.type().tensor_type();
  if (output.type().has_tensor_type() && declared.elem_type() != 0) {
    const DType want = HEDDLE_TRY(tensor_type(output, "output"));
    if (want != type.dtype)
      return fail("{} '{}': the model declares {}, its nodes make {}", subject, output.name(),
                  name_of(want), to_string(type));
  }
  bool differs =
      declared.has_shape() && declared.shape().dim_size() != static_cast<int>(type.shape.size());
  for (int d = 0; declared.has_shape() && !differs && d < declared.shape().dim_size(); ++d)
    differs = declared.shape().dim(d).has_dim_value() &&
              declared.shape().dim(d).dim_value() != type.shape[static_cast<std::size_t>(d)];
  if (differs && warn)
    log(LogLevel::warning, "{} '{}': the model declares another shape than {}", subject,
        output.name(), to_string(type));
  return Ok{};
}

Status Importer::add_output(const ::onnx::ValueInfoProto& output, prim::NodeId node) {
  HEDDLE_TRY(check_declared(output, "output", graph_[node].type, true));
  graph_.outputs.push_back({output.name(), node});
  return Ok{};
}

Result<Shape> Importer::input_shape(const std::string& name,
                                    const ::onnx::TypeProto::Tensor& declared) const {
  const auto given = options_.shapes.find(name);
  if (!declared.has_shape()) {
    if (given != options_.shapes.end()) return given->second;
    return unsupported(
        "input '{0}': the model gives no shape; give one: --shape {0}=1x3x224x224, "
        "or run --as-given with inputs",
        name);
  }
  const int rank = declared.shape().dim_size();
  if (given != options_.shapes.end() && static_cast<int>(given->second.size()) != rank)
    return fail(ErrorCode::usage, "input '{}': the shape given, {}, has rank {}, want {}", name,
                to_string(given->second), given->second.size(), rank);
  Shape shape;
  for (int d = 0; d < rank; ++d) {
    const auto& dim = declared.shape().dim(d);
    std::optional<std::int64_t> extent;
    if (given != options_.shapes.end()) extent = given->second[static_cast<std::size_t>(d)];
    if (is_fixed_dim(dim)) {
      if (extent && *extent != dim.dim_value())
        return fail(ErrorCode::usage,
                    "input '{}': the shape given is {}, dimension {} is fixed to {}", name,
                    to_string(given->second), d, dim.dim_value());
      extent = dim.dim_value();
    } else if (!extent) {
      const auto bound = dimensions_.find(dimension_name(name, d, dim));
      if (bound != dimensions_.end()) extent = bound->second;
    }
    if (!extent) {
      const auto fact = facts_.find(dimension_name(name, d, dim));
      return unsupported(
          "input '{0}': dimension {1} is symbolic ('{2}'{3}); give the shape, --shape {0}=…, or "
          "the "
          "sizes of it, --dynamic {4}=1..N, or run --as-given with inputs",
          name, d, dim.dim_param(),
          fact == facts_.end() ? "" : fmt::format(", which follows from {}", fact->second.text()),
          dimension_name(name, d, dim));
    }
    if (*extent < 0) return fail("input '{}': dimension {} is {}", name, d, *extent);
    shape.push_back(*extent);
  }
  return shape;
}

std::string extent_name(const std::string& output, int axis) {
  return fmt::format("{}:extent{}", output, axis);
}

namespace {

/// The first `extent` positions along an axis.
Tensor cut(const Tensor& t, std::size_t axis, std::int64_t extent) {
  TensorType type = t.type();
  std::int64_t outer = 1, inner = size_of(type.dtype);
  for (std::size_t d = 0; d < axis; ++d) outer *= type.shape[d];
  for (std::size_t d = axis + 1; d < type.shape.size(); ++d) inner *= type.shape[d];
  const std::int64_t from = type.shape[axis] * inner, to = extent * inner;
  type.shape[axis] = extent;
  Tensor out(type);
  for (std::int64_t o = 0; o < outer && to > 0; ++o)
    std::memcpy(out.mutable_data() + o * to, t.data() + o * from, static_cast<std::size_t>(to));
  return out;
}

}  // namespace

std::map<std::string, Tensor> trimmed(const std::vector<std::string>& names,
                                      const std::vector<Tensor>& outputs) {
  std::map<std::string, Tensor> out;
  for (std::size_t i = 0; i < outputs.size(); ++i) out.emplace(names[i], outputs[i]);
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const Shape& shape = outputs[i].shape();
    for (std::size_t axis = 0; axis < shape.size(); ++axis) {
      const auto extent = out.find(extent_name(names[i], static_cast<int>(axis)));
      if (extent == out.end()) continue;
      const std::int64_t count = std::clamp<std::int64_t>(extent->second.int_at(0), 0, shape[axis]);
      out.at(names[i]) = cut(out.at(names[i]), axis, count);
      out.erase(extent);
    }
  }
  return out;
}

}  // namespace heddle::onnx

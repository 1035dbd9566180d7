// Symbolic dimensions of a model's inputs, and those that follow from others.
#include <algorithm>

#include "onnx/importer.h"

namespace heddle::onnx {

using ::onnx::GraphProto;

bool is_fixed_dim(const ::onnx::TensorShapeProto::Dimension& dim) {
  return dim.has_dim_value() && dim.dim_value() != -1;
}

std::string dimension_name(const std::string& input, int axis,
                           const ::onnx::TensorShapeProto::Dimension& dim) {
  const bool named = !dim.dim_param().empty() && dim.dim_param() != "?";
  return named ? dim.dim_param() : fmt::format("{}.{}", input, axis);
}

namespace {

std::string list_of(const std::set<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += " '" + name + "'";
  return text.empty() ? " none" : text;
}

Status check_stated(const Dimensions& dimensions, const ImportOptions& options) {
  for (const auto& [name, expr] : options.facts) {
    if (!dimensions.names.contains(name))
      return fail(ErrorCode::usage, "'{} = {}': the model has no symbolic dimension '{}', it has{}",
                  name, expr.text(), name, list_of(dimensions.names));
    for (const std::string& other : expr.names())
      if (!dimensions.names.contains(other) && !options.dimensions.contains(other))
        return fail(ErrorCode::usage,
                    "'{} = {}': '{}' is no dimension of the model, which has{}, and no size is "
                    "given for it",
                    name, expr.text(), other, list_of(dimensions.names));
  }
  return Ok{};
}

}  // namespace

std::set<std::string> Dimensions::free() const {
  std::set<std::string> free;
  for (const std::string& name : names)
    if (!facts.contains(name)) free.insert(name);
  for (const auto& [name, expr] : facts)
    for (const std::string& other : expr.names())
      if (!facts.contains(other)) free.insert(other);
  return free;
}

Result<Dimensions> dimensions_of(const GraphProto& graph, const ImportOptions& options) {
  Dimensions out;
  std::set<std::string> initialized;
  for (const auto& tensor : graph.initializer()) initialized.insert(tensor.name());
  for (const auto& input : graph.input()) {
    const auto* type = port_type(input.type()).tensor;
    if (type == nullptr || initialized.contains(input.name())) continue;
    std::vector<std::string>& axes = out.of_inputs[input.name()];
    for (int d = 0; d < type->shape().dim_size(); ++d) {
      axes.emplace_back();
      if (is_fixed_dim(type->shape().dim(d))) continue;
      axes.back() = dimension_name(input.name(), d, type->shape().dim(d));
      out.names.insert(axes.back());
      out.described.try_emplace(axes.back(), fmt::format("'{}' (input '{}', dimension {})",
                                                         axes.back(), input.name(), d));
    }
  }
  HEDDLE_TRY(check_stated(out, options));
  out.facts = options.facts;
  for (const std::string& name : out.names) {
    const auto expr = DimensionExpr::parse(name);
    if (!expr || expr->names().empty() || expr->names().contains(name)) continue;
    const bool known =
        std::all_of(expr->names().begin(), expr->names().end(), [&](const std::string& other) {
          return out.names.contains(other) || options.dimensions.contains(other);
        });
    if (known) out.facts.try_emplace(name, *expr);
  }
  HEDDLE_TRY(check_facts(out.facts));
  return out;
}

/// Shapes given for inputs tell what the symbolic dimensions in them are.
Status Importer::bind_dimensions(const GraphProto& graph) {
  const ::onnx::TensorShapeProto none;
  const Dimensions known = HEDDLE_TRY(dimensions_of(graph, options_));
  facts_ = known.facts;
  dimensions_ = options_.dimensions;
  for (const auto& input : graph.input()) {
    const auto given = options_.shapes.find(input.name());
    const auto* type = port_type(input.type()).tensor;
    const auto& shape = type != nullptr ? type->shape() : none;
    if (given == options_.shapes.end() ||
        static_cast<int>(given->second.size()) != shape.dim_size())
      continue;
    for (int d = 0; d < shape.dim_size(); ++d) {
      if (is_fixed_dim(shape.dim(d))) continue;
      const std::int64_t extent = given->second[static_cast<std::size_t>(d)];
      const auto [it, fresh] =
          dimensions_.emplace(dimension_name(input.name(), d, shape.dim(d)), extent);
      if (!fresh && it->second != extent)
        return fail(ErrorCode::usage,
                    "input '{}': the shape given makes '{}' {}, another makes it {}", input.name(),
                    it->first, extent, it->second);
    }
  }
  return derive(facts_, dimensions_, known.described);
}

}  // namespace heddle::onnx

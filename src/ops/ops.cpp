#include "ops/ops.h"

#include <cmath>
#include <limits>

#include "support/match.h"

namespace heddle::ops {
namespace {

std::string_view type_name(const Attribute& a) {
  static constexpr std::string_view kNames[] = {"an integer", "a number", "a string", "a tensor",
                                                "integers",   "numbers",  "strings"};
  static_assert(std::size(kNames) == std::variant_size_v<Attribute>);
  return kNames[a.index()];
}

/// The attribute as a T; null if it is absent, or of another type (which is noted).
template <class T>
const T* find_attribute(const Call& call, std::string_view key, std::string_view want) {
  const auto it = call.attributes.find(key);
  if (it == call.attributes.end()) return nullptr;
  const T* value = std::get_if<T>(&it->second);
  if (value == nullptr && call.misread.empty())
    call.misread = fmt::format("attribute '{}' is {}, want {}", key, type_name(it->second), want);
  return value;
}

}  // namespace

std::int64_t Call::attribute_int(std::string_view key, std::int64_t otherwise) const {
  const auto* value = find_attribute<std::int64_t>(*this, key, "an integer");
  return value != nullptr ? *value : otherwise;
}

double Call::attribute_float(std::string_view key, double otherwise) const {
  const auto it = attributes.find(key);
  if (it != attributes.end() && std::holds_alternative<std::int64_t>(it->second))
    return static_cast<double>(std::get<std::int64_t>(it->second));
  const auto* value = find_attribute<double>(*this, key, "a number");
  return value != nullptr ? *value : otherwise;
}

std::string Call::attribute_string(std::string_view key, std::string otherwise) const {
  const auto* value = find_attribute<std::string>(*this, key, "a string");
  return value != nullptr ? *value : otherwise;
}

std::vector<std::int64_t> Call::attribute_ints(std::string_view key,
                                               std::vector<std::int64_t> otherwise) const {
  const auto* value = find_attribute<std::vector<std::int64_t>>(*this, key, "integers");
  return value != nullptr ? *value : otherwise;
}

Result<int> Call::normalize_axis(std::int64_t axis, int rank) const {
  if (axis < -rank || axis >= rank)
    return error("axis is {}, want one in [{}, {})", axis, -rank, rank);
  return static_cast<int>(axis < 0 ? axis + rank : axis);
}

Result<int> Call::axis(std::string_view key, std::int64_t otherwise, int rank) const {
  return normalize_axis(attribute_int(key, otherwise), rank);
}

Result<std::vector<int>> Call::normalize_axes(const std::vector<std::int64_t>& axes,
                                              int rank) const {
  std::vector<int> out;
  for (const std::int64_t axis : axes) out.push_back(HEDDLE_TRY(normalize_axis(axis, rank)));
  return out;
}

Result<const Tensor*> Call::constant_tensor(int i) const {
  if (!has(i)) return error("input {} is missing", i);
  const Tensor* value = graph->constant_of(in(i));
  if (value == nullptr) {
    wanted.push_back(i);
    return unsupported(
        "input {} is computed while running, want a constant (its values decide "
        "shapes)",
        i);
  }
  return value;
}

Result<std::vector<std::int64_t>> Call::constant_ints(int i) const {
  const Tensor* value = HEDDLE_TRY(constant_tensor(i));
  if (!is_int(value->dtype()))
    return error("input {} has type {}, want integers", i, name_of(value->dtype()));
  constexpr std::int64_t kMost = 1 << 16;
  if (value->count() > kMost)
    return error("input {} holds {} integers, want at most {}", i, value->count(), kMost);
  std::vector<std::int64_t> out;
  for (std::int64_t k = 0; k < value->count(); ++k) out.push_back(value->int_at(k));
  return out;
}

namespace {

Status check_formats(const Call& call, const OpDef& row) {
  using Stored = OpDef::Stored;
  call.result_format = row.stored == Stored::moves ? call.format(0) : Format::plain;
  for (int i = 0; i < static_cast<int>(call.formats.size()); ++i) {
    const Format format = call.format(i);
    if (format == Format::plain || row.stored == Stored::knows) continue;
    if (row.stored == Stored::refuses)
      return call.unsupported("input {} is {}, which this operator does not compute with", i,
                              name_of(format));
    if (format != call.format(0))
      return call.error("input {} is {}, unlike input 0", i, name_of(format));
  }
  return Ok{};
}

}  // namespace

Status check_arity(const Call& call, const OpDef& row) {
  const int given = static_cast<int>(call.args.size());
  if (given < row.min_inputs || (row.max_inputs >= 0 && given > row.max_inputs))
    return call.error("has {} inputs, want {}", given,
                      row.max_inputs < 0 ? fmt::format("at least {}", row.min_inputs)
                      : row.min_inputs == row.max_inputs
                          ? std::to_string(row.min_inputs)
                          : fmt::format("{} to {}", row.min_inputs, row.max_inputs));
  for (int i = 0; i < given; ++i)
    if (!call.has(i) && (i < row.min_inputs || row.max_inputs < 0))
      return call.error("input {} is missing", i);
  return Ok{};
}

Result<Values> expand(const Call& call, Builder& b) {
  const OpDef* row = find_op(call.op, call.opset);
  if (row == nullptr)
    return call.unsupported("this operator is not supported (opset {})", call.opset);
  HEDDLE_TRY(check_arity(call, *row));
  HEDDLE_TRY(check_formats(call, *row));
  if (row->fission == nullptr) return call.unsupported("it runs on the host, not in a kernel");
  const std::int32_t before = b.graph().size();
  Result<Values> values = row->fission(call, b);
  if (!call.misread.empty()) return call.error("{}", call.misread);
  if (!values) return values;
  // A fission checks its result; this catches intermediate values that are far larger.
  for (std::int32_t i = before; i < b.graph().size(); ++i) {
    const TensorType& type = b.type(NodeId{i});
    if (!checked_element_count(type.shape, type.dtype))
      return fail(ErrorCode::unsupported, "{} '{}': needs a value {}, above the limit of {} bytes",
                  call.op, call.name, to_string(type), kMaxTensorBytes);
  }
  if (static_cast<int>(values->size()) < call.outputs)
    return call.unsupported("{} outputs are used, {} are supported", call.outputs, values->size());
  return values;
}

}  // namespace heddle::ops

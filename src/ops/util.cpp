#include "ops/util.h"

#include "support/text_id.h"

#include <algorithm>

namespace heddle::ops {

Result<std::vector<std::int64_t>> text_ids(const std::vector<std::string>& texts) {
  std::vector<std::int64_t> ids;
  for (const std::string& text : texts) ids.push_back(HEDDLE_TRY(text_id(text)));
  return ids;
}

Result<std::vector<std::int64_t>> labels_of(const Call& call, std::string_view ints,
                                            std::string_view texts) {
  const auto found = call.attributes.find(texts);
  if (found == call.attributes.end()) return call.attribute_ints(ints, {});
  const auto* list = std::get_if<std::vector<std::string>>(&found->second);
  if (list == nullptr) return call.error("attribute '{}' holds no strings", texts);
  if (list->empty()) return call.attribute_ints(ints, {});
  call.result_format = Format::text;
  return text_ids(*list);
}

std::vector<ir::Expr> dims(int rank) {
  std::vector<ir::Expr> out;
  for (int i = 0; i < rank; ++i) out.push_back(dim(i));
  return out;
}

Result<Shape> checked(const Call& call, Shape shape, DType type) {
  for (std::int64_t extent : shape) {
    if (extent < 0) return call.error("result has shape {}, want extents >= 0", to_string(shape));
  }
  if (!checked_element_count(shape, type)) {
    return fail(ErrorCode::unsupported, "{} '{}': result {}{} is above the limit of {} bytes",
                call.op, call.name, name_of(type), to_string(shape), kMaxTensorBytes);
  }
  return shape;
}

Status want_rank(const Call& call, Builder& b, int i, int low, int high) {
  const int rank = b.rank(call.in(i));
  if (rank >= low && rank <= high) return Ok{};
  const std::string want = low == high ? std::to_string(low) : fmt::format("{} to {}", low, high);
  return call.error("input {} has shape {}, want rank {}", i, to_string(b.shape(call.in(i))), want);
}

Status want_int(const Call& call, Builder& b, int i) {
  if (is_int(b.dtype(call.in(i)))) return Ok{};
  return call.error("input {} has type {}, want integers", i, name_of(b.dtype(call.in(i))));
}

Status want_number(const Call& call, Builder& b, int i) {
  if (b.dtype(call.in(i)) != DType::b1) return Ok{};
  return call.error("input {} has type b1, want numbers", i);
}

Status want_float(const Call& call, Builder& b, int i) {
  if (is_float(b.dtype(call.in(i)))) return Ok{};
  return call.error("input {} has type {}, want a floating type", i, name_of(b.dtype(call.in(i))));
}

Status want_type(const Call& call, Builder& b, int i, DType type) {
  if (b.dtype(call.in(i)) == type) return Ok{};
  return call.error("input {} has type {}, want {}", i, name_of(b.dtype(call.in(i))),
                    name_of(type));
}

Status want_shape(const Call& call, Builder& b, int i, const Shape& shape) {
  if (b.shape(call.in(i)) == shape) return Ok{};
  return call.error("input {} has shape {}, want {}", i, to_string(b.shape(call.in(i))),
                    to_string(shape));
}

std::optional<Shape> broadcast_shapes(const Shape& a, const Shape& b) {
  const std::size_t rank = std::max(a.size(), b.size());
  Shape out(rank, 1);
  for (std::size_t i = 0; i < rank; ++i) {
    const std::int64_t x = i < rank - a.size() ? 1 : a[i - (rank - a.size())];
    const std::int64_t y = i < rank - b.size() ? 1 : b[i - (rank - b.size())];
    if (x != y && x != 1 && y != 1) return std::nullopt;
    out[i] = x == 1 ? y : x;
  }
  return out;
}

NodeId constant_i64(Builder& b, const std::vector<std::int64_t>& values, Shape shape) {
  if (values.empty()) return b.constant(Tensor({DType::i64, std::move(shape)}));
  return b.constant(Tensor::from<std::int64_t>(DType::i64, std::move(shape), values));
}

NodeId constant_i64(Builder& b, const std::vector<std::int64_t>& values) {
  return constant_i64(b, values, {static_cast<std::int64_t>(values.size())});
}

NodeId constant_real(Builder& b, DType type, const std::vector<double>& values, Shape shape) {
  Tensor t(TensorType{type, std::move(shape)});
  for (std::size_t i = 0; i < values.size(); ++i) t.set(static_cast<std::int64_t>(i), values[i]);
  return b.constant(t);
}

Result<DType> dtype_of_onnx(const Call& call, std::int64_t number) {
  switch (number) {
    case 1:
      return DType::f32;
    case 2:
      return DType::u8;
    case 3:
      return DType::i8;
    case 4:
      return DType::u16;
    case 5:
      return DType::i16;
    case 6:
      return DType::i32;
    case 7:
      return DType::i64;
    case 9:
      return DType::b1;
    case 10:
      return DType::f16;
    case 11:
      return DType::f64;
    case 12:
      return DType::u32;
    case 13:
      return DType::u64;
    case 16:
      return DType::bf16;
    case 8:
      return call.unsupported("element type string, want a number type");
    case 14:
    case 15:
      return call.unsupported("complex element type {}, want a real type", number);
    default:
      if (const Format format = format_of_onnx(number); format != Format::plain)
        return call.unsupported("element type {}, which only stores", name_of(format));
      return call.unsupported("element type number {} is not known", number);
  }
}

Result<DType> attribute_dtype(const Call& call, std::string_view key, DType otherwise) {
  if (!call.has_attribute(key)) return otherwise;
  return dtype_of_onnx(call, call.attribute_int(key, 0));
}

Result<std::int64_t> constant_int(const Call& call, int i) {
  const auto values = HEDDLE_TRY(call.constant_ints(i));
  if (values.size() != 1) return call.error("input {} holds {} values, want 1", i, values.size());
  return values[0];
}

Result<double> constant_real(const Call& call, int i) {
  const Tensor* t = HEDDLE_TRY(call.constant_tensor(i));
  if (t->count() != 1) return call.error("input {} holds {} values, want 1", i, t->count());
  return t->at(0);
}

Result<std::optional<std::vector<std::int64_t>>> ints_from(const Call& call, std::string_view key,
                                                           int i) {
  using Found = std::optional<std::vector<std::int64_t>>;
  if (i >= 0 && call.has(i)) return Found(HEDDLE_TRY(call.constant_ints(i)));
  if (call.has_attribute(key)) return Found(call.attribute_ints(key, {}));
  return Found();
}

Result<int> choice(const Call& call, std::string_view key, std::string otherwise,
                   const std::vector<std::string>& choices) {
  const std::string found = call.attribute_string(key, std::move(otherwise));
  const auto it = std::find(choices.begin(), choices.end(), found);
  if (it != choices.end()) return static_cast<int>(it - choices.begin());
  return call.error("{} is '{}', want one of {}", key, found, fmt::join(choices, ", "));
}

NodeId compare(Builder& b, ir::ScalarFn fn, NodeId x, std::int64_t value) {
  return b.map(fn, {x, b.scalar_int(b.dtype(x), value)});
}

NodeId wrap_indices(Builder& b, NodeId indices, std::int64_t extent) {
  const NodeId i = b.cast(indices, DType::i64);
  return b.select(compare(b, ir::ScalarFn::less, i, 0), b.add(i, b.scalar_int(DType::i64, extent)),
                  i);
}

ir::Expr clamp_index(const ir::Expr& e, std::int64_t extent, const ir::Ranges& ranges) {
  const auto range = ir::bounds(e, ranges);
  ir::Expr out = e;
  if (!range || range->high >= extent) out = ir::min(out, ir::Expr(extent - 1));
  if (!range || range->low < 0) out = ir::max(out, ir::Expr(0));
  return out;
}

std::optional<std::int64_t> checked_product(const Shape& shape, int begin, int end) {
  std::int64_t product = 1;
  for (int i = begin; i < end; ++i) {
    if (at(shape, i) < 0 || __builtin_mul_overflow(product, at(shape, i), &product)) {
      return std::nullopt;
    }
  }
  return product;
}

Result<NodeId> expand_as(const Call& call, Builder& b, std::string op,
                         std::vector<std::optional<NodeId>> args, std::vector<Format> formats,
                         std::map<std::string, Attribute, std::less<>> attributes) {
  Call other = call;
  other.op = std::move(op);
  other.opset = 21;
  other.outputs = 1;
  other.args = std::move(args);
  other.formats = std::move(formats);
  other.attributes = std::move(attributes);
  return HEDDLE_TRY(expand(other, b))[0];
}

}  // namespace heddle::ops

#include <algorithm>
#include <numeric>

#include "ops/families.h"
#include "ops/util.h"

/// Operators that rename the coordinates of one value, and leaves made from shapes.
namespace heddle::ops {
namespace {

/// 0 copies the input's extent (unless allowzero), -1 takes what is left.
Result<Values> reshape(const Call& call, Builder& b) {
  const auto wanted = HEDDLE_TRY(ints_from(call, "shape", 1));
  if (!wanted) return call.error("no shape given");
  const Shape in = b.shape(call.in(0));
  const bool allow_zero = call.attribute_int("allowzero", 0) != 0;
  Shape out = *wanted;
  int free = -1;
  for (int i = 0; i < static_cast<int>(out.size()); ++i) {
    std::int64_t& extent = out[static_cast<std::size_t>(i)];
    if (extent == 0 && !allow_zero) {
      if (i >= static_cast<int>(in.size())) {
        return call.error("shape {} copies dimension {}, input 0 has shape {}", to_string(*wanted),
                          i, to_string(in));
      }
      extent = at(in, i);
    } else if (extent == -1 && free < 0) {
      free = i;
    } else if (extent < 0) {
      return call.error("shape is {}, want extents >= 0 and at most one -1", to_string(*wanted));
    }
  }
  const std::int64_t count = element_count(in);
  if (free >= 0) {
    out[static_cast<std::size_t>(free)] = 1;
    const auto rest = checked_product(out, 0, static_cast<int>(out.size()));
    if (rest && *rest > 0 && count % *rest == 0)
      out[static_cast<std::size_t>(free)] = count / *rest;
    if (rest && *rest == 0 && count == 0) out[static_cast<std::size_t>(free)] = 0;
  }
  const auto total = checked_product(out, 0, static_cast<int>(out.size()));
  if (!total || *total != count) {
    return call.error("input 0 has shape {}, which does not reshape to {}", to_string(in),
                      to_string(*wanted));
  }
  return Values{b.reshape(call.in(0), out)};
}

Result<Values> flatten(const Call& call, Builder& b) {
  const Shape in = b.shape(call.in(0));
  const int rank = static_cast<int>(in.size());
  std::int64_t axis = call.attribute_int("axis", 1);
  if (axis < -rank || axis > rank) {
    return call.error("axis is {}, want one in [{}, {}]", axis, -rank, rank);
  }
  if (axis < 0) axis += rank;
  const Shape out{element_count({in.begin(), in.begin() + axis}),
                  element_count({in.begin() + axis, in.end()})};
  return Values{b.reshape(call.in(0), out)};
}

Result<Values> squeeze(const Call& call, Builder& b) {
  const Shape in = b.shape(call.in(0));
  const int rank = static_cast<int>(in.size());
  const auto given = HEDDLE_TRY(ints_from(call, "axes", 1));
  std::vector<int> axes;
  if (given) {
    axes = HEDDLE_TRY(call.normalize_axes(*given, rank));
  } else {
    for (int i = 0; i < rank; ++i) {
      if (at(in, i) == 1) axes.push_back(i);
    }
  }
  Shape out;
  for (int i = 0; i < rank; ++i) {
    if (std::find(axes.begin(), axes.end(), i) == axes.end()) {
      out.push_back(at(in, i));
    } else if (at(in, i) != 1) {
      return call.error("input 0 has shape {}, want extent 1 at axis {}", to_string(in), i);
    }
  }
  return Values{b.reshape(call.in(0), out)};
}

Result<Values> unsqueeze(const Call& call, Builder& b) {
  const Shape in = b.shape(call.in(0));
  const auto given = HEDDLE_TRY(ints_from(call, "axes", 1));
  if (!given) return call.error("no axes given");
  if (given->size() > 64) return call.error("{} axes given, want at most 64", given->size());
  const int rank = static_cast<int>(in.size() + given->size());
  const auto axes = HEDDLE_TRY(call.normalize_axes(*given, rank));
  std::vector<bool> is_new(static_cast<std::size_t>(rank), false);
  for (int axis : axes) {
    if (is_new[static_cast<std::size_t>(axis)]) return call.error("axis {} is given twice", axis);
    is_new[static_cast<std::size_t>(axis)] = true;
  }
  Shape out;
  auto next = in.begin();
  for (bool fresh : is_new) out.push_back(fresh ? 1 : *next++);
  return Values{b.reshape(call.in(0), out)};
}

Result<Values> transpose(const Call& call, Builder& b) {
  const int rank = b.rank(call.in(0));
  std::vector<std::int64_t> reversed(static_cast<std::size_t>(rank));
  std::iota(reversed.rbegin(), reversed.rend(), 0);
  const auto perm = call.attribute_ints("perm", reversed);
  auto sorted = perm;
  std::sort(sorted.begin(), sorted.end());
  std::reverse(reversed.begin(), reversed.end());
  if (sorted != reversed) {
    return call.error("perm is [{}], want a permutation of 0..{}", fmt::join(perm, ","), rank - 1);
  }
  return Values{b.transpose(call.in(0), std::vector<int>(perm.begin(), perm.end()))};
}

Result<Values> onnx_expand(const Call& call, Builder& b) {
  const Shape in = b.shape(call.in(0));
  const Shape wanted = HEDDLE_TRY(call.constant_ints(1));
  const auto out = broadcast_shapes(in, wanted);
  if (!out) {
    return call.error("input 0 has shape {}, which does not broadcast to {}", to_string(in),
                      to_string(wanted));
  }
  return Values{b.broadcast(call.in(0), HEDDLE_TRY(checked(call, *out, b.dtype(call.in(0)))))};
}

Result<Values> repeat(const Call& call, Builder& b, const std::vector<std::int64_t>& repeats) {
  const Shape in = b.shape(call.in(0));
  if (repeats.size() != in.size()) {
    return call.error("{} repeats given, want {} for shape {}", repeats.size(), in.size(),
                      to_string(in));
  }
  Shape out;
  Access access;
  for (int i = 0; i < static_cast<int>(in.size()); ++i) {
    const std::int64_t times = repeats[static_cast<std::size_t>(i)];
    std::int64_t extent = 0;
    if (times < 0 || __builtin_mul_overflow(at(in, i), times, &extent)) {
      return call.error("repeats are {}, want small numbers >= 0", to_string(repeats));
    }
    out.push_back(extent);
    // One copy needs no remainder; an extent of 1 is a broadcast.
    access.index.push_back(times == 1       ? dim(i)
                           : at(in, i) <= 1 ? ir::Expr(0)
                                            : ir::floor_mod(dim(i), at(in, i)));
  }
  out = HEDDLE_TRY(checked(call, out, b.dtype(call.in(0))));
  if (element_count(out) == 0) {
    return Values{b.full({b.dtype(call.in(0)), out}, 0)};
  }
  return Values{b.view(call.in(0), out, access)};
}

Result<Values> tile(const Call& call, Builder& b) {
  return repeat(call, b, HEDDLE_TRY(call.constant_ints(1)));
}

/// Before opset 6: `tiles` copies along one `axis`.
Result<Values> tile_1(const Call& call, Builder& b) {
  std::vector<std::int64_t> repeats(static_cast<std::size_t>(b.rank(call.in(0))), 1);
  const std::int64_t tiles = HEDDLE_TRY(constant_int(call, 1));
  const std::int64_t given = HEDDLE_TRY(constant_int(call, 2));
  const int axis = HEDDLE_TRY(call.normalize_axis(given, b.rank(call.in(0))));
  repeats[static_cast<std::size_t>(axis)] = tiles;
  return repeat(call, b, repeats);
}

Result<Values> concat(const Call& call, Builder& b) {
  const Shape first = b.shape(call.in(0));
  if (!call.has_attribute("axis") && call.opset >= 4)
    return call.error("attribute axis is missing");
  const int axis =
      HEDDLE_TRY(call.axis("axis", first.size() > 1 ? 1 : 0, static_cast<int>(first.size())));
  std::vector<NodeId> parts;
  Shape total = first;
  total[static_cast<std::size_t>(axis)] = 0;
  for (int i = 0; i < static_cast<int>(call.args.size()); ++i) {
    if (!call.has(i)) return call.error("input {} is missing", i);
    Shape shape = b.shape(call.in(i));
    if (b.dtype(call.in(i)) != b.dtype(call.in(0))) {
      return call.error("input {} has type {}, want {} like input 0", i,
                        name_of(b.dtype(call.in(i))), name_of(b.dtype(call.in(0))));
    }
    Shape other = first;
    if (shape.size() == first.size()) {
      other[static_cast<std::size_t>(axis)] = at(shape, axis);
    }
    if (shape != other) {
      std::vector<std::string> want;
      for (int d = 0; d < static_cast<int>(first.size()); ++d) {
        want.push_back(d == axis ? "*" : std::to_string(at(first, d)));
      }
      return call.error("input {} has shape {}, want [{}] like input 0", i, to_string(shape),
                        fmt::join(want, ","));
    }
    if (at(shape, axis) > 0) parts.push_back(call.in(i));
    total[static_cast<std::size_t>(axis)] += at(shape, axis);
  }
  HEDDLE_TRY(checked(call, total, b.dtype(call.in(0))));
  if (parts.empty()) return Values{call.in(0)};
  if (parts.size() == 1) return Values{parts[0]};
  return Values{b.concat(parts, axis)};
}

Result<Values> shape_of(const Call& call, Builder& b) {
  const Shape in = b.shape(call.in(0));
  const auto rank = static_cast<std::int64_t>(in.size());
  const auto clamp = [&](std::int64_t i) {
    return std::clamp<std::int64_t>(i < 0 ? i + rank : i, 0, rank);
  };
  const std::int64_t start = clamp(call.attribute_int("start", 0));
  const std::int64_t end = std::max(start, clamp(call.attribute_int("end", rank)));
  return Values{constant_i64(b, {in.begin() + start, in.begin() + end})};
}

Result<Values> size_of_value(const Call& call, Builder& b) {
  return Values{b.scalar_int(DType::i64, element_count(b.shape(call.in(0))))};
}

Result<Values> identity(const Call& call, Builder&) { return Values{call.in(0)}; }

Result<Values> constant_of_shape(const Call& call, Builder& b) {
  const Shape wanted = HEDDLE_TRY(call.constant_ints(0));
  Tensor value(TensorType{DType::f32, {}});
  if (const auto it = call.attributes.find("value"); it != call.attributes.end()) {
    const Tensor* given = std::get_if<Tensor>(&it->second);
    if (given == nullptr || given->count() != 1) {
      return call.error("attribute value is not a tensor of one element");
    }
    value = given->reshaped({});
  }
  const Shape out = HEDDLE_TRY(checked(call, wanted, value.dtype()));
  return Values{b.broadcast(b.constant(value), out)};
}

/// What GivenTensorFill and ConstantFill fill: attribute `shape`, or the input's shape, or its
/// numbers; then `extra_shape`.
Result<Shape> filled_shape(const Call& call, Builder& b, DType type) {
  Shape shape = call.attribute_ints("shape", {});
  if (call.has(0) && call.attribute_int("input_as_shape", 0) != 0) {
    const Tensor* given = HEDDLE_TRY(call.constant_tensor(0));
    if (given->shape().size() != 1 || given->count() > 64)
      return call.error("input 0 has shape {}, want a list of extents", to_string(given->shape()));
    shape.clear();
    for (std::int64_t i = 0; i < given->count(); ++i) {  // numbers of any type
      const double extent = given->at(i);
      if (!(extent >= 0 && extent < 1e12)) return call.error("input 0 holds {}", extent);
      shape.push_back(static_cast<std::int64_t>(extent));
    }
  } else if (call.has(0)) {
    shape = b.shape(call.in(0));
  }
  const Shape extra = call.attribute_ints("extra_shape", {});
  shape.insert(shape.end(), extra.begin(), extra.end());
  return checked(call, shape, type);
}

/// ONNX 1.2's: the floats in attribute `values`.
Result<Values> given_tensor_fill(const Call& call, Builder& b) {
  const Shape shape = HEDDLE_TRY(filled_shape(call, b, DType::f32));
  const auto found = call.attributes.find("values");
  const auto* values =
      found == call.attributes.end() ? nullptr : std::get_if<std::vector<double>>(&found->second);
  const std::size_t count = values == nullptr ? 0 : values->size();
  if (static_cast<std::int64_t>(count) != element_count(shape))
    return call.error("{} values for a tensor of shape {}", count, to_string(shape));
  if (count == 0) return Values{b.full({DType::f32, shape}, 0)};
  return Values{constant_real(b, DType::f32, *values, shape)};
}

/// ONNX 1.2's: one value everywhere.
Result<Values> constant_fill(const Call& call, Builder& b) {
  const DType type = HEDDLE_TRY(attribute_dtype(call, "dtype", DType::f32));
  const Shape shape = HEDDLE_TRY(filled_shape(call, b, type));
  return Values{b.full({type, shape}, call.attribute_float("value", 0))};
}

template <class T>
Tensor list_tensor(DType type, const std::vector<T>& values, bool is_scalar) {
  Tensor t(TensorType{type, is_scalar ? Shape{} : Shape{static_cast<std::int64_t>(values.size())}});
  for (std::size_t i = 0; i < values.size(); ++i) {
    if constexpr (std::is_integral_v<T>) {
      t.set_int(static_cast<std::int64_t>(i), values[i]);
    } else {
      t.set(static_cast<std::int64_t>(i), values[i]);
    }
  }
  return t;
}

Result<Values> constant(const Call& call, Builder& b) {
  for (const auto& [key, value] : call.attributes) {
    if (key == "value") {
      const Tensor* t = std::get_if<Tensor>(&value);
      if (t == nullptr) return call.error("attribute value is not a tensor");
      call.result_format = call.value_format;
      return Values{b.constant(*t)};
    }
    if (key == "value_string" || key == "value_strings") {
      const auto* one = std::get_if<std::string>(&value);
      const auto* list = std::get_if<std::vector<std::string>>(&value);
      if (one == nullptr && list == nullptr) return call.error("attribute {} is no string", key);
      const auto ids = HEDDLE_TRY(text_ids(one != nullptr ? std::vector{*one} : *list));
      call.result_format = Format::text;
      return Values{b.constant(list_tensor(DType::i64, ids, one != nullptr))};
    }
    if (key == "sparse_value") {
      return call.unsupported("{} is not supported, want a dense number tensor", key);
    }
  }
  if (call.has_attribute("value_float")) {
    const std::vector<double> one{call.attribute_float("value_float", 0)};
    return Values{b.constant(list_tensor(DType::f32, one, true))};
  }
  if (call.has_attribute("value_int")) {
    const std::vector<std::int64_t> one{call.attribute_int("value_int", 0)};
    return Values{b.constant(list_tensor(DType::i64, one, true))};
  }
  if (call.has_attribute("value_ints")) {
    return Values{
        b.constant(list_tensor(DType::i64, call.attribute_ints("value_ints", {}), false))};
  }
  if (const auto it = call.attributes.find("value_floats"); it != call.attributes.end()) {
    const auto* reals = std::get_if<std::vector<double>>(&it->second);
    const std::vector<double> none;
    return Values{b.constant(list_tensor(DType::f32, reals != nullptr ? *reals : none, false))};
  }
  return call.error("no value attribute");
}

/// Blocks between channels and space: the two operators are inverse transposes of one 6-D view.
Result<Values> depth_to_space(const Call& call, Builder& b) {
  HEDDLE_TRY(want_rank(call, b, 0, 4, 4));
  const Shape in = b.shape(call.in(0));
  const std::int64_t s = call.attribute_int("blocksize", 0);
  const int mode = HEDDLE_TRY(choice(call, "mode", "DCR", {"DCR", "CRD"}));
  if (s < 1 || s > (1 << 20) || at(in, 1) % (s * s) != 0) {
    return call.error("input 0 has shape {}, want channels divisible by blocksize {} squared",
                      to_string(in), s);
  }
  const std::int64_t c = at(in, 1) / (s * s), h = at(in, 2), w = at(in, 3);
  NodeId x = mode == 0 ? b.reshape(call.in(0), {at(in, 0), s, s, c, h, w})
                       : b.reshape(call.in(0), {at(in, 0), c, s, s, h, w});
  x = b.transpose(
      x, mode == 0 ? std::vector<int>{0, 3, 4, 1, 5, 2} : std::vector<int>{0, 1, 4, 2, 5, 3});
  return Values{b.reshape(x, {at(in, 0), c, h * s, w * s})};
}

Result<Values> space_to_depth(const Call& call, Builder& b) {
  HEDDLE_TRY(want_rank(call, b, 0, 4, 4));
  const Shape in = b.shape(call.in(0));
  const std::int64_t s = call.attribute_int("blocksize", 0);
  if (s < 1 || s > (1 << 20) || at(in, 2) % s != 0 || at(in, 3) % s != 0) {
    return call.error("input 0 has shape {}, want height and width divisible by blocksize {}",
                      to_string(in), s);
  }
  const std::int64_t c = at(in, 1), h = at(in, 2) / s, w = at(in, 3) / s;
  NodeId x = b.reshape(call.in(0), {at(in, 0), c, h, s, w, s});
  x = b.transpose(x, {0, 3, 5, 1, 2, 4});
  return Values{b.reshape(x, {at(in, 0), c * s * s, h, w})};
}

Result<Values> range(const Call& call, Builder& b) {
  const DType type = b.dtype(call.in(0));
  for (int i = 0; i < 3; ++i) {
    HEDDLE_TRY(want_type(call, b, i, type));
  }
  const double start = HEDDLE_TRY(constant_real(call, 0));
  const double limit = HEDDLE_TRY(constant_real(call, 1));
  const double delta = HEDDLE_TRY(constant_real(call, 2));
  const double count = std::ceil((limit - start) / delta);
  if (delta == 0 || !std::isfinite(count) || count > 1e12) {
    return call.error("start {}, limit {}, delta {} give no finite range", start, limit, delta);
  }
  const Shape out = HEDDLE_TRY(
      checked(call, {std::max<std::int64_t>(0, static_cast<std::int64_t>(count))}, type));
  const NodeId first = b.reshape(call.in(0), {1});
  if (out[0] == 0) return Values{b.full({type, out}, 0)};
  return Values{b.add(b.mul(b.iota({type, out}, 0), b.reshape(call.in(2), {1})), first)};
}

Result<Values> eye_like(const Call& call, Builder& b) {
  HEDDLE_TRY(want_rank(call, b, 0, 2, 2));
  const Shape shape = b.shape(call.in(0));
  const DType type = HEDDLE_TRY(attribute_dtype(call, "dtype", b.dtype(call.in(0))));
  const std::int64_t k =
      std::clamp<std::int64_t>(call.attribute_int("k", 0), -at(shape, 0), at(shape, 1));
  const NodeId row = b.iota({DType::i64, shape}, 0), column = b.iota({DType::i64, shape}, 1);
  const NodeId shifted = b.add(row, b.scalar_int(DType::i64, k));
  return Values{b.cast(b.map(ir::ScalarFn::equal, {shifted, column}), type)};
}

/// The kept triangle is where column - row >= k (upper) or <= k (lower); zero elsewhere.
Result<Values> trilu(const Call& call, Builder& b) {
  HEDDLE_TRY(want_rank(call, b, 0, 2, 64));
  const Shape shape = b.shape(call.in(0));
  const int rank = static_cast<int>(shape.size());
  const std::int64_t rows = at(shape, rank - 2), columns = at(shape, rank - 1);
  std::int64_t k = 0;
  if (call.has(1)) k = HEDDLE_TRY(constant_int(call, 1));
  k = std::clamp<std::int64_t>(k, -rows, columns);
  const bool upper = call.attribute_int("upper", 1) != 0;
  if (element_count(shape) == 0) return Values{call.in(0)};
  const ir::Expr offset = dim(rank - 1) - dim(rank - 2);
  const ir::Condition kept =
      upper ? ir::Condition{offset, k, columns} : ir::Condition{offset, -rows, k + 1};
  return Values{b.view(call.in(0), shape, {dims(rank), {kept}})};
}

/// com.microsoft: a new dimension of 1 before `axis`, -1 being the last of the result.
Result<Values> expand_dims(const Call& call, Builder& b) {
  const std::int64_t axis = HEDDLE_TRY(constant_int(call, 1));
  return Values{
      b.unsqueeze(call.in(0), {HEDDLE_TRY(call.normalize_axis(axis, b.rank(call.in(0)) + 1))})};
}

using enum OpDef::Stored;
constexpr OpDef kShapeOps[] = {
    {"Reshape", 1, 1, 1, reshape, moves},
    {"Reshape", 5, 2, 2, reshape, moves},
    {"Flatten", 1, 1, 1, flatten, moves},
    {"Squeeze", 1, 1, 1, squeeze, moves},
    {"Squeeze", 13, 1, 2, squeeze, moves},
    {"Unsqueeze", 1, 1, 1, unsqueeze, moves},
    {"Unsqueeze", 13, 2, 2, unsqueeze, moves},
    {"Transpose", 1, 1, 1, transpose, moves},
    {"Expand", 8, 2, 2, onnx_expand, moves},
    {"Tile", 1, 3, 3, tile_1, moves},
    {"Tile", 6, 2, 2, tile, moves},
    {"Concat", 1, 1, -1, concat, moves},
    {"Shape", 1, 1, 1, shape_of, knows},
    {"Size", 1, 1, 1, size_of_value, knows},
    {"Identity", 1, 1, 1, identity, moves},
    {"ConstantOfShape", 9, 1, 1, constant_of_shape},
    {"Constant", 1, 0, 0, constant, knows},
    {"GivenTensorFill", 1, 0, 1, given_tensor_fill},
    {"ConstantFill", 1, 0, 1, constant_fill},
    {"DepthToSpace", 1, 1, 1, depth_to_space, moves},
    {"SpaceToDepth", 1, 1, 1, space_to_depth, moves},
    {"Range", 11, 3, 3, range},
    {"com.microsoft::Range", 1, 3, 3, range},
    {"EyeLike", 9, 1, 1, eye_like},
    {"Trilu", 14, 1, 2, trilu},
    {"com.microsoft::Trilu", 1, 1, 2, trilu},
    {"com.microsoft::ExpandDims", 1, 2, 2, expand_dims, moves},
};

}  // namespace

std::span<const OpDef> shape_ops() { return kShapeOps; }

}  // namespace heddle::ops

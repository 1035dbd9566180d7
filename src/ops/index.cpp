#include <algorithm>

#include "ops/families.h"
#include "ops/util.h"

/// Operators that keep, repeat or reorder slices of one value.
namespace heddle::ops {
namespace {

Result<Values> split_into(const Call& call, Builder& b, int axis,
                          const std::vector<std::int64_t>& sizes) {
  const Shape in = b.shape(call.in(0));
  std::int64_t total = 0;
  for (std::int64_t size : sizes) {
    if (size < 0 || size > at(in, axis)) {
      return call.error("split is {}, want sizes in [0, {}]", to_string(sizes), at(in, axis));
    }
    total += size;
  }
  if (total != at(in, axis) || static_cast<int>(sizes.size()) < call.outputs) {
    return call.error("split is {} for {} outputs, want sizes that add up to {}", to_string(sizes),
                      call.outputs, at(in, axis));
  }
  Values parts;
  std::int64_t start = 0;
  for (int i = 0; i < call.outputs; ++i) {
    const std::int64_t size = sizes[static_cast<std::size_t>(i)];
    Shape shape = in;
    shape[static_cast<std::size_t>(axis)] = size;
    parts.push_back(size == 0 ? b.full({b.dtype(call.in(0)), shape}, 0)
                              : b.slice_axis(call.in(0), axis, start, size));
    start += size;
  }
  return parts;
}

/// Equal parts; from opset 18 the last may be smaller.
Result<Values> split(const Call& call, Builder& b) {
  HEDDLE_TRY(want_rank(call, b, 0, 1, 64));
  const int axis = HEDDLE_TRY(call.axis("axis", 0, b.rank(call.in(0))));
  const auto sizes = HEDDLE_TRY(ints_from(call, "split", 1));
  if (sizes) return split_into(call, b, axis, *sizes);
  const std::int64_t extent = at(b.shape(call.in(0)), axis);
  const std::int64_t parts = call.attribute_int("num_outputs", call.outputs);
  if (parts < 1 || parts < call.outputs || parts > std::max<std::int64_t>(extent, 1)) {
    return call.error("extent {} split into {} parts for {} outputs", extent, parts, call.outputs);
  }
  if (extent % parts != 0 && call.opset < 18) {
    return call.error("extent {} at axis {} does not split into {} equal parts", extent, axis,
                      parts);
  }
  const std::int64_t step = (extent + parts - 1) / parts;
  std::vector<std::int64_t> equal;
  for (std::int64_t i = 0; i < parts; ++i) {
    equal.push_back(std::clamp<std::int64_t>(extent - i * step, 0, step));
  }
  return split_into(call, b, axis, equal);
}

/// One dimension of a slice, with ONNX's clamping: a start before the first element is the first
/// one for negative steps too, where NumPy's slice is empty.
struct Range {
  std::int64_t start = 0, size = 0, step = 1;
};
Range clamp_range(std::int64_t start, std::int64_t end, std::int64_t step, std::int64_t extent) {
  if (extent == 0) return {0, 0, step > 0 ? 1 : -1};
  const auto wrap = [&](std::int64_t i) { return i < 0 && i >= -extent ? i + extent : i; };
  const std::int64_t high = step > 0 ? extent : extent - 1;
  start = std::clamp<std::int64_t>(wrap(start), 0, high);
  end = std::clamp<std::int64_t>(wrap(end), step > 0 ? 0 : -1, high);
  step = std::clamp(step, -extent - 1, extent + 1);
  const std::int64_t span = step > 0 ? end - start : start - end;
  const std::int64_t stride = step > 0 ? step : -step;
  return {start, span <= 0 ? 0 : (span + stride - 1) / stride, step};
}

Result<Values> slice(const Call& call, Builder& b) {
  const Shape in = b.shape(call.in(0));
  const int rank = static_cast<int>(in.size());
  const auto starts = HEDDLE_TRY(ints_from(call, "starts", 1));
  const auto ends = HEDDLE_TRY(ints_from(call, "ends", 2));
  if (!starts || !ends) return call.error("starts or ends are missing");
  auto given_axes = HEDDLE_TRY(ints_from(call, "axes", 3));
  const auto steps = HEDDLE_TRY(ints_from(call, "steps", 4));
  const std::size_t n = starts->size();
  if (!given_axes) {
    given_axes.emplace();
    for (std::size_t i = 0; i < n; ++i) given_axes->push_back(static_cast<std::int64_t>(i));
  }
  if (ends->size() != n || given_axes->size() != n || (steps && steps->size() != n)) {
    return call.error("{} starts, {} ends, {} axes, {} steps; want equal numbers", n, ends->size(),
                      given_axes->size(), steps ? steps->size() : n);
  }
  const auto axes = HEDDLE_TRY(call.normalize_axes(*given_axes, rank));
  Shape start(in.size(), 0), size = in, step(in.size(), 1);
  for (std::size_t i = 0; i < n; ++i) {
    const auto axis = static_cast<std::size_t>(axes[i]);
    const std::int64_t stride = steps ? (*steps)[i] : 1;
    if (stride == 0) return call.error("step {} is 0", i);
    const Range r = clamp_range((*starts)[i], (*ends)[i], stride, in[axis]);
    start[axis] = r.start;
    size[axis] = r.size;
    step[axis] = r.step;
  }
  if (element_count(size) == 0) return Values{b.full({b.dtype(call.in(0)), size}, 0)};
  return Values{b.slice(call.in(0), start, size, step)};
}

enum class PadMode { constant, reflect, edge, wrap };

/// Source coordinate of output position i in a dimension of `extent`, `before` positions in.
ir::Expr padded_index(PadMode mode, const ir::Expr& i, std::int64_t before, std::int64_t after,
                      std::int64_t extent) {
  const ir::Expr j = i - ir::Expr(before);
  switch (mode) {
    case PadMode::constant:
      return j;
    case PadMode::edge:
      return j;  // clamped by the caller
    case PadMode::wrap:
      return ir::floor_mod(j, extent);
    case PadMode::reflect:
      break;
  }
  if (extent == 1) return ir::Expr(0);
  const std::int64_t last = extent - 1;
  if (before > last || after > last) {  // reflects more than once
    const ir::Expr t = ir::floor_mod(j, 2 * last);
    return ir::min(t, ir::Expr(2 * last) - t);
  }
  ir::Expr out = j;
  if (before > 0) out = ir::max(out, ir::Expr(0) - out);
  if (after > 0) out = ir::min(out, ir::Expr(2 * last) - out);
  return out;
}

Result<NodeId> pad_mirrored(const Call& call, Builder& b, PadMode mode, NodeId x,
                            const Shape& before, const Shape& after) {
  const Shape in = b.shape(x);
  Shape out = in;
  for (std::size_t i = 0; i < in.size(); ++i) {
    out[i] += before[i] + after[i];
    if (in[i] == 0 && out[i] > 0) {
      return call.error("input 0 has shape {}: nothing to repeat along axis {}", to_string(in), i);
    }
  }
  if (element_count(out) == 0) return b.full({b.dtype(x), out}, 0);
  const ir::Ranges ranges = ir::ranges_of(out);
  Access access;
  for (std::size_t i = 0; i < in.size(); ++i) {
    const ir::Expr j = padded_index(mode, dim(static_cast<int>(i)), before[i], after[i], in[i]);
    access.index.push_back(clamp_index(j, in[i], ranges));
  }
  return b.view(x, out, access);
}

/// Pads with a value known only at run time: selects by a mask that is a padded constant.
NodeId pad_with(Builder& b, NodeId x, const Shape& before, const Shape& after, NodeId value) {
  if (const Tensor* known = b.graph().constant_of(value)) {
    return b.pad(x, before, after, known->at(0));
  }
  const NodeId inside = b.pad(b.full({DType::b1, b.shape(x)}, 1), before, after, 0);
  return b.select(inside, b.pad(x, before, after, 0), b.reshape(value, {}));
}

Result<Values> pad(const Call& call, Builder& b) {
  NodeId x = call.in(0);
  const Shape in = b.shape(x);
  const int rank = static_cast<int>(in.size());
  const auto pads = HEDDLE_TRY(ints_from(call, call.opset < 2 ? "paddings" : "pads", 1));
  if (!pads) return call.error("no pads given");
  std::vector<std::int64_t> all;
  for (int i = 0; i < rank; ++i) all.push_back(i);
  const auto axes =
      HEDDLE_TRY(call.normalize_axes(call.has(3) ? HEDDLE_TRY(call.constant_ints(3)) : all, rank));
  const std::size_t n = axes.size();
  if (pads->size() != 2 * n) {
    return call.error("{} pads given, want {} for shape {}", pads->size(), 2 * n, to_string(in));
  }
  const auto mode = static_cast<PadMode>(
      HEDDLE_TRY(choice(call, "mode", "constant", {"constant", "reflect", "edge", "wrap"})));
  Shape before(in.size(), 0), after(in.size(), 0), start(in.size(), 0), kept = in, out = in;
  for (std::size_t i = 0; i < n; ++i) {
    const auto axis = static_cast<std::size_t>(axes[i]);
    const std::int64_t low = (*pads)[i], high = (*pads)[i + n];
    constexpr std::int64_t kLimit = std::int64_t{1} << 40;
    if (low < -kLimit || low > kLimit || high < -kLimit || high > kLimit) {
      return call.error("pads are {}, want numbers below 2^40", to_string(*pads));
    }
    // Negative pads crop.
    start[axis] = std::max<std::int64_t>(0, -low);
    kept[axis] = in[axis] - start[axis] - std::max<std::int64_t>(0, -high);
    before[axis] = std::max<std::int64_t>(0, low);
    after[axis] = std::max<std::int64_t>(0, high);
    out[axis] = kept[axis] + before[axis] + after[axis];
    if (kept[axis] < 0) {
      return call.error("pads {} crop more than shape {} has", to_string(*pads), to_string(in));
    }
  }
  HEDDLE_TRY(checked(call, out, b.dtype(x)));
  if (mode == PadMode::constant && call.has(2) &&
      (b.dtype(call.in(2)) != b.dtype(x) || element_count(b.shape(call.in(2))) != 1)) {
    return call.error("input 2 is {}, want one {}", to_string(b.type(call.in(2))),
                      name_of(b.dtype(x)));
  }
  if (kept != in && element_count(kept) > 0) {
    x = b.slice(x, start, kept, Shape(in.size(), 1));
  } else if (kept != in) {
    x = b.full({b.dtype(x), kept}, 0);
  }
  if (mode != PadMode::constant) {
    return Values{HEDDLE_TRY(pad_mirrored(call, b, mode, x, before, after))};
  }
  const NodeId value =
      call.has(2) ? call.in(2) : b.scalar(b.dtype(x), call.attribute_float("value", 0));
  if (element_count(kept) == 0) return Values{b.broadcast(b.reshape(value, {}), out)};
  return Values{pad_with(b, x, before, after, value)};
}

/// Crops or zero-pads each axis about its centre to the extents wanted.
Result<Values> center_crop_pad(const Call& call, Builder& b) {
  const Shape in = b.shape(call.in(0));
  const Shape wanted = HEDDLE_TRY(call.constant_ints(1));
  std::vector<std::int64_t> all;
  for (std::size_t i = 0; i < in.size(); ++i) all.push_back(static_cast<std::int64_t>(i));
  const auto axes = HEDDLE_TRY(
      call.normalize_axes(call.attribute_ints("axes", all), static_cast<int>(in.size())));
  if (axes.size() != wanted.size()) {
    return call.error("{} axes for {} extents", axes.size(), wanted.size());
  }
  Shape start(in.size(), 0), kept = in, before(in.size(), 0), after(in.size(), 0), out = in;
  for (std::size_t i = 0; i < axes.size(); ++i) {
    const auto axis = static_cast<std::size_t>(axes[i]);
    out[axis] = wanted[i];
    const std::int64_t missing = wanted[i] - in[axis];
    if (missing < 0) {
      start[axis] = -missing / 2;
      kept[axis] = wanted[i];
    } else {
      before[axis] = missing / 2;
      after[axis] = missing - missing / 2;
    }
  }
  out = HEDDLE_TRY(checked(call, out, b.dtype(call.in(0))));
  if (element_count(kept) == 0) return Values{b.full({b.dtype(call.in(0)), out}, 0)};
  const NodeId cropped = b.slice(call.in(0), start, kept, Shape(in.size(), 1));
  return Values{b.pad(cropped, before, after, 0)};
}

/// Along the time axis, element t of batch n is read at len[n]-1-t where t < len[n], else at t.
Result<Values> reverse_sequence(const Call& call, Builder& b) {
  HEDDLE_TRY(want_rank(call, b, 0, 2, 64));
  HEDDLE_TRY(want_int(call, b, 1));
  const Shape in = b.shape(call.in(0));
  const int rank = static_cast<int>(in.size());
  const int batch = HEDDLE_TRY(call.axis("batch_axis", 1, rank));
  const int time = HEDDLE_TRY(call.axis("time_axis", 0, rank));
  if (batch == time || batch > 1 || time > 1) {
    return call.error("batch_axis {} and time_axis {}, want 0 and 1 in some order", batch, time);
  }
  HEDDLE_TRY(want_shape(call, b, 1, {at(in, batch)}));
  Shape column(in.size(), 1);
  column[static_cast<std::size_t>(batch)] = at(in, batch);
  const NodeId length = b.broadcast(b.reshape(b.cast(call.in(1), DType::i64), column), in);
  const NodeId t = b.iota({DType::i64, in}, time);
  const NodeId mirrored = b.sub(b.sub(length, b.scalar_int(DType::i64, 1)), t);
  const NodeId index = b.select(b.map(ir::ScalarFn::less, {t, length}), mirrored, t);
  prim::Gather g{{time}, dims(rank)};
  g.base[static_cast<std::size_t>(time)] = ir::Expr(0);
  return Values{b.gather(call.in(0), {index}, g, in)};
}

/// on where the (wrapped) index equals the position along the new axis.
Result<Values> one_hot(const Call& call, Builder& b) {
  const Shape in = b.shape(call.in(0));
  const int rank = static_cast<int>(in.size()) + 1;
  const auto depth = static_cast<std::int64_t>(HEDDLE_TRY(constant_real(call, 1)));
  const int axis = HEDDLE_TRY(call.axis("axis", -1, rank));
  HEDDLE_TRY(want_shape(call, b, 2, {2}));
  Shape out = in;
  out.insert(out.begin() + axis, depth);
  out = HEDDLE_TRY(checked(call, out, DType::i64));
  const NodeId index = wrap_indices(b, b.unsqueeze(call.in(0), {axis}), depth);
  const NodeId hot = b.map(ir::ScalarFn::equal, {index, b.iota({DType::i64, out}, axis)});
  const NodeId off = b.reshape(b.slice_axis(call.in(2), 0, 0, 1), {});
  const NodeId on = b.reshape(b.slice_axis(call.in(2), 0, 1, 1), {});
  return Values{b.select(hot, on, off)};
}

using enum OpDef::Stored;
Result<Values> pad_microsoft(const Call& call, Builder& b) {
  Call plain = call;
  plain.opset = 13;
  return pad(plain, b);
}

constexpr OpDef kIndexOps[] = {
    {"Split", 1, 1, 2, split, moves},
    {"Slice", 1, 1, 1, slice, moves},
    {"Slice", 10, 3, 5, slice, moves},
    {"DynamicSlice", 1, 3, 4, slice, moves},
    {"Pad", 1, 1, 1, pad},
    {"Pad", 11, 2, 4, pad},
    {"com.microsoft::Pad", 1, 2, 3, pad_microsoft},
    {"CenterCropPad", 18, 2, 2, center_crop_pad},
    {"ReverseSequence", 10, 2, 2, reverse_sequence, moves},
    {"OneHot", 9, 3, 3, one_hot},
};

}  // namespace

std::span<const OpDef> index_ops() { return kIndexOps; }

}  // namespace heddle::ops

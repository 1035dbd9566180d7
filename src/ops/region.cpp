#include <algorithm>

#include "ops/families.h"
#include "ops/util.h"

/// Pooling over regions of interest that are data.
namespace heddle::ops {
namespace {

using ir::ScalarFn;

/// Sampling positions along one axis: [rois, pooled · samples], and the region's two neighbours.
struct RoiAxis {
  NodeId low, high;      ///< i64
  NodeId w_low, w_high;  ///< both 0 where the position is outside by more than one element
};
RoiAxis roi_axis(Builder& b, NodeId from, NodeId to, std::int64_t pooled, std::int64_t samples,
                 std::int64_t extent, bool half_pixel) {
  const DType type = b.dtype(from);
  const std::int64_t rois = b.shape(from)[0];
  NodeId size = b.sub(to, from);
  if (!half_pixel) size = b.max(size, b.scalar(type, 1));
  std::vector<double> offsets;
  for (std::int64_t p = 0; p < pooled * samples; ++p) {
    offsets.push_back((static_cast<double>(p) + 0.5) / static_cast<double>(pooled * samples));
  }
  const NodeId steps = constant_real(b, type, offsets, {1, pooled * samples});
  const NodeId y = b.add(b.reshape(from, {rois, 1}), b.mul(b.reshape(size, {rois, 1}), steps));
  const auto last = static_cast<double>(extent - 1);
  const NodeId inside =
      b.map(ScalarFn::logical_and, {b.map(ScalarFn::greater_equal, {y, b.scalar(type, -1)}),
                                    b.map(ScalarFn::less_equal, {y, b.scalar(type, last + 1)})});
  const NodeId clamped = b.min(b.max(y, b.scalar(type, 0)), b.scalar(type, last));
  const NodeId low = b.map(ScalarFn::floor, {clamped});
  const NodeId t = b.sub(clamped, low), counts = b.cast(inside, type);
  const NodeId high = b.min(b.add(low, 1.0), b.scalar(type, last));
  return {b.cast(low, DType::i64), b.cast(high, DType::i64),
          b.mul(b.sub(b.full(b.type(t), 1), t), counts), b.mul(t, counts)};
}

Status want_rois(const Call& call, Builder& b) {
  HEDDLE_TRY(want_rank(call, b, 0, 4, 4));
  HEDDLE_TRY(want_float(call, b, 0));
  HEDDLE_TRY(want_rank(call, b, 1, 2, 2));
  HEDDLE_TRY(want_type(call, b, 1, b.dtype(call.in(0))));
  HEDDLE_TRY(want_int(call, b, 2));
  const Shape rois = b.shape(call.in(1));
  HEDDLE_TRY(want_shape(call, b, 1, {rois[0], 4}));
  return want_shape(call, b, 2, {rois[0]});
}

/// Average (or maximum) of bilinear samples on a regular grid in each bin of each region.
Result<Values> roi_align(const Call& call, Builder& b) {
  HEDDLE_TRY(want_rois(call, b));
  const NodeId x = call.in(0);
  const Shape in = b.shape(x);
  const std::int64_t rois = b.shape(call.in(1))[0];
  const std::int64_t ph = call.attribute_int("output_height", 1);
  const std::int64_t pw = call.attribute_int("output_width", 1);
  const std::int64_t s = call.attribute_int("sampling_ratio", 0);
  const int max_mode = HEDDLE_TRY(choice(call, "mode", "avg", {"avg", "max"}));
  const int half_pixel = HEDDLE_TRY(choice(call, "coordinate_transformation_mode",
                                           call.opset >= 16 ? "half_pixel" : "output_half_pixel",
                                           {"output_half_pixel", "half_pixel"}));
  if (s == 0) {
    return call.unsupported(
        "sampling_ratio 0 takes the number of samples from the regions' sizes, "
        "want a fixed one");
  }
  constexpr std::int64_t kLimit = 4096;
  if (s < 0 || s > 64 || ph < 1 || pw < 1 || ph > kLimit || pw > kLimit) {
    return call.error("output {}x{} with sampling_ratio {}, want small positive numbers", ph, pw,
                      s);
  }
  const Shape out = HEDDLE_TRY(checked(call, {rois, in[1], ph, pw}, b.dtype(x)));
  const Shape space = HEDDLE_TRY(checked(call, {rois, in[1], ph * s, pw * s}, b.dtype(x)));
  if (element_count(out) == 0) return Values{b.full({b.dtype(x), out}, 0)};
  if (element_count(in) == 0)
    return call.error("input 0 has shape {}: nothing to sample", to_string(in));
  const double scale = call.attribute_float("spatial_scale", 1.0);
  const auto edge = [&](int column) {
    const NodeId c = b.squeeze(b.slice_axis(call.in(1), 1, column, 1), {1});
    return b.sub(b.mul(c, scale), half_pixel != 0 ? 0.5 : 0.0);
  };
  const RoiAxis rows = roi_axis(b, edge(1), edge(3), ph, s, in[2], half_pixel != 0);
  const RoiAxis cols = roi_axis(b, edge(0), edge(2), pw, s, in[3], half_pixel != 0);
  const NodeId image =
      b.broadcast(b.reshape(b.cast(call.in(2), DType::i64), {rois, 1, 1, 1}), space);
  const auto down = [&](NodeId v) {
    return b.broadcast(b.reshape(v, {rois, 1, ph * s, 1}), space);
  };
  const auto across = [&](NodeId v) {
    return b.broadcast(b.reshape(v, {rois, 1, 1, pw * s}), space);
  };
  const prim::Gather g{{0, 2, 3}, {ir::Expr(0), dim(1), ir::Expr(0), ir::Expr(0)}};
  const auto corner = [&](NodeId row, NodeId col, NodeId wr, NodeId wc) {
    const NodeId value = b.gather(x, {image, down(row), across(col)}, g, space);
    return b.mul(value, b.mul(down(wr), across(wc)));
  };
  // The maximum is taken over weighted corners, as the specification's reference does.
  const auto join = [&](NodeId p, NodeId q) { return max_mode != 0 ? b.max(p, q) : b.add(p, q); };
  const NodeId top = join(corner(rows.low, cols.low, rows.w_low, cols.w_low),
                          corner(rows.low, cols.high, rows.w_low, cols.w_high));
  const NodeId bottom = join(corner(rows.high, cols.low, rows.w_high, cols.w_low),
                             corner(rows.high, cols.high, rows.w_high, cols.w_high));
  const NodeId bins = b.reshape(join(top, bottom), {rois, in[1], ph, s, pw, s});
  return Values{max_mode != 0 ? b.reduce_max(bins, {3, 5}, false) : b.mean(bins, {3, 5}, false)};
}

/// Which positions of an axis belong to which bin of which region: b1 [rois, 1, pooled, extent].
NodeId bin_mask(Builder& b, NodeId from, NodeId to, std::int64_t pooled, std::int64_t extent) {
  const DType type = b.dtype(from);
  const Shape space{b.shape(from)[0], 1, pooled, extent};
  const auto column = [&](NodeId v) { return b.reshape(v, {space[0], 1, 1, 1}); };
  const NodeId size = b.max(b.add(b.sub(to, from), 1.0), b.scalar(type, 1));
  const NodeId step = b.div(column(size), static_cast<double>(pooled));
  const NodeId bin = b.iota({type, {pooled, 1}}, 0), place = b.iota({type, {extent}}, 0);
  const NodeId low = b.add(b.map(ScalarFn::floor, {b.mul(step, bin)}), column(from));
  const NodeId high = b.add(b.map(ScalarFn::ceil, {b.mul(step, b.add(bin, 1.0))}), column(from));
  const NodeId mask = b.map(ScalarFn::logical_and, {b.map(ScalarFn::greater_equal, {place, low}),
                                                    b.map(ScalarFn::less, {place, high})});
  return b.broadcast(mask, space);
}

/// The maximum of each bin of regions [batch, x1, y1, x2, y2], 0 where a bin is empty. Masks over
/// the rows, then over the columns, stand for the bins, whose extents are data.
Result<Values> max_roi_pool(const Call& call, Builder& b) {
  HEDDLE_TRY(want_rank(call, b, 0, 4, 4));
  HEDDLE_TRY(want_float(call, b, 0));
  HEDDLE_TRY(want_rank(call, b, 1, 2, 2));
  HEDDLE_TRY(want_type(call, b, 1, b.dtype(call.in(0))));
  const Shape in = b.shape(call.in(0));
  const std::int64_t rois = b.shape(call.in(1))[0];
  HEDDLE_TRY(want_shape(call, b, 1, {rois, 5}));
  const Shape pooled = call.attribute_ints("pooled_shape", {});
  constexpr std::int64_t kLimit = 4096;
  if (pooled.size() != 2 || pooled[0] < 1 || pooled[1] < 1 || pooled[0] > kLimit ||
      pooled[1] > kLimit) {
    return call.error("pooled_shape is {}, want two small positive numbers", to_string(pooled));
  }
  const DType type = b.dtype(call.in(0));
  const Shape tall = HEDDLE_TRY(checked(call, {rois, in[1], pooled[0], in[2], in[3]}, type));
  HEDDLE_TRY(checked(call, {rois, in[1], pooled[0], pooled[1], in[3]}, type));
  if (element_count(tall) == 0) {
    return Values{b.full({type, {rois, in[1], pooled[0], pooled[1]}}, 0)};
  }
  if (in[0] == 0) {
    return call.error("input 0 has shape {}: nothing to pool", to_string(in));
  }
  const double scale = call.attribute_float("spatial_scale", 1);
  const auto edge = [&](int column) {
    const NodeId c = b.squeeze(b.slice_axis(call.in(1), 1, column, 1), {1});
    return b.map(ScalarFn::round, {b.mul(b.cast(c, compute_type(type)), scale)});
  };
  const NodeId rows = bin_mask(b, edge(2), edge(4), pooled[0], in[2]);
  const NodeId columns = bin_mask(b, edge(1), edge(3), pooled[1], in[3]);
  const NodeId image = b.cast(b.squeeze(b.slice_axis(call.in(1), 1, 0, 1), {1}), DType::i64);
  const NodeId x = b.unsqueeze(b.take(call.in(0), image, 0), {2});
  const NodeId lowest = b.scalar(type, -std::numeric_limits<double>::infinity());
  NodeId y = b.select(b.unsqueeze(rows, {4}), x, lowest);
  y = b.unsqueeze(b.reduce_max(y, {3}, false), {3});
  y = b.reduce_max(b.select(b.unsqueeze(columns, {2}), y, lowest), {4}, false);
  return Values{b.select(b.map(ScalarFn::equal, {y, lowest}), b.scalar(type, 0), y)};
}

constexpr OpDef kRegionOps[] = {
    {"RoiAlign", 10, 3, 3, roi_align},
    {"MaxRoiPool", 1, 2, 2, max_roi_pool},
};

}  // namespace

std::span<const OpDef> region_ops() { return kRegionOps; }

}  // namespace heddle::ops

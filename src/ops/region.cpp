#include <algorithm>

#include "ops/families.h"
#include "ops/util.h"

/// Pooling over regions of interest that are data. Where the number of samples is, too, the host
/// does it (ops/host.h).
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

struct RoiOptions {
  std::int64_t rows = 1, columns = 1, samples = 0;  ///< of the output; in each bin, 0: by its size
  double scale = 1;
  bool maximum = false, half_pixel = false;
};
Result<RoiOptions> roi_options(const Call& call) {
  RoiOptions o;
  o.rows = call.attribute_int("output_height", 1);
  o.columns = call.attribute_int("output_width", 1);
  o.samples = call.attribute_int("sampling_ratio", 0);
  o.scale = call.attribute_float("spatial_scale", 1.0);
  o.maximum = HEDDLE_TRY(choice(call, "mode", "avg", {"avg", "max"})) != 0;
  o.half_pixel = HEDDLE_TRY(choice(call, "coordinate_transformation_mode",
                                   call.opset >= 16 ? "half_pixel" : "output_half_pixel",
                                   {"output_half_pixel", "half_pixel"})) != 0;
  constexpr std::int64_t kLimit = 4096;
  if (o.samples < 0 || o.samples > 64 || o.rows < 1 || o.columns < 1 || o.rows > kLimit ||
      o.columns > kLimit)
    return call.error("output {}x{} with sampling_ratio {}, want small positive numbers", o.rows,
                      o.columns, o.samples);
  return o;
}

/// Average (or maximum) of bilinear samples on a regular grid in each bin of each region.
Result<Values> roi_align(const Call& call, Builder& b) {
  HEDDLE_TRY(want_rois(call, b));
  const NodeId x = call.in(0);
  const Shape in = b.shape(x);
  const std::int64_t rois = b.shape(call.in(1))[0];
  const RoiOptions o = HEDDLE_TRY(roi_options(call));
  const std::int64_t ph = o.rows, pw = o.columns, s = o.samples;
  const Shape out = HEDDLE_TRY(checked(call, {rois, in[1], ph, pw}, b.dtype(x)));
  const Shape space = HEDDLE_TRY(checked(call, {rois, in[1], ph * s, pw * s}, b.dtype(x)));
  if (element_count(out) == 0) return Values{b.full({b.dtype(x), out}, 0)};
  if (element_count(in) == 0)
    return call.error("input 0 has shape {}: nothing to sample", to_string(in));
  if (s == 0)
    return call.unsupported(
        "sampling_ratio 0 takes the number of samples from the regions' sizes: `heddle run` and "
        "`heddle verify` do that on the host, in stages; it cannot be part of one compiled "
        "program");
  const auto edge = [&](int column) {
    const NodeId c = b.squeeze(b.slice_axis(call.in(1), 1, column, 1), {1});
    return b.sub(b.mul(c, o.scale), o.half_pixel ? 0.5 : 0.0);
  };
  const RoiAxis rows = roi_axis(b, edge(1), edge(3), ph, s, in[2], o.half_pixel);
  const RoiAxis cols = roi_axis(b, edge(0), edge(2), pw, s, in[3], o.half_pixel);
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
  const auto join = [&](NodeId p, NodeId q) { return o.maximum ? b.max(p, q) : b.add(p, q); };
  const NodeId top = join(corner(rows.low, cols.low, rows.w_low, cols.w_low),
                          corner(rows.low, cols.high, rows.w_low, cols.w_high));
  const NodeId bottom = join(corner(rows.high, cols.low, rows.w_high, cols.w_low),
                             corner(rows.high, cols.high, rows.w_high, cols.w_high));
  const NodeId bins = b.reshape(join(top, bottom), {rois, in[1], ph, s, pw, s});
  return Values{o.maximum ? b.reduce_max(bins, {3, 5}, false) : b.mean(bins, {3, 5}, false)};
}

/// Samples along one axis of one region, `each` in every bin: the two neighbours, and the weight of
/// the second; none where it is outside by more than one element.
template <class T>
struct Samples {
  struct Sample {
    std::int64_t low, high;
    T low_weight, high_weight;
  };
  std::int64_t each = 0;
  std::vector<Sample> all;
};

/// nullopt if there are more than 2^18, or the edges are no numbers.
template <class T>
std::optional<Samples<T>> samples_of(const RoiOptions& o, T from, T to, std::int64_t bins,
                                     std::int64_t extent) {
  constexpr T kMostSamples = 1 << 18;
  T size = to - from;
  if (!o.half_pixel) size = std::max(size, T{1});
  const T bin = size / static_cast<T>(bins), each = std::ceil(bin);
  if (!std::isfinite(from) || !std::isfinite(to) || !(each * static_cast<T>(bins) <= kMostSamples))
    return std::nullopt;
  Samples<T> samples;
  samples.each = static_cast<std::int64_t>(std::max(each, T{0}));
  const auto last = static_cast<T>(extent - 1);
  for (std::int64_t p = 0; p < bins; ++p)
    for (std::int64_t i = 0; i < samples.each; ++i) {
      const T step = (static_cast<T>(i) + T{0.5}) * bin / static_cast<T>(samples.each);
      const T at = from + static_cast<T>(p) * bin + step;
      const T weight = at >= -1 && at <= last + 1 ? 1 : 0;
      const T inside = std::clamp(at, T{0}, last);
      const auto low = static_cast<std::int64_t>(inside);
      const T rest = inside - static_cast<T>(low);
      samples.all.push_back(
          {low, std::min(low + 1, extent - 1), weight * (1 - rest), weight * rest});
    }
  return samples;
}

/// The bin of `plane` [·, width] whose samples start at these.
template <class T>
T pooled(const T* plane, std::int64_t width, const Samples<T>& rows, std::int64_t first_row,
         const Samples<T>& columns, std::int64_t first_column, bool maximum) {
  T sum = 0, most = -std::numeric_limits<T>::infinity();
  for (std::int64_t i = 0; i < rows.each; ++i) {
    const auto& r = rows.all[static_cast<std::size_t>(first_row + i)];
    const T *low = plane + r.low * width, *high = plane + r.high * width;
    for (std::int64_t j = 0; j < columns.each; ++j) {
      const auto& c = columns.all[static_cast<std::size_t>(first_column + j)];
      const T corners[] = {
          r.low_weight * c.low_weight * low[c.low], r.low_weight * c.high_weight * low[c.high],
          r.high_weight * c.low_weight * high[c.low], r.high_weight * c.high_weight * high[c.high]};
      if (maximum)
        most = std::max(most, *std::max_element(corners, corners + 4));
      else
        sum += (corners[0] + corners[1]) + (corners[2] + corners[3]);
    }
  }
  const std::int64_t count = rows.each * columns.each;
  if (count == 0) return 0;
  return maximum ? most : sum / static_cast<T>(count);
}

/// As many samples as a bin has rows and columns, rounded up: in T, in which others round, too.
template <class T>
Result<Tensor> adaptive_roi_align(const Call& call, const RoiOptions& o,
                                  std::span<const Tensor> args) {
  constexpr std::int64_t kMostWork = std::int64_t{1} << 33;  // samples
  const Shape& in = args[0].shape();
  const std::int64_t rois = args[1].shape()[0], plane = in[2] * in[3];
  std::vector<T> x(static_cast<std::size_t>(args[0].count()));
  for (std::size_t i = 0; i < x.size(); ++i)
    x[i] = static_cast<T>(args[0].at(static_cast<std::int64_t>(i)));
  Tensor out({args[0].dtype(), {rois, in[1], o.rows, o.columns}});
  std::int64_t at = 0, work = 0;
  for (std::int64_t r = 0; r < rois; ++r) {
    const auto edge = [&](std::int64_t column) {
      return static_cast<T>(args[1].at(r * 4 + column)) * static_cast<T>(o.scale) -
             static_cast<T>(o.half_pixel ? 0.5 : 0);
    };
    const auto rows = samples_of<T>(o, edge(1), edge(3), o.rows, in[2]);
    const auto columns = samples_of<T>(o, edge(0), edge(2), o.columns, in[3]);
    const auto box = [&] {
      return fmt::format("region {} is [{}, {}, {}, {}]", r, args[1].at(r * 4),
                         args[1].at(r * 4 + 1), args[1].at(r * 4 + 2), args[1].at(r * 4 + 3));
    };
    if (!rows || !columns)
      return call.error("{}, want numbers, and at most 2^18 samples along an axis", box());
    const std::int64_t image = args[2].int_at(r);
    if (image < 0 || image >= in[0])
      return call.error("region {} is of image {}, there are {}", r, image, in[0]);
    work += static_cast<std::int64_t>(rows->all.size() * columns->all.size()) * in[1];
    if (work > kMostWork) return call.error("{}, which takes too many samples", box());
    for (std::int64_t c = 0; c < in[1]; ++c)
      for (std::int64_t p = 0; p < o.rows; ++p)
        for (std::int64_t q = 0; q < o.columns; ++q)
          out.set(at++, static_cast<double>(pooled(x.data() + (image * in[1] + c) * plane, in[3],
                                                   *rows, p * rows->each, *columns,
                                                   q * columns->each, o.maximum)));
  }
  return out;
}

/// sampling_ratio 0.
Result<std::vector<HostValue>> host_roi_align(const Call& call, std::span<const Tensor> args) {
  const RoiOptions o = HEDDLE_TRY(roi_options(call));
  const Tensor y =
      HEDDLE_TRY(args[0].dtype() == DType::f64 ? adaptive_roi_align<double>(call, o, args)
                                               : adaptive_roi_align<float>(call, o, args));
  return std::vector<HostValue>{{y, Format::plain}};
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
    {"RoiAlign", 10, 3, 3, roi_align, OpDef::Stored::refuses, host_roi_align},
    {"MaxRoiPool", 1, 2, 2, max_roi_pool},
};

}  // namespace

std::span<const OpDef> region_ops() { return kRegionOps; }

}  // namespace heddle::ops

#include <algorithm>
#include <numeric>

#include "ops/families.h"
#include "ops/util.h"

/// Resize and Upsample: one axis after the other, each a few weighted views. Which source elements
/// an output position needs is computed here, on the host; where the pattern is quasi-affine (all
/// usual ratios) it becomes a View, so that resizing fuses by index, else a Gather with constants.
namespace heddle::ops {
namespace {

enum class Interpolation { nearest, linear, cubic };
enum class Coordinates {
  half_pixel,
  half_pixel_symmetric,
  pytorch_half_pixel,
  align_corners,
  asymmetric,
  tf_half_pixel_for_nn,
  tf_crop_and_resize
};
/// `before_11` is the rule of Resize-10: up when shrinking, down when growing.
enum class Nearest { round_prefer_floor, round_prefer_ceil, floor, ceil, before_11 };

struct Options {
  Interpolation mode = Interpolation::nearest;
  Coordinates coordinates = Coordinates::half_pixel;
  Nearest nearest = Nearest::round_prefer_floor;
  double cubic_a = -0.75;
  double extrapolation = 0;
  bool exclude_outside = false;
  bool antialias = false;
};

struct ResizeAxis {
  int axis = 0;
  std::int64_t in = 0, out = 0;
  double scale = 1;
  double roi_start = 0, roi_end = 1;
};

/// The source position of output x.
double source_position(const Options& o, const ResizeAxis& a, std::int64_t position) {
  const auto x = static_cast<double>(position), n = static_cast<double>(a.in);
  const auto m = static_cast<double>(a.out);
  const double half_pixel = (x + 0.5) / a.scale - 0.5;
  switch (o.coordinates) {
    case Coordinates::half_pixel:
      return half_pixel;
    case Coordinates::half_pixel_symmetric: {
      const double adjustment = m / (a.scale * n);
      return n / 2 * (1 - adjustment) + half_pixel;
    }
    case Coordinates::pytorch_half_pixel:
      return a.out > 1 ? half_pixel : 0;
    case Coordinates::align_corners: {
      // The specification's output length is not rounded here.
      const double length = a.scale * n;
      return a.out == 1 || length == 1 ? 0 : x * (n - 1) / (length - 1);
    }
    case Coordinates::asymmetric:
      return x / a.scale;
    case Coordinates::tf_half_pixel_for_nn:
      return (x + 0.5) / a.scale;
    case Coordinates::tf_crop_and_resize:
      return a.out > 1 ? a.roi_start * (n - 1) + x * (a.roi_end - a.roi_start) * (n - 1) / (m - 1)
                       : 0.5 * (a.roi_start + a.roi_end) * (n - 1);
  }
  return 0;
}

std::int64_t nearest_index(Nearest how, double x, double scale) {
  switch (how) {
    case Nearest::round_prefer_floor:
      return static_cast<std::int64_t>(std::ceil(x - 0.5));
    case Nearest::round_prefer_ceil:
      return static_cast<std::int64_t>(std::floor(x + 0.5));
    case Nearest::floor:
      return static_cast<std::int64_t>(std::floor(x));
    case Nearest::ceil:
      return static_cast<std::int64_t>(std::ceil(x));
    case Nearest::before_11:  // positions were f32: 3 / (1 / 3) is 9
      return static_cast<std::int64_t>(scale < 1 ? std::ceil(static_cast<float>(x))
                                                 : std::floor(x));
  }
  return 0;
}

double kernel_value(const Options& o, double distance) {
  const double d = std::fabs(distance);
  if (o.mode == Interpolation::linear) return std::max(0.0, 1 - d);
  const double a = o.cubic_a;
  if (d <= 1) return ((a + 2) * d - (a + 3)) * d * d + 1;
  if (d < 2) return ((a * d - 5 * a) * d + 8 * a) * d - 4 * a;
  return 0;
}

/// For every output position the same number of source elements, tap-major.
struct Taps {
  std::vector<std::vector<std::int64_t>> index;  ///< [tap][out]
  std::vector<std::vector<double>> weight;
  std::vector<bool> outside;  ///< tf_crop_and_resize: the position lies outside the source
};

Taps make_taps(const Options& o, const ResizeAxis& a) {
  Taps taps;
  const double squeeze = o.antialias ? std::min(a.scale, 1.0) : 1.0;
  const double radius = (o.mode == Interpolation::cubic ? 2.0 : 1.0) / squeeze;
  const auto first = static_cast<std::int64_t>(std::floor(-radius)) + 1;
  const std::int64_t count = o.mode == Interpolation::nearest ? 1 : 2 - 2 * first;
  taps.index.assign(static_cast<std::size_t>(count), {});
  taps.weight.assign(static_cast<std::size_t>(count), {});
  for (std::int64_t i = 0; i < a.out; ++i) {
    double x = source_position(o, a, i);
    if (std::isnan(x)) x = 0;
    x = std::clamp(x, -1e15, 1e15);
    taps.outside.push_back(o.coordinates == Coordinates::tf_crop_and_resize &&
                           (x < 0 || x > static_cast<double>(a.in - 1)));
    const double base = o.mode == Interpolation::nearest ? 0 : std::floor(x);
    double total = 0;
    for (std::int64_t t = 0; t < count; ++t) {
      const std::int64_t at = o.mode == Interpolation::nearest
                                  ? nearest_index(o.nearest, x, a.scale)
                                  : static_cast<std::int64_t>(base) + first + t;
      double weight = o.mode == Interpolation::nearest
                          ? 1
                          : kernel_value(o, (static_cast<double>(at) - x) * squeeze);
      if (o.exclude_outside && (at < 0 || at >= a.in)) weight = 0;
      total += weight;
      taps.index[static_cast<std::size_t>(t)].push_back(std::clamp<std::int64_t>(at, 0, a.in - 1));
      taps.weight[static_cast<std::size_t>(t)].push_back(weight);
    }
    if ((!o.exclude_outside && !o.antialias) || total == 0) continue;
    for (auto& tap : taps.weight) tap.back() /= total;
  }
  return taps;
}

/// A quasi-affine expression in `position` that equals `index` everywhere, if a simple one does:
/// clamp((position·a + c) / b) with a/b the ratio of the extents or of the first repeat.
std::optional<ir::Expr> as_expression(const std::vector<std::int64_t>& index, std::int64_t in,
                                      const ir::Expr& position) {
  const auto out = static_cast<std::int64_t>(index.size());
  const std::int64_t g = std::gcd(in, out);
  std::vector<std::pair<std::int64_t, std::int64_t>> ratios{{in / g, out / g}};
  if (in > 1 && out > 1) {
    const std::int64_t h = std::gcd(in - 1, out - 1);
    ratios.emplace_back((in - 1) / h, (out - 1) / h);
  }
  for (const auto& [num, den] : ratios) {
    if (den > 1024 || num > 1024) continue;
    // Half positions need twice the denominator; an exact integer offset never does.
    const std::int64_t a = 2 * num, b = 2 * den;
    for (std::int64_t c = -3 * b; c <= 3 * b; ++c) {
      bool fits = true;
      for (std::int64_t o = 0; fits && o < out; ++o) {
        const std::int64_t p = o * a + c;
        const std::int64_t q = p >= 0 ? p / b : -((-p + b - 1) / b);
        fits = std::clamp<std::int64_t>(q, 0, in - 1) == index[static_cast<std::size_t>(o)];
      }
      if (!fits) continue;
      const bool even = c % 2 == 0;
      const ir::Expr scaled = position * ir::Expr(even ? num : a) + ir::Expr(even ? c / 2 : c);
      return ir::floor_div(scaled, even ? den : b);
    }
  }
  return std::nullopt;
}

/// x with axis `axis` read at index[o].
NodeId pick(Builder& b, NodeId x, int axis, const std::vector<std::int64_t>& index) {
  Shape shape = b.shape(x);
  const std::int64_t in = at(shape, axis);
  shape[static_cast<std::size_t>(axis)] = static_cast<std::int64_t>(index.size());
  if (const auto e = as_expression(index, in, dim(axis))) {
    Access access{dims(static_cast<int>(shape.size())), {}};
    access.index[static_cast<std::size_t>(axis)] = clamp_index(*e, in, ir::ranges_of(shape));
    return b.view(x, shape, access);
  }
  return b.take(x, constant_i64(b, index), axis);
}

/// A vector along `axis` that broadcasts against x, or a scalar when all elements are equal.
NodeId along(Builder& b, DType type, int rank, int axis, const std::vector<double>& values) {
  if (std::all_of(values.begin(), values.end(), [&](double v) { return v == values[0]; })) {
    return b.scalar(type, values[0]);
  }
  Shape shape(static_cast<std::size_t>(rank), 1);
  shape[static_cast<std::size_t>(axis)] = static_cast<std::int64_t>(values.size());
  return constant_real(b, type, values, shape);
}

NodeId resize_axis(Builder& b, NodeId x, int axis, const Taps& taps) {
  std::optional<NodeId> sum;
  for (std::size_t t = 0; t < taps.index.size(); ++t) {
    const auto& weight = taps.weight[t];
    if (std::all_of(weight.begin(), weight.end(), [](double w) { return w == 0; })) continue;
    NodeId term = pick(b, x, axis, taps.index[t]);
    if (std::any_of(weight.begin(), weight.end(), [](double w) { return w != 1; })) {
      term = b.mul(term, along(b, b.dtype(x), b.rank(x), axis, weight));
    }
    sum = sum ? b.add(*sum, term) : term;
  }
  return sum ? *sum : b.full({b.dtype(x), b.shape(pick(b, x, axis, taps.index[0]))}, 0);
}

constexpr std::int64_t kMaxTaps = 64;

/// Real numbers as integers, to the nearest in the type's range, as onnx's reference evaluator does
/// (ONNX Runtime cuts them off).
NodeId nearest_integers(Builder& b, NodeId x, DType type) {
  const auto bound = [&](ir::Monoid fn) {
    return b.scalar(b.dtype(x), static_cast<double>(ir::identity_int(fn, type)));
  };
  x = b.map(ir::ScalarFn::round, {x});
  return b.cast(b.min(b.max(x, bound(ir::Monoid::max)), bound(ir::Monoid::min)), type);
}

Result<Values> resize_axes(const Call& call, Builder& b, const Options& o,
                           const std::vector<ResizeAxis>& axes) {
  NodeId x = call.in(0);
  const DType type = b.dtype(x);
  Shape out = b.shape(x);
  for (const ResizeAxis& a : axes) out[static_cast<std::size_t>(a.axis)] = a.out;
  out = HEDDLE_TRY(checked(call, out, type));
  if (element_count(out) == 0) return Values{b.full({type, out}, 0)};
  const bool weighted = o.mode != Interpolation::nearest;
  if (weighted && type == DType::b1) return call.error("input 0 has type b1, want numbers");
  // Integers as real numbers that hold them.
  if (weighted && !is_float(type)) x = b.cast(x, size_of(type) > 2 ? DType::f64 : DType::f32);
  std::optional<NodeId> outside;
  for (const ResizeAxis& a : axes) {
    if (a.in == 0) return call.error("axis {} of input 0 is empty", a.axis);
    if (a.out > kMaxTableElements)
      return call.error("extent {} is above {}", a.out, kMaxTableElements);
    const bool crops = o.coordinates == Coordinates::tf_crop_and_resize;
    if (a.in == a.out && a.scale == 1 && !crops) continue;
    if (o.antialias && weighted && a.scale * static_cast<double>(kMaxTaps) < 4) {
      return call.unsupported("antialias at scale {} needs more than {} taps", a.scale, kMaxTaps);
    }
    const Taps taps = make_taps(o, a);
    x = resize_axis(b, x, a.axis, taps);
    if (std::find(taps.outside.begin(), taps.outside.end(), true) == taps.outside.end()) continue;
    const std::vector<double> mask(taps.outside.begin(), taps.outside.end());
    Shape column(out.size(), 1);
    column[static_cast<std::size_t>(a.axis)] = a.out;
    const NodeId here = constant_real(b, DType::b1, mask, column);
    outside = outside ? b.map(ir::ScalarFn::logical_or, {*outside, here}) : here;
  }
  if (outside) x = b.select(*outside, b.scalar(b.dtype(x), o.extrapolation), x);
  return Values{is_float(b.dtype(x)) && !is_float(type) ? nearest_integers(b, x, type) : x};
}

/// Real numbers of a constant input, or of an attribute; empty where absent.
Result<std::vector<double>> reals(const Call& call, int i, std::string_view key) {
  std::vector<double> out;
  if (i >= 0 && call.has(i)) {
    const Tensor* t = HEDDLE_TRY(call.constant_tensor(i));
    if (t->count() > 1024) return call.error("input {} holds {} values", i, t->count());
    for (std::int64_t k = 0; k < t->count(); ++k) out.push_back(t->at(k));
  } else if (const auto it = call.attributes.find(key); it != call.attributes.end()) {
    if (const auto* v = std::get_if<std::vector<double>>(&it->second)) out = *v;
  }
  return out;
}

/// Output extent and scale; where the scale gives the extent exactly, the ratio of the integers is
/// used, so that 1/3 stored as f32 still divides evenly.
Status set_scale(const Call& call, ResizeAxis& a, double scale) {
  if (!(scale > 0) || scale > 1e9) return call.error("scale is {}, want a positive number", scale);
  const double length = static_cast<double>(static_cast<float>(a.in) * static_cast<float>(scale));
  if (length > 1e12) return call.error("scale {} of extent {} is too large", scale, a.in);
  a.out = static_cast<std::int64_t>(std::floor(length));
  a.scale = scale;
  const auto m = static_cast<double>(a.out);
  if (a.in > 0 && std::fabs(m - scale * static_cast<double>(a.in)) < 1e-6 * m) {
    a.scale = m / static_cast<double>(a.in);
  }
  return Ok{};
}

/// keep_aspect_ratio_policy: one scale for all the axes, the smallest or the largest asked for.
void keep_aspect(std::vector<ResizeAxis>& axes, bool smallest) {
  double scale = smallest ? std::numeric_limits<double>::infinity() : 0;
  for (const ResizeAxis& a : axes) {
    const double wanted = static_cast<double>(a.out) / static_cast<double>(a.in);
    scale = smallest ? std::min(scale, wanted) : std::max(scale, wanted);
  }
  for (ResizeAxis& a : axes) {
    a.scale = scale;
    a.out = static_cast<std::int64_t>(std::floor(scale * static_cast<double>(a.in) + 0.5));
  }
}

Result<Options> options_of(const Call& call) {
  Options o;
  const int mode = HEDDLE_TRY(choice(call, "mode", "nearest", {"nearest", "linear", "cubic"}));
  o.mode = static_cast<Interpolation>(mode);
  o.coordinates = static_cast<Coordinates>(HEDDLE_TRY(
      choice(call, "coordinate_transformation_mode", call.opset < 11 ? "asymmetric" : "half_pixel",
             {"half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners",
              "asymmetric", "tf_half_pixel_for_nn", "tf_crop_and_resize"})));
  o.nearest = static_cast<Nearest>(
      HEDDLE_TRY(choice(call, "nearest_mode", "round_prefer_floor",
                        {"round_prefer_floor", "round_prefer_ceil", "floor", "ceil"})));
  if (call.opset < 11) o.nearest = Nearest::before_11;
  o.cubic_a = call.attribute_float("cubic_coeff_a", -0.75);
  o.extrapolation = call.attribute_float("extrapolation_value", 0);
  o.exclude_outside =
      call.attribute_int("exclude_outside", 0) != 0 && o.mode == Interpolation::cubic;
  o.antialias = call.attribute_int("antialias", 0) != 0 && o.mode != Interpolation::nearest;
  return o;
}

Result<std::vector<ResizeAxis>> axes_of(const Call& call, Builder& b) {
  const Shape in = b.shape(call.in(0));
  std::vector<std::int64_t> all(in.size());
  std::iota(all.begin(), all.end(), 0);
  std::vector<ResizeAxis> axes;
  for (const int axis : HEDDLE_TRY(
           call.normalize_axes(call.attribute_ints("axes", all), static_cast<int>(in.size())))) {
    axes.push_back({axis, at(in, axis), at(in, axis), 1, 0, 1});
  }
  return axes;
}

Status want_count(const Call& call, std::string_view what, std::size_t found, std::size_t want) {
  if (found == want) return Ok{};
  return call.error("{} {} given, want {}", found, what, want);
}

/// Inputs X, roi, scales, sizes (opset 10: X, scales).
Result<Values> resize(const Call& call, Builder& b) {
  const bool old = call.opset < 11;
  Options o = HEDDLE_TRY(options_of(call));
  std::vector<ResizeAxis> axes = HEDDLE_TRY(axes_of(call, b));
  const auto scales = HEDDLE_TRY(reals(call, old ? 1 : 2, "scales"));
  std::vector<double> sizes;
  if (!old) sizes = HEDDLE_TRY(reals(call, 3, ""));
  if (o.coordinates == Coordinates::tf_crop_and_resize) {
    const auto roi = HEDDLE_TRY(reals(call, 1, ""));
    HEDDLE_TRY(want_count(call, "roi values", roi.size(), 2 * axes.size()));
    for (std::size_t i = 0; i < axes.size(); ++i) {
      axes[i].roi_start = roi[i];
      axes[i].roi_end = roi[i + axes.size()];
    }
  }
  if (!sizes.empty()) {
    HEDDLE_TRY(want_count(call, "sizes", sizes.size(), axes.size()));
    const int policy = HEDDLE_TRY(choice(call, "keep_aspect_ratio_policy", "stretch",
                                         {"stretch", "not_larger", "not_smaller"}));
    for (std::size_t i = 0; i < axes.size(); ++i) {
      if (!(sizes[i] >= 0) || sizes[i] > 1e12) return call.error("size {} is {}", i, sizes[i]);
      axes[i].out = static_cast<std::int64_t>(sizes[i]);
      if (axes[i].in == 0 && axes[i].out > 0) {
        return call.error("axis {} of input 0 is empty", axes[i].axis);
      }
      axes[i].scale =
          axes[i].in == 0 ? 1 : static_cast<double>(axes[i].out) / static_cast<double>(axes[i].in);
    }
    if (policy != 0) keep_aspect(axes, policy == 1);
  } else {
    HEDDLE_TRY(want_count(call, "scales", scales.size(), axes.size()));
    for (std::size_t i = 0; i < axes.size(); ++i) HEDDLE_TRY(set_scale(call, axes[i], scales[i]));
  }
  return resize_axes(call, b, o, axes);
}

/// Opset 7: attribute `scales`; opset 9: input 1. Asymmetric coordinates, rounded down.
Result<Values> upsample(const Call& call, Builder& b) {
  Options o;
  o.coordinates = Coordinates::asymmetric;
  o.nearest = Nearest::before_11;
  const int mode =
      HEDDLE_TRY(choice(call, "mode", "nearest", {"nearest", "linear", "bilinear", "cubic"}));
  o.mode = mode == 0   ? Interpolation::nearest
           : mode == 3 ? Interpolation::cubic
                       : Interpolation::linear;
  std::vector<ResizeAxis> axes = HEDDLE_TRY(axes_of(call, b));
  auto scales = HEDDLE_TRY(reals(call, 1, "scales"));
  if (scales.empty() && axes.size() == 4) {  // opset 1
    scales = {1, 1, call.attribute_float("height_scale", 0),
              call.attribute_float("width_scale", 0)};
  }
  HEDDLE_TRY(want_count(call, "scales", scales.size(), axes.size()));
  for (std::size_t i = 0; i < axes.size(); ++i) HEDDLE_TRY(set_scale(call, axes[i], scales[i]));
  return resize_axes(call, b, o, axes);
}

constexpr OpDef kResizeOps[] = {
    {"Upsample", 1, 1, 1, upsample},
    {"Upsample", 9, 2, 2, upsample},
    {"Resize", 10, 2, 2, resize},
    {"Resize", 11, 1, 4, resize},
};

}  // namespace

std::span<const OpDef> resize_ops() { return kResizeOps; }

}  // namespace heddle::ops

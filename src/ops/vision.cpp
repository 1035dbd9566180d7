#include <algorithm>

#include "ops/families.h"
#include "ops/util.h"

/// Sampling at computed positions, and the inverses of pooling and im2col.
namespace heddle::ops {
namespace {

using ir::ScalarFn;

enum class Outside { zeros, border, reflection };

/// One neighbour of a sampling position along one axis: where, how much, and whether it counts.
struct Tap {
  NodeId index;   ///< i64, inside the axis
  NodeId weight;  ///< 0 where the neighbour lies outside and counts as zero
};

/// An integer position (as i64) that may be outside [0, extent), brought inside.
NodeId bring_inside(Builder& b, NodeId i, std::int64_t extent, Outside outside, bool align) {
  const auto whole = [&](std::int64_t v) { return b.scalar_int(DType::i64, v); };
  if (outside == Outside::reflection && extent > 1) {
    // Mirrored about the centres (align) or the outer edges of the first and last element.
    const std::int64_t period = align ? 2 * (extent - 1) : 2 * extent;
    i = b.map(ScalarFn::floor_mod, {i, whole(period)});
    i = b.min(i, b.sub(whole(align ? period : period - 1), i));
  }
  return b.min(b.max(i, whole(0)), whole(extent - 1));
}

Tap make_tap(Builder& b, NodeId position, NodeId weight, std::int64_t extent, Outside outside,
             bool align) {
  if (outside == Outside::zeros) {
    const NodeId in =
        b.map(ScalarFn::logical_and,
              {b.map(ScalarFn::greater_equal, {position, b.scalar(b.dtype(position), 0)}),
               b.map(ScalarFn::less_equal,
                     {position, b.scalar(b.dtype(position), static_cast<double>(extent - 1))})});
    weight = b.mul(weight, b.cast(in, b.dtype(weight)));
  }
  return {bring_inside(b, b.cast(position, DType::i64), extent, outside, align), weight};
}

/// Keys' cubic kernel with parameter a, for neighbours -1, 0, 1, 2 of a position t past neighbour
/// 0.
NodeId cubic_weight(Builder& b, NodeId t, int neighbour, double a) {
  const NodeId d = b.map(ScalarFn::abs, {b.sub(t, static_cast<double>(neighbour))});
  if (neighbour == 0 || neighbour == 1) {  // ((a+2)d - (a+3))d² + 1
    return b.add(b.mul(b.mul(b.sub(b.mul(d, a + 2), a + 3), d), d), 1.0);
  }
  // ((a d - 5a)d + 8a)d - 4a
  return b.sub(b.mul(b.add(b.mul(b.sub(b.mul(d, a), 5 * a), d), 8 * a), d), 4 * a);
}

enum class Sampling { linear, nearest, cubic };

/// x, `otherwise` where it is NaN, brought so near that an integer holds it.
NodeId finite(Builder& b, NodeId x, double otherwise) {
  const double most = b.dtype(x) == DType::f16 ? 65504 : 0x1p30;
  const auto bound = [&](double v) { return b.scalar(b.dtype(x), v); };
  x = b.select(b.map(ScalarFn::isnan, {x}), bound(otherwise), x);
  return b.min(b.max(x, bound(-most)), bound(most));
}

/// The neighbours of position x (element coordinates; NaN is outside) along an axis.
std::vector<Tap> taps(Builder& b, NodeId x, std::int64_t extent, Sampling mode, Outside outside,
                      bool align) {
  x = finite(b, x, -2);
  const NodeId one = b.full(b.type(x), 1);
  if (mode == Sampling::nearest) {
    return {make_tap(b, b.map(ScalarFn::round, {x}), one, extent, outside, align)};
  }
  const NodeId low = b.map(ScalarFn::floor, {x});
  const NodeId t = b.sub(x, low);
  if (mode == Sampling::linear) {
    return {make_tap(b, low, b.sub(one, t), extent, outside, align),
            make_tap(b, b.add(low, 1.0), t, extent, outside, align)};
  }
  std::vector<Tap> out;
  for (int k = -1; k <= 2; ++k) {
    out.push_back(make_tap(b, b.add(low, static_cast<double>(k)), cubic_weight(b, t, k, -0.75),
                           extent, outside, align));
  }
  return out;
}

/// A value per output position [N, out…] spread over channels: [N, C, out…].
NodeId over_channels(Builder& b, NodeId x, const Shape& out) {
  return b.broadcast(b.unsqueeze(x, {1}), out);
}

/// Σ over all combinations of one tap per axis of weight · data[n, c, taps].
NodeId weighted_sum(Builder& b, NodeId data, const std::vector<std::vector<Tap>>& axes,
                    const Shape& out) {
  const int spatial = static_cast<int>(axes.size());
  prim::Gather g;
  g.base = {dim(0), dim(1)};
  std::size_t combinations = 1;
  for (int d = 0; d < spatial; ++d) {
    g.axes.push_back(2 + d);
    g.base.emplace_back(0);
    combinations *= axes[static_cast<std::size_t>(d)].size();
  }
  std::optional<NodeId> sum;
  for (std::size_t c = 0; c < combinations; ++c) {
    std::vector<NodeId> index;
    std::optional<NodeId> weight;
    std::size_t rest = c;
    for (const std::vector<Tap>& axis : axes) {
      const Tap& tap = axis[rest % axis.size()];
      rest /= axis.size();
      index.push_back(over_channels(b, tap.index, out));
      weight = weight ? b.mul(*weight, tap.weight) : tap.weight;
    }
    const NodeId value = b.gather(data, index, g, out);
    const NodeId term = b.mul(value, over_channels(b, *weight, out));
    sum = sum ? b.add(*sum, term) : term;
  }
  return *sum;
}

/// Samples X [N, C, in…] at grid [N, out…, r] of coordinates in [-1, 1], the last axis first. NaN
/// is -1, as in ONNX Runtime.
Result<Values> grid_sample(const Call& call, Builder& b) {
  HEDDLE_TRY(want_rank(call, b, 0, 4, 5));
  HEDDLE_TRY(want_float(call, b, 0));
  HEDDLE_TRY(want_float(call, b, 1));
  const Shape in = b.shape(call.in(0)), grid = b.shape(call.in(1));
  const int rank = static_cast<int>(in.size()), spatial = rank - 2;
  if (grid.size() != in.size() || grid.back() != spatial || grid[0] != in[0]) {
    return call.error("grid has shape {}, want [{},*,{}] of rank {}", to_string(grid), in[0],
                      spatial, rank);
  }
  const int named = HEDDLE_TRY(choice(call, "mode", call.opset >= 20 ? "linear" : "bilinear",
                                      {"bilinear", "nearest", "bicubic", "linear", "cubic"}));
  const Sampling mode = named == 1       ? Sampling::nearest
                        : named % 3 == 0 ? Sampling::linear
                                         : Sampling::cubic;
  const auto outside = static_cast<Outside>(
      HEDDLE_TRY(choice(call, "padding_mode", "zeros", {"zeros", "border", "reflection"})));
  const bool align = call.attribute_int("align_corners", 0) != 0;
  Shape out{in[0], in[1]};
  out.insert(out.end(), grid.begin() + 1, grid.end() - 1);
  out = HEDDLE_TRY(checked(call, out, b.dtype(call.in(0))));
  if (element_count(out) == 0) return Values{b.full({b.dtype(call.in(0)), out}, 0)};
  if (element_count(in) == 0)
    return call.error("input 0 has shape {}: nothing to sample", to_string(in));
  const NodeId coordinates = b.cast(call.in(1), b.dtype(call.in(0)));
  std::vector<std::vector<Tap>> axes;
  for (int d = 0; d < spatial; ++d) {
    const auto extent = static_cast<double>(at(in, 2 + d));
    NodeId x = b.slice_axis(coordinates, rank - 1, spatial - 1 - d, 1);
    x = b.squeeze(x, {rank - 1});
    x = b.select(b.map(ScalarFn::isnan, {x}), b.scalar(b.dtype(x), -1), x);
    x = align ? b.mul(b.add(x, 1.0), (extent - 1) / 2)
              : b.mul(b.sub(b.mul(b.add(x, 1.0), extent), 1.0), 0.5);
    axes.push_back(taps(b, x, at(in, 2 + d), mode, outside, align));
  }
  return Values{weighted_sum(b, call.in(0), axes, out)};
}

/// Values back at the flat positions they were pooled from; zero elsewhere.
Result<Values> max_unpool(const Call& call, Builder& b) {
  HEDDLE_TRY(want_rank(call, b, 0, 3, 8));
  HEDDLE_TRY(want_int(call, b, 1));
  const NodeId x = call.in(0);
  const Shape in = b.shape(x);
  HEDDLE_TRY(want_shape(call, b, 1, in));
  const std::size_t spatial = in.size() - 2;
  const auto kernel = call.attribute_ints("kernel_shape", {});
  const auto strides = call.attribute_ints("strides", std::vector<std::int64_t>(spatial, 1));
  const auto pads = call.attribute_ints("pads", std::vector<std::int64_t>(2 * spatial, 0));
  if (kernel.size() != spatial || strides.size() != spatial || pads.size() != 2 * spatial) {
    return call.error("kernel_shape {}, strides {}, pads {} do not fit input {}", to_string(kernel),
                      to_string(strides), to_string(pads), to_string(in));
  }
  Shape full{in[0], in[1]};
  for (std::size_t d = 0; d < spatial; ++d) {
    constexpr std::int64_t kLimit = std::int64_t{1} << 20;
    if (strides[d] < 1 || strides[d] > kLimit || kernel[d] < 1 || kernel[d] > kLimit ||
        std::abs(pads[d]) > kLimit || std::abs(pads[d + spatial]) > kLimit || in[d + 2] > kLimit) {
      return call.error("kernel_shape {}, strides {} are out of range", to_string(kernel),
                        to_string(strides));
    }
    full.push_back((in[d + 2] - 1) * strides[d] - pads[d] - pads[d + spatial] + kernel[d]);
  }
  full = HEDDLE_TRY(checked(call, full, b.dtype(x)));
  const std::int64_t total = element_count(full), count = element_count(in);
  Shape wanted = full;
  if (call.has(2)) wanted = HEDDLE_TRY(call.constant_ints(2));
  if (wanted.size() != full.size()) {
    return call.error("output_shape is {}, want rank {}", to_string(wanted), full.size());
  }
  HEDDLE_TRY(checked(call, wanted, b.dtype(x)));
  NodeId out = b.full({b.dtype(x), {total}}, 0);
  if (count > 0 && total > 0) {
    const NodeId index = b.reshape(b.cast(call.in(1), DType::i64), {count});
    const prim::Scatter s{{0}, {ir::Expr(0)}, prim::Scatter::Combine::assign};
    out = b.scatter(out, b.reshape(x, {count}), {index}, s);
  }
  out = b.reshape(out, full);
  // A larger output_shape is filled up at the end of each axis, a smaller one cut there.
  Shape kept = full, after(full.size(), 0);
  for (std::size_t d = 0; d < full.size(); ++d) {
    kept[d] = std::min(full[d], wanted[d]);
    after[d] = wanted[d] - kept[d];
  }
  if (kept != full) out = b.slice(out, Shape(full.size(), 0), kept, Shape(full.size(), 1));
  if (wanted != kept) out = b.pad(out, Shape(full.size(), 0), after, 0);
  return Values{out};
}

struct Col2Im {
  Shape image, block, dilations, pads, strides, blocks;  ///< blocks: positions per axis
};
Result<Col2Im> col2im_parameters(const Call& call) {
  Col2Im p;
  p.image = HEDDLE_TRY(call.constant_ints(1));
  p.block = HEDDLE_TRY(call.constant_ints(2));
  const std::size_t n = p.image.size();
  p.dilations = call.attribute_ints("dilations", Shape(n, 1));
  p.strides = call.attribute_ints("strides", Shape(n, 1));
  p.pads = call.attribute_ints("pads", Shape(2 * n, 0));
  if (n < 1 || n > 8 || p.block.size() != n || p.dilations.size() != n || p.strides.size() != n ||
      p.pads.size() != 2 * n) {
    return call.error(
        "image_shape {}, block_shape {}, dilations {}, strides {}, pads {} differ in "
        "rank",
        to_string(p.image), to_string(p.block), to_string(p.dilations), to_string(p.strides),
        to_string(p.pads));
  }
  for (std::size_t d = 0; d < n; ++d) {
    constexpr std::int64_t kLimit = std::int64_t{1} << 24;
    for (const std::int64_t v : {p.image[d], p.block[d], p.dilations[d], p.strides[d]}) {
      if (v < 1 || v > kLimit) return call.error("an extent, dilation or stride is {}", v);
    }
    if (p.pads[d] < 0 || p.pads[d] > kLimit || p.pads[d + n] < 0 || p.pads[d + n] > kLimit) {
      return call.error("pads are {}, want small numbers >= 0", to_string(p.pads));
    }
    const std::int64_t span = p.image[d] + p.pads[d] + p.pads[d + n];
    const std::int64_t reach = p.dilations[d] * (p.block[d] - 1) + 1;
    if (reach > span) return call.error("block {} is larger than the padded image", p.block[d]);
    p.blocks.push_back((span - reach) / p.strides[d] + 1);
  }
  return p;
}

/// out[n,c,i] = Σ_k cols[n, c, k, l] with l·stride + k·dilation = i + pad: a view, then a sum.
Result<Values> col2im(const Call& call, Builder& b) {
  HEDDLE_TRY(want_rank(call, b, 0, 3, 3));
  HEDDLE_TRY(want_number(call, b, 0));
  const Col2Im p = HEDDLE_TRY(col2im_parameters(call));
  const int n = static_cast<int>(p.image.size());
  const Shape in = b.shape(call.in(0));
  const std::int64_t taps = checked_product(p.block, 0, n).value_or(0);
  const auto places = checked_product(p.blocks, 0, n);
  if (taps == 0 || !places || in[1] % taps != 0 || in[2] != *places) {
    return call.error("input 0 has shape {}, want [*, channels · {}, {}]", to_string(in), taps,
                      places.value_or(-1));
  }
  Shape split{in[0], in[1] / taps}, space = split;
  for (const Shape& part : {p.block, p.blocks}) split.insert(split.end(), part.begin(), part.end());
  for (const Shape& part : {p.image, p.block}) space.insert(space.end(), part.begin(), part.end());
  HEDDLE_TRY(checked(call, space, b.dtype(call.in(0))));
  Access access{dims(2), {}};
  std::vector<ir::Expr> place;
  std::vector<int> summed;
  for (int d = 0; d < n; ++d) {
    const ir::Expr k = dim(2 + n + d);
    const ir::Expr reach = dim(2 + d) + ir::Expr(at(p.pads, d)) - k * ir::Expr(at(p.dilations, d));
    access.index.push_back(k);
    place.push_back(ir::floor_div(reach, at(p.strides, d)));
    access.inside.push_back({ir::floor_mod(reach, at(p.strides, d)), 0, 1});
    access.inside.push_back({place.back(), 0, at(p.blocks, d)});
    summed.push_back(2 + n + d);
  }
  access.index.insert(access.index.end(), place.begin(), place.end());
  if (element_count(space) == 0) {
    space.resize(static_cast<std::size_t>(2 + n));
    return Values{b.full({b.dtype(call.in(0)), space}, 0)};
  }
  const NodeId windows = b.view(b.reshape(call.in(0), split), space, access);
  return Values{b.reduce_sum(windows, summed, false)};
}

/// theta [N, r, r+1] applied to a regular grid of `size` over [-1, 1].
Result<Values> affine_grid(const Call& call, Builder& b) {
  HEDDLE_TRY(want_rank(call, b, 0, 3, 3));
  HEDDLE_TRY(want_float(call, b, 0));
  const Shape size = HEDDLE_TRY(call.constant_ints(1));
  const std::int64_t r = static_cast<std::int64_t>(size.size()) - 2;
  if (r < 2 || r > 3) return call.error("size is {}, want rank 4 or 5", to_string(size));
  HEDDLE_TRY(want_shape(call, b, 0, {size[0], r, r + 1}));
  const bool align = call.attribute_int("align_corners", 0) != 0;
  const Shape space(size.begin() + 2, size.end());
  const auto points = checked_product(space, 0, static_cast<int>(r));
  if (!points || *points > kMaxTableElements) {
    return call.error("size is {}, want at most {} positions", to_string(size), kMaxTableElements);
  }
  std::vector<double> base;
  for (std::int64_t i = 0; i < *points; ++i) {
    std::vector<double> row(static_cast<std::size_t>(r) + 1, 1.0);
    std::int64_t rest = i;
    for (std::int64_t d = r - 1; d >= 0; --d) {
      const std::int64_t n = space[static_cast<std::size_t>(d)];
      const auto p = static_cast<double>(rest % n);
      rest /= n;
      const auto extent = static_cast<double>(n);
      row[static_cast<std::size_t>(r - 1 - d)] = !align   ? (2 * p + 1) / extent - 1
                                                 : n == 1 ? 0.0
                                                          : 2 * p / (extent - 1) - 1;
    }
    base.insert(base.end(), row.begin(), row.end());
  }
  const NodeId grid = constant_real(b, b.dtype(call.in(0)), base, {*points, r + 1});
  Shape out{size[0]};
  out.insert(out.end(), space.begin(), space.end());
  out.push_back(r);
  out = HEDDLE_TRY(checked(call, out, b.dtype(call.in(0))));
  if (element_count(out) == 0) return Values{b.full({b.dtype(call.in(0)), out}, 0)};
  return Values{b.reshape(b.matmul(grid, b.transpose(call.in(0), {0, 2, 1})), out)};
}

/// Convolution whose kernel positions are moved by data: offset [N, groups · kernel · 2, out…]
/// (row, column), each sample weighted by mask. Samples are gathered bilinearly, then contracted
/// with W.
struct Deform {
  std::int64_t n = 0, c = 0, o = 0, offset_groups = 1;
  Shape kernel, out, strides, dilations, pads;
};
Result<Deform> deform_parameters(const Call& call, Builder& b) {
  for (int i = 0; i < 3; ++i) {
    HEDDLE_TRY(want_rank(call, b, i, 4, 4));
    HEDDLE_TRY(want_type(call, b, i, b.dtype(call.in(0))));
  }
  HEDDLE_TRY(want_float(call, b, 0));
  const Shape x = b.shape(call.in(0)), w = b.shape(call.in(1));
  const std::int64_t groups = call.attribute_int("group", 1);
  Deform p{x[0], x[1], w[0], call.attribute_int("offset_group", 1), {w[2], w[3]}, {}, {}, {}, {}};
  p.strides = call.attribute_ints("strides", {1, 1});
  p.dilations = call.attribute_ints("dilations", {1, 1});
  p.pads = call.attribute_ints("pads", {0, 0, 0, 0});
  if (p.strides.size() != 2 || p.dilations.size() != 2 || p.pads.size() != 4 || groups < 1 ||
      p.offset_groups < 1 || x[1] < 1 || w[0] < 1 || x[1] % p.offset_groups != 0 ||
      x[1] % groups != 0 || w[0] % groups != 0 || w[1] != x[1] / groups) {
    return call.error("input {} and weights {} in {} groups, {} of offsets, do not fit",
                      to_string(x), to_string(w), groups, p.offset_groups);
  }
  for (std::size_t d = 0; d < 2; ++d) {
    constexpr std::int64_t kLimit = 1 << 20;
    for (const std::int64_t v : {p.strides[d], p.dilations[d], p.kernel[d], x[2 + d]}) {
      if (v < 1 || v > kLimit) return call.error("an extent, stride or dilation is {}", v);
    }
    if (std::abs(p.pads[d]) > kLimit || std::abs(p.pads[d + 2]) > kLimit) {
      return call.error("pads are {}", to_string(p.pads));
    }
    const std::int64_t span = x[2 + d] + p.pads[d] + p.pads[d + 2];
    const std::int64_t reach = p.dilations[d] * (p.kernel[d] - 1) + 1;
    if (reach > span) return call.error("kernel {} is larger than the padded input", p.kernel[d]);
    p.out.push_back((span - reach) / p.strides[d] + 1);
  }
  const std::int64_t taps = p.kernel[0] * p.kernel[1];
  HEDDLE_TRY(want_shape(call, b, 2, {p.n, p.offset_groups * taps * 2, p.out[0], p.out[1]}));
  if (call.has(3)) {
    HEDDLE_TRY(want_shape(call, b, 3, {p.o}));
    HEDDLE_TRY(want_type(call, b, 3, b.dtype(call.in(0))));
  }
  if (call.has(4)) {
    HEDDLE_TRY(want_shape(call, b, 4, {p.n, p.offset_groups * taps, p.out[0], p.out[1]}));
    HEDDLE_TRY(want_type(call, b, 4, b.dtype(call.in(0))));
  }
  return p;
}

/// Sampling positions along axis d: [N, offset groups, taps, out…].
NodeId deformed_positions(const Call& call, Builder& b, const Deform& p, int d) {
  const DType type = b.dtype(call.in(0));
  const std::int64_t kh = p.kernel[0], kw = p.kernel[1];
  const NodeId offsets = b.slice_axis(
      b.reshape(call.in(2), {p.n, p.offset_groups, kh * kw, 2, p.out[0], p.out[1]}), 3, d, 1);
  const NodeId place = b.iota({type, {p.out[0], p.out[1]}}, d);
  const NodeId tap = b.reshape(b.iota({type, {kh, kw}}, d), {kh * kw, 1, 1});
  const NodeId regular = b.add(b.add(b.mul(place, static_cast<double>(at(p.strides, d))),
                                     b.mul(tap, static_cast<double>(at(p.dilations, d)))),
                               -static_cast<double>(at(p.pads, d)));
  return b.add(b.squeeze(offsets, {3}), regular);
}

Result<Values> deform_conv(const Call& call, Builder& b) {
  const Deform p = HEDDLE_TRY(deform_parameters(call, b));
  const DType type = b.dtype(call.in(0));
  const std::int64_t taps_count = p.kernel[0] * p.kernel[1];
  const Shape space = HEDDLE_TRY(checked(call, {p.n, p.c, taps_count, p.out[0], p.out[1]}, type));
  if (p.n == 0) return Values{b.full({type, {0, p.o, p.out[0], p.out[1]}}, 0)};
  const Shape in = b.shape(call.in(0));
  const auto rows =
      taps(b, deformed_positions(call, b, p, 0), in[2], Sampling::linear, Outside::zeros, false);
  const auto columns =
      taps(b, deformed_positions(call, b, p, 1), in[3], Sampling::linear, Outside::zeros, false);
  const ir::Expr group = ir::floor_div(dim(1), p.c / p.offset_groups);
  const auto spread = [&](NodeId v) {
    return b.view(v, space, {{dim(0), group, dim(2), dim(3), dim(4)}, {}});
  };
  const prim::Gather g{{2, 3}, {dim(0), dim(1), ir::Expr(0), ir::Expr(0)}};
  std::optional<NodeId> samples;
  for (const Tap& row : rows) {
    for (const Tap& column : columns) {
      const NodeId value =
          b.gather(call.in(0), {spread(row.index), spread(column.index)}, g, space);
      const NodeId term = b.mul(value, spread(b.mul(row.weight, column.weight)));
      samples = samples ? b.add(*samples, term) : term;
    }
  }
  if (call.has(4)) {
    const Shape masks{p.n, p.offset_groups, taps_count, p.out[0], p.out[1]};
    samples = b.mul(*samples, spread(b.reshape(call.in(4), masks)));
  }
  const Shape w = b.shape(call.in(1));
  const std::int64_t per_group = p.o / (p.c / w[1]);
  const NodeId weights = b.reshape(call.in(1), {w[0], w[1], taps_count});
  const ir::Expr channel = ir::floor_div(dim(1), per_group) * ir::Expr(w[1]) + dim(4);
  NodeId y = b.contract(*samples, weights, {p.n, p.o, p.out[0], p.out[1]}, {w[1], taps_count},
                        {{dim(0), channel, dim(5), dim(2), dim(3)}, {}},
                        {{dim(1), dim(4), dim(5)}, {}}, type);
  if (call.has(3)) y = b.add(y, b.reshape(call.in(3), {p.o, 1, 1}));
  return Values{y};
}

/// ONNX 1.2's: `border` is left, top, right, bottom; with `scale` (height, width) of what is left,
/// the last two do not count.
Result<Values> crop(const Call& call, Builder& b) {
  HEDDLE_TRY(want_rank(call, b, 0, 4, 4));
  const Shape in = b.shape(call.in(0));
  const Shape border = call.attribute_ints("border", {}), size = call.attribute_ints("scale", {});
  if (border.size() != 4 || (!size.empty() && size.size() != 2))
    return call.error("border is {} and scale {}, want four numbers, and none or two",
                      to_string(border), to_string(size));
  Shape start{0, 0, border[1], border[0]}, kept = in;
  for (std::size_t d = 2; d < 4; ++d) {
    const std::int64_t from = start[d], after = border[5 - d];
    if (from < 0 || from > in[d] || after < 0 || after > in[d])
      return call.error("border is {}, input 0 has shape {}", to_string(border), to_string(in));
    kept[d] = size.empty() ? in[d] - from - after : size[d - 2];
    if (kept[d] < 0 || kept[d] > in[d] - from)
      return call.error("border is {} and scale {}, input 0 has shape {}", to_string(border),
                        to_string(size), to_string(in));
  }
  if (element_count(kept) == 0) return Values{b.full({b.dtype(call.in(0)), kept}, 0)};
  return Values{b.slice(call.in(0), start, kept, {1, 1, 1, 1})};
}

/// ONNX 1.2's: scale·x + bias of the channel.
Result<Values> image_scaler(const Call& call, Builder& b) {
  HEDDLE_TRY(want_rank(call, b, 0, 4, 4));
  HEDDLE_TRY(want_float(call, b, 0));
  const NodeId x = call.in(0);
  const std::int64_t channels = b.shape(x)[1];
  const auto found = call.attributes.find("bias");
  const auto* bias =
      found == call.attributes.end() ? nullptr : std::get_if<std::vector<double>>(&found->second);
  if (bias == nullptr || static_cast<std::int64_t>(bias->size()) != channels)
    return call.error("bias has {} values for {} channels", bias == nullptr ? 0 : bias->size(),
                      channels);
  const NodeId scaled = b.mul(x, call.attribute_float("scale", 1));
  if (channels == 0) return Values{scaled};
  return Values{b.add(scaled, constant_real(b, b.dtype(x), *bias, {channels, 1, 1}))};
}

constexpr OpDef kVisionOps[] = {
    {"DeformConv", 19, 3, 5, deform_conv},  {"GridSample", 16, 2, 2, grid_sample},
    {"MaxUnpool", 9, 2, 3, max_unpool},     {"Col2Im", 18, 3, 3, col2im},
    {"AffineGrid", 20, 2, 2, affine_grid},  {"Crop", 1, 1, 1, crop},
    {"ImageScaler", 1, 1, 1, image_scaler}, {"com.microsoft::GridSample", 1, 2, 2, grid_sample},
};

}  // namespace

std::span<const OpDef> vision_ops() { return kVisionOps; }

}  // namespace heddle::ops

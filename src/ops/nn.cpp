#include <algorithm>
#include <numeric>

#include "ops/families.h"
#include "ops/util.h"

/// Convolution, pooling and normalisation over [N, C, spatial…].
namespace heddle::ops {
namespace {

using ir::Monoid;
using ir::ScalarFn;
using Conv = Builder::Conv;

/// Windows along the spatial dimensions: kernel, strides, dilations, pads and output extents.
struct Window {
  Shape kernel, out;
  Conv conv;
};

/// Attribute with one positive entry per spatial dimension.
Result<std::vector<std::int64_t>> spatial_attribute(const Call& call, std::string_view key,
                                                    int dims, std::int64_t otherwise) {
  auto values = call.attribute_ints(
      key, std::vector<std::int64_t>(static_cast<std::size_t>(dims), otherwise));
  if (static_cast<int>(values.size()) != dims)
    return call.error("{} has {} entries, want {}", key, values.size(), dims);
  for (std::int64_t v : values)
    if (v < 1 || v > (1 << 30)) return call.error("{} holds {}, want positive", key, v);
  return values;
}

/// Explicit pads, or those that auto_pad asks for (SAME_*: output = ceil(input / stride)).
Status resolve_pads(const Call& call, const Shape& in, Window& w) {
  const std::size_t dims = in.size();
  const int mode = HEDDLE_TRY(
      choice(call, "auto_pad", "NOTSET", {"NOTSET", "", "VALID", "SAME_UPPER", "SAME_LOWER"}));
  const auto pads = call.attribute_ints("pads", std::vector<std::int64_t>(2 * dims, 0));
  if (pads.size() != 2 * dims)
    return call.error("pads has {} entries, want {}", pads.size(), 2 * dims);
  for (std::int64_t p : pads)
    if (p < -(1 << 30) || p > (1 << 30)) return call.error("pads holds {}", p);
  w.conv.pads_begin.assign(pads.begin(), pads.begin() + static_cast<std::ptrdiff_t>(dims));
  w.conv.pads_end.assign(pads.begin() + static_cast<std::ptrdiff_t>(dims), pads.end());
  if (mode == 2) w.conv.pads_begin = w.conv.pads_end = std::vector<std::int64_t>(dims, 0);
  for (std::size_t d = 0; d < dims && mode >= 3; ++d) {
    const std::int64_t out = (in[d] + w.conv.strides[d] - 1) / w.conv.strides[d];
    const std::int64_t span = (w.kernel[d] - 1) * w.conv.dilations[d] + 1;
    const std::int64_t total =
        std::max<std::int64_t>(0, (out - 1) * w.conv.strides[d] + span - in[d]);
    const std::int64_t small = total / 2, large = total - small;
    w.conv.pads_begin[d] = mode == 3 ? small : large;
    w.conv.pads_end[d] = mode == 3 ? large : small;
  }
  return Ok{};
}

/// Output extents; with ceil_mode a last window may hang over the end, but must start inside.
Status resolve_out(const Call& call, const Shape& in, Window& w, bool ceil) {
  w.out.clear();
  for (std::size_t d = 0; d < in.size(); ++d) {
    const std::int64_t span = (w.kernel[d] - 1) * w.conv.dilations[d] + 1;
    const std::int64_t room = in[d] + w.conv.pads_begin[d] + w.conv.pads_end[d] - span;
    if (room < 0)
      return call.error("a window of {} does not fit dimension {} of extent {}", span, d, in[d]);
    std::int64_t out = (ceil ? room + w.conv.strides[d] - 1 : room) / w.conv.strides[d] + 1;
    if (ceil && (out - 1) * w.conv.strides[d] >= in[d] + w.conv.pads_begin[d]) --out;
    w.out.push_back(out);
  }
  return Ok{};
}

Result<Window> window_of(const Call& call, const Shape& in, Shape kernel, bool ceil) {
  const int dims = static_cast<int>(in.size());
  Window w;
  w.kernel = std::move(kernel);
  for (std::int64_t k : w.kernel)
    if (k < 1 || k > (1 << 20)) return call.error("the kernel has extent {}", k);
  w.conv.strides = HEDDLE_TRY(spatial_attribute(call, "strides", dims, 1));
  w.conv.dilations = HEDDLE_TRY(spatial_attribute(call, "dilations", dims, 1));
  HEDDLE_TRY(resolve_pads(call, in, w));
  HEDDLE_TRY(resolve_out(call, in, w, ceil));
  return w;
}

Shape spatial(const Shape& shape) { return {shape.begin() + 2, shape.end()}; }
/// A per-channel vector [C] against [N, C, spatial…].
NodeId per_channel(Builder& b, NodeId v, int rank) {
  Shape shape(static_cast<std::size_t>(rank), 1);
  shape[1] = element_count(b.shape(v));
  return b.reshape(v, shape);
}
Status want_channels(const Call& call, Builder& b, int i, std::int64_t channels) {
  if (b.shape(call.in(i)) != Shape{channels})
    return call.error("input {} has shape {}, want [{}]", i, to_string(b.shape(call.in(i))),
                      channels);
  return Ok{};
}
Status want_like(const Call& call, Builder& b, int i) {
  if (b.dtype(call.in(i)) != b.dtype(call.in(0)))
    return call.error("input {} is {}, want {}", i, name_of(b.dtype(call.in(i))),
                      name_of(b.dtype(call.in(0))));
  return Ok{};
}

Result<Values> conv(const Call& call, Builder& b) {
  HEDDLE_TRY(want_number(call, b, 0));
  HEDDLE_TRY(want_like(call, b, 1));
  HEDDLE_TRY(want_rank(call, b, 0, 3, 8));
  const Shape x = b.shape(call.in(0)), w = b.shape(call.in(1));
  if (w.size() != x.size()) return call.error("input 1 has rank {}, want {}", w.size(), x.size());
  const std::int64_t groups = call.attribute_int("group", 1);
  if (groups < 1 || w[0] % groups != 0 || w[0] == 0 || x[1] != w[1] * groups)
    return call.error("{} groups, input has shape {}, weights {}", groups, to_string(x),
                      to_string(w));
  const auto kernel = call.attribute_ints("kernel_shape", spatial(w));
  if (kernel != spatial(w))
    return call.error("kernel_shape differs from the weights' shape {}", to_string(w));
  Window window = HEDDLE_TRY(window_of(call, spatial(x), kernel, false));
  window.conv.groups = groups;
  NodeId y = b.conv(call.in(0), call.in(1), window.conv);
  if (call.has(2)) {
    HEDDLE_TRY(want_channels(call, b, 2, w[0]));
    HEDDLE_TRY(want_like(call, b, 2));
    y = b.add(y, per_channel(b, call.in(2), b.rank(y)));
  }
  return Values{y};
}

/// Output extents of a transposed convolution, and the pads that give them.
Result<Window> transposed_window(const Call& call, const Shape& in, const Shape& kernel) {
  const int dims = static_cast<int>(in.size());
  Window w;
  w.kernel = kernel;
  w.conv.strides = HEDDLE_TRY(spatial_attribute(call, "strides", dims, 1));
  w.conv.dilations = HEDDLE_TRY(spatial_attribute(call, "dilations", dims, 1));
  const std::size_t n = in.size();
  const auto extra = call.attribute_ints("output_padding", std::vector<std::int64_t>(n, 0));
  const auto wanted = call.attribute_ints("output_shape", {});
  const auto pads = call.attribute_ints("pads", std::vector<std::int64_t>(2 * n, 0));
  const int mode = HEDDLE_TRY(
      choice(call, "auto_pad", "NOTSET", {"NOTSET", "", "VALID", "SAME_UPPER", "SAME_LOWER"}));
  // Some files give output_shape with batch and channels.
  const std::size_t skip = wanted.size() == n + 2 ? 2 : 0;
  if (extra.size() != n || pads.size() != 2 * n || (!wanted.empty() && wanted.size() != n + skip))
    return call.error(
        "output_padding, pads or output_shape do not have one entry per spatial dimension");
  for (std::size_t d = 0; d < n; ++d) {
    const std::int64_t full =
        (in[d] - 1) * w.conv.strides[d] + extra[d] + (kernel[d] - 1) * w.conv.dilations[d] + 1;
    std::int64_t begin = pads[d], end = pads[n + d];
    if (mode == 2) begin = end = 0;
    if (!wanted.empty() || mode >= 3) {
      const std::int64_t total =
          full - (wanted.empty() ? in[d] * w.conv.strides[d] : wanted[d + skip]);
      // Of an odd total SAME_UPPER crops more at the end, everything else at the beginning.
      begin = mode == 3 ? total / 2 : total - total / 2;
      end = total - begin;
    }
    if (full - begin - end < 1)
      return call.error("dimension {} would have extent {}", d, full - begin - end);
    w.conv.pads_begin.push_back(begin);
    w.conv.pads_end.push_back(end);
    w.out.push_back(full - begin - end);
  }
  return w;
}

Result<Values> conv_transpose(const Call& call, Builder& b) {
  HEDDLE_TRY(want_float(call, b, 0));
  HEDDLE_TRY(want_like(call, b, 1));
  HEDDLE_TRY(want_rank(call, b, 0, 3, 8));
  const Shape x = b.shape(call.in(0)), w = b.shape(call.in(1));
  const std::int64_t groups = call.attribute_int("group", 1);
  if (w.size() != x.size() || groups < 1 || x[1] != w[0] || w[0] % groups != 0)
    return call.error("{} groups, input has shape {}, weights {}", groups, to_string(x),
                      to_string(w));
  Window window = HEDDLE_TRY(transposed_window(call, spatial(x), spatial(w)));
  window.conv.groups = groups;
  Shape out{x[0], w[1] * groups};
  out.insert(out.end(), window.out.begin(), window.out.end());
  HEDDLE_TRY(checked(call, out, b.dtype(call.in(0))));
  NodeId y = b.conv_transpose(call.in(0), call.in(1), window.conv, window.out);
  if (call.has(2)) {
    HEDDLE_TRY(want_channels(call, b, 2, out[1]));
    HEDDLE_TRY(want_like(call, b, 2));
    y = b.add(y, per_channel(b, call.in(2), b.rank(y)));
  }
  return Values{y};
}

/// The windows of a pooling operator, and the axes that hold them.
struct Pool {
  Window window;
  std::vector<int> axes;
};
Result<Pool> pool_of(const Call& call, Builder& b) {
  HEDDLE_TRY(want_number(call, b, 0));
  HEDDLE_TRY(want_rank(call, b, 0, 3, 6));
  const Shape x = b.shape(call.in(0));
  const auto kernel = call.attribute_ints("kernel_shape", {});
  if (kernel.size() + 2 != x.size())
    return call.error("kernel_shape has {} entries, want {}", kernel.size(), x.size() - 2);
  Pool pool{
      HEDDLE_TRY(window_of(call, spatial(x), kernel, call.attribute_int("ceil_mode", 0) != 0)), {}};
  for (std::size_t d = 0; d < kernel.size(); ++d)
    pool.axes.push_back(static_cast<int>(x.size() + d));
  return pool;
}
NodeId pool_windows(const Call& call, Builder& b, const Pool& pool, double fill) {
  return b.windows(call.in(0), pool.window.kernel, pool.window.conv, pool.window.out, fill);
}

/// The second output: flat positions of the maxima in the input (row-major, or column-major within
/// a channel when storage_order is 1).
NodeId max_positions(const Call& call, Builder& b, const Pool& pool, NodeId windows) {
  const Shape x = b.shape(call.in(0));
  Shape flat(b.shape(windows).begin(),
             b.shape(windows).end() - static_cast<std::ptrdiff_t>(pool.axes.size()));
  flat.push_back(element_count(pool.window.kernel));
  const NodeId first = b.reduce(Monoid::argmax, b.reshape(windows, flat),
                                {static_cast<int>(flat.size()) - 1}, false);
  const TensorType type{DType::i64, b.shape(first)};
  const auto scaled = [&](NodeId v, std::int64_t k) {
    return b.mul(v, b.scalar_int(DType::i64, k));
  };
  const bool column_major = call.attribute_int("storage_order", 0) != 0;
  NodeId position = scaled(b.iota(type, 0), x[1]);
  position = b.add(position, b.iota(type, 1));
  position = scaled(position, element_count(spatial(x)));
  std::int64_t rest = element_count(pool.window.kernel);
  std::vector<std::int64_t> strides = row_major_strides(spatial(x));
  if (column_major)
    std::exclusive_scan(x.begin() + 2, x.end(), strides.begin(), std::int64_t{1},
                        std::multiplies<>());
  for (std::size_t d = 0; d < pool.window.kernel.size(); ++d) {
    const std::int64_t k = pool.window.kernel[d];
    rest /= k;
    const NodeId tap = b.map(ScalarFn::floor_mod, {b.div(first, b.scalar_int(DType::i64, rest)),
                                                   b.scalar_int(DType::i64, k)});
    NodeId at = b.add(scaled(b.iota(type, static_cast<int>(d) + 2), pool.window.conv.strides[d]),
                      scaled(tap, pool.window.conv.dilations[d]));
    at = b.sub(at, b.scalar_int(DType::i64, pool.window.conv.pads_begin[d]));
    position = b.add(position, scaled(at, strides[d]));
  }
  return position;
}

Result<Values> max_pool(const Call& call, Builder& b) {
  const Pool pool = HEDDLE_TRY(pool_of(call, b));
  const DType type = b.dtype(call.in(0));
  const NodeId windows =
      pool_windows(call, b, pool,
                   is_int(type) ? static_cast<double>(ir::identity_int(Monoid::max, type))
                                : ir::identity(Monoid::max, type));
  Values values{b.reduce(Monoid::max, windows, pool.axes, false)};
  if (call.outputs > 1) values.push_back(max_positions(call, b, pool, windows));
  return values;
}

/// How many elements each window averages: fewer at the border unless padding counts.
Tensor window_counts(const Pool& pool, const Shape& in, bool include_pad, DType type) {
  Tensor counts({type, pool.window.out});
  Shape index(pool.window.out.size(), 0);
  for (std::int64_t i = 0; i < counts.count(); ++i) {
    double count = 1;
    for (std::size_t d = 0; d < index.size(); ++d) {
      const Conv& c = pool.window.conv;
      const std::int64_t low = include_pad ? -c.pads_begin[d] : 0,
                         high = in[d] + (include_pad ? c.pads_end[d] : 0);
      std::int64_t inside = 0;
      for (std::int64_t k = 0; k < pool.window.kernel[d]; ++k) {
        const std::int64_t at = index[d] * c.strides[d] - c.pads_begin[d] + k * c.dilations[d];
        inside += at >= low && at < high;
      }
      count *= static_cast<double>(inside);
    }
    counts.set(i, std::max(count, 1.0));
    for (std::size_t d = index.size(); d-- > 0 && ++index[d] == pool.window.out[d];) index[d] = 0;
  }
  return counts;
}

Result<Values> average_pool(const Call& call, Builder& b) {
  HEDDLE_TRY(want_float(call, b, 0));
  const Pool pool = HEDDLE_TRY(pool_of(call, b));
  const NodeId sum = b.reduce_sum(pool_windows(call, b, pool, 0), pool.axes, false);
  const Tensor counts =
      window_counts(pool, spatial(b.shape(call.in(0))),
                    call.attribute_int("count_include_pad", 0) != 0, b.dtype(call.in(0)));
  bool equal = true;
  for (std::int64_t i = 0; i < counts.count(); ++i) equal &= counts.at(i) == counts.at(0);
  if (equal && counts.count() > 0) return Values{b.div(sum, counts.at(0))};
  return Values{b.div(sum, b.constant(counts))};
}

/// (Σ |x|^p)^(1/p)
NodeId lp_norm(Builder& b, NodeId x, std::vector<int> axes, double p, bool keep) {
  const NodeId a = b.map(ScalarFn::abs, {x});
  if (p == 1) return b.reduce_sum(a, std::move(axes), keep);
  if (p == 2) return b.sqrt(b.reduce_sum(b.mul(x, x), std::move(axes), keep));
  const NodeId sum =
      b.reduce_sum(b.map(ScalarFn::pow, {a, b.scalar(b.dtype(x), p)}), std::move(axes), keep);
  return b.map(ScalarFn::pow, {sum, b.scalar(b.dtype(x), 1 / p)});
}

Result<Values> lp_pool(const Call& call, Builder& b) {
  HEDDLE_TRY(want_float(call, b, 0));
  const Pool pool = HEDDLE_TRY(pool_of(call, b));
  const double p = call.attribute_float("p", 2);
  if (p <= 0) return call.error("p is {}", p);
  return Values{lp_norm(b, pool_windows(call, b, pool, 0), pool.axes, p, false)};
}

std::vector<int> axes_from(int first, int rank) {
  std::vector<int> axes(static_cast<std::size_t>(std::max(0, rank - first)));
  std::iota(axes.begin(), axes.end(), first);
  return axes;
}

template <bool average>
Result<Values> global_pool(const Call& call, Builder& b) {
  HEDDLE_TRY(want_float(call, b, 0));
  HEDDLE_TRY(want_rank(call, b, 0, 2, 8));
  const NodeId x = call.in(0);
  const std::vector<int> axes = axes_from(2, b.rank(x));
  return Values{average ? b.mean(x, axes) : b.reduce_max(x, axes)};
}

Result<Values> global_lp_pool(const Call& call, Builder& b) {
  HEDDLE_TRY(want_float(call, b, 0));
  HEDDLE_TRY(want_rank(call, b, 0, 2, 8));
  const double p = call.attribute_float("p", 2);
  if (p <= 0) return call.error("p is {}", p);
  return Values{lp_norm(b, call.in(0), axes_from(2, b.rank(call.in(0))), p, true)};
}

/// scale·(x - mean)/sqrt(var + ε) + bias with running statistics. From opset 14 on training_mode
/// normalises by the batch and gives updated statistics.
Result<Values> batch_normalization(const Call& call, Builder& b) {
  HEDDLE_TRY(want_float(call, b, 0));
  HEDDLE_TRY(want_rank(call, b, 0, 2, 8));
  const NodeId x = call.in(0);
  const int rank = b.rank(x);
  for (int i = 1; i < 5; ++i) HEDDLE_TRY(want_channels(call, b, i, at(b.shape(x), 1)));
  const double epsilon = call.attribute_float("epsilon", 1e-5);
  const auto channel = [&](int i) { return per_channel(b, b.cast(call.in(i), b.dtype(x)), rank); };
  const bool training =
      call.opset >= 14
          ? call.attribute_int("training_mode", 0) != 0
          : call.opset < 7 && call.attribute_int("is_test", 0) == 0 && call.outputs > 1;
  NodeId mean = channel(3), variance = channel(4);
  Values extra;
  if (training) {
    std::vector<int> axes = axes_from(2, rank);
    axes.insert(axes.begin(), 0);
    const double momentum = call.attribute_float("momentum", 0.9);
    const NodeId batch_mean = b.mean(x, axes), centred = b.sub(x, batch_mean);
    const NodeId batch_variance = b.mean(b.mul(centred, centred), axes);
    const auto running = [&](NodeId old, NodeId now) {
      return b.reshape(b.add(b.mul(old, momentum), b.mul(now, 1 - momentum)), {at(b.shape(x), 1)});
    };
    extra = {running(mean, batch_mean), running(variance, batch_variance)};
    mean = batch_mean;
    variance = batch_variance;
  } else if (call.outputs > 1) {
    extra = {call.in(3), call.in(4), call.in(3), call.in(4)};
  }
  const NodeId factor = b.div(channel(1), b.sqrt(b.add(variance, epsilon)));
  Values values{b.add(b.mul(b.sub(x, mean), factor), channel(2))};
  values.insert(values.end(), extra.begin(), extra.end());
  return values;
}

Result<Values> instance_normalization(const Call& call, Builder& b) {
  HEDDLE_TRY(want_float(call, b, 0));
  HEDDLE_TRY(want_rank(call, b, 0, 3, 8));
  const NodeId x = call.in(0);
  for (int i = 1; i < 3; ++i) {
    HEDDLE_TRY(want_channels(call, b, i, at(b.shape(x), 1)));
    HEDDLE_TRY(want_like(call, b, i));
  }
  const NodeId y = b.normalize(x, axes_from(2, b.rank(x)), call.attribute_float("epsilon", 1e-5));
  return Values{b.add(b.mul(y, per_channel(b, call.in(1), b.rank(x))),
                      per_channel(b, call.in(2), b.rank(x)))};
}

/// Scale and bias must broadcast to the input, not beyond it.
Result<NodeId> affine(const Call& call, Builder& b, NodeId y) {
  for (int i = 1; i < 3; ++i) {
    if (!call.has(i)) continue;
    const auto shape = broadcast_shapes(b.shape(call.in(i)), b.shape(y));
    if (!shape || *shape != b.shape(y))
      return call.error("input {} has shape {}, want one that broadcasts to {}", i,
                        to_string(b.shape(call.in(i))), to_string(b.shape(y)));
    const NodeId v = b.cast(call.in(i), b.dtype(y));
    y = i == 1 ? b.mul(y, v) : b.add(y, v);
  }
  return y;
}

/// The type that statistics are computed in: stash_type 1 asks for f32 at least.
DType stash_type(const Call& call, Builder& b) {
  const DType type = b.dtype(call.in(0));
  return call.attribute_int("stash_type", 1) == 1 && type != DType::f64 ? DType::f32 : type;
}

Result<Values> layer_normalization(const Call& call, Builder& b) {
  HEDDLE_TRY(want_float(call, b, 0));
  HEDDLE_TRY(want_rank(call, b, 0, 1, 8));
  const NodeId x = b.cast(call.in(0), stash_type(call, b));
  const std::vector<int> axes = axes_from(HEDDLE_TRY(call.axis("axis", -1, b.rank(x))), b.rank(x));
  const NodeId mean = b.mean(x, axes), centred = b.sub(x, mean);
  const NodeId deviation =
      b.sqrt(b.add(b.mean(b.mul(centred, centred), axes), call.attribute_float("epsilon", 1e-5)));
  const NodeId y = b.cast(b.div(centred, deviation), b.dtype(call.in(0)));
  Values values{HEDDLE_TRY(affine(call, b, y))};
  if (call.outputs > 1) values.push_back(mean);
  if (call.outputs > 2) values.push_back(b.div(b.scalar(b.dtype(x), 1), deviation));
  return values;
}

Result<Values> rms_normalization(const Call& call, Builder& b) {
  HEDDLE_TRY(want_float(call, b, 0));
  HEDDLE_TRY(want_rank(call, b, 0, 1, 8));
  const NodeId x = b.cast(call.in(0), stash_type(call, b));
  const std::vector<int> axes = axes_from(HEDDLE_TRY(call.axis("axis", -1, b.rank(x))), b.rank(x));
  const NodeId rms =
      b.sqrt(b.add(b.mean(b.mul(x, x), axes), call.attribute_float("epsilon", 1e-5)));
  return Values{HEDDLE_TRY(affine(call, b, b.cast(b.div(x, rms), b.dtype(call.in(0)))))};
}

/// Normalises groups of channels; scale and bias are per channel (opset 21) or per group (18).
Result<Values> group_normalization(const Call& call, Builder& b) {
  HEDDLE_TRY(want_float(call, b, 0));
  HEDDLE_TRY(want_rank(call, b, 0, 2, 8));
  const NodeId input = call.in(0);
  const Shape shape = b.shape(input);
  const std::int64_t groups = call.attribute_int("num_groups", 0);
  if (groups < 1 || shape[1] % groups != 0)
    return call.error("num_groups is {} for {} channels", groups, shape[1]);
  const std::int64_t wanted = call.opset >= 21 ? shape[1] : groups;
  for (int i = 1; i < 3; ++i) HEDDLE_TRY(want_channels(call, b, i, wanted));
  const NodeId x = b.cast(input, stash_type(call, b));
  Shape grouped{shape[0], groups, shape[1] / groups};
  grouped.insert(grouped.end(), shape.begin() + 2, shape.end());
  NodeId y =
      b.cast(b.normalize(b.reshape(x, grouped), axes_from(2, static_cast<int>(grouped.size())),
                         call.attribute_float("epsilon", 1e-5)),
             b.dtype(input));
  if (call.opset >= 21) y = b.reshape(y, shape);
  const int rank = b.rank(y);
  y = b.add(b.mul(y, per_channel(b, b.cast(call.in(1), b.dtype(y)), rank)),
            per_channel(b, b.cast(call.in(2), b.dtype(y)), rank));
  return Values{b.reshape(y, shape)};
}

/// x / (bias + alpha/size · Σ over neighbouring channels of x²)^beta
Result<Values> lrn(const Call& call, Builder& b) {
  HEDDLE_TRY(want_float(call, b, 0));
  HEDDLE_TRY(want_rank(call, b, 0, 2, 8));
  const NodeId x = call.in(0);
  const Shape shape = b.shape(x);
  const std::int64_t size = call.attribute_int("size", 0);
  if (size < 1 || size > (1 << 16)) return call.error("size is {}", size);
  const std::int64_t before = (size - 1) / 2;
  // Channels c-before … c-before+size-1 as a trailing window axis.
  Shape windows = shape;
  windows.push_back(size);
  prim::Access access{dims(static_cast<int>(shape.size())), {}};
  access.index[1] = dim(1) + dim(static_cast<int>(shape.size())) - ir::Expr(before);
  access.inside.push_back({access.index[1], 0, shape[1]});
  const NodeId squares = b.view(b.mul(x, x), windows, access, 0);
  const NodeId sum = b.reduce_sum(squares, {static_cast<int>(shape.size())}, false);
  const double alpha = call.attribute_float("alpha", 1e-4),
               beta = call.attribute_float("beta", 0.75), bias = call.attribute_float("bias", 1);
  const NodeId base = b.add(b.mul(sum, alpha / static_cast<double>(size)), bias);
  return Values{b.div(x, b.map(ScalarFn::pow, {base, b.scalar(b.dtype(x), beta)}))};
}

Result<Values> lp_normalization(const Call& call, Builder& b) {
  HEDDLE_TRY(want_float(call, b, 0));
  const NodeId x = call.in(0);
  const int axis = HEDDLE_TRY(call.axis("axis", -1, b.rank(x)));
  const double p = static_cast<double>(call.attribute_int("p", 2));
  if (p != 1 && p != 2) return call.error("p is {}, want 1 or 2", p);
  const NodeId norm = lp_norm(b, x, {axis}, p, true), zero = b.scalar(b.dtype(x), 0);
  // A zero vector stays zero.
  return Values{
      b.div(x, b.select(b.map(ScalarFn::equal, {norm, zero}), b.scalar(b.dtype(x), 1), norm))};
}

Result<Values> mean_variance_normalization(const Call& call, Builder& b) {
  HEDDLE_TRY(want_float(call, b, 0));
  const NodeId x = call.in(0);
  const std::vector<int> axes =
      HEDDLE_TRY(call.normalize_axes(call.attribute_ints("axes", {0, 2, 3}), b.rank(x)));
  const NodeId centred = b.sub(x, b.mean(x, axes));
  return Values{b.div(centred, b.add(b.sqrt(b.mean(b.mul(centred, centred), axes)), 1e-9))};
}

/// Inference: the identity, and a mask of ones.
Result<Values> dropout(const Call& call, Builder& b) {
  const bool training = call.opset >= 12 && call.has(2);
  if (training) {
    const Tensor* mode = HEDDLE_TRY(call.constant_tensor(2));
    double ratio = 0.5;
    if (call.has(1)) ratio = HEDDLE_TRY(constant_real(call, 1));
    if (mode->count() == 1 && mode->int_at(0) != 0 && ratio != 0)
      return call.unsupported("training mode with ratio {} is not supported", ratio);
  }
  const NodeId x = call.in(0);
  Values values{x};
  const DType mask = call.opset >= 10 ? DType::b1 : b.dtype(x);
  if (call.outputs > 1) values.push_back(b.full({mask, b.shape(x)}, 1));
  return values;
}

constexpr OpDef kOps[] = {
    {"Conv", 1, 2, 3, conv},
    {"ConvTranspose", 1, 2, 3, conv_transpose},
    {"MaxPool", 1, 1, 1, max_pool},
    {"AveragePool", 1, 1, 1, average_pool},
    {"LpPool", 2, 1, 1, lp_pool},
    {"GlobalAveragePool", 1, 1, 1, global_pool<true>},
    {"GlobalMaxPool", 1, 1, 1, global_pool<false>},
    {"GlobalLpPool", 2, 1, 1, global_lp_pool},
    {"BatchNormalization", 1, 5, 5, batch_normalization},
    {"InstanceNormalization", 1, 3, 3, instance_normalization},
    {"LayerNormalization", 17, 2, 3, layer_normalization},
    {"RMSNormalization", 23, 2, 2, rms_normalization},
    {"GroupNormalization", 18, 3, 3, group_normalization},
    {"LRN", 1, 1, 1, lrn},
    {"LpNormalization", 1, 1, 1, lp_normalization},
    {"MeanVarianceNormalization", 9, 1, 1, mean_variance_normalization},
    {"Dropout", 1, 1, 3, dropout},
};

}  // namespace

std::span<const OpDef> nn_ops() { return kOps; }

}  // namespace heddle::ops

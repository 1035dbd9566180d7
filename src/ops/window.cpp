#include "ops/window.h"

#include <algorithm>
#include <numeric>

namespace heddle::ops {
namespace {

using Ints = std::vector<std::int64_t>;
constexpr std::int64_t kMaxPad = 1 << 30;

enum AutoPad { kExplicit, kNotSet, kValid, kSameUpper, kSameLower };
Result<int> pad_mode(const Call& call) {
  return choice(call, "auto_pad", "NOTSET", {"", "NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"});
}

/// Attribute with one entry in [low, high] per spatial dimension.
Result<Ints> spatial_attribute(const Call& call, std::string_view key, std::size_t entries,
                               std::int64_t otherwise, std::int64_t low, std::int64_t high) {
  Ints values = call.attribute_ints(key, Ints(entries, otherwise));
  if (values.empty()) values.assign(entries, otherwise);
  if (values.size() != entries)
    return call.error("{} has {} entries, want {}", key, values.size(), entries);
  for (const std::int64_t v : values)
    if (v < low || v > high) return call.error("{} holds {}, want {} to {}", key, v, low, high);
  return values;
}

/// Strides and dilations; refuses absurd kernels.
Result<Window> steps(const Call& call, const Shape& in, Shape kernel) {
  Window w;
  w.kernel = std::move(kernel);
  if (w.kernel.size() != in.size())
    return call.error("the kernel has {} dimensions, want {}", w.kernel.size(), in.size());
  for (const std::int64_t k : w.kernel)
    if (k < 1 || k > kMaxStep)
      return call.error("the kernel has extent {}, want 1 to {}", k, kMaxStep);
  w.conv.strides = HEDDLE_TRY(spatial_attribute(call, "strides", in.size(), 1, 1, kMaxStep));
  w.conv.dilations = HEDDLE_TRY(spatial_attribute(call, "dilations", in.size(), 1, 1, kMaxStep));
  return w;
}

std::int64_t span_of(const Window& w, std::size_t d) {
  return (w.kernel[d] - 1) * w.conv.dilations[d] + 1;
}

/// Explicit pads, or those that auto_pad asks for (SAME_*: output = ceil(input / stride)).
Status resolve_pads(const Call& call, const Shape& in, Window& w) {
  const std::size_t n = in.size();
  const int mode = HEDDLE_TRY(pad_mode(call));
  const Ints pads = HEDDLE_TRY(spatial_attribute(call, "pads", 2 * n, 0, -kMaxPad, kMaxPad));
  w.conv.pads_begin.assign(pads.begin(), pads.begin() + static_cast<std::ptrdiff_t>(n));
  w.conv.pads_end.assign(pads.begin() + static_cast<std::ptrdiff_t>(n), pads.end());
  if (mode == kValid) w.conv.pads_begin = w.conv.pads_end = Ints(n, 0);
  if (mode < kSameUpper) return Ok{};
  for (std::size_t d = 0; d < n; ++d) {
    const std::int64_t stride = w.conv.strides[d], out = (in[d] + stride - 1) / stride;
    const std::int64_t total =
        std::max<std::int64_t>(0, (out - 1) * stride + span_of(w, d) - in[d]);
    const std::int64_t small = total / 2, large = total - small;
    w.conv.pads_begin[d] = mode == kSameUpper ? small : large;
    w.conv.pads_end[d] = mode == kSameUpper ? large : small;
  }
  return Ok{};
}

}  // namespace

Result<Window> window_of(const Call& call, const Shape& in, Shape kernel, bool ceil) {
  Window w = HEDDLE_TRY(steps(call, in, std::move(kernel)));
  HEDDLE_TRY(resolve_pads(call, in, w));
  for (std::size_t d = 0; d < in.size(); ++d) {
    const std::int64_t padded = in[d] + w.conv.pads_begin[d] + w.conv.pads_end[d];
    const std::int64_t room = padded - span_of(w, d), stride = w.conv.strides[d];
    if (room < 0)
      return call.error("a window of {} does not fit spatial dimension {} of extent {}, padded {}",
                        span_of(w, d), d, in[d], padded);
    std::int64_t out = (ceil ? room + stride - 1 : room) / stride + 1;
    if (ceil && (out - 1) * stride >= in[d] + w.conv.pads_begin[d]) --out;
    w.out.push_back(out);
  }
  return w;
}

Result<Window> transposed_window(const Call& call, const Shape& in, const Shape& kernel) {
  Window w = HEDDLE_TRY(steps(call, in, kernel));
  const std::size_t n = in.size();
  const int mode = HEDDLE_TRY(pad_mode(call));
  const Ints extra = HEDDLE_TRY(spatial_attribute(call, "output_padding", n, 0, 0, kMaxStep));
  const Ints pads = HEDDLE_TRY(spatial_attribute(call, "pads", 2 * n, 0, -kMaxPad, kMaxPad));
  Ints wanted = call.attribute_ints("output_shape", {});
  // Some files give output_shape with batch and channels.
  if (wanted.size() == n + 2) wanted.erase(wanted.begin(), wanted.begin() + 2);
  if (!wanted.empty() && wanted.size() != n)
    return call.error("output_shape has {} entries, want {}", wanted.size(), n);
  for (std::size_t d = 0; d < n; ++d) {
    const std::int64_t stride = w.conv.strides[d];
    const std::int64_t full = (in[d] - 1) * stride + extra[d] + span_of(w, d);
    std::int64_t begin = mode == kValid ? 0 : pads[d], end = mode == kValid ? 0 : pads[n + d];
    std::int64_t out = full - begin - end;
    if (!wanted.empty() || mode >= kSameUpper) {
      out = wanted.empty() ? in[d] * stride : wanted[d];
      if (out > full + kMaxPad) return call.error("output_shape holds {}", out);
      // Of an odd total SAME_UPPER crops more at the end, everything else at the beginning; what
      // is wanted beyond the full extent stays empty, at the end.
      const std::int64_t total = std::max<std::int64_t>(0, full - out);
      begin = mode == kSameUpper ? total / 2 : total - total / 2;
      end = full - out - begin;
    }
    if (out < 1) return call.error("spatial dimension {} would have extent {}", d, out);
    w.conv.pads_begin.push_back(begin);
    w.conv.pads_end.push_back(end);
    w.out.push_back(out);
  }
  return w;
}

Result<Builder::Conv> conv_geometry(const Call& call, const Shape& x, const Shape& w) {
  if (x.size() < 3 || w.size() != x.size())
    return call.error("input has shape {}, weights {}: want equal ranks, at least 3", to_string(x),
                      to_string(w));
  const std::int64_t groups = call.attribute_int("group", 1);
  if (groups < 1 || groups > x[1] || w[0] == 0 || w[0] % groups != 0 || x[1] % groups != 0 ||
      w[1] != x[1] / groups)
    return call.error("input has shape {}, weights {}, which do not fit in {} groups", to_string(x),
                      to_string(w), groups);
  if (call.attribute_ints("kernel_shape", spatial_of(w)) != spatial_of(w))
    return call.error("kernel_shape differs from that of the weights {}", to_string(w));
  Window window = HEDDLE_TRY(window_of(call, spatial_of(x), spatial_of(w), false));
  window.conv.groups = groups;
  return window.conv;
}

std::vector<int> axes_from(int first, int rank) {
  std::vector<int> axes(static_cast<std::size_t>(std::max(0, rank - first)));
  std::iota(axes.begin(), axes.end(), first);
  return axes;
}

NodeId per_channel(Builder& b, NodeId v, int rank) {
  Shape shape(static_cast<std::size_t>(rank), 1);
  shape[1] = element_count(b.shape(v));
  return b.reshape(v, shape);
}

NodeId channels_first(Builder& b, NodeId x) {
  std::vector<int> order{0, b.rank(x) - 1};
  for (int d = 1; d < b.rank(x) - 1; ++d) order.push_back(d);
  return b.transpose(x, order);
}
NodeId channels_last(Builder& b, NodeId x) {
  std::vector<int> order{0};
  for (int d = 2; d < b.rank(x); ++d) order.push_back(d);
  order.push_back(1);
  return b.transpose(x, order);
}

Status want_channels(const Call& call, Builder& b, int i, std::int64_t channels) {
  return want_shape(call, b, i, {channels});
}

Status want_like(const Call& call, Builder& b, int i) {
  return want_type(call, b, i, b.dtype(call.in(0)));
}

NodeId lp_norm(Builder& b, NodeId x, std::vector<int> axes, double p, bool keep) {
  if (p == 2) return b.sqrt(b.reduce_sum(b.mul(x, x), std::move(axes), keep));
  const NodeId a = b.map(ir::ScalarFn::abs, {x});
  if (p == 1) return b.reduce_sum(a, std::move(axes), keep);
  const auto power = [&](NodeId base, double exponent) {
    return b.map(ir::ScalarFn::pow, {base, b.scalar(b.dtype(x), exponent)});
  };
  return power(b.reduce_sum(power(a, p), std::move(axes), keep), 1 / p);
}

}  // namespace heddle::ops

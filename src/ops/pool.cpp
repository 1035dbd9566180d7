#include <algorithm>
#include <numeric>

#include "ops/families.h"
#include "ops/window.h"

/// Pooling over [N, C, spatial…].
namespace heddle::ops {
namespace {

using ir::Monoid;
using ir::ScalarFn;

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
      HEDDLE_TRY(window_of(call, spatial_of(x), kernel, call.attribute_int("ceil_mode", 0) != 0)),
      {}};
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
  position = scaled(position, element_count(spatial_of(x)));
  std::int64_t rest = element_count(pool.window.kernel);
  std::vector<std::int64_t> strides = row_major_strides(spatial_of(x));
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

/// [N, spatial…, C]
Result<Values> max_pool_last(const Call& call, Builder& b) {
  HEDDLE_TRY(want_rank(call, b, 0, 3, 6));
  Call plain = call;
  plain.args[0] = channels_first(b, call.in(0));
  return Values{channels_last(b, HEDDLE_TRY(max_pool(plain, b))[0])};
}

/// How many taps of the window at `out` along dimension d lie in [low, high).
std::int64_t taps_inside(const Window& w, std::size_t d, std::int64_t out, std::int64_t low,
                         std::int64_t high) {
  const std::int64_t first = out * w.conv.strides[d] - w.conv.pads_begin[d];
  const std::int64_t step = w.conv.dilations[d];
  const std::int64_t skipped = first < low ? (low - first + step - 1) / step : 0;
  const std::int64_t end = high > first ? (high - first + step - 1) / step : 0;
  return std::max<std::int64_t>(0, std::min(end, w.kernel[d]) - skipped);
}

/// The sum over windows divided by their element counts: fewer at the border unless padding counts.
/// The count of a window is the product of its counts along each dimension.
Result<Values> average_pool(const Call& call, Builder& b) {
  HEDDLE_TRY(want_float(call, b, 0));
  const Pool pool = HEDDLE_TRY(pool_of(call, b));
  const Window& w = pool.window;
  const Shape in = spatial_of(b.shape(call.in(0)));
  const bool include = call.attribute_int("count_include_pad", 0) != 0;
  NodeId y = b.reduce_sum(pool_windows(call, b, pool, 0), pool.axes, false);
  double everywhere = 1;
  for (std::size_t d = 0; d < in.size(); ++d) {
    if (w.out[d] > kMaxTableElements) return call.error("output extent {}", w.out[d]);
    const std::int64_t low = include ? -w.conv.pads_begin[d] : 0;
    const std::int64_t high = in[d] + (include ? w.conv.pads_end[d] : 0);
    std::vector<double> counts;
    for (std::int64_t o = 0; o < w.out[d]; ++o)
      counts.push_back(
          static_cast<double>(std::max<std::int64_t>(1, taps_inside(w, d, o, low, high))));
    if (counts.empty()) continue;
    // Full windows everywhere; equal counts at a border would be a matter of the extent.
    const auto full = static_cast<double>(w.kernel[d]);
    if (std::all_of(counts.begin(), counts.end(), [&](double c) { return c == full; })) {
      everywhere *= full;
      continue;
    }
    Shape along(in.size() - d, 1);
    along[0] = w.out[d];
    y = b.div(y, constant_real(b, b.dtype(y), counts, along));
  }
  return Values{everywhere == 1 ? y : b.div(y, everywhere)};
}

Result<Values> lp_pool(const Call& call, Builder& b) {
  HEDDLE_TRY(want_float(call, b, 0));
  const Pool pool = HEDDLE_TRY(pool_of(call, b));
  const double p = call.attribute_float("p", 2);
  if (p <= 0) return call.error("p is {}", p);
  return Values{lp_norm(b, pool_windows(call, b, pool, 0), pool.axes, p, false)};
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

constexpr OpDef kPoolOps[] = {
    {"MaxPool", 1, 1, 1, max_pool},
    {"com.microsoft::NhwcMaxPool", 1, 1, 1, max_pool_last},
    {"AveragePool", 1, 1, 1, average_pool},
    {"LpPool", 1, 1, 1, lp_pool},
    {"GlobalAveragePool", 1, 1, 1, global_pool<true>},
    {"GlobalMaxPool", 1, 1, 1, global_pool<false>},
    {"GlobalLpPool", 1, 1, 1, global_lp_pool},
};

}  // namespace

std::span<const OpDef> pool_ops() { return kPoolOps; }

}  // namespace heddle::ops

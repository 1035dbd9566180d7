#include <algorithm>
#include <numeric>

#include "ops/families.h"
#include "ops/util.h"

/// Reductions, running sums, order statistics.
namespace heddle::ops {
namespace {

using ir::Monoid;
using ir::ScalarFn;

struct Axes {
  std::vector<int> axes;  ///< sorted
  bool keep = true;
};

/// `axes` is an attribute, from 13 (ReduceSum) or 18 an input; absent or empty means all, or none
/// with noop_with_empty_axes.
Result<Axes> reduced_axes(const Call& call, Builder& b) {
  const int rank = b.rank(call.in(0));
  const auto given = HEDDLE_TRY(ints_from(call, "axes", 1));
  Axes out;
  out.keep = call.attribute_int("keepdims", 1) != 0;
  if (given && !given->empty()) {
    out.axes = HEDDLE_TRY(call.normalize_axes(*given, rank));
    std::sort(out.axes.begin(), out.axes.end());
    out.axes.erase(std::unique(out.axes.begin(), out.axes.end()), out.axes.end());
  } else if (call.attribute_int("noop_with_empty_axes", 0) == 0) {
    out.axes.resize(static_cast<std::size_t>(rank));
    std::iota(out.axes.begin(), out.axes.end(), 0);
  }
  return out;
}

NodeId reduce_over(Builder& b, Monoid fn, NodeId x, const Axes& a) {
  return a.axes.empty() ? x : b.reduce(fn, x, a.axes, a.keep);
}

Result<Values> reduce_sum(const Call& call, Builder& b) {
  HEDDLE_TRY(want_number(call, b, 0));
  return Values{reduce_over(b, Monoid::sum, call.in(0), HEDDLE_TRY(reduced_axes(call, b)))};
}

Result<Values> reduce_prod(const Call& call, Builder& b) {
  HEDDLE_TRY(want_number(call, b, 0));
  return Values{reduce_over(b, Monoid::prod, call.in(0), HEDDLE_TRY(reduced_axes(call, b)))};
}

/// Of booleans, max is "any" and min is "all".
Result<Values> reduce_max(const Call& call, Builder& b) {
  const Monoid fn = b.dtype(call.in(0)) == DType::b1 ? Monoid::any : Monoid::max;
  return Values{reduce_over(b, fn, call.in(0), HEDDLE_TRY(reduced_axes(call, b)))};
}

Result<Values> reduce_min(const Call& call, Builder& b) {
  const Monoid fn = b.dtype(call.in(0)) == DType::b1 ? Monoid::all : Monoid::min;
  return Values{reduce_over(b, fn, call.in(0), HEDDLE_TRY(reduced_axes(call, b)))};
}

Result<Values> reduce_mean(const Call& call, Builder& b) {
  HEDDLE_TRY(want_number(call, b, 0));
  const NodeId x = call.in(0);
  const Axes a = HEDDLE_TRY(reduced_axes(call, b));
  if (a.axes.empty()) return Values{x};
  if (is_float(b.dtype(x))) return Values{b.mean(x, a.axes, a.keep)};
  std::int64_t count = 1;
  for (int axis : a.axes) count *= at(b.shape(x), axis);
  if (count == 0)
    return call.error("input 0 has shape {}: nothing to average", to_string(b.shape(x)));
  return Values{b.div(reduce_over(b, Monoid::sum, x, a), b.scalar_int(b.dtype(x), count))};
}

Result<Values> reduce_l1(const Call& call, Builder& b) {
  HEDDLE_TRY(want_number(call, b, 0));
  const NodeId x = b.map(ScalarFn::abs, {call.in(0)});
  return Values{reduce_over(b, Monoid::sum, x, HEDDLE_TRY(reduced_axes(call, b)))};
}

Result<Values> reduce_sum_square(const Call& call, Builder& b) {
  HEDDLE_TRY(want_number(call, b, 0));
  const NodeId x = b.mul(call.in(0), call.in(0));
  return Values{reduce_over(b, Monoid::sum, x, HEDDLE_TRY(reduced_axes(call, b)))};
}

Result<Values> reduce_l2(const Call& call, Builder& b) {
  HEDDLE_TRY(want_float(call, b, 0));
  const NodeId x = b.mul(call.in(0), call.in(0));
  return Values{b.sqrt(reduce_over(b, Monoid::sum, x, HEDDLE_TRY(reduced_axes(call, b))))};
}

Result<Values> reduce_log_sum(const Call& call, Builder& b) {
  HEDDLE_TRY(want_float(call, b, 0));
  const Axes a = HEDDLE_TRY(reduced_axes(call, b));
  return Values{b.log(reduce_over(b, Monoid::sum, call.in(0), a))};
}

/// m + log(sum(exp(x - m))), m = max(x): no exp overflows. An infinite m is replaced by 0, so that
/// the differences are no NaN and log(0) or exp(inf) carry the infinity.
Result<Values> reduce_log_sum_exp(const Call& call, Builder& b) {
  HEDDLE_TRY(want_float(call, b, 0));
  const NodeId x = call.in(0);
  const Axes a = HEDDLE_TRY(reduced_axes(call, b));
  if (a.axes.empty()) return Values{x};
  const NodeId peak = b.reduce_max(x, a.axes, true);
  const NodeId zero = b.full({b.dtype(x), b.shape(peak)}, 0);
  const NodeId m = b.select(b.map(ScalarFn::isinf, {peak}), zero, peak);
  const NodeId sum = b.reduce_sum(b.exp(b.sub(x, m)), a.axes, true);
  const NodeId out = b.add(b.log(sum), m);
  return Values{a.keep ? out : b.squeeze(out, a.axes)};
}

Result<Values> arg_extreme(const Call& call, Builder& b, Monoid fn) {
  HEDDLE_TRY(want_number(call, b, 0));
  HEDDLE_TRY(want_rank(call, b, 0, 1, 64));
  NodeId x = call.in(0);
  const int axis = HEDDLE_TRY(call.axis("axis", 0, b.rank(x)));
  const bool keep = call.attribute_int("keepdims", 1) != 0;
  const bool last = call.attribute_int("select_last_index", 0) != 0;
  const std::int64_t extent = at(b.shape(x), axis);
  if (extent == 0)
    return call.error("input 0 has shape {}: axis {} is empty", to_string(b.shape(x)), axis);
  // The last of equals is the first of the flipped row.
  if (last) x = b.flip(x, {axis});
  NodeId index = b.reduce(fn, x, {axis}, keep);
  if (last) index = b.sub(b.scalar_int(DType::i64, extent - 1), index);
  return Values{index};
}
Result<Values> arg_max(const Call& call, Builder& b) {
  return arg_extreme(call, b, Monoid::argmax);
}
Result<Values> arg_min(const Call& call, Builder& b) {
  return arg_extreme(call, b, Monoid::argmin);
}

Result<Values> running(const Call& call, Builder& b, Monoid fn) {
  HEDDLE_TRY(want_number(call, b, 0));
  const std::int64_t given = HEDDLE_TRY(constant_int(call, 1));
  const int axis = HEDDLE_TRY(call.normalize_axis(given, b.rank(call.in(0))));
  return Values{b.scan(fn, call.in(0), axis, call.attribute_int("exclusive", 0) != 0,
                       call.attribute_int("reverse", 0) != 0)};
}
Result<Values> cum_sum(const Call& call, Builder& b) { return running(call, b, Monoid::sum); }
Result<Values> cum_prod(const Call& call, Builder& b) { return running(call, b, Monoid::prod); }

/// k: attribute before opset 10, input from there. Equal elements keep their order.
Result<Values> top_k(const Call& call, Builder& b) {
  HEDDLE_TRY(want_rank(call, b, 0, 1, 64));
  HEDDLE_TRY(want_number(call, b, 0));
  std::int64_t k = call.attribute_int("k", -1);
  if (call.has(1)) k = HEDDLE_TRY(constant_int(call, 1));
  const int axis = HEDDLE_TRY(call.axis("axis", -1, b.rank(call.in(0))));
  const std::int64_t extent = at(b.shape(call.in(0)), axis);
  if (k < 0 || k > extent) return call.error("k is {}, want a number in [0, {}]", k, extent);
  if (k == 0) {
    Shape none = b.shape(call.in(0));
    none[static_cast<std::size_t>(axis)] = 0;
    return Values{b.full({b.dtype(call.in(0)), none}, 0), b.full({DType::i64, none}, 0)};
  }
  const bool largest = call.attribute_int("largest", 1) != 0;
  const NodeId index = b.sort_indices(call.in(0), axis, largest, k);
  return Values{b.take_along(call.in(0), index, axis), index};
}

/// Element (row, column) of a batch of matrices, without those two dimensions.
NodeId element(Builder& b, NodeId x, std::int64_t row, std::int64_t column) {
  Shape shape = b.shape(x);
  const int rank = static_cast<int>(shape.size());
  shape.resize(shape.size() - 2);
  Access access{dims(rank - 2), {}};
  access.index.emplace_back(row);
  access.index.emplace_back(column);
  return b.view(x, shape, access);
}

using Positions = std::vector<std::int64_t>;
/// 0, 1, …, n-1 without `left_out`.
Positions positions(std::int64_t n, std::int64_t left_out = -1) {
  Positions out;
  for (std::int64_t i = 0; i < n; ++i)
    if (i != left_out) out.push_back(i);
  return out;
}

/// Expansion along the first row that is left; exact enough and free of division for n <= 4.
NodeId minor_of(Builder& b, NodeId x, const Positions& rows, const Positions& columns) {
  if (columns.size() == 1) return element(b, x, rows[0], columns[0]);
  std::optional<NodeId> sum;
  for (std::size_t i = 0; i < columns.size(); ++i) {
    auto rest = columns;
    rest.erase(rest.begin() + static_cast<std::ptrdiff_t>(i));
    const NodeId term = b.mul(element(b, x, rows[0], columns[i]),
                              minor_of(b, x, {rows.begin() + 1, rows.end()}, rest));
    sum = !sum ? term : i % 2 == 0 ? b.add(*sum, term) : b.sub(*sum, term);
  }
  return *sum;
}

/// The extent of square matrices, 1 to 4.
Result<std::int64_t> small_square(const Call& call, Builder& b) {
  HEDDLE_TRY(want_rank(call, b, 0, 2, 64));
  HEDDLE_TRY(want_float(call, b, 0));
  const Shape in = b.shape(call.in(0));
  const std::int64_t n = in.back();
  if (in[in.size() - 2] != n) {
    return call.error("input 0 has shape {}, want square matrices", to_string(in));
  }
  if (n < 1 || n > 4) return call.unsupported("matrices of {} rows, want 1 to 4", n);
  return n;
}

Result<Values> det(const Call& call, Builder& b) {
  const Positions all = positions(HEDDLE_TRY(small_square(call, b)));
  return Values{minor_of(b, call.in(0), all, all)};
}

/// com.microsoft: the cofactors over the determinant (Cramer's rule).
Result<Values> inverse(const Call& call, Builder& b) {
  const std::int64_t n = HEDDLE_TRY(small_square(call, b));
  if (element_count(b.shape(call.in(0))) == 0) return Values{call.in(0)};
  const DType type = b.dtype(call.in(0));
  const NodeId x = b.cast(call.in(0), compute_type(type));
  Shape one = b.shape(x);
  one[one.size() - 1] = one[one.size() - 2] = 1;
  const NodeId whole = b.reshape(minor_of(b, x, positions(n), positions(n)), one);
  std::vector<NodeId> cofactors;
  for (std::int64_t to = 0; to < n * n; ++to) {
    const std::int64_t row = to % n, column = to / n;
    const NodeId minor = n == 1 ? b.full(b.type(element(b, x, 0, 0)), 1)
                                : minor_of(b, x, positions(n, row), positions(n, column));
    cofactors.push_back((row + column) % 2 == 0 ? minor : b.neg(minor));
  }
  const NodeId joined = b.reshape(b.stack(cofactors, b.rank(x) - 2), b.shape(x));
  return Values{b.cast(b.div(joined, whole), type)};
}

/// Gauss and Jordan's elimination of a row-major n x n matrix, with the largest pivot of a column.
std::vector<double> inverted(std::vector<double> a, std::size_t n) {
  std::vector<double> out(n * n, 0);
  for (std::size_t i = 0; i < n; ++i) out[i * n + i] = 1;
  const auto swap_rows = [&](std::vector<double>& m, std::size_t p, std::size_t q) {
    if (p != q) std::swap_ranges(&m[p * n], &m[p * n] + n, &m[q * n]);
  };
  for (std::size_t c = 0; c < n; ++c) {
    std::size_t pivot = c;
    for (std::size_t r = c + 1; r < n; ++r)
      if (std::fabs(a[r * n + c]) > std::fabs(a[pivot * n + c])) pivot = r;
    swap_rows(a, c, pivot);
    swap_rows(out, c, pivot);
    const double by = a[c * n + c];
    for (std::size_t k = 0; k < n; ++k) {
      a[c * n + k] /= by;
      out[c * n + k] /= by;
    }
    for (std::size_t r = 0; r < n; ++r) {
      const double times = a[r * n + c];
      for (std::size_t k = 0; r != c && k < n; ++k) {
        a[r * n + k] -= times * a[c * n + k];
        out[r * n + k] -= times * out[c * n + k];
      }
    }
  }
  return out;
}

/// Matrices of other extents: pivots are a matter of their values.
Result<std::vector<HostValue>> host_inverse(const Call& call, std::span<const Tensor> args) {
  const Tensor& x = args[0];
  const Shape& in = x.shape();
  if (in.size() < 2 || in.back() != in[in.size() - 2] || !is_float(x.dtype()))
    return call.error("input 0 is {}, want square matrices", to_string(x.type()));
  constexpr std::int64_t kMost = 1024;
  if (in.back() > kMost) return call.unsupported("matrices of {} rows", in.back());
  const auto n = static_cast<std::size_t>(in.back());
  Tensor out(x.type());
  std::vector<double> matrix(n * n);
  for (std::int64_t from = 0; from < x.count(); from += static_cast<std::int64_t>(n * n)) {
    for (std::size_t i = 0; i < n * n; ++i) matrix[i] = x.at(from + static_cast<std::int64_t>(i));
    const std::vector<double> y = inverted(matrix, n);
    for (std::size_t i = 0; i < n * n; ++i) out.set(from + static_cast<std::int64_t>(i), y[i]);
  }
  return std::vector<HostValue>{{out, Format::plain}};
}

constexpr OpDef kReduceOps[] = {
    {"ReduceSum", 1, 1, 2, reduce_sum},
    {"ReduceMean", 1, 1, 2, reduce_mean},
    {"ReduceMax", 1, 1, 2, reduce_max},
    {"ReduceMin", 1, 1, 2, reduce_min},
    {"ReduceProd", 1, 1, 2, reduce_prod},
    {"ReduceL1", 1, 1, 2, reduce_l1},
    {"ReduceL2", 1, 1, 2, reduce_l2},
    {"ReduceLogSum", 1, 1, 2, reduce_log_sum},
    {"ReduceLogSumExp", 1, 1, 2, reduce_log_sum_exp},
    {"ReduceSumSquare", 1, 1, 2, reduce_sum_square},
    {"ArgMax", 1, 1, 1, arg_max},
    {"ArgMin", 1, 1, 1, arg_min},
    {"CumSum", 11, 2, 2, cum_sum},
    {"CumProd", 26, 2, 2, cum_prod},
    {"TopK", 1, 1, 1, top_k},
    {"TopK", 10, 2, 2, top_k},
    {"Det", 11, 1, 1, det},
    {"com.microsoft::Inverse", 1, 1, 1, inverse, OpDef::Stored::refuses, host_inverse},
};

}  // namespace

std::span<const OpDef> reduce_ops() { return kReduceOps; }

}  // namespace heddle::ops

#include <algorithm>
#include <complex>
#include <numbers>

#include "ops/families.h"
#include "ops/util.h"

/// Fourier transforms, as contractions with constant matrices where these are small enough.
namespace heddle::ops {
namespace {

/// The real 2n×2m matrix (or n×2m for real input) of the transform of length n, keeping m bins: a
/// row per input (real, imaginary), a column per output (real, imaginary).
NodeId fourier_matrix(Builder& b, DType type, std::int64_t n, std::int64_t m, std::int64_t parts,
                      bool inverse) {
  std::vector<double> values(static_cast<std::size_t>(n * parts * m * 2));
  const double scale = inverse ? 1.0 / static_cast<double>(n) : 1.0;
  for (std::int64_t t = 0; t < n; ++t) {
    for (std::int64_t k = 0; k < m; ++k) {
      // t·k mod n keeps the angle small and exact.
      const double angle = 2 * std::numbers::pi * static_cast<double>((t * k) % n) /
                           static_cast<double>(n) * (inverse ? 1 : -1);
      const double c = std::cos(angle) * scale, s = std::sin(angle) * scale;
      const auto put = [&](std::int64_t part, double re, double im) {
        const auto at = static_cast<std::size_t>(((t * parts + part) * m + k) * 2);
        values[at] = re;
        values[at + 1] = im;
      };
      put(0, c, s);
      if (parts == 2) put(1, -s, c);
    }
  }
  return constant_real(b, type, values, {n * parts, m * 2});
}

bool fits_a_matrix(std::int64_t n, std::int64_t m) {
  return n <= (1 << 16) && m <= (1 << 16) && 4 * n * m <= kMaxTableElements;
}

/// The factor nearest to the root of a length that is too large for a matrix; 1 for a prime.
std::int64_t factor_of(std::int64_t n) {
  for (auto d = static_cast<std::int64_t>(std::sqrt(static_cast<double>(n))); d > 1; --d)
    if (n % d == 0) return d;
  return 1;
}

using Complex = std::complex<double>;

/// x [..., 1 or 2 parts] times constant complex numbers of `shape`, which broadcasts with it but
/// for the parts: [..., 2].
NodeId turned(Builder& b, NodeId x, const std::vector<Complex>& by, Shape shape) {
  std::vector<double> real, imaginary;
  for (const Complex z : by) {
    real.push_back(z.real());
    imaginary.push_back(z.imag());
  }
  shape.push_back(1);
  const NodeId c = constant_real(b, b.dtype(x), real, shape);
  const NodeId s = constant_real(b, b.dtype(x), imaginary, shape);
  const int last = b.rank(x) - 1;
  if (b.shape(x).back() == 1) return b.concat({b.mul(x, c), b.mul(x, s)}, last);
  const NodeId re = b.slice_axis(x, last, 0, 1), im = b.slice_axis(x, last, 1, 1);
  return b.concat({b.sub(b.mul(re, c), b.mul(im, s)), b.add(b.mul(re, s), b.mul(im, c))}, last);
}

Result<NodeId> transform(const Call& call, Builder& b, NodeId x, std::int64_t length,
                         std::int64_t bins, bool inverse);

/// The transform of length `rows`·columns in two (Cooley and Tukey 1965): of the columns, turned by
/// a root of one each, of the rows. x [..., length, parts], result [..., length, 2].
Result<NodeId> split_transform(const Call& call, Builder& b, NodeId x, std::int64_t rows,
                               bool inverse) {
  Shape shape = b.shape(x);
  const int axis = static_cast<int>(shape.size()) - 2;
  const std::int64_t length = at(shape, axis), parts = shape.back(), columns = length / rows;
  std::vector<int> swapped;
  for (int d = 0; d < axis + 3; ++d) swapped.push_back(d);
  std::swap(swapped[static_cast<std::size_t>(axis)], swapped[static_cast<std::size_t>(axis + 1)]);
  Shape matrix(shape.begin(), shape.end() - 2);
  matrix.insert(matrix.end(), {rows, columns, parts});
  NodeId y = b.transpose(b.reshape(x, matrix), swapped);
  y = HEDDLE_TRY(transform(call, b, y, rows, rows, inverse));
  std::vector<Complex> roots;
  for (std::int64_t j = 0; j < columns; ++j)
    for (std::int64_t k = 0; k < rows; ++k) {
      const double angle =
          2 * std::numbers::pi * static_cast<double>(j * k) / static_cast<double>(length);
      roots.push_back(std::polar(1.0, inverse ? angle : -angle));
    }
  y = turned(b, y, roots, {columns, rows});
  y = HEDDLE_TRY(transform(call, b, b.transpose(y, swapped), columns, columns, inverse));
  shape.back() = 2;
  return b.reshape(b.transpose(y, swapped), shape);
}

/// The transform of a constant whose length is a power of two.
void transform_here(std::vector<Complex>& x) {
  const std::size_t n = x.size();
  for (std::size_t i = 1, j = 0; i < n; ++i) {  // the order of reversed bits
    std::size_t bit = n >> 1;
    for (; (j & bit) != 0; bit >>= 1) j ^= bit;
    j ^= bit;
    if (i < j) std::swap(x[i], x[j]);
  }
  for (std::size_t half = 1; half < n; half *= 2)
    for (std::size_t k = 0; k < half; ++k) {
      const Complex root =
          std::polar(1.0, -std::numbers::pi * static_cast<double>(k) / static_cast<double>(half));
      for (std::size_t i = k; i < n; i += 2 * half) {
        const Complex even = x[i], odd = root * x[i + half];
        x[i] = even + odd;
        x[i + half] = even - odd;
      }
    }
}

/// The transform of a prime length as a convolution (Bluestein 1970): with c(t) = exp(-πi t²/n),
/// X(k) = c(k) Σ x(t) c(t) / c(k - t), which transforms of a power of two compute.
Result<NodeId> chirp_transform(const Call& call, Builder& b, NodeId x, bool inverse) {
  Shape shape = b.shape(x);
  const int axis = static_cast<int>(shape.size()) - 2;
  const std::int64_t n = at(shape, axis);
  std::int64_t wide = 1;
  while (wide < 2 * n - 1) wide *= 2;
  if (wide > kMaxTableElements)
    return call.unsupported("transform of length {}, which is prime; want at most {}", n,
                            kMaxTableElements / 2);
  std::vector<Complex> chirp, filter(static_cast<std::size_t>(wide));
  for (std::int64_t t = 0; t < n; ++t) {  // t² mod 2n keeps the angle small and exact
    const double angle =
        std::numbers::pi * static_cast<double>(t * t % (2 * n)) / static_cast<double>(n);
    chirp.push_back(std::polar(1.0, inverse ? angle : -angle));
    filter[static_cast<std::size_t>(t)] = filter[static_cast<std::size_t>((wide - t) % wide)] =
        std::conj(chirp.back());
  }
  transform_here(filter);
  NodeId y = turned(b, x, chirp, {n});
  y = HEDDLE_TRY(transform(call, b, y, wide, wide, false));
  y = turned(b, y, filter, {wide});
  y = b.slice_axis(HEDDLE_TRY(transform(call, b, y, wide, wide, true)), axis, 0, n);
  if (inverse)
    for (Complex& c : chirp) c /= static_cast<double>(n);
  return turned(b, y, chirp, {n});
}

/// x [..., n, parts] with the signal next to last; n cut or zero-filled to length.
Result<NodeId> transform(const Call& call, Builder& b, NodeId x, std::int64_t length,
                         std::int64_t bins, bool inverse) {
  Shape shape = b.shape(x);
  const int rank = static_cast<int>(shape.size());
  const std::int64_t have = at(shape, rank - 2), parts = at(shape, rank - 1);
  if (have > length) x = b.slice_axis(x, rank - 2, 0, length);
  if (have < length) {
    Shape before(shape.size(), 0), after(shape.size(), 0);
    after[shape.size() - 2] = length - have;
    x = b.pad(x, before, after, 0);
  }
  if (!fits_a_matrix(length, bins)) {
    if (length > kMaxTableElements)
      return call.error("transform of length {}, want at most {}", length, kMaxTableElements);
    const std::int64_t rows = factor_of(length);
    const NodeId y = rows == 1 ? HEDDLE_TRY(chirp_transform(call, b, x, inverse))
                               : HEDDLE_TRY(split_transform(call, b, x, rows, inverse));
    return b.slice_axis(y, rank - 2, 0, bins);
  }
  shape.resize(shape.size() - 2);
  Shape flat = shape;
  flat.push_back(length * parts);
  const NodeId matrix = fourier_matrix(b, b.dtype(x), length, bins, parts, inverse);
  NodeId y = b.reshape(x, flat);
  if (flat.size() == 1) y = b.reshape(y, {1, flat[0]});
  y = b.matmul(y, matrix);
  shape.push_back(bins);
  shape.push_back(2);
  return b.reshape(y, HEDDLE_TRY(checked(call, shape, b.dtype(y))));
}

/// The real signal [..., length, 1] whose first bins are x [..., n, 2]; the others are their
/// conjugates, so all but the first and the middle one count twice.
Result<NodeId> real_inverse(const Call& call, Builder& b, NodeId x, std::int64_t length) {
  const std::int64_t bins = length / 2 + 1;
  Shape shape = b.shape(x);
  const int axis = static_cast<int>(shape.size()) - 2;
  const std::int64_t have = at(shape, axis);
  if (have > bins) x = b.slice_axis(x, axis, 0, bins);
  if (have < bins) {
    Shape before(shape.size(), 0), after(shape.size(), 0);
    after[static_cast<std::size_t>(axis)] = bins - have;
    x = b.pad(x, before, after, 0);
  }
  if (!fits_a_matrix(length, bins)) {
    const NodeId rest = b.flip(b.slice_axis(x, axis, 1, length - bins), {axis});
    const NodeId signs = constant_real(b, b.dtype(x), {1, -1}, {2});
    x = b.concat({x, b.mul(rest, signs)}, axis);
    return b.slice_axis(HEDDLE_TRY(transform(call, b, x, length, length, true)), axis + 1, 0, 1);
  }
  std::vector<double> matrix(static_cast<std::size_t>(bins * 2 * length));
  for (std::int64_t k = 0; k < bins; ++k)
    for (std::int64_t t = 0; t < length; ++t) {
      const double n = static_cast<double>(length);
      const double angle = 2 * std::numbers::pi * static_cast<double>((t * k) % length) / n;
      const double weight = (k == 0 || 2 * k == length ? 1.0 : 2.0) / n;
      matrix[static_cast<std::size_t>((2 * k) * length + t)] = weight * std::cos(angle);
      matrix[static_cast<std::size_t>((2 * k + 1) * length + t)] = -weight * std::sin(angle);
    }
  shape.resize(shape.size() - 2);
  Shape flat = shape;
  if (flat.empty()) flat.push_back(1);
  flat.push_back(2 * bins);
  const NodeId y =
      b.matmul(b.reshape(x, flat), constant_real(b, b.dtype(x), matrix, {2 * bins, length}));
  shape.insert(shape.end(), {length, 1});
  return b.reshape(y, HEDDLE_TRY(checked(call, shape, b.dtype(y))));
}

/// Opset 17: attribute axis (default 1); opset 20: input 2 (default -2).
Result<Values> dft(const Call& call, Builder& b) {
  HEDDLE_TRY(want_float(call, b, 0));
  HEDDLE_TRY(want_rank(call, b, 0, 2, 64));
  NodeId x = call.in(0);
  const Shape in = b.shape(x);
  const int rank = static_cast<int>(in.size());
  std::int64_t given = call.attribute_int("axis", call.opset >= 20 ? -2 : 1);
  if (call.has(2)) given = HEDDLE_TRY(constant_int(call, 2));
  const int axis = HEDDLE_TRY(call.normalize_axis(given, rank));
  if (axis == rank - 1 || in.back() < 1 || in.back() > 2) {
    return call.error("input 0 has shape {} and axis {}, want a last dimension of 1 or 2",
                      to_string(in), axis);
  }
  std::int64_t length = at(in, axis);
  if (call.has(1)) length = HEDDLE_TRY(constant_int(call, 1));
  const bool inverse = call.attribute_int("inverse", 0) != 0;
  const bool onesided = call.attribute_int("onesided", 0) != 0;
  std::vector<int> order, back(static_cast<std::size_t>(rank));
  for (int d = 0; d < rank; ++d) {
    if (d != axis && d != rank - 1) order.push_back(d);
  }
  order.push_back(axis);
  order.push_back(rank - 1);
  for (int d = 0; d < rank; ++d) {
    back[static_cast<std::size_t>(order[static_cast<std::size_t>(d)])] = d;
  }
  if (inverse && onesided && !call.has(1)) length = 2 * (length - 1);
  const std::int64_t bins = onesided ? length / 2 + 1 : length;
  if (element_count(in) == 0)
    return call.error("input 0 has shape {}: nothing to transform", to_string(in));
  if (length < 1) return call.error("transform of length {}", length);
  if (inverse && onesided) {
    if (in.back() != 2) return call.error("input 0 has shape {}, want complex", to_string(in));
    x = HEDDLE_TRY(real_inverse(call, b, b.transpose(x, order), length));
  } else {
    x = HEDDLE_TRY(transform(call, b, b.transpose(x, order), length, bins, inverse));
  }
  return Values{b.transpose(x, back)};
}

/// Overlapping frames of signal [B, L, 1 or 2], windowed, each transformed.
Result<Values> stft(const Call& call, Builder& b) {
  HEDDLE_TRY(want_float(call, b, 0));
  HEDDLE_TRY(want_rank(call, b, 0, 2, 3));
  NodeId x = call.in(0);
  if (b.rank(x) == 2) x = b.unsqueeze(x, {2});
  const Shape in = b.shape(x);
  const std::int64_t step = HEDDLE_TRY(constant_int(call, 1));
  std::int64_t length = 0;
  if (call.has(3)) {
    length = HEDDLE_TRY(constant_int(call, 3));
  } else if (call.has(2)) {
    HEDDLE_TRY(want_rank(call, b, 2, 1, 1));
    length = b.shape(call.in(2))[0];
  }
  if (step < 1 || length < 1 || length > in[1] || in[2] < 1 || in[2] > 2 || in[0] < 1) {
    return call.error("frames of {} every {} of a signal of shape {}", length, step, to_string(in));
  }
  if (call.has(2)) {
    HEDDLE_TRY(want_shape(call, b, 2, {length}));
    HEDDLE_TRY(want_type(call, b, 2, b.dtype(x)));
  }
  const bool onesided = call.attribute_int("onesided", 1) != 0;
  const std::int64_t frames = (in[1] - length) / step + 1;
  const Shape out = HEDDLE_TRY(checked(call, {in[0], frames, length, in[2]}, b.dtype(x)));
  const Access access{{dim(0), dim(1) * ir::Expr(step) + dim(2), dim(3)}, {}};
  x = b.view(x, out, access);
  if (call.has(2)) x = b.mul(x, b.reshape(call.in(2), {length, 1}));
  const std::int64_t bins = onesided ? length / 2 + 1 : length;
  return Values{HEDDLE_TRY(transform(call, b, x, length, bins, false))};
}

constexpr OpDef kFourierOps[] = {
    {"DFT", 17, 1, 3, dft},
    {"STFT", 17, 2, 4, stft},
};

}  // namespace

std::span<const OpDef> fourier_ops() { return kFourierOps; }

}  // namespace heddle::ops

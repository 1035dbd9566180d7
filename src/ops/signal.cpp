#include <algorithm>

#include "ops/families.h"
#include "ops/util.h"

/// Windows, Fourier transforms as contractions with constant matrices, mel filters, n-gram counts.
namespace heddle::ops {
namespace {

using ir::ScalarFn;

constexpr double kPi = 3.14159265358979323846;

/// a0 - a1·cos(2πn/N) + a2·cos(4πn/N); N is the size, one less for a symmetric window.
Result<Values> cosine_window(const Call& call, Builder& b, double a0, double a1, double a2) {
  const std::int64_t size = HEDDLE_TRY(constant_int(call, 0));
  if (size < 0 || size > kMaxTableElements) {
    return call.error("size is {}, want one in [0, {}]", size, kMaxTableElements);
  }
  const DType type = HEDDLE_TRY(attribute_dtype(call, "output_datatype", DType::f32));
  const bool periodic = call.attribute_int("periodic", 1) != 0;
  const auto period = static_cast<double>(periodic ? size : size - 1);
  std::vector<double> values;
  for (std::int64_t i = 0; i < size; ++i) {
    const double angle = period > 0 ? 2 * kPi * static_cast<double>(i) / period : 0;
    values.push_back(a0 - a1 * std::cos(angle) + a2 * std::cos(2 * angle));
  }
  return Values{constant_real(b, type, values, {size})};
}
Result<Values> hann_window(const Call& call, Builder& b) {
  return cosine_window(call, b, 0.5, 0.5, 0);
}
Result<Values> hamming_window(const Call& call, Builder& b) {
  return cosine_window(call, b, 25.0 / 46.0, 21.0 / 46.0, 0);
}
Result<Values> blackman_window(const Call& call, Builder& b) {
  return cosine_window(call, b, 0.42, 0.5, 0.08);
}

/// The real 2n×2m matrix (or n×2m for real input) of the transform of length n, keeping m bins: a
/// row per input (real, imaginary), a column per output (real, imaginary).
NodeId fourier_matrix(Builder& b, DType type, std::int64_t n, std::int64_t m, std::int64_t parts,
                      bool inverse) {
  std::vector<double> values(static_cast<std::size_t>(n * parts * m * 2));
  const double scale = inverse ? 1.0 / static_cast<double>(n) : 1.0;
  for (std::int64_t t = 0; t < n; ++t) {
    for (std::int64_t k = 0; k < m; ++k) {
      // t·k mod n keeps the angle small and exact.
      const double angle =
          2 * kPi * static_cast<double>((t * k) % n) / static_cast<double>(n) * (inverse ? 1 : -1);
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

/// The factor nearest to the root of a length that is too large for a matrix; an error for a prime.
Result<std::int64_t> factor_of(const Call& call, std::int64_t n) {
  if (n > kMaxTableElements)
    return call.error("transform of length {}, want at most {}", n, kMaxTableElements);
  for (auto d = static_cast<std::int64_t>(std::sqrt(static_cast<double>(n))); d > 1; --d)
    if (n % d == 0) return d;
  return call.unsupported("transform of length {}, which is prime and too large for a matrix", n);
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
  std::vector<double> cosines, sines;
  for (std::int64_t j = 0; j < columns; ++j)
    for (std::int64_t k = 0; k < rows; ++k) {
      const double angle = 2 * kPi * static_cast<double>(j * k) / static_cast<double>(length);
      cosines.push_back(std::cos(angle));
      sines.push_back(inverse ? std::sin(angle) : -std::sin(angle));
    }
  const NodeId c = constant_real(b, b.dtype(y), cosines, {columns, rows, 1});
  const NodeId s = constant_real(b, b.dtype(y), sines, {columns, rows, 1});
  const NodeId re = b.slice_axis(y, axis + 2, 0, 1), im = b.slice_axis(y, axis + 2, 1, 1);
  y = b.concat({b.sub(b.mul(re, c), b.mul(im, s)), b.add(b.mul(re, s), b.mul(im, c))}, axis + 2);
  y = HEDDLE_TRY(transform(call, b, b.transpose(y, swapped), columns, columns, inverse));
  shape.back() = 2;
  return b.reshape(b.transpose(y, swapped), shape);
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
    const std::int64_t rows = HEDDLE_TRY(factor_of(call, length));
    return b.slice_axis(HEDDLE_TRY(split_transform(call, b, x, rows, inverse)), rank - 2, 0, bins);
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
      const double angle = 2 * kPi * static_cast<double>((t * k) % length) / n;
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

/// Triangular filters, equally spaced on the mel scale: [dft_length/2 + 1, bins], from constants.
Result<Values> mel_weight_matrix(const Call& call, Builder& b) {
  const std::int64_t bins = HEDDLE_TRY(constant_int(call, 0));
  const std::int64_t length = HEDDLE_TRY(constant_int(call, 1));
  const std::int64_t rate = HEDDLE_TRY(constant_int(call, 2));
  const double low = HEDDLE_TRY(constant_real(call, 3)), high = HEDDLE_TRY(constant_real(call, 4));
  const DType type = HEDDLE_TRY(attribute_dtype(call, "output_datatype", DType::f32));
  const std::int64_t rows = length / 2 + 1;
  if (bins < 1 || length < 1 || rate < 1 || bins > (1 << 16) || rows > (1 << 20) ||
      bins * rows > kMaxTableElements || !(low >= 0) || !(high >= low) || high > 1e9) {
    return call.error("{} bins from {} to {} Hz of a transform of length {} at {} Hz", bins, low,
                      high, length, rate);
  }
  const auto mel = [](double hertz) { return 2595 * std::log10(1 + hertz / 700); };
  const double first = mel(low), step = (mel(high) - first) / static_cast<double>(bins + 2);
  std::vector<std::int64_t> edge;
  for (std::int64_t i = 0; i < bins + 2; ++i) {
    const double hertz = 700 * (std::pow(10, (static_cast<double>(i) * step + first) / 2595) - 1);
    const double bin =
        std::floor(static_cast<double>(length + 1) * hertz / static_cast<double>(rate));
    edge.push_back(static_cast<std::int64_t>(std::min(bin, static_cast<double>(rows))));
  }
  std::vector<double> values(static_cast<std::size_t>(rows * bins), 0.0);
  for (std::int64_t i = 0; i < bins; ++i) {
    const auto k = static_cast<std::size_t>(i);
    const std::int64_t left = edge[k], peak = edge[k + 1], right = edge[k + 2];
    const auto put = [&](std::int64_t row, double v) {
      if (row < rows) values[static_cast<std::size_t>(row * bins + i)] = v;
    };
    if (left == peak) put(peak, 1);
    for (std::int64_t j = left; j <= peak && left != peak; ++j) {
      put(j, static_cast<double>(j - left) / static_cast<double>(peak - left));
    }
    for (std::int64_t j = peak; j < right; ++j) {
      put(j, static_cast<double>(right - j) / static_cast<double>(right - peak));
    }
  }
  return Values{constant_real(b, type, values, {rows, bins})};
}

/// The n-grams of a TfIdfVectorizer's pool, in pool order.
struct Grams {
  std::vector<std::vector<std::int64_t>> words;
  std::vector<std::int64_t> slots;  ///< output position of each
  std::int64_t width = 0;           ///< outputs
};
Result<Grams> read_grams(const Call& call) {
  const auto pool = HEDDLE_TRY(labels_of(call, "pool_int64s", "pool_strings"));
  const bool texts = call.result_format == Format::text;
  call.result_format = Format::plain;
  if (texts != (call.format(0) == Format::text))
    return call.error("the pool and input 0 differ in type");
  const auto counts = call.attribute_ints("ngram_counts", {});
  Grams g;
  g.slots = call.attribute_ints("ngram_indexes", {});
  for (std::size_t n = 1; n <= counts.size(); ++n) {
    const std::int64_t begin = counts[n - 1];
    const std::int64_t end = n < counts.size() ? counts[n] : static_cast<std::int64_t>(pool.size());
    if (begin < 0 || end < begin || end > static_cast<std::int64_t>(pool.size()) ||
        (end - begin) % static_cast<std::int64_t>(n) != 0) {
      return call.error("ngram_counts {} do not divide a pool of {}", to_string(counts),
                        pool.size());
    }
    for (std::int64_t i = begin; i < end; i += static_cast<std::int64_t>(n)) {
      g.words.emplace_back(pool.begin() + i, pool.begin() + i + static_cast<std::int64_t>(n));
    }
  }
  if (g.slots.size() != g.words.size() || g.words.empty() || g.words.size() > 4096) {
    return call.error("{} ngram_indexes for {} n-grams, want equal numbers up to 4096",
                      g.slots.size(), g.words.size());
  }
  for (const std::int64_t slot : g.slots) {
    if (slot < 0 || slot > (1 << 20)) return call.error("ngram_indexes are {}", to_string(g.slots));
    g.width = std::max(g.width, slot + 1);
  }
  return g;
}

/// How often `word` (a list of numbers) occurs in each row of x [rows, n] with `skip` between its
/// members: f32 [rows, 1].
NodeId occurrences(Builder& b, NodeId x, const std::vector<std::int64_t>& word, std::int64_t skip) {
  const Shape in = b.shape(x);
  const std::int64_t gap = skip + 1;
  const std::int64_t starts = in[1] - gap * (static_cast<std::int64_t>(word.size()) - 1);
  if (starts < 1) return b.full({DType::f32, {in[0], 1}}, 0);
  std::optional<NodeId> all;
  for (std::size_t j = 0; j < word.size(); ++j) {
    const NodeId column = b.slice_axis(x, 1, gap * static_cast<std::int64_t>(j), starts);
    const NodeId same = compare(b, ScalarFn::equal, column, word[j]);
    all = all ? b.map(ScalarFn::logical_and, {*all, same}) : same;
  }
  return b.reduce_sum(b.cast(*all, DType::f32), {1});
}

/// Counts of n-grams of integers, as TF, IDF (weights where present) or TF-IDF.
Result<Values> tf_idf(const Call& call, Builder& b) {
  HEDDLE_TRY(want_int(call, b, 0));
  HEDDLE_TRY(want_rank(call, b, 0, 1, 2));
  const Grams g = HEDDLE_TRY(read_grams(call));
  const int mode = HEDDLE_TRY(choice(call, "mode", "TF", {"TF", "IDF", "TFIDF"}));
  const std::int64_t shortest = call.attribute_int("min_gram_length", 1);
  const std::int64_t longest = call.attribute_int("max_gram_length", 1);
  const std::int64_t skips = call.attribute_int("max_skip_count", 0);
  std::vector<double> weights(g.words.size(), 1.0);
  if (const auto it = call.attributes.find("weights"); it != call.attributes.end()) {
    const auto* given = std::get_if<std::vector<double>>(&it->second);
    if (given == nullptr || given->size() != weights.size()) {
      return call.error("weights do not number {}", weights.size());
    }
    weights = *given;
  }
  if (skips < 0 || skips > 64) return call.error("max_skip_count is {}, want 0 to 64", skips);
  const bool vector = b.rank(call.in(0)) == 1;
  NodeId x = call.in(0);
  if (vector) x = b.reshape(x, {1, b.shape(x)[0]});
  const std::int64_t rows = b.shape(x)[0];
  const NodeId none = b.full({DType::f32, {rows, 1}}, 0);
  std::vector<NodeId> columns(static_cast<std::size_t>(g.width), none);
  for (std::size_t i = 0; i < g.words.size(); ++i) {
    const auto n = static_cast<std::int64_t>(g.words[i].size());
    if (n < shortest || n > longest) continue;
    NodeId count = none;
    for (std::int64_t skip = 0; skip <= (n == 1 ? 0 : skips); ++skip) {
      count = b.add(count, occurrences(b, x, g.words[i], skip));
    }
    if (mode == 1) count = b.min(count, b.scalar(DType::f32, 1));
    if (mode != 0) count = b.mul(count, weights[i]);
    columns[static_cast<std::size_t>(g.slots[i])] = count;
  }
  const NodeId out = columns.size() == 1 ? columns[0] : b.concat(columns, 1);
  return Values{vector ? b.reshape(out, {g.width}) : out};
}

constexpr OpDef kSignalOps[] = {
    {"HannWindow", 17, 1, 1, hann_window},
    {"HammingWindow", 17, 1, 1, hamming_window},
    {"BlackmanWindow", 17, 1, 1, blackman_window},
    {"DFT", 17, 1, 3, dft},
    {"STFT", 17, 2, 4, stft},
    {"MelWeightMatrix", 17, 5, 5, mel_weight_matrix},
    {"TfIdfVectorizer", 9, 1, 1, tf_idf, OpDef::Stored::knows},
};

}  // namespace

std::span<const OpDef> signal_ops() { return kSignalOps; }

}  // namespace heddle::ops

#include <algorithm>
#include <numbers>

#include "ops/families.h"
#include "ops/util.h"

/// Windows, mel filters, n-gram counts.
namespace heddle::ops {
namespace {

using ir::ScalarFn;

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
    const double angle = period > 0 ? 2 * std::numbers::pi * static_cast<double>(i) / period : 0;
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
    {"MelWeightMatrix", 17, 5, 5, mel_weight_matrix},
    {"TfIdfVectorizer", 9, 1, 1, tf_idf, OpDef::Stored::knows},
};

}  // namespace

std::span<const OpDef> signal_ops() { return kSignalOps; }

}  // namespace heddle::ops

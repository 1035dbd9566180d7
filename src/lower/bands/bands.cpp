#include "lower/bands/bands.h"

#include <algorithm>

#include "lower/contract/schedule.h"
#include "support/math.h"

namespace heddle::lower::bands {

using prim::Graph;

namespace {

/// Of the second-level cache: what is between layers, the rest is operands' and results'; and what
/// stays there between kernels, too.
constexpr double kShare = 0.4;

Bands bands_of_rows(const Graph& g, const std::vector<Layer>& layers, std::int64_t rows) {
  Bands out;
  out.parts.resize(layers.size());
  out.count = ceil_div(g[layers.back().root].type.shape[kRowDim], rows);
  out.parts.back() = {rows, rows, 0};
  for (std::size_t i = layers.size() - 1; i-- > 0;) {
    const Layer& next = layers[i + 1];
    const Bands::Part& part = out.parts[i + 1];
    out.parts[i] = {(part.rows - 1) * next.step + next.last - next.first + 1,
                    part.apart * next.step, part.begin * next.step + next.first};
  }
  return out;
}

/// Of what is between the layers in a band.
double bytes_of(const Graph& g, const std::vector<Layer>& layers, const Bands& bands) {
  double bytes = 0;
  for (std::size_t i = 0; i + 1 < layers.size(); ++i) {
    const Shape& image = g[layers[i].root].type.shape;
    bytes += static_cast<double>(bands.parts[i].rows * image[kChannelDim] * image[kColumnDim] *
                                 size_of(DType::f32));
  }
  return bytes;
}

/// The most that a layer computes twice, as a share of what it computes.
double overlap_of(const Bands& bands) {
  double most = 0;
  for (const Bands::Part& part : bands.parts)
    most = std::max(most,
                    static_cast<double>(part.rows - part.apart) / static_cast<double>(part.apart));
  return most;
}

}  // namespace

std::optional<Bands> bands_of(const Graph& g, const std::vector<Layer>& layers,
                              std::int64_t l2_bytes, int threads, const Tuning& fixed) {
  constexpr std::int64_t kFewest = 2, kEnough = 8, kTasksOfAThread = 8;
  constexpr double kLittle = 1.0 / 16;
  const Shape& shape = g[layers.back().root].type.shape;
  const std::int64_t all = shape[kRowDim], images = shape[0];
  if (all < 1 || images < 1) return std::nullopt;
  const auto of = [&](std::int64_t rows) { return bands_of_rows(g, layers, rows); };
  const auto fits = [&](std::int64_t rows) {
    return bytes_of(g, layers, of(rows)) <= kShare * static_cast<double>(l2_bytes);
  };
  if (const auto pin = contract::pinned(fixed, "rows"))
    return of(std::clamp<std::int64_t>(*pin, 1, all));
  std::int64_t rows = std::min(all, kFewest);
  if (!fits(rows)) return std::nullopt;
  while (rows < all && (rows < kEnough || overlap_of(of(rows)) > kLittle) && fits(rows + 1)) ++rows;
  // As many for each thread, if they are few.
  std::int64_t count = ceil_div(all, rows);
  if (count * images < kTasksOfAThread * threads)
    count = std::clamp<std::int64_t>(ceil_div(count * images, threads) * threads / images, 1, all);
  return of(ceil_div(all, count));
}

namespace {

/// What a kernel has of a layer: vectors of a depthwise one's channels, more than one column, more
/// than one filter.
bool has_kernel(const Graph& g, const Layer& layer, std::int64_t lanes) {
  constexpr std::int64_t kManyTaps = 128;  // of each channel: memory hides behind them
  const Shape& shape = g[layer.root].type.shape;
  const auto* contract = std::get_if<prim::Contract>(&g[layer.root].op);
  if (shape[kColumnDim] < 2) return false;
  if (!contract) return true;
  if (contract::worth_main_loop(g, layer.root)) return shape[kChannelDim] > 1;
  const std::int64_t taps = element_count(contract->reduced);
  return shape[kChannelDim] >= lanes && taps > 1 && taps <= kManyTaps;
}

/// Inputs of a graph do not lie channels-last, as layers of each channel alone want their images.
bool reads_input(const Graph& g, const Layer& layer) {
  const bool contract = std::holds_alternative<prim::Contract>(g[layer.root].op);
  if (contract && contract::worth_main_loop(g, layer.root)) return false;
  return std::ranges::any_of(g[layer.root].args, [&](NodeId arg) {
    return std::holds_alternative<prim::Input>(g[arg].op);
  });
}

}  // namespace

bool are_bands(const Graph& g, const std::vector<Layer>& layers, std::int64_t l2_bytes,
               std::int64_t lanes) {
  const auto is_large = [&](const Layer& layer) {
    const TensorType& image = g[layer.output()].type;
    return static_cast<double>(element_count(image.shape) * size_of(image.dtype)) >
           kShare * static_cast<double>(l2_bytes);
  };
  return !layers.empty() && !reads_input(g, layers.front()) &&
         std::all_of(layers.begin(), layers.end() - 1, is_large) &&
         std::ranges::all_of(layers, [&](const Layer& l) { return has_kernel(g, l, lanes); });
}

bool supports(const Graph& g, const Cluster& c, const Target& target) {
  if (target.is_gpu() || !target.bands) return false;
  const std::vector<Layer> layers = layers_of(g, c);
  return are_bands(g, layers, target.l2_bytes, target.lanes(DType::f32)) &&
         bands_of(g, layers, target.l2_bytes, target.threads).has_value();
}

}  // namespace heddle::lower::bands

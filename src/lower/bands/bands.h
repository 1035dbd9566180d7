#pragma once
#include "lower/lower.h"

/// Convolutions and poolings one after another as one kernel, band by band of an image's rows: what
/// is between them stays in a task's own memory, of the size of a band, and rows where bands
/// overlap are computed twice (fused-layer accelerators: Alwani et al., MICRO 2016; inverted
/// bottlenecks of mobile networks).
namespace heddle::lower::bands {

constexpr std::size_t kChannelDim = 1, kRowDim = 2, kColumnDim = 3;  ///< of images N×C×H×W

/// A contraction, or a reduction of windows, with what follows it.
struct Layer {
  Cluster cluster;  ///< of one output
  NodeId root;      ///< the contraction, or the view of the windows: N×C×H×W×…
  /// Its row r reads rows r·step + first … r·step + last of the layer before.
  std::int64_t step = 1, first = 0, last = 0;
  NodeId output() const { return cluster.outputs[0]; }
};
/// First to last; empty where the cluster is no chain of at least two.
std::vector<Layer> layers_of(const prim::Graph& g, const Cluster& c);

/// True if everything between the layers leaves a second-level cache of this size, and each layer
/// has a kernel for vectors of so many lanes of f32, as far as that can be told without layouts.
bool are_bands(const prim::Graph& g, const std::vector<Layer>& layers, std::int64_t l2_bytes,
               std::int64_t lanes);

/// How the rows are cut.
struct Bands {
  std::int64_t count = 1;
  /// Band t has `rows` rows of a layer, from row t·apart + begin on; some may be outside.
  struct Part {
    std::int64_t rows = 1, apart = 1, begin = 0;
    bool overlaps() const { return rows != apart || begin != 0; }
  };
  std::vector<Part> parts;  ///< by layer
};
/// Bands of so many rows that little is computed twice, or as many as stay in a second-level cache
/// of this size, in equal numbers for the threads; "rows" pins those of the last layer. nullopt:
/// not even two rows stay there.
std::optional<Bands> bands_of(const prim::Graph& g, const std::vector<Layer>& layers,
                              std::int64_t l2_bytes, int threads, const Tuning& fixed = {});

}  // namespace heddle::lower::bands

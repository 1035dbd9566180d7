#pragma once
#include <string>

#include "lower/contract/problem.h"

namespace heddle::lower::contract {

/// Where the main loop reads the operand of the rows.
enum class ASource : std::uint8_t {
  in_place,  ///< affine offsets, no conditions: straight from memory
  box,       ///< a task's part of the operand, copied with zeros outside (convolution's halo)
  matrix,    ///< a task's rows × reductions, computed (im2col, transposes, prologues)
  tiles,     ///< the same as tile × reductions × rows, vectors along the rows as in memory
};
/// Where it reads the vectors.
enum class BSource : std::uint8_t {
  constant,  ///< packed at compile time
  in_place,
  task,   ///< packed by each task for itself
  phase,  ///< packed once by a first phase
};

/// Registers that products of pairs take before they are added; of 16 the allocator wants one more.
constexpr std::int64_t kPairSpare = 2;

/// What a schedule has to know of a problem; times are in cycles of one core.
struct Extents {
  std::int64_t outer = 1;  ///< batch and outer row axes: independent problems
  std::int64_t rows = 1;   ///< second row axis (output rows of a convolution); 1 if there is none
  std::int64_t tile = 1;   ///< row axis that is cut into register tiles
  std::int64_t n = 1, k = 1;
  std::int64_t a_row_bytes = 0;   ///< operand bytes that one more `rows` (or tile row) brings
  std::int64_t a_halo_bytes = 0;  ///< operand bytes a task reads beyond that
  std::int64_t a_apart = 0;       ///< bytes from a row of a tile to the next, read in place
  double a_copy_rate = 5;         ///< bytes in a cycle where the rows are copied
  double epilogue = 4;            ///< vector operations per result vector
  std::int64_t element_bytes = 4;
  bool whole = false;  ///< every task has all tiles
  /// Register tiles are equal, of a multiple of so many rows, unless a schedule says otherwise.
  std::int64_t tile_step = 1;
  std::int64_t spare = 0;  ///< registers that products take before they are added
  double inside = 1;       ///< share of the steps that padding does not leave out
};

/// All choices. Tiles: `big` tiles of mr rows, then `small` ones of mr - 1; no remainder.
struct Schedule {
  std::int64_t mr = 1, nv = 1;
  std::int64_t big = 1, small = 0;
  std::int64_t panels = 1;  ///< of nv vectors; the last may be narrower
  std::int64_t rows_per_task = 1, tiles_per_task = 1, panels_per_task = 1;
  std::int64_t unroll = 4;
  ASource a = ASource::in_place;
  BSource b = BSource::constant;
  bool staged = false;  ///< results go through a tile in memory before the epilogue
  /// Winograd's convolution with output tiles of m×m: register tiles then run over those tiles, and
  /// the reduction over the channels alone. 0: the contraction as it is written.
  std::int64_t winograd = 0;
  /// Of Winograd's: equal blocks of an image's columns, for tasks side by side.
  std::int64_t column_blocks = 1;
  /// Strassen's product: register tiles run over pairs of rows and pairs of vectors, seven products
  /// of half the terms each.
  bool strassen = false;
  bool dots = false;       ///< vectors run along the terms, nv columns are all there are (dots.h)
  bool pieces = false;     ///< in tile registers (pieces.h)
  std::int64_t depth = 1;  ///< of pieces: blocks of the reduction, each over all tiles of the task
  /// Of pieces: parts of the reduction within a panel, whose columns stay in the first-level cache
  /// while all of the task's rows pass.
  std::int64_t slices = 1;
  /// Of pieces: panels inside tiles; the next tile's rows are split beside the products of this
  /// one.
  bool beside = false;
  double cycles = 0;  ///< the model's estimate for the whole kernel on all threads

  std::int64_t tiles() const { return big + small; }
  std::int64_t row_blocks(const Extents& e) const {
    return (e.rows + rows_per_task - 1) / rows_per_task;
  }
  std::int64_t tile_blocks() const {
    return winograd > 0 ? column_blocks : (tiles() + tiles_per_task - 1) / tiles_per_task;
  }
  std::int64_t panel_blocks() const { return (panels + panels_per_task - 1) / panels_per_task; }
  std::int64_t tasks(const Extents& e) const {
    return e.outer * row_blocks(e) * tile_blocks() * panel_blocks();
  }
};
std::string to_string(const Schedule& s);

/// The `count` of least cycles; of equals the first.
std::vector<Schedule> best_first(std::vector<Schedule> all, std::size_t count);

/// Sizes of blocks of `count` things worth trying: halves, thirds and so on.
std::vector<std::int64_t> block_sizes(std::int64_t count, std::optional<std::int64_t> pin);
std::optional<std::int64_t> pinned(const Tuning& tuning, std::string_view name);
/// Cycles of one reduction step of a register tile.
double step_cycles(const Extents& e, const Target& t, std::int64_t mr, std::int64_t nv);

/// The best schedules by the model, best first; `fixed` pins mr and nv ("mr", "nv") and blocks
/// ("rows", "tiles", "panels"). At least one.
std::vector<Schedule> schedules(const Extents& e, const Target& target, int lanes,
                                const Schedule& base, const Tuning& fixed, std::size_t count);

}  // namespace heddle::lower::contract

#pragma once
#include <array>

#include "kernel/kernel.h"

namespace heddle::kernel {

/// A product of two matrices as they lie in memory, and pointwise functions of its sums and of
/// elements of other matrices in the same place: what a collective of templates with an epilogue
/// tree (CUTLASS) can compute.
struct TreeProduct {
  /// Element (b, i, j) lies at start + b·batch + i·row + j·column.
  struct Matrix {
    int argument = 0;  ///< of the kernel
    DType dtype = DType::f16;
    std::int64_t start = 0, batch = 0, row = 0, column = 1;
  };
  static constexpr int kSums = 0, kLhs = 0, kRhs = 1, kOut = 2;
  std::int64_t batches = 1, rows = 1, columns = 1, depth = 1;
  /// The operands (over rows or columns, and the depth), the outputs from the last to the first,
  /// then what is loaded.
  std::vector<Matrix> matrices;
  /// Of the outputs from the first to the last: over loads at 0 of buffers that are numbers of
  /// matrices; kSums is the sums, and an earlier output's number its value before it is rounded.
  std::vector<Value> values;
  int tile = 1;  ///< one of kTreeTiles, counted from 1

  /// True if the copy engine can bring it: the axis that is contiguous has this extent, and begins
  /// at multiples of 16 bytes everywhere.
  bool is_aligned(const Matrix& m, std::int64_t extent) const {
    const std::int64_t width = 16 / size_of(m.dtype), pitch = m.column == 1 ? m.row : m.column;
    return m.start % width == 0 && pitch % width == 0 && pitch >= extent && extent % width == 0 &&
           m.batch % width == 0 && (batches == 1 || m.batch > 0);
  }
};

/// Tiles of blocks worth measuring. Pingpong: two groups of warps work on a tile each, else they
/// cooperate.
struct TreeTile {
  int m, n, k;
  bool pingpong;
};
constexpr std::array<TreeTile, 2> kTreeTiles = {{{128, 256, 64, false}, {128, 128, 64, true}}};

}  // namespace heddle::kernel

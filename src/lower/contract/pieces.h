#pragma once
#include "lower/contract/product.h"

namespace heddle::lower::contract {

/// Words of a tile of columns, and terms of a vector of them.
inline constexpr std::int64_t kWords =
    kernel::TileProduct::kRows * kernel::TileProduct::kRowBytes / 4;
inline constexpr std::int64_t kHalf = kernel::TileProduct::kColumns;

/// A product of matrices in tile registers, which multiply bytes and bf16 (kernel::TileProduct).
/// Operands stored so are taken as they are; of bytes, words of four are its terms. One of f32 is
/// the sum of three values of bf16, its pieces, each the rounding of what the ones before leave; of
/// the nine products of pieces the three smallest are below f32's precision and left out (Henry,
/// Tang, Heinecke, "Leveraging the bfloat16 Artificial Intelligence Datatype For Higher-Precision
/// Computations", ARITH 2019). Sums are in f32, smaller products first in each step: errors are
/// about half of those of f32's multiply-adds (driver/accuracy_test.cpp). Infinities in an operand
/// become NaN.
struct Pieces {
  int a = 3, b = 3;        ///< of each operand
  std::int64_t steps = 1;  ///< tiles along the reduction, the last one padded with zeros
  bool bytes = false;
  /// Terms of the innermost reduction, and those with the zeros behind them that keep vectors of
  /// terms from straddling it; 1 where that needs none.
  std::int64_t line = 1, padded = 1;
  /// Rows that are not copied: a line is the terms that lie side by side, cut into steps.
  struct Cut {
    std::int64_t channels;  ///< terms of a tap
    std::int64_t apart;     ///< those with the zeros behind them in the box
    std::int64_t width;     ///< terms of a step, of which all tiles have as many
  };
  std::optional<Cut> cut = std::nullopt;
  /// A term's place among those of the tiles of columns.
  std::int64_t place_of(std::int64_t term) const {
    std::int64_t in_line = term % line;
    if (cut) {
      in_line = in_line / cut->channels * cut->apart + in_line % cut->channels;
      in_line = in_line / cut->width * depth() + in_line % cut->width;
    }
    return term / line * padded + in_line;
  }
  /// Cuts lines of so many taps and channels into as few steps as can be; `box`: zeros may be put
  /// behind each tap's channels. False if whole steps of equal width cannot be had.
  bool cut_lines(std::int64_t taps, std::int64_t channels, bool box);
  int row_bytes() const {
    return cut ? static_cast<int>(cut->width * (bytes ? 4 : 2)) : kernel::TileProduct::kRowBytes;
  }
  /// Vectors of terms in a row of a tile, and terms in a word of b's tiles.
  std::int64_t vectors() const { return bytes ? 1 : 2; }
  std::int64_t depth() const { return vectors() * kHalf; }  ///< terms of a tile
  std::int64_t elements() const { return kernel::TileProduct::kRows * depth(); }
  DType type() const { return bytes ? DType::i32 : DType::bf16; }  ///< of a's tiles
  /// Piece of a, piece of b; neighbours share one of them.
  std::vector<std::pair<int, int>> products() const;
};

/// Places of a box that are a multiple of so many elements apart are spread further: they would
/// share few cache sets.
inline constexpr std::int64_t kSpread = 256;

/// Up to so many operations of a result's vector, its loads and stores are what counts; more of
/// them run beside the products of the next tile.
inline constexpr double kFewOperations = 8;

/// How often each axis of a reduction is divided, the outermost ones first, where so many blocks
/// are; nullopt if they do not divide so.
std::optional<std::vector<std::int64_t>> blocks_of(const std::vector<Axis>& terms,
                                                   std::int64_t blocks);

/// The bits of an f32's pieces; of one, those of the nearest bf16.
std::vector<kernel::Value> split(const kernel::Value& v, int count);
/// bf16 nearest to a number, ties away from zero; one that rounds to infinity is cut off.
std::uint16_t piece_of(float x);
/// With the rows from there; nullopt unless both operands are of f32 or bf16, or of bytes that go
/// four at a time, and vectors of terms do not straddle tiles; those of a constant have zeros where
/// they would.
std::optional<Pieces> pieces_of(const Product& p, ASource rows);

/// nullopt where the target has no tile registers, or nothing is gained.
std::optional<Algorithm> pieces_algorithm(const prim::Graph& g, const Problem& p,
                                          const Target& target);

/// The best by the model first; empty if `p` cannot be computed so.
std::vector<Schedule> pieces_schedules(const Product& p, Form form, const Target& target, int lanes,
                                       const Tuning& fixed, std::size_t count);

}  // namespace heddle::lower::contract

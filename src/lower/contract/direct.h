#pragma once
#include "lower/contract/pieces.h"

namespace heddle::lower::contract {

/// Rows of a product in tile registers that lie as its tiles want them, sixteen of them evenly
/// apart and 64 bytes of terms next to each other, in memory or in a box of the task: nothing is
/// copied for each row, or for each tap of a window.
struct DirectRows {
  kernel::BufferId buffer;
  ir::Expr offset;          ///< over batch, row, tile and reduction axes
  std::int64_t pitch = 1;   ///< from a row of the tile axis to the next
  std::int64_t block = 16;  ///< from the rows of a tile to those of the next
  std::int64_t step = 1;    ///< from a tile to the next along the terms
  std::vector<kernel::TileProduct::Operand::Run> runs;
};

/// Rows of a tile: of a small image, whose lines are one axis, those of a line.
std::int64_t height_of(const Product& p);
/// Where `offset` of `buffer` has the first element of a term, each of `in_term` elements.
std::optional<DirectRows> direct_rows(const Product& p, const Pieces& shape,
                                      kernel::BufferId buffer, const ir::Expr& offset,
                                      std::int64_t in_term);
/// The terms of a window that a box has side by side: `taps` along its rows, of `channels` each.
struct Line {
  std::int64_t taps, channels;
};
Line line_in_box(const Product& p);
/// In memory.
std::optional<DirectRows> rows_in_place(const Product& p, const Pieces& shape);
/// Whether a box of the operand has them, whatever part of it a task takes.
bool rows_in_box(const Product& p, const Pieces& shape);

}  // namespace heddle::lower::contract

#pragma once
#include "lower/contract/pieces.h"

/// What products in tile registers take, in cycles: measured on a Xeon with AMX.
namespace heddle::lower::contract {

/// Of copies: bytes in a cycle; splitting a vector of 16 terms of a row into a piece, and 16 terms
/// of a vector of columns; a vector of terms that is copied to a box.
inline constexpr double kCopiedBytes = 5, kRowPiece = 2.5, kColumnBlock = 160, kBoxVector = 6;

/// Besides, of 16 terms of a vector of columns where memory does not run along them.
inline constexpr double kGatheredBlock = 250;

/// How often an element of an operand is copied: where rows or columns overlap (a convolution's
/// windows), for each tap.
double times_copied(const prim::Graph& g, NodeId operand, double rows, double terms);

/// Of the whole kernel on all threads.
double pieces_cycles(const Product& p, const Pieces& shape, const Schedule& s, const Target& target,
                     int lanes);

}  // namespace heddle::lower::contract

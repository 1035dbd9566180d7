#pragma once
#include "lower/contract/gpu/gemm.h"
#include "support/library_product.h"

namespace heddle::lower::contract::gpu {

/// Element (b, i, j) lies at start + b·batch + i·row + j·column.
struct Steps {
  std::int64_t start, batch, row, column;
};
/// Of an offset that steps evenly along batches, rows and columns; 0 along what has one element.
std::optional<Steps> steps_of(const ir::Expr& offset, const std::vector<Axis>& batch,
                              const std::vector<Axis>& rows, const std::vector<Axis>& columns);

/// The product as a library computes it: two matrices as they lie in memory, one output, no more
/// after the sums than a bias along the columns and max(0, x). Arguments are buffer ids of the
/// product's kernel. nullopt where it is something else. `gemm` without packed operands.
std::optional<LibraryProduct> library_product(const Gemm& gemm, bool tf32);

}  // namespace heddle::lower::contract::gpu

#pragma once
#include <cstdint>

#include "support/dtype.h"

namespace heddle {

/// out[b][i][j] = act(Σ_k lhs[b][i][k] · rhs[b][j][k] + bias[j]), added up in f32: a kernel that a
/// library of products (cuBLASLt) can do the work of, where it is there.
struct LibraryProduct {
  /// Element (b, i, k) lies at start + b·batch + i·row + k·column; row or column is 1.
  struct Matrix {
    int argument = 0;  ///< of the kernel
    std::int64_t start = 0, batch = 0, row = 0, column = 1;
    bool operator==(const Matrix&) const = default;
  };
  DType operands = DType::f32, result = DType::f32;  ///< f32, f16 or bf16; the bias is of `result`
  std::int64_t batches = 1, rows = 1, columns = 1, depth = 1;
  Matrix lhs, rhs, out;  ///< `out`: column 1
  int bias = -1;         ///< argument; -1: none
  std::int64_t bias_start = 0;
  bool relu = false;
  bool tf32 = false;  ///< operands of f32 may be rounded to tf32
  bool operator==(const LibraryProduct&) const = default;
};

}  // namespace heddle

#pragma once
#include <vector>

#include "ir/scalar.h"

namespace heddle::kernel {

// Values and memory as the interpreter computes with them.

/// A value of any type: floats in `real`, everything else in `integer`.
struct Scalar {
  double real = 0;
  std::int64_t integer = 0;
};

/// f16 and bf16 round as their storage does; other types do not change.
double round_to(DType type, double value);
/// To nearest, ties away from zero.
double round_to_tf32(double value);
Scalar combined(ir::Monoid fn, Scalar a, Scalar b, DType dtype);
Scalar bitcast(Scalar x, DType from, DType to);
Scalar cast(Scalar x, DType from, DType to);

/// A local buffer: floats stay doubles, so that the reference has no rounding of its own; f16 and
/// bf16 round as their storage does.
struct Local {
  std::vector<double> reals;
  std::vector<std::int64_t> integers;
  /// Who touched each element last, and in which interval between barriers.
  struct Access {
    std::int64_t block = -1, warp = -1;  ///< intervals: of the block's barriers, of the warp's
    std::int64_t task = -1;
    int thread = -1;
  };
  struct Seen {
    Access write, read;
  };
  std::vector<Seen> seen;
};

}  // namespace heddle::kernel

#pragma once
#include "ir/scalar.h"

namespace heddle::kernel {

// One value of any type, as the interpreter computes with it.

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

}  // namespace heddle::kernel

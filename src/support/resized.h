#pragma once
#include "support/tensor.h"

namespace heddle {

/// The positions that `value` and a tensor of `shape`, which has its rank, have in common; zeros
/// elsewhere. Itself where the shape is the same.
Tensor resized(const Tensor& value, const Shape& shape);
/// The same into a tensor that is there, whose other positions stay.
void copy_common(const Tensor& from, Tensor& to);

}  // namespace heddle

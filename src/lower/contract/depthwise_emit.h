#pragma once
#include "lower/contract/product.h"

namespace heddle::lower::contract {

/// The kernel of a convolution of each channel alone: `channel` is the batch axis along which the
/// operand and all outputs are neighbours, at least a vector of them.
Lowered emit_depthwise(Product& p, const Axis& channel);

}  // namespace heddle::lower::contract

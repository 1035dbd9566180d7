#pragma once
#include <unordered_set>

#include "kernel/kernel.h"

namespace heddle::codegen::cpu {

using NarrowValues = std::unordered_set<const kernel::ValueNode*>;
/// Values of f32 of which no more counts than bf16 holds, so that functions need not be exact to
/// all of f32's places: what is rounded to bf16, or stored as that, and what such values are made
/// of by products and choices, through buffers of the kernel's own as well. A sum keeps what its
/// terms have only if they cannot cancel: none is negative, or one is of bf16 itself. The argument
/// of a function counts as a whole.
NarrowValues narrow_values(const kernel::Kernel& k);

}  // namespace heddle::codegen::cpu

#pragma once
#include <string_view>
#include <vector>

#include "kernel/kernel.h"

namespace heddle::kernel {

/// One or more kernels, each after the other.
Result<std::vector<Kernel>> parse_kernels(std::string_view text);

}  // namespace heddle::kernel

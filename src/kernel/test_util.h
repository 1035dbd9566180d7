#pragma once
#include <gtest/gtest.h>

#include "kernel/kernel.h"

namespace heddle::kernel {

/// The kernel that a text says; a failure of the test if it says none.
inline Kernel parsed(std::string_view text) {
  auto k = parse_kernel(text);
  EXPECT_TRUE(k.ok()) << (k.ok() ? "" : k.error().message);
  return k.ok() ? *k : Kernel{};
}

}  // namespace heddle::kernel

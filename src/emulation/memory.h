#pragma once
#include <cstddef>
#include <cstdint>

namespace heddle::emulation {

/// An allocation of global memory.
struct Allocation {
  std::byte* begin = nullptr;
  std::int64_t bytes = 0;
};
/// The allocation that holds an address; null if none does.
Allocation* find_allocation(const void* at);

}  // namespace heddle::emulation

#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>

namespace heddle::emulation {

struct Cell;
/// An allocation of global memory.
struct Allocation {
  std::byte* begin = nullptr;
  std::int64_t bytes = 0;
  std::unique_ptr<Cell[]> cells;  ///< made when accesses are first checked
};
/// The allocation that holds an address; null if none does.
Allocation* find_allocation(const void* at);

}  // namespace heddle::emulation

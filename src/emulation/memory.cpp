// Global memory: allocations that accesses are checked against.
#include "emulation/memory.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <new>

#include "emulation/emulation.h"
#include "emulation/races.h"

namespace heddle::emulation {
namespace {

constexpr std::size_t kAlign = 256;

struct Heap {
  std::mutex mutex;
  std::map<const std::byte*, Allocation> all;
};
Heap& heap() {
  static Heap one;
  return one;
}

}  // namespace

std::byte* allocate(std::int64_t bytes) {
  // No more than asked for, so that the address sanitizer sees the end.
  const std::size_t room = std::max<std::size_t>(1, static_cast<std::size_t>(bytes));
  void* room_at = nullptr;
  if (::posix_memalign(&room_at, kAlign, room) != 0) throw std::bad_alloc();
  std::memset(room_at, 0xff, room);
  auto* memory = static_cast<std::byte*>(room_at);
  const std::lock_guard lock(heap().mutex);
  heap().all[memory] = {memory, bytes, nullptr};
  return memory;
}

void release(std::byte* memory) {
  if (!memory) return;
  {
    const std::lock_guard lock(heap().mutex);
    HEDDLE_CHECK(heap().all.erase(memory) == 1, "emulation: memory that was not allocated");
  }
  std::free(memory);
}

Allocation* find_allocation(const void* at) {
  const auto* p = static_cast<const std::byte*>(at);
  const std::lock_guard lock(heap().mutex);
  auto next = heap().all.upper_bound(p);
  if (next == heap().all.begin()) return nullptr;
  Allocation& a = std::prev(next)->second;
  return p < a.begin + a.bytes ? &a : nullptr;
}

}  // namespace heddle::emulation

#pragma once
#include <cstdint>
#include <vector>

namespace heddle::runtime {

/// Which worker does which tasks of which stage, in which order, after whom.
struct Schedule {
  int workers = 0;
  struct Item {
    int stage = 0;
    std::int64_t first = 0, last = 0;
    int wait = -1;
  };
  std::vector<std::vector<Item>> items;  ///< by worker
  std::vector<std::vector<int>> waits;   ///< items of each worker that must be complete
};

}  // namespace heddle::runtime

#pragma once
#include <cstdint>

namespace heddle::codegen::cpu {

/// kernel::Routine "heddle_sort": the positions that sort keys[0..n) stably; a NaN counts as the
/// largest. positions has room for n; the first `count` are the result. `type` is the keys' DType.
void sort(const void* keys, std::int64_t* positions, std::int64_t n, std::int64_t count,
          std::int64_t descending, std::int64_t type);

}  // namespace heddle::codegen::cpu

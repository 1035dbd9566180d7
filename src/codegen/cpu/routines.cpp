#include "codegen/cpu/routines.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "support/dtype.h"
#include "support/result.h"

namespace heddle::codegen::cpu {
namespace {

template <class T>
bool less(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) {
    if (std::isnan(a)) return false;
    if (std::isnan(b)) return true;
  }
  return a < b;
}

/// Equal keys keep their order in both directions, which makes the order total: no stable (and
/// allocating) sort is needed, and the first `count` can be selected.
template <class T>
void sort_as(const void* data, std::int64_t* positions, std::int64_t n, std::int64_t count,
             bool descending) {
  const T* keys = static_cast<const T*>(data);
  const auto before = [=](std::int64_t a, std::int64_t b) {
    const T x = keys[descending ? b : a], y = keys[descending ? a : b];
    if (less(x, y)) return true;
    return !less(y, x) && a < b;
  };
  std::iota(positions, positions + n, std::int64_t{0});
  if (count >= n) return std::sort(positions, positions + n, before);
  std::partial_sort(positions, positions + count, positions + n, before);
}

}  // namespace

void sort(const void* keys, std::int64_t* positions, std::int64_t n, std::int64_t count,
          std::int64_t descending, std::int64_t type) {
  const auto as = [&]<class T>(T) { sort_as<T>(keys, positions, n, count, descending != 0); };
  switch (static_cast<DType>(type)) {
    case DType::f32:
      return as(float{});
    case DType::f64:
      return as(double{});
    case DType::i8:
      return as(std::int8_t{});
    case DType::i16:
      return as(std::int16_t{});
    case DType::i32:
      return as(std::int32_t{});
    case DType::i64:
      return as(std::int64_t{});
    case DType::b1:
    case DType::u8:
      return as(std::uint8_t{});
    case DType::u16:
      return as(std::uint16_t{});
    case DType::u32:
      return as(std::uint32_t{});
    case DType::u64:
      return as(std::uint64_t{});
    case DType::f16:
    case DType::bf16:
      break;
  }
  HEDDLE_CHECK(false, "sort of keys of type {}", type);
}

}  // namespace heddle::codegen::cpu

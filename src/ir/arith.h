#pragma once
#include <cstdint>
#include <optional>

#include "support/result.h"

namespace heddle::ir {

/// Floor division and its remainder; the divisor is positive.
inline std::int64_t floor_div_int(std::int64_t a, std::int64_t b) {
  return a / b - (a % b < 0 ? 1 : 0);
}
inline std::int64_t floor_mod_int(std::int64_t a, std::int64_t b) {
  const std::int64_t r = a % b;
  return r < 0 ? r + b : r;
}
inline std::optional<std::int64_t> add_or_none(std::int64_t a, std::int64_t b) {
  std::int64_t r = 0;
  if (__builtin_add_overflow(a, b, &r)) return std::nullopt;
  return r;
}
inline std::optional<std::int64_t> mul_or_none(std::int64_t a, std::int64_t b) {
  std::int64_t r = 0;
  if (__builtin_mul_overflow(a, b, &r)) return std::nullopt;
  return r;
}
inline std::int64_t add_checked(std::int64_t a, std::int64_t b) {
  const auto r = add_or_none(a, b);
  HEDDLE_CHECK(r, "{} + {} overflows", a, b);
  return *r;
}
inline std::int64_t mul_checked(std::int64_t a, std::int64_t b) {
  const auto r = mul_or_none(a, b);
  HEDDLE_CHECK(r, "{} * {} overflows", a, b);
  return *r;
}

}  // namespace heddle::ir

#pragma once
#include <cstdint>

namespace heddle {

/// a / b rounded up; a >= 0, b > 0.
constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

/// The least multiple of `to` that is not less.
constexpr std::int64_t round_up(std::int64_t n, std::int64_t to) { return ceil_div(n, to) * to; }

}  // namespace heddle

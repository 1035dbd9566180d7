#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace heddle {

/// A 128-bit content hash (XXH3): the key of constants, kernels and cache entries.
struct Hash {
  std::uint64_t low = 0, high = 0;
  auto operator<=>(const Hash&) const = default;
};
Hash hash_bytes(std::string_view bytes);
std::string to_string(const Hash& hash);  ///< 32 hexadecimal digits
inline std::size_t combine(std::size_t seed, std::size_t value) {
  return seed ^ (value + 0x9e3779b97f4a7c15ull + (seed << 6) + (seed >> 2));
}

}  // namespace heddle

template <>
struct std::hash<heddle::Hash> {
  std::size_t operator()(const heddle::Hash& h) const { return h.low ^ h.high; }
};

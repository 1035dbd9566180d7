#pragma once
#include <array>
#include <cmath>
#include <cstdint>

namespace heddle::ir {

/// Philox 4x32-10 (Salmon et al., SC 2011): four random words from a counter and a key.
inline std::array<std::uint32_t, 4> philox(std::uint64_t counter, std::uint64_t key) {
  std::array<std::uint32_t, 4> x = {static_cast<std::uint32_t>(counter),
                                    static_cast<std::uint32_t>(counter >> 32), 0, 0};
  std::uint32_t k0 = static_cast<std::uint32_t>(key), k1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = std::uint64_t{0xD2511F53u} * x[0];
    const std::uint64_t p1 = std::uint64_t{0xCD9E8D57u} * x[2];
    x = {static_cast<std::uint32_t>(p1 >> 32) ^ x[1] ^ k0, static_cast<std::uint32_t>(p1),
         static_cast<std::uint32_t>(p0 >> 32) ^ x[3] ^ k1, static_cast<std::uint32_t>(p0)};
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return x;
}

/// Number i of the stream `key`: 24 bits of word i%4 of block i/4.
inline std::uint32_t philox_bits(std::uint64_t key, std::uint64_t i) {
  return philox(i / 4, key)[i % 4] >> 8;
}

/// Element i of a uniform [0,1) tensor.
inline double philox_uniform(std::uint64_t seed, std::uint64_t i) {
  return philox_bits(seed, i) * 0x1p-24;
}

/// Element i of a standard normal tensor: Box-Muller on words (0,1) or (2,3) of block i/4; even
/// elements take the cosine.
inline double philox_normal(std::uint64_t seed, std::uint64_t i) {
  const auto words = philox(i / 4, seed);
  const std::size_t pair = i % 4 / 2 * 2;
  const double u = ((words[pair] >> 8) + 1) * 0x1p-24, v = (words[pair + 1] >> 8) * 0x1p-24;
  const double angle = 6.283185307179586 * v;
  return std::sqrt(-2 * std::log(u)) * (i % 2 == 0 ? std::cos(angle) : std::sin(angle));
}

}  // namespace heddle::ir

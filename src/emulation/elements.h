#pragma once
#include <bit>
#include <cstdint>

#include "emulation/kernel/runtime.h"
#include "support/dtype.h"

namespace heddle::emulation {

/// The value of an operand's element as tensor cores see it: bits of a 32-bit word; `half` selects
/// the 16-bit element.
inline float element_of(int element, std::uint32_t word, int half) {
  if (element == emu::kTf32) return std::bit_cast<float>(word & 0xffffe000u);
  const std::uint32_t bits = half ? word >> 16 : word & 0xffffu;
  const auto h = static_cast<std::uint16_t>(bits);
  return element == emu::kBf16 ? bf16_to_f32(h) : f16_to_f32(h);
}

}  // namespace heddle::emulation

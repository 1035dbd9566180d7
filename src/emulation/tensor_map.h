#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "support/result.h"

namespace heddle::emulation {

/// A tensor in global memory and the tiles that are copied from it, as cuTensorMapEncodeTiled takes
/// them; dimensions are innermost first.
struct TensorMapRequest {
  const void* base = nullptr;
  int element_bytes = 2;
  std::vector<std::uint64_t> extents;       ///< elements
  std::vector<std::uint64_t> stride_bytes;  ///< of dimensions 1 and up
  std::vector<std::uint32_t> box;           ///< elements of a tile
  int swizzle = 0;                          ///< 0, 32, 64 or 128 bytes
};

/// The emulator's form of a CUtensorMap (hd::TensorMap in a kernel).
struct alignas(64) TensorMap {
  const std::byte* base;
  std::uint64_t extents[5], stride_bytes[4];
  std::uint16_t box[5];
  std::uint8_t rank, element_bytes, swizzle;
  std::uint8_t magic;
  std::uint64_t tile_bytes() const;
};
static_assert(sizeof(TensorMap) == 128);
constexpr std::uint8_t kTensorMapMagic = 0x7d;

/// Errors (usage): what the driver refuses too: rank 1 to 5, base aligned to 16 bytes, strides
/// multiples of 16, boxes of 1 to 256 elements a dimension, an innermost box of a multiple of 16
/// bytes that is not wider than the swizzle.
Result<TensorMap> encode(const TensorMapRequest& request);

/// The place in shared memory of what would be at `address` without swizzle.
std::uint32_t swizzled(std::uint32_t address, int swizzle);

}  // namespace heddle::emulation

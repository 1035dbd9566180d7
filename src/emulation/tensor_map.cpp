#include "emulation/tensor_map.h"

#include <algorithm>

namespace heddle::emulation {

std::uint64_t TensorMap::tile_bytes() const {
  std::uint64_t bytes = element_bytes;
  for (int d = 0; d < rank; ++d) bytes *= box[d];
  return bytes;
}

std::uint32_t swizzled(std::uint32_t address, int swizzle) {
  // 16-byte units are exchanged by the number of the 128-byte line they are in.
  const std::uint32_t lines = swizzle == 128 ? 7 : swizzle == 64 ? 3 : swizzle == 32 ? 1 : 0;
  return address ^ (address >> 7 & lines) << 4;
}

Result<TensorMap> encode(const TensorMapRequest& r) {
  const auto bad = [](const std::string& what) {
    return fail(ErrorCode::usage, "tensor map: {}", what);
  };
  const std::size_t rank = r.extents.size();
  if (rank < 1 || rank > 5 || r.stride_bytes.size() + 1 != rank || r.box.size() != rank)
    return bad(fmt::format("{} dimensions, {} strides, a box of {}", rank, r.stride_bytes.size(),
                           r.box.size()));
  if (r.element_bytes != 1 && r.element_bytes != 2 && r.element_bytes != 4 && r.element_bytes != 8)
    return bad(fmt::format("elements of {} bytes", r.element_bytes));
  if (r.swizzle != 0 && r.swizzle != 32 && r.swizzle != 64 && r.swizzle != 128)
    return bad(fmt::format("swizzle of {} bytes", r.swizzle));
  if (reinterpret_cast<std::uintptr_t>(r.base) % 16 != 0)
    return bad("base not aligned to 16 bytes");
  TensorMap map{};
  map.base = static_cast<const std::byte*>(r.base);
  map.rank = static_cast<std::uint8_t>(rank);
  map.element_bytes = static_cast<std::uint8_t>(r.element_bytes);
  map.swizzle = static_cast<std::uint8_t>(r.swizzle);
  map.magic = kTensorMapMagic;
  for (std::size_t d = 0; d < rank; ++d) {
    if (r.extents[d] < 1 || r.extents[d] > std::uint64_t{1} << 32)
      return bad(fmt::format("extent {} of dimension {}", r.extents[d], d));
    if (r.box[d] < 1 || r.box[d] > 256)
      return bad(fmt::format("box {} of dimension {}", r.box[d], d));
    map.extents[d] = r.extents[d];
    map.box[d] = static_cast<std::uint16_t>(r.box[d]);
    if (d == 0) continue;
    const std::uint64_t stride = r.stride_bytes[d - 1];
    if (stride % 16 != 0 || stride >= std::uint64_t{1} << 40)
      return bad(fmt::format("stride of {} bytes of dimension {}", stride, d));
    map.stride_bytes[d - 1] = stride;
  }
  const auto inner = static_cast<int>(r.box[0]) * r.element_bytes;
  if (inner % 16 != 0) return bad(fmt::format("an innermost box of {} bytes", inner));
  if (r.swizzle != 0 && inner > r.swizzle)
    return bad(fmt::format("an innermost box of {} bytes with a swizzle of {}", inner, r.swizzle));
  return map;
}

}  // namespace heddle::emulation

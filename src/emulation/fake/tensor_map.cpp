// Tensor maps, with the checks of the driver.
#include "emulation/tensor_map.h"

#include <cstring>

#include "emulation/fake/state.h"

namespace {

using namespace heddle::emulation;
using fake::Call;
using fake::state;

/// Bytes of an element of a CUtensorMapDataType; 0: none of those that Heddle uses.
int element_bytes(int type) {
  constexpr int kBytes[] = {1, 2, 4, 4, 8, 8, 2, 4, 8, 2};
  return type >= 0 && type < static_cast<int>(std::size(kBytes)) ? kBytes[type] : 0;
}

}  // namespace

/// Also refuses a tensor that does not lie in one allocation, which the driver cannot know.
HEDDLE_FAKE int cuTensorMapEncodeTiled(void* map, int type, unsigned rank, void* base,
                                       const std::uint64_t* extents, const std::uint64_t* strides,
                                       const unsigned* box, const unsigned* element_strides,
                                       int interleave, int swizzle, int promotion, int fill) {
  const Call call("cuTensorMapEncodeTiled");
  if (call.code != 0) return call.code;
  const bool aligned = reinterpret_cast<std::uintptr_t>(map) % alignof(TensorMap) == 0;
  if (map == nullptr || !aligned || rank < 1 || rank > 5 || element_bytes(type) == 0)
    return fake::kInvalidValue;
  if (interleave != 0 || swizzle < 0 || swizzle > 3 || promotion < 0 || promotion > 3 || fill != 0)
    return fake::kInvalidValue;
  TensorMapRequest request;
  request.base = base;
  request.element_bytes = element_bytes(type);
  request.extents.assign(extents, extents + rank);
  request.stride_bytes.assign(strides, strides + rank - 1);
  request.box.assign(box, box + rank);
  request.swizzle = swizzle == 0 ? 0 : 16 << swizzle;
  std::uint64_t bytes = extents[0] * static_cast<std::uint64_t>(request.element_bytes);
  for (unsigned d = 0; d < rank; ++d) {
    if (element_strides[d] != 1) return fake::kInvalidValue;
    if (d > 0) bytes += (extents[d] - 1) * strides[d - 1];
  }
  const auto encoded = encode(request);
  if (!encoded || !state().holds(reinterpret_cast<std::uint64_t>(base), bytes)) {
    state().message = encoded ? "a tensor map outside device memory" : encoded.error().message;
    return fake::kInvalidValue;
  }
  std::memcpy(map, &*encoded, sizeof *encoded);
  return 0;
}

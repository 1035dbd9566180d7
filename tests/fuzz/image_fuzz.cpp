// Decoders of pictures on arbitrary bytes: a picture of the size that it says, or an error. What
// the libraries behind them allocate is bounded too, by -malloc_limit_mb.
#include <cstddef>
#include <cstdint>

#include "ops/images.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto picture = heddle::ops::decode_picture({data, size});
  if (picture &&
      (picture->height <= 0 || picture->width <= 0 ||
       picture->rgb.size() != static_cast<std::size_t>(picture->height * picture->width * 3)))
    __builtin_trap();
  return 0;
}

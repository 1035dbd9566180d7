#include "support/resized.h"

#include <algorithm>
#include <cstring>

namespace heddle {

void copy_common(const Tensor& from, Tensor& to) {
  const std::size_t rank = from.shape().size();
  Shape common(rank);
  for (std::size_t d = 0; d < rank; ++d) common[d] = std::min(from.shape()[d], to.shape()[d]);
  const Shape source = row_major_strides(from.shape()), target = row_major_strides(to.shape());
  if (element_count(common) == 0) return;
  const std::int64_t line = rank == 0 ? 1 : common[rank - 1];
  const std::int64_t size = size_of(from.dtype());
  for (std::int64_t n = element_count(common) / line, i = 0; i < n; ++i) {
    std::int64_t rest = i, a = 0, b = 0;
    for (std::size_t d = rank; d-- > 1;) {
      a += rest % common[d - 1] * source[d - 1];
      b += rest % common[d - 1] * target[d - 1];
      rest /= common[d - 1];
    }
    std::memcpy(to.mutable_data() + b * size, from.data() + a * size,
                static_cast<std::size_t>(line * size));
  }
}

Tensor resized(const Tensor& value, const Shape& shape) {
  if (value.shape() == shape) return value;
  HEDDLE_CHECK(value.shape().size() == shape.size(), "{} as {}", to_string(value.type()),
               to_string(shape));
  Tensor out(TensorType{value.dtype(), shape});
  copy_common(value, out);
  return out;
}

}  // namespace heddle

#include "support/tensor_store.h"

namespace heddle {

Tensor TensorStore::keep(const Tensor& tensor) {
  // Pages of a block that nobody has touched are no memory. Neighbours begin at different places of
  // their pages, as large tensors do.
  constexpr std::int64_t kFew = 64 << 10, kMany = 32 << 20, kBlock = 64 << 20, kLine = 64,
                         kApart = 5 * kLine;
  const std::int64_t bytes = tensor.bytes();
  if (bytes < kFew || bytes >= kMany) return tensor;
  if (used_ + bytes > block_.bytes()) {
    block_ = Tensor::workspace(kBlock);
    used_ = 0;
  }
  std::byte* const data = block_.mutable_data() + used_;
  std::memcpy(data, tensor.data(), static_cast<std::size_t>(bytes));
  used_ += (bytes + kLine - 1) / kLine * kLine + kApart;
  return {tensor.type(), std::make_shared<const Tensor>(block_), data};
}

}  // namespace heddle

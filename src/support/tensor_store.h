#pragma once
#include "support/tensor.h"

namespace heddle {

/// Copies of tensors that stay, one behind another on huge pages: the processor fetches ahead only
/// within a page, and page tables are walked for each.
class TensorStore {
 public:
  TensorStore() = default;
  TensorStore(TensorStore&&) = default;
  TensorStore& operator=(TensorStore&&) = default;
  /// The same values here. A small tensor stays where it is, and a very large one, which has huge
  /// pages of its own if it was made as one.
  Tensor keep(const Tensor& tensor);

 private:
  Tensor block_;
  std::int64_t used_ = 0;  ///< bytes of it
};

}  // namespace heddle

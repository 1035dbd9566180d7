#include <algorithm>
#include <numeric>

#include "lower/lower.h"

namespace heddle::lower {

Layout row_major(const Shape& shape) { return {row_major_strides(shape), element_count(shape)}; }

ir::Expr offset_in(const Layout& layout, const std::vector<ir::Expr>& index) {
  ir::Expr offset(0);
  for (std::size_t d = 0; d < index.size(); ++d) offset = offset + index[d] * layout.strides[d];
  return offset;
}

Layout ordered(const Shape& shape, const std::vector<int>& order) {
  HEDDLE_CHECK(order.size() == shape.size(), "order of {} dimensions for shape {}", order.size(),
               to_string(shape));
  Layout layout{Shape(shape.size(), 1), element_count(shape)};
  std::int64_t stride = 1;
  for (std::size_t i = order.size(); i-- > 0;) {
    const auto d = static_cast<std::size_t>(order[i]);
    layout.strides[d] = stride;
    stride *= std::max<std::int64_t>(shape[d], 1);
  }
  return layout;
}

std::vector<int> storage_order(const Layout& layout, const Shape& shape) {
  std::vector<int> order(shape.size());
  std::iota(order.begin(), order.end(), 0);
  // An extent of 1 has no place of its own: it stays beside its neighbour of larger index.
  const auto key = [&](int d) {
    std::int64_t stride = 0;
    for (std::size_t i = static_cast<std::size_t>(d); i < shape.size(); ++i) {
      if (shape[i] == 1) continue;
      stride = layout.strides[i];
      break;
    }
    return stride;
  };
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return key(a) > key(b); });
  return order;
}

}  // namespace heddle::lower

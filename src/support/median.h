#pragma once
#include <algorithm>
#include <utility>
#include <vector>

namespace heddle {

/// The value behind the first `parts`th of them in order. `values` are not empty.
inline double quantile(std::vector<double> values, std::size_t parts) {
  const auto at = values.begin() + static_cast<std::ptrdiff_t>(values.size() / parts);
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

/// The upper one of two in the middle. `values` are not empty.
inline double median(std::vector<double> values) { return quantile(std::move(values), 2); }

}  // namespace heddle

#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace heddle {

/// What a product of a unit (support/product_unit.h) is called with.
struct UnitProduct {
  struct Matrix {
    int argument = 0;                             ///< of the kernel that it replaces
    std::int64_t offset = 0;                      ///< bytes from there
    std::int64_t batch = 0, row = 0, column = 0;  ///< strides in elements
    bool operator==(const Matrix&) const = default;
  };
  int object = 0;    ///< of the program
  std::string name;  ///< in the unit
  std::int64_t batches = 1, rows = 1, columns = 1, depth = 1;
  std::vector<Matrix> matrices;
  bool operator==(const UnitProduct&) const = default;
};

}  // namespace heddle

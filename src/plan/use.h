#pragma once
#include <cstdint>
#include <vector>

namespace heddle::plan {

/// Where a value is evaluated: per dimension, the loops its coordinate depends on.
struct Dim {
  std::uint64_t loops = 0, unit = 0;
  bool operator==(const Dim&) const = default;
};
struct Use {
  std::vector<Dim> dims;
  int innermost = 0;   ///< loop that is vectorised: bit index
  double scale = 1;    ///< share of the iterations (pieces of a concat), or repetition
  double operand = 0;  ///< elements of the matrix, where this feeds a main loop
  std::uint64_t mask() const {
    std::uint64_t m = 0;
    for (const Dim& d : dims) m |= d.loops;
    return m;
  }
  bool operator==(const Use&) const = default;
};

}  // namespace heddle::plan

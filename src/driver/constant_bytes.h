#pragma once
#include "driver/driver.h"

namespace heddle::driver {

/// A kernel of the plan, and the schedule with which it stores fewer bytes of constants.
struct SmallerForm {
  std::size_t kernel = 0;
  lower::Tuning tuning;
  double more_flops = 0;  ///< than the plan says
};

/// Algorithms of fewer operations store transformed constants: four times the bytes for Winograd's
/// tiles of 4×4, 16/9 for those of 2×2, 7/4 for products by halves. What that adds is bounded, by
/// `most_added_bytes` for the whole program: beyond it, kernels take the next smaller form, those
/// first that lose least time for a byte.
std::vector<SmallerForm> smaller_forms(const prim::Graph& graph,
                                       const std::vector<CompiledKernel>& kernels);
/// As many bytes as Winograd's convolutions have, which gain most, two fifths of the other
/// products' and 24 MB: about what other runtimes keep in copies.
double most_added_bytes(double of_products, double of_windows);

}  // namespace heddle::driver

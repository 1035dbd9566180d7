#pragma once
#include <span>
#include <string>
#include <vector>

#include "driver/driver.h"

namespace heddle::driver {

struct KernelCheck {
  std::string name, sources;
  double error = 0;  ///< largest |found - wanted| over the largest |wanted| of the value
  bool equal = true;
};
struct Verification {
  std::vector<KernelCheck> kernels;
  int wrong = 0;
  double worst = 0;
  double outputs_error = 0;  ///< of the whole program's outputs, as KernelCheck::error
  std::string first_wrong;
};
/// Runs every kernel alone on reference values (the float64 interpreter's, rounded to storage
/// types) and compares what it computes with the reference: the first wrong kernel is found
/// directly, whatever errors upstream would have done to it. Then the whole program, whose values
/// are rounded many times where they are stored low: `whole_tolerance`.
Result<Verification> verify(const Compiled& compiled, std::span<const Tensor> inputs,
                            double tolerance, double whole_tolerance,
                            const CompileOptions& options);

}  // namespace heddle::driver

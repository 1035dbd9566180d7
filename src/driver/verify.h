#pragma once
#include <span>
#include <string>
#include <vector>

#include "driver/driver.h"

namespace heddle::driver {

struct KernelCheck {
  std::string name, sources;
  double error = 0;  ///< largest |found - allowed| over the largest |wanted| of the value
  bool equal = true;
};
struct Verification {
  std::vector<KernelCheck> kernels;
  int wrong = 0;
  double worst = 0;
  /// Values that hang on a step (floor, a comparison, …) of a number that the same kernel rounds:
  /// they are held to what both sides of the step give (driver/reference.h).
  std::int64_t uncertain = 0;
  /// Of the whole program's outputs against the float64 interpreter of the whole graph, of those
  /// that are judged.
  double outputs_error = 0;
  /// Outputs that are shown but not judged, or not where values are more than f16 holds: rounding
  /// upstream may take them across a step, or to infinity.
  std::vector<std::string> unjudged;
  std::string first_wrong;
  bool overflow = false;  ///< what hangs on values that f16 does not hold was not judged
};
/// Runs the kernels one after another, each alone, on what those before it have stored, and
/// compares what it stores with the float64 interpreter of its primitives on the very values it
/// read: the first wrong kernel is found directly, and no error upstream counts against a kernel.
/// Then the whole program: it has to give what the kernels gave alone, to the bit, and to agree
/// with the float64 interpreter of the whole graph, whose values are never rounded:
/// `whole_tolerance`.
Result<Verification> verify(const Compiled& compiled, std::span<const Tensor> inputs,
                            double tolerance, double whole_tolerance,
                            const CompileOptions& options);

}  // namespace heddle::driver

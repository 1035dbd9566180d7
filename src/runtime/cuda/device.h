#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "support/result.h"

namespace heddle::runtime::cuda {

/// One GPU, as the driver describes it.
struct Device {
  std::string name;
  int major = 0, minor = 0;  ///< compute capability
  int multiprocessors = 0;
  std::int64_t memory_bytes = 0, l2_bytes = 0;
  int threads_per_multiprocessor = 0, registers_per_multiprocessor = 0;
  int shared_per_block = 0, shared_per_multiprocessor = 0;  ///< bytes; of a block: the most on request
  bool cooperative = false;                                 ///< can launch grids with barriers
  /// What kernels are compiled for: "sm_90a" (with the features of that chip only); below 9.0 "sm_80".
  std::string arch() const;
};
/// All GPUs of the driver at `path` (empty: the system's libcuda.so.1). Errors of code missing: no
/// driver, no GPU.
Result<std::vector<Device>> devices(const std::string& path);

}  // namespace heddle::runtime::cuda

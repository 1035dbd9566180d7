#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
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
  int shared_per_block = 0,
      shared_per_multiprocessor = 0;  ///< bytes; of a block: the most on request
  bool cooperative = false;           ///< can launch grids with barriers
  /// What kernels are compiled for: "sm_90a" (with the features of that chip only); below 9.0
  /// "sm_80".
  std::string arch() const;
};
/// How many blocks of a kernel a multiprocessor holds at once.
struct Occupancy {
  int blocks = 0;
  double share = 0;        ///< of the threads that it could hold
  std::string_view limit;  ///< "threads", "registers", "shared memory", "blocks"
};
/// By the rules of the CUDA programming guide (registers are given to warps in units of 256, a
/// block costs 1 KB of shared memory more). `shared_bytes`: static and dynamic.
Occupancy occupancy(const Device& device, int threads, int registers, std::int64_t shared_bytes);

/// A GPU to compile for where none is: of "sm_80" (A100), "sm_89" (L40S), "sm_90a" (H200), by the
/// vendor's tables. nullopt for other names.
std::optional<Device> assumed_device(const std::string& arch);
/// All GPUs of the driver at `path` (empty: the system's libcuda.so.1). Errors: missing (no
/// driver, no GPU), failed (a call that does).
Result<std::vector<Device>> devices(const std::string& path);

}  // namespace heddle::runtime::cuda

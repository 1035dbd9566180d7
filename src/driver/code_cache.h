#pragma once
#include <string>
#include <vector>

#include "driver/driver.h"
#include "support/thread_pool.h"

namespace heddle::driver {

/// Machine code of a set of kernels: several objects, and where each kernel is.
struct Code {
  std::vector<std::string> objects;
  std::vector<codegen::cpu::KernelInfo> kernels;  ///< by position of the kernel given
  int compiled = 0, reused = 0;                   ///< batches compiled now, found in the cache
};

/// The kernel without the names of its values: equal for equal kernels of one network.
kernel::Kernel without_names(kernel::Kernel k);
KernelCode to_code(const codegen::cpu::KernelInfo& info);

/// Enough kernels to share LLVM's start-up, few enough that all threads have work.
constexpr std::size_t kKernelsPerObject = 4;

/// Compiles kernels in batches on all threads of `pool`; each batch's object is kept in
/// `cache_dir`/objects by content (kernel text, machine, LLVM version, build). Empty: no cache.
Result<Code> generate_code(const std::vector<kernel::Kernel>& kernels,
                           const codegen::cpu::Machine& machine, const std::string& cache_dir,
                           ThreadPool& pool, const std::function<void(double share)>& progress,
                           std::size_t batch_size = kKernelsPerObject);

/// True if the cache entry at `path` matches its checksum.
bool cached_object_is_sound(const std::string& path);

/// Identifies this build of Heddle in every cache key: the version and a hash of the program
/// itself, so that an entry made by other code is never used.
std::string build_id();

}  // namespace heddle::driver

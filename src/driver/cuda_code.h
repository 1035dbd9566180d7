#pragma once
#include <span>

#include "driver/code_cache.h"
#include "driver/platform.h"
#include "driver/ring.h"

namespace heddle::driver {

/// CUDA text of a kernel and its launch shapes; symbols begin with a hash of the kernel. `paging`:
/// of stages. Errors: unsupported (what has no device code, a block that the GPU cannot launch).
Result<KernelCode> cuda_text(const kernel::Kernel& kernel, const Platform& platform,
                             const Paging& paging = {});

/// Cubins of the kernels' text in batches on all threads of `pool`, cached by content; `kernels`
/// get what the assembler says of their functions.
Result<std::vector<std::string>> compile_cuda(std::vector<KernelCode>& kernels,
                                              const Platform& platform, const Options& options,
                                              ThreadPool& pool,
                                              const std::function<void(double share)>& progress);

/// The same for stages: one cubin with one persistent kernel, in which equal functions are one.
Result<std::vector<std::string>> compile_persistent(std::vector<KernelCode*>& kernels,
                                                    const Platform& platform,
                                                    const Options& options);

/// A ring for whose warp stages spill, under the schedules that they have, is none.
Status leave_spilling_ring(std::vector<KernelCode*>& kernels, std::vector<std::string>& objects,
                           const Platform& platform, const Options& options);

/// Units with these products, compiled where the platform has a compiler for them or known.
codegen::cuda::UnitObjects compile_units(std::span<const codegen::cuda::UnitEntry> entries,
                                         const Platform& platform, const CompileOptions& options);
/// Adds to `objects` the units of products that the kernels' tuning asks for. A kernel whose
/// product has none (no compiler, text that it refuses) is left as it is, and its schedule says so.
void add_units(std::span<CompiledKernel> kernels, std::vector<std::string>& objects,
               const Platform& platform, const CompileOptions& options);

}  // namespace heddle::driver

#pragma once
#include <unordered_map>
#include <vector>

#include "driver/driver.h"
#include "runtime/memory_plan.h"

namespace heddle::driver {

/// What kernels in execution order keep in the arena: values that are neither ports nor constants,
/// and local buffers. A value that is made again has another block from then on.
struct Blocks {
  std::vector<runtime::Lifetime> lifetimes;
  std::vector<std::unordered_map<prim::NodeId, std::size_t>> of;  ///< by kernel: of what it touches
  std::vector<std::size_t> first_local;                           ///< by kernel
};
Blocks blocks_of(const prim::Graph& graph, const std::vector<CompiledKernel>& kernels);

/// Runs kernels again just before their results are read, instead of keeping these over the peak,
/// until the arena needs at most so many bytes: what saves most for its time first. False if
/// nothing more helps; kernels and plan are then those that need least.
bool run_again(const prim::Graph& graph, plan::Plan& plan, std::vector<CompiledKernel>& kernels,
               std::int64_t arena_bytes);

}  // namespace heddle::driver

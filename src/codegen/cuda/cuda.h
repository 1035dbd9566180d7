#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "kernel/kernel.h"
#include "support/result.h"

namespace heddle::codegen::cuda {

/// A tensor whose tiles a phase copies: the parameter that points to it, and what a tensor map
/// needs.
struct TileMap {
  int parameter = 0;
  DType dtype = DType::bf16;
  std::vector<std::int64_t> extents, strides, box;  ///< elements, innermost first
  bool operator==(const TileMap&) const = default;
};
/// How one phase of a kernel is launched.
struct PhaseInfo {
  std::string symbol;
  std::int64_t tasks = 0;         ///< blocks, in x
  bool resident = false;          ///< no more blocks than fit at once, which take the tasks in turn
  bool cooperative = false;       ///< they meet at a counter, the last parameter
  int cluster = 1;                ///< neighbouring blocks that share their shared memory
  int threads = 0;                ///< of a block
  std::int64_t shared_bytes = 0;  ///< dynamic shared memory of a block
  /// Tensor maps (128-byte swizzle), parameters after the pointers.
  std::vector<TileMap> maps = {};
};
/// CUDA C++ text of one kernel: a __global__ function for each phase, or for all of a resident
/// kernel, whose parameters are pointers to the argument buffers, then to the kernel's local grid
/// buffers.
struct KernelText {
  std::string text;  ///< without the prelude's include
  /// By line of the text: the primitive (prim::NodeId::value) that it computes, -1 if none alone.
  std::vector<std::int32_t> origins;
  std::vector<PhaseInfo> phases;
  std::vector<std::int64_t> local_bytes;  ///< local grid-scope buffers, after the arguments
};

/// How a phase is written as a stage of a persistent kernel.
struct StageForm {
  int factor = 1;  ///< tasks whose loads are in flight together
  /// By phase: parameters that point into shared memory where a ring brings them, global memory
  /// otherwise (hd::MonolithPages).
  std::vector<std::vector<int>> paged = {};
  bool pages(std::size_t phase) const { return phase < paged.size() && !paged[phase].empty(); }
};
/// A stage of a persistent kernel: its symbol, and whether some of its parameters may lie in pages.
struct StageCall {
  std::string symbol;
  bool paged = false;
};
/// The pages of a persistent kernel (runtime::Ring); none without.
struct RingForm {
  int pages = 0, page_bytes = 0;
  std::int64_t at = 0;
};

/// What every unit of generated text begins with: includes the prelude.
std::string unit_header();
/// Text of a kernel with thread loops; `prefix` makes symbols unique. Deterministic. Errors: a
/// phase that has no thread loops, a routine that has no device code.
Result<KernelText> to_text(const kernel::Kernel& k, const std::string& prefix);

/// The same kernel's phases as device functions of a persistent kernel (prelude/monolith.cuh): each
/// takes an array of pointers and does tasks [first, last) with its threads; maps are none. Errors:
/// what no stage can do (clusters, roles of threads, tile copies).
Result<KernelText> to_stages(const kernel::Kernel& k, const std::string& prefix,
                             const StageForm& form = {});
/// A persistent kernel of `threads` a block, `blocks` at once on a multiprocessor, whose functions
/// are `stages` in their order; their texts come before. With a ring a warp more, which fills its
/// pages.
std::string monolith_text(const std::vector<StageCall>& stages, const std::string& symbol,
                          int threads, int blocks, const RingForm& ring = {});

}  // namespace heddle::codegen::cuda

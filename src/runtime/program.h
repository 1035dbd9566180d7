#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "support/library_product.h"
#include "support/result.h"
#include "support/tensor.h"
#include "support/unit_product.h"

namespace heddle::runtime {

/// Where the bytes of a kernel argument are.
struct Slot {
  enum class Kind : std::uint8_t { arena, input, output, constant } kind = Kind::arena;
  std::int64_t index = 0;  ///< arena: byte offset; input, output, constant: number
  bool operator==(const Slot&) const = default;
};

/// A description of a tile load through the tensor memory accelerator (cuTensorMapEncodeTiled): the
/// innermost dimension first, unit element stride.
struct TensorMap {
  int arg = 0;  ///< position in Launch::args of the tensor's base
  DType dtype = DType::bf16;
  std::vector<std::int64_t> extents;  ///< elements, 1 to 5 dimensions
  std::vector<std::int64_t> strides;  ///< bytes, of dimensions 1 and up: multiples of 16
  std::vector<int> box;               ///< elements of a tile in each dimension, at most 256
  int swizzle_bytes = 0;  ///< 0, 32, 64 or 128: span in which 16-byte pieces are permuted
  bool operator==(const TensorMap&) const = default;
};
/// An argument that a stage's tasks go through in order: task t reads bytes [begin + t·step, begin
/// + t·step + bytes) of it, as far as there are any.
struct Paged {
  int arg = 0;
  std::int64_t begin = 0, step = 0, bytes = 0;
  bool operator==(const Paged&) const = default;
};
/// At most so many arguments of a stage come through the ring.
constexpr int kMostPaged = 2;
/// How a phase is launched on CUDA; on the CPU nothing of it is used.
struct Grid {
  int threads = 0;                ///< of a block
  std::int64_t shared_bytes = 0;  ///< dynamic shared memory of a block
  int cluster = 1;                ///< blocks of a cluster; divides the number of blocks
  bool resident = false;          ///< as many blocks as fit at once, at most one a task
  bool cooperative = false;       ///< resident, and the blocks meet at grid barriers
  std::vector<TensorMap> maps = {};
  /// The number of the program's persistent kernel's function that does the tasks; -1: a launch.
  int function = -1;
  std::vector<Paged> paged = {};  ///< constants that may come through the persistent kernel's ring
  bool operator==(const Grid&) const = default;
};
/// What tasks touch of one argument: bytes [first, second) of each of equal shares of a phase's
/// tasks, in order (share i of n: tasks [T·i/n, T·(i+1)/n)), or once for all of them.
struct Touch {
  int arg = 0;
  bool write = false;
  std::vector<std::pair<std::int64_t, std::int64_t>> shares;
  bool operator==(const Touch&) const = default;
};
/// Independent tasks of one symbol. CPU: a codegen::cpu::TaskFn. CUDA: an `extern "C" __global__`
/// function of `tasks` blocks in x whose parameters are one pointer for each of Launch::args, then
/// one `const __grid_constant__ hd::TensorMap` for each of Grid::maps, then, if cooperative, one
/// `unsigned*` to the grid barrier's counter (zero before its first use, never reset).
struct Phase {
  std::string symbol;
  std::int64_t tasks = 0;
  Grid grid = {};
  /// Of arguments that lie in the arena or are outputs; empty: not known.
  std::vector<Touch> touches = {};
};
/// One kernel execution: its phases run one after another, the tasks of a phase on all threads.
struct Launch {
  std::string name;
  std::vector<Slot> args;
  std::vector<Phase> phases;
  double seconds = 0;  ///< as planned or measured, for scheduling
  /// CUDA: cuBLASLt does this instead of the phases, where it is there.
  std::optional<LibraryProduct> product = {};
  /// CUDA: a unit of products does, where it can be loaded.
  std::optional<UnitProduct> unit = {};
};
/// Pages of shared memory through which a warp of its own brings constants ahead of the stages
/// (sm_90a): `pages` of `page_bytes` from byte `at` on, then two barriers for each.
struct Ring {
  int pages = 0;  ///< 0: none
  int page_bytes = 0;
  std::int64_t at = 0;
  static constexpr int kThreads = 32;  ///< that bring pages, behind those of the stages
  std::int64_t bytes() const { return std::int64_t{pages} * page_bytes; }
  std::int64_t end() const { return at + bytes() + 16 * std::int64_t{pages}; }
  bool operator==(const Ring&) const = default;
};
/// CUDA: the cooperative kernel of which all phases are functions. It does them as a schedule says
/// that is made for the blocks which the GPU holds at once (`extern "C" __global__`, one parameter
/// hd::Monolith).
struct PersistentKernel {
  std::string symbol;
  int threads = 0;                ///< of a block, that do stages
  int blocks = 1;                 ///< of a multiprocessor, at most
  std::int64_t shared_bytes = 0;  ///< dynamic: the most that a phase needs, and the ring
  Ring ring = {};
  int block_threads() const { return threads + (ring.pages > 0 ? Ring::kThreads : 0); }
  bool operator==(const PersistentKernel&) const = default;
};
/// A graph input or output; strides are row-major.
struct Port {
  std::string name;
  TensorType type;
  bool operator==(const Port&) const = default;
};

/// How one stage is laid out, where stages are not all alike.
struct StageChoice {
  int grain = 1;  ///< items that a worker gets; 0: one worker does the whole stage
  /// Edges with a barrier: stages before it that must be complete before any of its tasks. What it
  /// needs of others is waited for item by item.
  std::vector<int> meets = {};
  auto operator<=>(const StageChoice&) const = default;
};
/// How the stages of a monolith are laid out over its workers (runtime/schedule.h).
struct StageLayout {
  /// Items that a worker gets of a stage that is split: more let consumers begin earlier.
  int grain = 1;
  /// A stage of at most this many seconds is not split: one worker runs it, and others what does
  /// not depend on it.
  double whole = 0;
  /// What can be run goes before what comes earlier in the program, so that tiles are consumed
  /// while they are in the caches.
  bool depth_first = false;
  /// Every stage waits for all before it, as at a barrier.
  bool barriers = false;
  std::vector<StageChoice> own = {};  ///< by stage: instead of grain, whole and barriers
  /// What the longest path of work still hangs on goes first (list scheduling by upward rank, as
  /// HEFT, Topcuoglu et al. 2002).
  bool longest_first = false;
  auto operator<=>(const StageLayout&) const = default;
};

/// Everything needed to run, free of any IR: plain records over one planned arena.
struct Program {
  std::vector<Port> inputs, outputs;
  std::vector<Launch> launches;
  std::optional<PersistentKernel> persistent = {};
  std::vector<Tensor> constants;
  std::int64_t arena_bytes = 0;
  std::int64_t scratch_bytes = 0;  ///< per thread
  int threads = 1;
  /// All launches as one parallel region (CPU) or one persistent kernel (CUDA), if that can be;
  /// else one after another.
  std::optional<StageLayout> monolith = {};
  bool denormals = false;      ///< CPU: kernels keep them, and do not take them for zeros
  std::string device = "cpu";  ///< or "cuda sm_90a": what the objects are for
  /// Object files that hold the symbols (CUDA: cubins, and the shared objects that launches name as
  /// their units).
  std::vector<std::string> objects;
  std::string manifest;  ///< JSON: what was compiled, from what, for which machine
};

}  // namespace heddle::runtime

#pragma once
#include <optional>
#include <string>
#include <vector>

#include "kernel/kernel.h"
#include "kernel/tree_product.h"
#include "prim/graph.h"
#include "support/library_product.h"

namespace heddle::lower {

using prim::NodeId;

/// How a materialised value lies in memory: element (i0, i1, …) at Σ i_k·strides[k]. Channels-last,
/// padded rows and transposed storage are all strides; views never copy.
struct Layout {
  Shape strides;
  std::int64_t size = 0;  ///< elements to allocate
  bool operator==(const Layout&) const = default;
};
Layout row_major(const Shape& shape);
/// Where the element at `index` lies.
ir::Expr offset_in(const Layout& layout, const std::vector<ir::Expr>& index);
/// Dimension `order[0]` outermost … `order.back()` contiguous.
Layout ordered(const Shape& shape, const std::vector<int>& order);
/// Dimensions from outermost to innermost as stored.
std::vector<int> storage_order(const Layout& layout, const Shape& shape);

enum class Device : std::uint8_t { cpu, cuda };

/// So few rows of a product read a constant's bytes as they are, though they are multiplied as 16
/// bits: they wait for memory.
constexpr std::int64_t kRowsOfBytes = 8;

/// What the code generator's target offers.
struct Target {
  Device device = Device::cpu;
  // GPU; vector_bytes is the widest access of a thread.
  int multiprocessors = 132;
  int capability = 90;                    ///< compute capability times ten
  std::int64_t shared_bytes = 227 << 10;  ///< that a block may use
  bool warpgroups = false;                ///< products by four warps together (sm_90a)
  bool library = false;                   ///< a library of products is there (cuBLASLt)
  bool tf32 = false;                      ///< products of f32 may round operands to tf32
  bool grid_barriers = true;              ///< all blocks of a launch can be resident (cooperative)
  bool cutlass = false;                   ///< so is CUTLASS, and units may be compiled
  /// Kernels become stages of a persistent kernel with blocks of this many threads (at least 256):
  /// no clusters, no roles of threads; 0: launches of their own.
  int stage_threads = 0;
  /// Tasks read constants that they stream as one piece each, which a ring of pages can bring.
  bool whole_pieces = false;
  bool is_gpu() const { return device == Device::cuda; }
  int vector_bytes = 32;  ///< 64 with AVX-512, 32 with AVX2, 16 otherwise
  int vector_registers = 16;
  double fma_rate = 2;       ///< multiply-adds of whole vectors in a cycle
  bool quads = false;        ///< products of four bytes are one instruction (AVX512-VNNI, AVX-VNNI)
  bool byte_tables = false;  ///< elements of a table of 256 bytes are a few instructions (VBMI)
  bool tiles = false;        ///< matrices of bf16 are multiplied in tile registers (AMX)
  bool bf16_pairs = false;   ///< so are two products of bf16 and their sum (AVX512-BF16)
  std::int64_t l1_bytes = 32 << 10, l2_bytes = 512 << 10, l3_bytes = 32 << 20;
  int threads = 1;  ///< tasks are cut for this many threads
  /// Largest output tile of Winograd's convolution that the wanted accuracy allows: 4, 2, 0 (none);
  /// those of integers are exact, whatever it is.
  int winograd = 4;
  bool bands = true;     ///< layers of an image may be one kernel (lower/bands/bands.h)
  bool joins = true;     ///< parts of a concatenation may be stored in place (lower/joins.h)
  bool strassen = true;  ///< products by halves: the wanted accuracy allows sums of unlike elements
  int lanes(DType t) const { return vector_bytes / static_cast<int>(size_of(t)); }
  bool operator==(const Target&) const = default;
};

/// Which primitives one kernel computes. `nodes` holds interior and output nodes (sorted by id);
/// everything they read that is not in `nodes` is an input, read from memory.
struct Cluster {
  std::vector<NodeId> nodes;
  std::vector<NodeId> outputs;
  auto operator<=>(const Cluster&) const = default;
};
/// Nodes read from memory, in order of first use (scalar constants are inlined and not listed).
std::vector<NodeId> inputs_of(const prim::Graph& g, const Cluster& c);

/// An argument of a lowered kernel.
struct Argument {
  enum class Kind { value, packed } kind = Kind::value;
  NodeId node;  ///< value read or written
  /// packed: a constant operand rearranged at compile time into the order in which it is read.
  Tensor packed;
};

/// A schedule decision, printable and storable: "mr=6 nv=2 mb=48". Empty: the model's choice.
using Tuning = std::vector<std::pair<std::string, std::int64_t>>;

/// Raised with what makes measured schedules wrong: their meaning, the spaces they are from, or how
/// fast kernels run. Schedules that a build ships are of its version (plan/schedules.h).
constexpr int kLoweringVersion = 2;

struct Lowered {
  kernel::Kernel kernel;
  std::vector<Argument> arguments;     ///< by Buffer::argument
  std::vector<Layout> output_layouts;  ///< by position in Cluster::outputs
  std::string schedule;                ///< for explain: "stitch rows=128 vector=8 scratch=768"
  /// What a library may do instead of the kernel: under the tuning "library".
  std::optional<LibraryProduct> library = {};
  /// What a unit of templates may do instead: under the tuning "cutlass".
  std::optional<kernel::TreeProduct> tree = {};
};

struct Request {
  const prim::Graph* graph = nullptr;
  Cluster cluster;
  Target target;
  /// Layouts of the inputs (graph inputs are row-major).
  std::function<Layout(NodeId)> layout_of;
  /// Outputs whose layout is prescribed (graph outputs: row-major); others are chosen by the
  /// lowering.
  std::function<std::optional<Layout>(NodeId)> required_layout;
  Tuning tuning;
  /// False: packed constants have their type and no bytes, as long as only sizes are asked for.
  bool contents = true;
};

/// A GPU of this compute capability times ten, as the generated kernels see it.
Target gpu_target(int multiprocessors, int capability = 90);

/// Cheap test used by candidate enumeration: can lower() handle this cluster for this target?
bool supports(const prim::Graph& g, const Cluster& c, const Target& target);
/// Lowers with the schedule family that applies: contract (one main loop with prologue and
/// visitor epilogue) if the cluster holds a Contract that is worth one, else stitch.
Result<Lowered> lower(const Request& request);

namespace stitch {
/// One kernel for maps, views, reductions, gathers (and small contractions as reductions): root
/// loops over the outputs' index space, reductions hoisted to the outermost loop that defines them
/// (FusionStitching, AStitch: thread/warp/block composition). On a CPU a tuning of "tasks" is how
/// many a phase should have.
Result<Lowered> lower(const Request& request);
/// Cheap test used by candidate enumeration: can lower() handle this cluster?
bool supports(const prim::Graph& g, const Cluster& c);
/// GPU: resident blocks, or a block a task and a launch a phase.
std::vector<Tuning> tuning_space(const Request& request);
}  // namespace stitch

namespace contract {
/// What the loops of a contraction are (matmul, convolution of any rank …).
struct Roles {
  std::vector<int> batch, m, n;  ///< output dimensions: in both operands, lhs only, rhs only
  std::vector<int> k;            ///< positions in Contract::reduced
};
Roles roles_of(const prim::Graph& g, NodeId contract);
/// True if the register-tiled main loop pays (else the contraction is stitched as a reduction).
bool worth_main_loop(const prim::Graph& g, NodeId contract, bool gpu = false);
/// A way to compute a contraction, in shares of what computing it as written takes.
struct Algorithm {
  double work = 1;            ///< time of the main loop, transforms included
  double constant_bytes = 1;  ///< memory of the constant operand as it is stored
  double flops = 1;           ///< operations
  bool tiles = false;         ///< they are products of bf16 or of bytes in tile registers
  bool stored = false;        ///< the image is read as it is stored, perhaps padded or cast
};
/// What lower() chooses among where the operand lies channels-last; as written comes first.
std::vector<Algorithm> algorithms(const prim::Graph& g, NodeId contract, const Target& target);
Result<Lowered> lower(const Request& request);
bool supports(const prim::Graph& g, const Cluster& c, const Target& target);
/// Schedules worth measuring, best guess first.
std::vector<Tuning> tuning_space(const Request& request);
}  // namespace contract

/// softmax(q·kᵀ)·v as one kernel (lower/attention/match.h).
namespace attention {
/// What one kernel computes that ends in this contraction; nullopt if that is no attention.
std::optional<Cluster> cluster_at(const prim::Graph& g, NodeId contract, const Target& target);
bool supports(const prim::Graph& g, const Cluster& c, const Target& target);
Result<Lowered> lower(const Request& request);
std::vector<Tuning> tuning_space(const Request& request);
}  // namespace attention

/// Convolutions and poolings one after another as one kernel, on CPUs (lower/bands/bands.h).
namespace bands {
/// What of a graph one kernel may compute so.
std::vector<Cluster> clusters(const prim::Graph& g, const Target& target);
bool supports(const prim::Graph& g, const Cluster& c, const Target& target);
Result<Lowered> lower(const Request& request);
std::vector<Tuning> tuning_space(const Request& request);
}  // namespace bands

/// Schedules worth measuring, best guess first; empty where there is only one.
std::vector<Tuning> tuning_space(const Request& request);

}  // namespace heddle::lower

#pragma once
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "ir/expr.h"
#include "ir/scalar.h"
#include "support/id.h"
#include "support/result.h"

namespace heddle::kernel {

using ir::Expr;
using ir::Var;
using BufferId = Id<struct BufferTag>;

/// Where a buffer lives. CPU: lane = vector register, block = a task's private scratch in L1/L2,
/// grid = memory shared by all tasks. GPU: register, shared memory, distributed shared memory,
/// global.
enum class Scope : std::uint8_t { lane, warp, block, cluster, grid };

/// How a loop runs. grid: iterations are independent tasks (CPU: split over threads); vector: the
/// lanes of one SIMD operation (extent <= lanes of the target; innermost); unroll: replicated.
/// thread: iterations are the threads of a GPU block, which run at the same time; nested thread
/// loops are its dimensions, the innermost fastest (thread number = outer · extent + inner). They
/// enclose everything else of a phase; lane buffers are private to a thread. More than
/// kBlockThreads are a cluster of blocks of that many, without block buffers.
enum class Binding : std::uint8_t { grid, block, thread, vector, unroll, serial };

/// What a block buffer is for. plain: threads load and store it. tiles: tile copies write it and
/// products of warpgroups read it (16-bit elements; 16-byte pieces are permuted inside rows of 128
/// bytes, which only these two know). events: Event statements count in it (i64).
enum class Use : std::uint8_t { plain, tiles, events };

struct Buffer {
  std::string name;
  DType dtype = DType::f32;
  std::int64_t size = 0;  ///< elements
  Scope scope = Scope::grid;
  int argument = -1;     ///< position among the kernel's arguments (grid scope only), else local
  bool written = false;  ///< an argument that the kernel writes
  /// lane scope: elements per register. Offsets then are c*lanes + the vector variable (or constant
  /// c*lanes outside a vector loop when lanes == 1), so the buffer maps onto registers.
  int lanes = 1;
  Use use = Use::plain;
  /// The primitive whose work it holds, as ValueNode::origin.
  std::int32_t origin = -1;
  bool operator==(const Buffer&) const = default;
};

struct ValueNode;
/// A shared immutable value expression (a DAG: generators and interpreters memoise by address).
using Value = std::shared_ptr<const ValueNode>;

/// A literal of type `dtype` (integers in `integer`, floats in `real`).
struct Imm {
  double real = 0;
  std::int64_t integer = 0;
};
/// buffer[offset + Σ clamp(dynamic[k].value, 0, extent_k - 1) · stride_k]; the element is converted
/// to the node's dtype when storage and compute type differ (f16, bf16 → f32; nothing else).
struct Load {
  BufferId buffer;
  Expr offset;
  struct Dynamic {
    Value value;  ///< i64 or i32
    std::int64_t extent = 0, stride = 0;
  };
  std::vector<Dynamic> dynamic;
};
struct Apply {
  ir::ScalarFn fn;
  std::vector<Value> args;
};
/// An index expression as data (i64).
struct Index {
  Expr expr;
};
/// `then` where all conditions hold, else `otherwise`; the branch not taken is not evaluated, so a
/// guarded load may be out of bounds elsewhere.
struct Guard {
  std::vector<ir::Condition> conditions;
  Value then, otherwise;
};
/// Horizontal reduction of `lanes` consecutive elements of a lane buffer, first element `offset`.
struct LaneReduce {
  ir::Monoid fn;
  BufferId buffer;
  Expr offset;
};
/// Philox random number number `counter` of stream `seed`; f32.
struct RandomBits {
  std::uint64_t seed = 0;
  bool normal = false;
  Expr counter;
};

struct ValueNode {
  std::variant<Imm, Load, Apply, Index, Guard, LaneReduce, RandomBits> op;
  DType dtype = DType::f32;  ///< a compute type: never f16 or bf16
  /// The primitive that this computes (prim::NodeId::value), -1 if none alone. Says where code
  /// comes from; not part of the kernel's text.
  std::int32_t origin = -1;
};
/// `v` as the work of primitive `origin`, unless it is a literal or plain load or says already.
Value with_origin(Value v, std::int32_t origin);

Value imm(DType dtype, double real);
Value imm_int(DType dtype, std::int64_t integer);
Value load(BufferId buffer, Expr offset, DType dtype);
Value apply(ir::ScalarFn fn, std::vector<Value> args, DType dtype);
Value guard(std::vector<ir::Condition> conditions, Value then, Value otherwise);

struct Stmt;
using Body = std::vector<Stmt>;

/// for var in [begin, end)
struct For {
  Var var;
  std::int64_t begin = 0, end = 0;
  Binding binding = Binding::serial;
  std::shared_ptr<const Body> body;
};
/// body with var = value, if begin <= value < end. Threads may have different values; where they
/// wait for each other in the body, all of theirs are inside.
struct Let {
  Var var;
  Expr value;
  std::int64_t begin = 0, end = 0;
  std::shared_ptr<const Body> body;
};
/// buffer[offset + Σ dynamic] = value, converted to the buffer's storage type.
struct Store {
  BufferId buffer;
  Expr offset;
  Value value;
  std::vector<Load::Dynamic> dynamic;  ///< as in Load, but outside [0, extent) drops the store
};
struct If {
  std::vector<ir::Condition> conditions;
  std::shared_ptr<const Body> body;
};
/// All tasks of the scope meet: grid separates top-level grid loops. Inside thread loops all
/// threads of the block or of a warp meet, and see what the others stored to block buffers before.
/// `async`: and so do products of warpgroups, which read block memory on a path of their own.
struct Barrier {
  Scope scope = Scope::grid;
  bool async = false;
};
/// Elements [offset, offset + count) of a lane buffer become, in each thread, their combination
/// over the thread's team: the `width` threads whose numbers differ from its own by multiples of
/// `stride` inside one run of width·stride. All threads of the block take part, or of a role; for
/// teams inside a warp (all that a role has) it is a barrier of the warp, else of the block. The
/// order of combination is fixed.
struct Combine {
  ir::Monoid fn = ir::Monoid::sum;
  BufferId buffer;
  std::int64_t offset = 0;
  int count = 1;
  int width = 32, stride = 1;
};
/// A named run-time routine that works on buffers (sort): arguments are whole buffers and integers.
/// Inside thread loops all threads of the block call it together, and it is a barrier.
struct Routine {
  std::string name;
  std::vector<BufferId> buffers;
  std::vector<Expr> integers;
};

/// Starts a copy of `count` consecutive elements from a grid buffer to a block buffer of the same
/// type: 4, 8 or 16 bytes, aligned to that on both sides. Zeros are copied where a condition fails.
/// The elements are undefined until the thread has waited for the group; a barrier shows them to
/// other threads.
struct Copy {
  BufferId to, from;
  Expr to_offset, from_offset;
  int count = 1;
  std::vector<ir::Condition> conditions;
};
/// commit: ends the thread's group of copies. Otherwise waits until at most `left` of the thread's
/// groups are in flight.
struct CopyGroup {
  bool commit = true;
  int left = 0;
};
/// acc += a·b by the warps of a block, on tensor cores: the block's tile is (warps_m·tiles_m·16) ×
/// (warps_n·tiles_n·8) × k; element (r, x) of an operand (x along k) lies in a block buffer at
/// offset + r·row + x·step, and one of row and step is 1. f16 and bf16 operands: k is a multiple of
/// 16; f32 operands are rounded to tf32 and k is a multiple of 8. The tile's element that
/// fragment_row and fragment_column name is added to acc[element] of each thread. Warps do not wait
/// for each other: barriers around it are the kernel's.
/// warpgroup: four warps together (sm_90a), 16-bit operands whose element (r, x) lies at
/// offset + r·8 + x/8·step + x%8 (row is 8), or of buffers for tiles at offset + r·64 + x (k is
/// 64); tiles_m and warps_n are 1. The products are on their way until MmaWait: till then the
/// accumulators are undefined and the operands must not change.
struct Mma {
  struct Operand {
    BufferId buffer;
    Expr offset;
    std::int64_t row = 1, step = 1;
  };
  BufferId acc;  ///< lane scope, f32, tiles_m·tiles_n·4 elements
  Operand a, b;
  int warps_m = 1, warps_n = 1, tiles_m = 1, tiles_n = 1, k = 16;
  bool warpgroup = false;
  int rows() const { return warps_m * tiles_m * 16; }
  int columns() const { return warps_n * tiles_n * 8; }
};

/// acc = a·b in a processor's tile registers (x86 AMX), on a CPU: acc[to + r·columns + c] becomes,
/// or grows by, the sum over `terms` and t < depth of a(r, t)·b(t, c). Elements are of 16 bits
/// (bf16, with sums in f32, which take denormals for zeros) or bytes (of either sign, with sums in
/// i32); a tile has `row_bytes` of them along t, `tile_depth` terms. Neighbours along t share words
/// of b's buffer, of i32: b(t, c) is a part of word c%16 of row t%tile_depth/parts of tile
/// (t/tile_depth, c/16). a(r, t) lies t%tile_depth elements behind row r%height, of rows `a_row`
/// apart, of tile (r/height, t/tile_depth), in a buffer of its type or, of bytes, of words of four.
/// Tiles are `step` apart along t and `block` across, terms begin so much later, in elements of the
/// buffers. What lies in the last rows' tile beyond `rows` is not read, nor what lies in a tile
/// beyond `row_bytes` of its rows, or so many words down its columns.
struct TileProduct {
  struct Operand {
    BufferId buffer;
    Expr offset;
    std::int64_t step = 0, block = 0;
    DType type = DType::bf16;  ///< of its elements; u8 or i8 of both
    /// Of a: after each `steps` of them its terms lie `further` elements on (the lines of a
    /// window).
    struct Run {
      std::int64_t steps = 1, further = 0;
    };
    std::vector<Run> runs = {};
    /// Elements from the offset to where a step begins.
    std::int64_t place_of(std::int64_t t) const {
      std::int64_t place = t * step;
      for (const Run& run : runs) place += t / run.steps * run.further;
      return place;
    }
  };
  struct Term {
    std::int64_t a = 0, b = 0;
    bool operator==(const Term&) const = default;
  };
  BufferId acc;  ///< block scope, f32 or i32
  Expr to = 0;
  bool add = false;  ///< to what acc holds
  Operand a, b;
  std::int64_t a_row = 32;
  int rows = 16, columns = 16;  ///< columns: a multiple of 16
  int height = kRows;           ///< rows of a tile; the last one's may be fewer
  int row_bytes = kRowBytes;    ///< of a row of a's tiles: words; b's tiles have as many rows
  std::int64_t depth = 32;      ///< a multiple of tile_depth
  std::vector<Term> terms;
  bool ahead = false;  ///< a hint: each step asks for the rows of the step after the next
  /// One step of the product, a tile along t: the variable of the serial loop around it, whose
  /// first statement it is. Between the steps the sums are in registers; acc has them after the
  /// loop.
  std::optional<Var> along;
  /// Hints, as Prefetch, spread over the steps along the depth: rows that lie `pitch` elements
  /// apart, so many lines of each.
  struct Fetch {
    BufferId buffer;
    Expr offset = 0;
    std::int64_t rows = 1, pitch = 0;
    int lines = 1;
    bool far = false, page = false;  ///< as of Prefetch
    /// In each step, the last ones of which may fetch what lies behind the rows.
    std::int64_t rows_of_step(std::int64_t steps) const { return (rows + steps - 1) / steps; }
  };
  std::vector<Fetch> fetches;

  static constexpr int kRows = 16, kColumns = 16, kRowBytes = 64;  ///< of a tile
  static constexpr int kRegisters = 8;
  bool bytes() const { return a.type != DType::bf16; }
  int parts() const { return bytes() ? 4 : 2; }  ///< of a word
  int tile_depth() const { return row_bytes / 4 * parts(); }
  std::int64_t steps() const { return depth / tile_depth(); }
  int tile_rows() const { return (rows + height - 1) / height; }
  int tile_columns() const { return columns / kColumns; }
  /// Accumulators, the rows' tiles and one of the columns' must fit.
  bool fits() const { return tile_rows() * tile_columns() + tile_rows() + 1 <= kRegisters; }
  /// Elements of an operand's buffer, of that type, from its offset to behind its last one.
  std::int64_t a_span(DType buffer) const;
  std::int64_t b_span() const;
};

/// A hint that the cache line of buffer[offset], in grid memory, will be read soon. It changes no
/// value, and the offset may lie outside the buffer, where nothing is fetched.
struct Prefetch {
  BufferId buffer;
  Expr offset;
  bool far = false;  ///< into the second-level cache, not the first
  /// The first line of the page behind, too, from which the machine fetches ahead by itself.
  bool page = false;
};

/// Waits until at most `left` products by the thread's warpgroup are on their way.
struct MmaWait {
  int left = 0;
};

/// Events of a block: each of the `size` elements of a buffer counts phases, beginning with phase
/// 0. init: one thread makes phases last `count` arrivals; others use them after a barrier of the
/// block. arrive: one arrival at event `index`, announcing `count` bytes of tile copies; a phase is
/// complete with all its arrivals and announced bytes. wait: until the last phase of that `parity`
/// is complete (at first that of parity 1 is). What a thread did before it arrived is seen by who
/// waited for the phase.
struct Event {
  enum class Kind : std::uint8_t { init, arrive, wait } kind = Kind::wait;
  BufferId events;
  Expr index, parity;
  std::int64_t count = 0;
};
/// One thread starts the copy of a tile of a tensor, a view of a grid buffer, to a buffer for
/// tiles; elements outside the tensor are zeros. Dimensions are innermost first, the first is
/// contiguous. The tile is undefined until a thread has waited for the phase of the event that
/// announced it.
struct TileCopy {
  BufferId to, from;
  Expr to_offset;
  std::vector<std::int64_t> extents, strides;  ///< of the tensor, elements
  std::vector<std::int64_t> box;               ///< of the tile: 64 by up to 256 by 1 …
  std::vector<Expr> at;                        ///< where the tile begins
  BufferId events;
  Expr event;
  std::int64_t bytes() const;  ///< of a tile
};
/// The block's threads, divided in order, do different things at the same time; nothing follows.
/// `registers` of each thread (0 for all: as the compiler likes). Inside, there are no barriers of
/// the block; only the first role multiplies.
struct Roles {
  struct Role {
    int threads = 128;
    int registers = 0;
    std::shared_ptr<const Body> body;
  };
  std::vector<Role> roles;
};

struct Stmt {
  std::variant<For, Let, Store, If, Barrier, Combine, Routine, Copy, CopyGroup, Mma, MmaWait, Event,
               TileCopy, Roles, Prefetch, TileProduct>
      op;
};

Stmt loop(Var var, std::int64_t begin, std::int64_t end, Binding binding, Body body);
Stmt let(Var var, Expr value, std::int64_t begin, std::int64_t end, Body body);
Stmt store(BufferId buffer, Expr offset, Value value);
Stmt when(std::vector<ir::Condition> conditions, Body body);

/// A kernel: top-level statements are grid loops (phases) separated by grid barriers, and nothing
/// else. Each grid loop is a set of independent tasks. Block and lane buffers are private to a task
/// and undefined at its start.
struct Kernel {
  std::string name;
  Table<BufferTag, Buffer> buffers;
  std::int32_t variables = 0;  ///< Var indices in use: 0..variables-1, each bound by one loop only
  Body body;
  /// GPU: one launch for all phases, of as many blocks as are resident at once. They take the tasks
  /// of a phase in turn, and meet at a grid barrier between phases. Else each phase is a launch of
  /// its own, of a block a task.
  bool resident = false;

  Var new_var() { return Var{variables++}; }
  BufferId add_buffer(Buffer buffer) { return buffers.add(std::move(buffer)); }
  int arguments() const;  ///< number of argument buffers
};
constexpr int kWarp = 32;            ///< threads of a warp
constexpr int kBlockThreads = 1024;  ///< of a block, at most
constexpr int kClusterBlocks = 8;    ///< of a cluster, at most

/// Where in the block's tile element `element` of thread `thread`'s accumulator lies (PTX manual,
/// "Matrix fragments for mma.m16n8k16").
int fragment_row(const Mma& x, int thread, int element);
int fragment_column(const Mma& x, int thread, int element);

/// Threads of a block in the phase that a top-level loop is; 0 if it has no thread loops.
int threads_of(const For& phase);
/// True if resident blocks can take the tasks of all phases: blocks are of one size, and no
/// clusters; those of roles and tile copies take their tasks in turn themselves.
bool can_be_resident(const Kernel& k);
/// True if threads act together in the statement: they wait for each other, or multiply tiles.
bool is_collective(const Stmt& s);

/// Structure, types, single binding of variables, vector loops innermost, and every access inside
/// its buffer by range analysis (accesses under a Guard or If: within its conditions).
Status verify(const Kernel& k);
/// The kernel with the accesses whose bounds the range analysis does not see kept inside their
/// buffers by min and max; equal where verify() holds. Errors: as verify() for everything else.
Result<Kernel> with_proven_bounds(const Kernel& k);
std::string to_string(const Kernel& k);
Result<Kernel> parse_kernel(std::string_view text);

/// Runs the kernel in the simplest way, on doubles for floats: args are the argument buffers' bytes
/// in storage type. Bounds are checked; used as a reference between primitives and machine code.
Status interpret(const Kernel& k, const std::vector<std::span<std::byte>>& args);

/// Splits loops at the points where a condition on their variable changes, so that each part has
/// the condition decided (Halide's loop partitioning): no bounds tests inside the interior.
Kernel partition_loops(const Kernel& k);
/// Simplifies index expressions and conditions with the loop ranges; drops what never runs.
Kernel simplify(const Kernel& k);

}  // namespace heddle::kernel

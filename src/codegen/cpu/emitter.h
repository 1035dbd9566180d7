#pragma once
#include <functional>
#include <map>
#include <optional>
#include <unordered_map>

#include "codegen/cpu/analysis.h"
#include "codegen/cpu/cpu.h"
#include "codegen/cpu/ops.h"

namespace heddle::codegen::cpu {

using ir::Expr;
using ir::Var;

/// Translates one phase of a kernel to one LLVM function, statement by statement. Nothing is
/// decided here, but everything is computed in the outermost place where it can be: each expression
/// and value has a level (the innermost loop it depends on), is emitted just before the loop inside
/// that level, and is remembered there. No mid-end pass is needed to move or merge it.
class Emitter {
 public:
  Emitter(llvm::Module& module, const kernel::Kernel& k, const Machine& m, Analysis& analysis);
  /// Parameters: the buffers named (lane buffers excluded), then begin and end of the grid loop.
  /// Stores of whole vectors to `streamed` buffers, which then must be 64-byte aligned, go past the
  /// caches where their offsets are aligned too.
  llvm::Function* emit(const kernel::For& grid, const std::string& name,
                       const std::vector<std::int32_t>& buffers,
                       const std::vector<std::int32_t>& streamed);

 private:
  using V = llvm::Value*;

  /// A value node under the constants of the unrolled variables it depends on.
  struct ValueKey {
    const kernel::ValueNode* node;
    std::vector<std::int64_t> constants;
    bool operator==(const ValueKey&) const = default;
  };
  struct ValueKeyHash {
    std::size_t operator()(const ValueKey& k) const;
  };
  struct Remembered {
    V value;
    std::int64_t time;  ///< stores to what the value reads, later than this, make it stale
  };
  struct Block {
    std::vector<V> columns;
    std::int64_t time = 0;  ///< as of Remembered
  };
  struct Scope {
    llvm::Instruction* before = nullptr;  ///< the jump that enters it; null: no control flow
    const std::vector<std::int32_t>* writes = nullptr;  ///< loops: buffers written inside
    bool conditional = false;                           ///< loads must not be moved out
    V mask = nullptr;                                   ///< lanes that are active; null: all
    std::unordered_map<ValueKey, Remembered, ValueKeyHash> values;
    std::unordered_map<Expr, V> indices;
    std::map<std::int32_t, std::unordered_map<Expr, V>> pointers;  ///< by buffer
    /// Blocks that were transposed, by buffer, first element, elements from row to row, rows and
    /// the rows' conditions.
    std::map<std::tuple<std::int32_t, Expr, std::int64_t, unsigned, std::vector<ir::Condition>>,
             Block>
        blocks;
  };
  using Scopes = std::vector<std::shared_ptr<Scope>>;
  /// Where the builder stands, stable when blocks are split.
  struct Position {
    llvm::BasicBlock* block;
    llvm::Instruction* before;
  };
  /// The vector loop being emitted: lanes 0..lanes-1 of `width` are active.
  struct Vector {
    Var var;
    std::int64_t begin = 0;
    unsigned lanes = 1, width = 1;
  };
  /// Where the lanes of an access lie.
  struct Access {
    enum class Kind { uniform, constant, general } kind = Kind::uniform;
    Expr base;                          ///< uniform, constant: lane 0
    std::vector<std::int64_t> offsets;  ///< constant: of each active lane from `base`
    std::vector<Expr> lanes;            ///< general
    bool contiguous = false;
  };

  // emitter.cpp: statements and scopes
  void bind_parameters(llvm::Function* f, const std::vector<std::int32_t>& buffers);
  void body(const kernel::Body& statements);
  void statement(const kernel::Stmt& s);
  void loop(const kernel::For& x);
  void repeat(const kernel::For& x);
  void counted(Var var, V begin, V end, const kernel::Body& statements);
  void vector_loop(const kernel::For& x);
  void when(const kernel::If& x);
  void when_tested(const kernel::If& x);
  /// Conditions are entered, or left.
  void test(const std::vector<ir::Condition>& conditions, int more);
  void let(const kernel::Let& x);
  void routine(const kernel::Routine& x);
  void prefetch(V line, std::uint32_t near);
  void touch(const std::vector<std::int32_t>& buffers);
  const char* block_name(const char* name) const;
  int depth() const { return static_cast<int>(scopes_.size()) - 1; }
  Scope& scope() { return *scopes_.back(); }
  Position position() const;
  void restore(Position p);
  V at_level(int level, const std::function<V()>& make);
  /// Runs `then` only where `condition` (i1) holds; the code continues after it.
  void branch(V condition, const std::function<void()>& then);
  V branch_value(V condition, const std::function<V()>& then, const std::function<V()>& otherwise);

  // emit_index.cpp: index expressions, conditions, addresses
  Expr bound(const Expr& e) const;
  int level_of(const Expr& e) const;
  V index(const Expr& e);
  V make_index(const Expr& e, int level);
  V make_sum(const Expr& e, int level);
  V divide(const ir::IndexNode& n);
  bool fits32(const Expr& e) const;
  V lane_index(const Expr& e, llvm::IntegerType* type);
  Expr at_lane(const Expr& e, std::int64_t lane) const;
  V index_data(const Expr& e, DType dtype);
  V pointer(std::int32_t buffer, const Expr& e);
  V address(std::int32_t buffer, const Expr& e);
  V condition(const ir::Condition& c);
  V decided_lanes(const ir::Condition& c) const;
  bool varies(const Expr& e) const;

  // emit_value.cpp
  V value(const kernel::Value& v);
  V vector_value(const kernel::Value& v) {
    return ops_.splat(value(v), vector_ ? vector_->width : 1);
  }
  int level_of(const kernel::Value& v);
  V make_value(const kernel::ValueNode& v);
  V make_apply(const kernel::Apply& x, DType dtype, bool narrow);
  V make_guard(const kernel::Guard& x);
  V make_choice(const kernel::Guard& x, const std::vector<ir::Condition>& left);
  V masked_guard(const std::vector<ir::Condition>& conditions, const kernel::Guard& x);
  V make_random(const kernel::RandomBits& x);
  V lane_reduce(const kernel::LaneReduce& x, DType dtype);

  // emit_memory.cpp: one element, or all lanes
  V load(const kernel::Load& x, DType dtype);
  V load_parts(const kernel::Apply& x);
  V widened_parts(std::int32_t id, const ir::Expr& offset, unsigned width);
  V load_lines(std::span<const kernel::Value> parts);
  V load_words(std::int32_t id, const Access& a, std::int64_t parts);
  V load_table(const kernel::Load& x);
  V add_product(const kernel::Apply& x);
  V low_bits(const kernel::Value& v);
  V make_one_plus(const kernel::Apply& x);
  V make_logistic(const kernel::Apply& x, bool narrow);
  void store(const kernel::Store& x);
  void store_uniform(std::int32_t buffer, const Expr& offset, V v);
  std::optional<Expr> neighbours(const Expr& offset);
  void store_dynamic(const kernel::Store& x, const Expr& offset);
  V dynamic_offset(const std::vector<kernel::Load::Dynamic>& parts);
  V load_at(std::int32_t buffer, V ptr, unsigned width);
  llvm::StoreInst* store_at(std::int32_t buffer, V ptr, V v);

  // emit_vector.cpp: lanes of an access
  Access access(const Expr& e) const;
  bool always_inside(std::int32_t buffer, const Expr& e) const;
  V load_lanes(std::int32_t buffer, const Expr& e);
  V load_masked(std::int32_t buffer, const Access& a, V mask);
  V load_each(std::int32_t buffer, const Access& a, V mask,
              const std::vector<unsigned>* active = nullptr);
  V load_known(std::int32_t buffer, const Access& a, const std::vector<unsigned>& active);
  struct Run {
    std::int64_t start;
    unsigned length;
  };
  std::optional<Run> vector_around(std::int32_t buffer, const Access& a,
                                   const std::vector<std::int64_t>& offsets,
                                   std::int64_t unit) const;
  std::optional<std::vector<unsigned>> known_lanes(V mask) const;
  bool masked_access(std::int32_t buffer) const;
  void store_lanes(std::int32_t buffer, const Expr& e, V v);
  void store_contiguous(std::int32_t buffer, const Expr& base, V v);
  std::uint64_t known_alignment(std::int32_t buffer, const Expr& offset) const;
  unsigned register_span(std::int32_t buffer) const;
  V load_lane_buffer(std::int32_t buffer, const Expr& base);
  void store_lane_buffer(std::int32_t buffer, const Expr& base, V v, V mask);
  V resize(V v, unsigned width);
  void store_apart(std::int32_t buffer, const Access& a, V v);
  void store_each(std::int32_t buffer, const Access& a, V v, V mask);
  void store_if(V condition, std::int32_t buffer, V ptr, V v);
  V lane(V v, unsigned i);
  V tail_mask() const;

  // emit_tiles.cpp: products in tile registers
  void tiles(const kernel::TileProduct& x);
  void begin_tiles(const kernel::TileProduct& x);
  void end_tiles(const kernel::TileProduct& x);
  void move_sums(const kernel::TileProduct& x, bool load);
  void step_of_tiles(const kernel::TileProduct& x, V a, V b, V step);
  V bytes_from(V from, std::int64_t count);
  V page_behind(V line);
  void prepare_tiles(const kernel::Body& body);
  void configure_tiles(const kernel::TileProduct& x);
  void release_tiles();

  // emit_transpose.cpp: columns of blocks
  V load_column(std::int32_t buffer, const Expr& offset,
                const std::vector<ir::Condition>& inside = {});
  V guarded_column(const kernel::Guard& x, const std::vector<ir::Condition>& left);
  bool always_runs(Var unrolled) const;
  bool is_there(std::int32_t buffer, const Expr& first, std::int64_t more) const;
  V row_of_block(std::int32_t buffer, const Expr& first, const std::vector<ir::Condition>& inside,
                 std::int64_t lane);
  std::vector<V> transposed(std::vector<V> rows, unsigned element_bytes);

  const kernel::Buffer& buffer(std::int32_t id) const { return k_.buffers[kernel::BufferId{id}]; }
  bool in_registers(std::int32_t id) const { return buffer(id).scope == kernel::Scope::lane; }
  llvm::Align align_of(std::int32_t id) const;

  llvm::Module& module_;
  const kernel::Kernel& k_;
  const Machine& machine_;
  Analysis& analysis_;
  llvm::IRBuilder<> b_;
  Ops ops_;
  llvm::Function* function_ = nullptr;
  Scopes scopes_;
  std::vector<V> bases_;                            ///< by buffer id
  std::vector<std::optional<std::int64_t>> bound_;  ///< by variable: unrolled, or one iteration
  std::vector<std::int64_t> unrolled_;  ///< by variable: extent while it is unrolled, from 0
  std::vector<int> tested_;             ///< by variable: conditions around that depend on it
  std::vector<ir::Condition> given_;    ///< that were tested where the builder stands
  std::vector<V> phis_;                 ///< by variable: loop counter, or what it is bound to
  std::vector<int> levels_;             ///< by variable: depth of its loop, or where it is unrolled
  ir::Ranges ranges_;
  std::vector<std::int64_t> stored_;  ///< by buffer: time of the last store
  std::int64_t time_ = 0;
  std::vector<std::int32_t> streamed_;
  bool tiles_configured_ = false;  ///< for the whole function
  std::optional<Vector> vector_;
  bool crowded_ = false;  ///< one lane buffer takes more than half of the vector registers
};

}  // namespace heddle::codegen::cpu

#pragma once
#include "kernel/traverse.h"
#include "lower/attention/match.h"

namespace heddle::lower::attention {

// What is computed with is f32.
constexpr DType kType = DType::f32;
inline kernel::Value f32(double x) { return kernel::imm(kType, x); }
inline kernel::Value apply(ir::ScalarFn fn, std::vector<kernel::Value> args) {
  return kernel::apply(fn, std::move(args), kType);
}
inline kernel::Value load(kernel::BufferId b, const ir::Expr& at) {
  return kernel::load(b, at, kType);
}

/// How a CPU computes an attention: a task takes `tiles` tiles of rows and all keys. Their scores
/// stay in the core's second-level cache until the values are multiplied, `block` keys at a time.
struct Blocks {
  std::int64_t mr = 6;              ///< rows of a register tile
  std::int64_t big = 1, small = 0;  ///< tiles of mr and of fewer rows
  std::int64_t nv = 4;              ///< vectors of keys, and of columns at the most
  std::int64_t tiles = 8;           ///< of a task
  std::int64_t block = 64;          ///< keys, a multiple of nv vectors
  std::int64_t less = 5;            ///< rows of the small tiles
  /// Terms that a word has: one of f32, or two of bf16, which are multiplied in tile registers
  /// (AMX) or added up by one instruction (AVX512-BF16).
  enum class Form : std::uint8_t { single, pairs, tiles } form = Form::single;
  bool in_tiles() const { return form == Form::tiles; }
  std::int64_t together() const { return form == Form::single ? 1 : 2; }
};
/// Rows, keys and columns of a product in tile registers, and terms of its steps.
constexpr std::int64_t kTileSide = 32;
constexpr std::int64_t kValuesOfTask = 64;  ///< rows of values that one task packs
/// The model's choice; nullopt if kernels of their own are better: few rows or keys, or operands
/// that are neither f32 nor a bf16 that the target multiplies. `fixed` pins "mr", "nv", "rows" (of
/// a task, about) and "block".
std::optional<Blocks> blocks_of(const prim::Graph& g, const Attention& a, const Target& target,
                                const Tuning& fixed);

/// True if tasks of all rows of a batch have their scores near and are many enough.
bool may_be_alone(const Attention& a, const Target& target);

/// Keys and values are packed once, in a phase of their own where several tasks read them; then
/// each task multiplies its rows with all keys, exponentiates, and multiplies with the values
/// (FlashAttention, arXiv 2205.14135, with whole rows of scores near, so that nothing is scaled
/// again). Keys that a causal mask hides from all of a task's rows are left out; NaN and infinite
/// values there have no effect then.
class Emitter {
 public:
  Emitter(const Request& request, const Attention& a, const Blocks& blocks);
  Lowered run();
  /// Whether rows leave out different keys; asked instead of run().
  bool is_causal();

 private:
  using Expr = ir::Expr;
  using Var = ir::Var;
  using Body = kernel::Body;
  using Value = kernel::Value;
  using BufferId = kernel::BufferId;
  using Places = std::vector<std::pair<Var, Expr>>;  ///< what variables are
  using Made = std::function<Body(const Expr& value)>;
  using PerElement = std::function<Value(const Expr& row, const Expr& column)>;
  /// `first`: where a vector begins.
  using PerLane = std::function<Body(const Expr& first, const Expr& lane)>;

  /// Tiles of a height, where they apply.
  struct Height {
    std::int64_t rows;
    Expr first;  ///< row
    std::vector<ir::Condition> when;
  };
  /// Panels of keys or columns, of one width; `partial`: the last vector of the last one lacks
  /// some.
  struct Panels {
    std::int64_t nv, begin, end, before;  ///< before: vectors before the first, less begin·nv
    bool partial;
    Expr first_vector(const Expr& panel) const { return panel * Expr(nv) + Expr(before); }
  };

  BufferId buffer(std::string name, std::int64_t size, kernel::Scope scope, int lanes = 1,
                  NodeId origin = {}, DType type = DType::f32);
  kernel::Stmt each(std::int64_t begin, std::int64_t end, kernel::Binding binding,
                    const Made& make);
  kernel::Stmt vectors(std::int64_t nv, const PerLane& make);
  Body each_tile(const std::function<Body(const Height& h, const Expr& slot)>& make);
  std::vector<Panels> panels(std::int64_t extent) const;
  Body steps(std::int64_t count, const Made& make);
  Body multiply(const Height& h, std::int64_t nv, std::int64_t terms, BufferId acc,
                const PerElement& a, BufferId b, const Expr& b_from);
  /// So many vectors of memory.
  kernel::Stmt fill(BufferId b, std::int64_t count, double value);
  kernel::Stmt zero(const Height& h, std::int64_t nv, BufferId acc);
  std::vector<ir::Condition> needed(const Expr& first_key) const;
  Places decoded(const Expr& batch) const;
  kernel::Replacement with(const Places& values) const;
  Value at(const Value& v, const Places& values) const;
  Expr at(const Expr& e, const Places& values) const;

  void evaluate();
  kernel::Stmt pack();
  Body packed_part(const Expr& batch, const Expr& part);
  /// Number of the batch among those that the packed operands hold.
  Expr place_of(const Expr& batch) const { return alone_ ? Expr(0) : batch; }
  Body key_panel(const Expr& base, const Expr& first, const Panels& p);
  Body some_values(const Expr& base, const Expr& first);
  Body fetch_scores(const Height& h, const Expr& first_key, std::int64_t nv) const;
  Body fetch_next(const Height& h, const Expr& batch);
  Value score(const Expr& row, const Expr& key, const Value& product) const;
  Body score_row(const Height& h, const Expr& r, const Expr& slot, const Expr& first_key,
                 const Panels& p, BufferId acc);
  Body scores(const Expr& batch);
  Body each_vector(
      const std::function<Body(const Expr& which, const Expr& lane, const Expr& key)>& make);
  Body exponentials(const Expr& slot);
  Body results(const Expr& batch);
  Body key_block(const Expr& batch, const Expr& first, std::int64_t keys);
  Body store_results(const Height& h, const Expr& slot, const Panels& p, const Expr& panel,
                     const PerElement& sum);

  // As words of two terms (emit_pairs.cpp); word: rounded to bf16, the first in the low bits.
  static Value word(const Value& first, const Value& second);
  Value word_at(BufferId b, const Expr& at) const;
  Body copy_queries();
  Body key_words(const Expr& base, const Expr& first, const Panels& p);

  // In tile registers (emit_tiles.cpp).
  Expr place_in_tiles(const Expr& block, const Expr& keys, const Expr& pair) const;
  Body value_words(const Expr& base, const Expr& first);
  kernel::Stmt tile_of_scores(const Expr& slot, const Expr& keys_from) const;
  kernel::Stmt tile_of_values(const Expr& slot, const Expr& first_key, std::int64_t keys,
                              const Expr& values_from, const Expr& to, bool add) const;
  Body key_block_by_tiles(const Expr& batch, const Expr& first, std::int64_t keys);
  Expr place_of_sums(const Expr& slot, const Expr& panel) const;
  Body store_tile(const Height& h, const Expr& slot, const Expr& panel);

  const Request& request_;
  const prim::Graph& g_;
  const Attention& a_;
  const Blocks b_;
  const std::int64_t lanes_;
  const kernel::Binding unrolled_;  ///< rows of a register tile
  const std::int64_t batches_, keys_, depth_, columns_, padded_keys_, padded_depth_;
  const std::int64_t key_vectors_, column_vectors_, row_blocks_;
  const std::int64_t parts_;  ///< in which the keys and values of a batch are packed
  /// A task has all rows of a batch, and packs for itself. (Not measured in tile registers.)
  const bool alone_;
  std::int64_t pitch_, weight_pitch_, block_keys_ = 0;
  kernel::Kernel k_;
  Lowered out_;
  Evaluator values_;
  Layout layout_;
  Value q_, key_, value_, score_;
  bool along_depth_ = false;            ///< a key's elements lie together, keys far apart
  std::optional<std::int64_t> causal_;  ///< a key is seen if key <= row + this
  Places batch_;
  Expr block_ = 0;  ///< number of the task's rows
  BufferId result_, product_, packed_keys_, packed_values_, scores_, most_, inverse_, sums_;
  BufferId queries_, weights_, tile_;  ///< of bf16
};

}  // namespace heddle::lower::attention

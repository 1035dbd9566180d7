#pragma once
#include "lower/attention/match.h"

namespace heddle::lower::gpu {

using attention::Attention;

/// Threads side by side along the columns, one product at a time.
constexpr int kAcross = 8;

/// Tiles of an attention's loop: a block does `rows` rows, in steps of `keys` keys.
struct AttentionTiles {
  bool mma = false;  ///< on tensor cores (16-bit operands), else one product at a time
  int rows = 64, keys = 64;
  int threads = 128;
};
/// The best first; empty where nothing fits. `fixed` pins "rows" and "keys".
std::vector<AttentionTiles> attention_tiles(const prim::Graph& g, const Attention& a,
                                            const Target& target, const Tuning& fixed);
std::int64_t shared_bytes(const prim::Graph& g, const Attention& a, const AttentionTiles& t);

/// The loop over keys with running maxima and sums (FlashAttention-2, arXiv 2307.08691, algorithm
/// 1): keys and values of the next step are on their way while this one's are multiplied, weights
/// never leave the block. Steps whose keys a causal mask hides from all of a block's rows are left
/// out; NaN and infinite values there have no effect then, as they have no weight.
class AttentionEmitter {
 public:
  AttentionEmitter(const Request& request, const Attention& a, const AttentionTiles& tiles);
  Lowered run();

 private:
  using Expr = ir::Expr;
  using Var = ir::Var;
  using Body = kernel::Body;
  using Made = std::function<Body(const Expr& value)>;

  /// Results of a thread: rows i·heights + h by columns j·widths + l.
  struct Fragment {
    int rows = 1, heights = 1, columns = 1, widths = 1;
    int size() const { return rows * heights * columns * widths; }
    int slots() const { return rows * heights; }
  };
  /// An operand's tile in block memory.
  struct Tile {
    const Attention::Operand* operand;
    kernel::Value value;
    kernel::BufferId memory, source;
    Expr offset;                   ///< in `source`
    std::int64_t across, along;    ///< extents of the tile
    std::int64_t row, step, size;  ///< strides; elements of a stage
    bool along_memory = true;      ///< memory runs along `along`
    bool async = false;
    int vector = 1;
  };

  void add_arguments();
  Tile tile_of(const Attention::Operand& o, const char* name, std::int64_t across, int stages);
  std::optional<std::int64_t> causal_offset();
  kernel::Value score(const Expr& row, const Expr& key, kernel::Value product);

  Body in_block(const std::function<Body()>& make);
  Body loop();
  Body step(const Expr& j);
  Body softmax();
  Body results();
  Body copies(const Tile& t, const Expr& number, const Expr& stage);
  Body copy_chunk(const Tile& t, const Expr& chunk, const Expr& number, const Expr& stage);
  Body multiply(kernel::BufferId acc, const Fragment& f, const Tile& a, const Expr& a_stage,
                const Tile& b, const Expr& b_stage, bool b_along_k);
  Body multiply_scalar(kernel::BufferId acc, const Fragment& f, const Tile& a, const Tile& b,
                       const Expr& b_stage, bool b_along_k);
  std::vector<ir::Condition> needed(const Expr& j) const;

  Body rows(const Fragment& f,
            const std::function<Body(const Expr& slot, const Expr& row, const Expr& base)>& make);
  Body columns(const Fragment& f, kernel::Binding innermost,
               const std::function<Body(const Expr& column, const Expr& offset)>& make);
  kernel::Stmt each(std::int64_t count, kernel::Binding binding, const Made& make);
  Body let(const Expr& value, std::int64_t extent, const Made& make);
  Body fill(kernel::BufferId b, std::int64_t count, double value);
  kernel::BufferId buffer(std::string name, DType type, std::int64_t size, kernel::Scope scope);
  Var fresh(std::int64_t extent);

  const Request& request_;
  const prim::Graph& g_;
  const Attention& a_;
  const AttentionTiles t_;
  kernel::Kernel k_;
  Lowered out_;
  Evaluator values_;
  kernel::Value product_;  ///< what the first product is while scores are evaluated
  kernel::BufferId result_;
  Layout layout_;
  Fragment s_, o_;
  Var thread_;
  Expr block_;  ///< number of the block's rows
  std::int64_t blocks_, steps_;
  std::optional<std::int64_t> causal_;  ///< a key is seen if key <= row + this
  Tile tq_, tk_, tv_, tp_;
  kernel::BufferId acc_s_, acc_o_, most_, next_, scale_, sum_;
};

}  // namespace heddle::lower::gpu

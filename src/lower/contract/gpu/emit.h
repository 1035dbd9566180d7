#pragma once
#include "lower/contract/gpu/tiles.h"

namespace heddle::lower::contract::gpu {

/// Builds the kernel of a tiled product: blocks of threads; in a block, tiles of both sides go
/// through a ring of stages in block memory (asynchronous copies where nothing is computed, through
/// registers otherwise), are multiplied, and the results go through the epilogue.
class Emitter {
 public:
  Emitter(Gemm& gemm, const Tiles& tiles, const Target& target);
  Lowered run();

 private:
  using Made = std::function<kernel::Body(const ir::Expr& value)>;
  using Source = std::function<kernel::Value(const ir::Expr& lane)>;

  // The shape of the kernel (emit.cpp).
  kernel::Body in_tile(const std::function<kernel::Body()>& make);
  void place(const ir::Expr& task);
  kernel::Body main_loop();
  kernel::Body multiply(const ir::Expr& stage);
  kernel::Body multiply_scalar(const ir::Expr& stage);
  kernel::Stmt multiply_mma(const ir::Expr& stage);
  int vector_of(int count) const;
  kernel::Body bound(const ir::Expr& value, std::int64_t extent, const Made& make);
  /// Binds the axes at their position number `linear`, counted in steps of `step` along the last.
  kernel::Body decoded(const std::vector<Axis>& axes, int step, const ir::Expr& linear,
                       const std::function<kernel::Body()>& make);
  kernel::Stmt each(std::int64_t count, kernel::Binding binding, const Made& make);
  kernel::BufferId buffer(std::string name, DType type, std::int64_t size, kernel::Scope scope);
  void finish(Lowered& out);

  // Copies (emit_copy.cpp).
  struct Tile {
    const Side* side;
    bool is_m;
    kernel::BufferId memory, registers;
    std::int64_t chunks;  ///< of side->vector elements
    int per_thread;
  };
  Tile tile_of(const Side& side, bool is_m);
  enum class Step { async, fetch, deposit };
  kernel::Body copy(const Tile& tile, const ir::Expr& k_tile, const ir::Expr& stage, Step step);
  kernel::Body copy_chunk(const Tile& tile, const ir::Expr& i, const ir::Expr& chunk,
                          const ir::Expr& k_tile, const ir::Expr& stage, Step step);
  kernel::Body copies(const ir::Expr& k_tile, const ir::Expr& stage, Step step);

  // Tiles that the copy engine brings (emit_tma.cpp).
  kernel::Body copied_by_one(const ir::Expr& block, std::int64_t blocks);
  kernel::Body each_task(const ir::Expr& block, std::int64_t blocks, const Made& make);
  kernel::Body bring_tiles(const ir::Expr& first_step);
  kernel::Body multiply_tiles(const ir::Expr& first_step);
  kernel::Stmt tile_copy(const Tile& tile, const ir::Expr& k_tile, const ir::Expr& stage);
  kernel::Body warp_results();

  // Results (emit_results.cpp).
  kernel::Body results();
  kernel::Body scalar_results();
  kernel::Body staged_results();
  kernel::Body store_vector(const ir::Expr& row, const ir::Expr& column, int width,
                            const Source& source);
  kernel::Body store_lanes(int width, const Source& source, const ir::Expr& lane);
  int store_width() const;
  kernel::Body from_block(kernel::BufferId staged, std::int64_t ld);
  kernel::Body scalar_vectors(
      const std::function<kernel::Body(const ir::Expr& row, const ir::Expr& column,
                                       const ir::Expr& acc)>& make);
  kernel::Body fragment_pairs(
      const std::function<kernel::Stmt(const ir::Expr& row, const ir::Expr& column,
                                       const ir::Expr& element)>& make);

  // Several blocks for one tile (emit_split.cpp).
  kernel::Body store_partial();
  kernel::Stmt second_phase(std::int64_t tiles);

  // Few rows on one side (emit_stream.cpp).
  kernel::Body stream_loop();
  kernel::Body stream_step(const ir::Expr& k);
  kernel::Body stream_rows();
  kernel::Body stream_products();
  kernel::Body stream_lanes(const Side& s, const Axis& axis, int width, kernel::BufferId to,
                            const ir::Expr& first);
  kernel::Body stream_results();

  Gemm& g_;
  Product& p_;
  kernel::Kernel& k_;
  const Tiles t_;
  const int threads_;
  const std::int64_t resident_;  ///< blocks that the GPU runs at once (Unit::tma)
  std::int64_t tasks_ = 1;
  kernel::BufferId full_, empty_;  ///< events of a stage: its tiles are there, were multiplied
  Env env_;
  ir::Expr m0_, n0_;  ///< number of the block's tile along m and n
  ir::Expr tile_;     ///< its number among all tiles
  ir::Expr split_;
  ir::Var thread_;
  Tile tm_, tn_;
  kernel::BufferId acc_, partials_;
  std::int64_t k_tiles_ = 1;       ///< of one split
  kernel::BufferId long_, short_;  ///< stream: what a thread has read of each side
  ir::Expr team_, member_;
};

}  // namespace heddle::lower::contract::gpu

#pragma once
#include "lower/contract/gpu/tiles.h"

namespace heddle::lower::contract::gpu {

/// Builds the kernel of a tiled product: blocks of threads; in a block, tiles of both sides go
/// through a ring of stages in block memory (asynchronous copies where nothing is computed, through
/// registers otherwise), are multiplied, and the results go through the epilogue.
class Emitter {
 public:
  Emitter(Gemm& gemm, const Tiles& tiles);
  Lowered run();

 private:
  using Made = std::function<kernel::Body(const ir::Expr& value)>;
  using Source = std::function<kernel::Value(const ir::Expr& lane)>;

  // The shape of the kernel (emit.cpp).
  kernel::Body block();
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
  ir::Expr packed_offset(const Side& s, const ir::Expr& row, const ir::Expr& k) const;

  // Results (emit_results.cpp).
  kernel::Body results();
  kernel::Body scalar_results();
  kernel::Body staged_results();
  kernel::Body store_vector(const ir::Expr& row, const ir::Expr& column, int width,
                            const Source& source);
  kernel::Body store_lanes(int width, const Source& source, const ir::Expr& lane);
  int store_width() const;
  kernel::Body store_partial();
  kernel::Stmt second_phase();
  kernel::Value total(const ir::Expr& at) const;

  Gemm& g_;
  Product& p_;
  kernel::Kernel& k_;
  const Tiles t_;
  const int threads_;
  Env env_;
  ir::Expr m0_, n0_;  ///< number of the block's tile along m and n
  ir::Expr tile_;     ///< its number among all tiles
  ir::Expr split_;
  ir::Var thread_;
  Tile tm_, tn_;
  kernel::BufferId acc_, partials_;
  std::int64_t k_tiles_ = 1;  ///< of one split
};

}  // namespace heddle::lower::contract::gpu

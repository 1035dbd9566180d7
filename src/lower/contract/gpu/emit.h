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
  kernel::Body from_block(kernel::BufferId staged, std::int64_t ld);
  kernel::Body scalar_vectors(
      const std::function<kernel::Body(const ir::Expr& row, const ir::Expr& column,
                                       const ir::Expr& acc)>& make,
      const std::function<kernel::Body(const ir::Expr& row, kernel::Body vectors)>& around = {});
  kernel::Body fragment_pairs(
      const std::function<kernel::Stmt(const ir::Expr& row, const ir::Expr& column,
                                       const ir::Expr& element)>& make);

  // Several blocks for one tile (emit_split.cpp).
  kernel::Body store_partial();
  kernel::Stmt second_phase(std::int64_t tiles);

  // Sums of the epilogue's values over rows and columns (emit_sums.cpp). Of a thread in registers,
  // of its warp or block, then in a phase of their own, all in a fixed order.
  /// How threads hold the values: `line` neighbouring ones (a power of two) a row, each `groups`
  /// runs of `width` columns, `span` runs apart.
  struct Site {
    int threads = 32;  ///< that hold a tile, or a part of its columns, together
    std::int64_t line = 1;
    int width = 1, groups = 1;
    std::int64_t span = 0;
    std::int64_t parts_m = 1, parts_n = 1;  ///< of a tile
    ir::Expr part_m, part_n;                ///< which one it is
    ir::Expr first;                         ///< run of the tile with which the part begins
  };
  struct Sum {
    std::size_t output;
    bool over_m, over_n;
    kernel::BufferId mine;                  ///< of a thread: by column, or by lane
    std::int64_t length = 1, count = 1;     ///< elements of a part; parts of a batch
    std::optional<kernel::BufferId> parts;  ///< none where the only one is the sum
    bool ends_with_row() const { return over_n && !over_m; }
  };
  void plan_sums(Site site);
  kernel::Body open_sums(bool of_rows);
  kernel::Stmt add_to(const Sum& sum, const kernel::Value& value, const ir::Expr& lane);
  kernel::Body close_rows(const ir::Expr& row);
  kernel::Body close_columns();
  kernel::Body put(const Sum& sum, const ir::Expr& part, const ir::Expr& in_tile,
                   const ir::Expr& slot);
  kernel::Stmt fold(const Sum& sum) const;
  kernel::Stmt combine(const Sum& sum, std::int64_t count, std::int64_t width, std::int64_t stride);
  kernel::Value both(const Sum& sum, kernel::Value x, kernel::Value y) const;
  kernel::Value element(const Sum& sum, const ir::Expr& slot) const;
  ir::Expr place_in_line() const { return ir::floor_mod(ir::Expr(thread_), site_.line); }
  std::int64_t row_team() const { return std::min<std::int64_t>(site_.line, kernel::kWarp); }
  ir::Expr batch() const;
  bool has_parts() const;
  kernel::Stmt sum_phase();
  kernel::Body add_parts(const Sum& sum, const ir::Expr& task, int threads);
  std::vector<Axis> batches(const Sum& sum, bool reduced) const;
  const std::vector<Axis>& kept_axes(const Sum& sum) const;

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
  std::vector<Sum> sums_;
  Site site_;
  ir::Expr group_;  ///< of the run that is stored
};

}  // namespace heddle::lower::contract::gpu

#pragma once
#include <set>

#include "lower/contract/direct.h"
#include "lower/contract/strassen.h"
#include "lower/contract/winograd.h"
#include "support/math.h"

namespace heddle::lower::contract {

/// Builds the kernel of a product under a schedule: a grid loop over tasks; in a task, operand
/// copies, then panels × rows × register tiles, each a reduction over k and an epilogue.
class Emitter {
 public:
  Emitter(Product& product, const Schedule& schedule);
  Lowered run();

 private:
  using Env = std::vector<std::optional<ir::Expr>>;  // by Var::index
  /// One shape of register tile: its rows, vectors, lanes in the last vector, and where it applies.
  struct Variant {
    std::int64_t mr, nv, tail;  ///< tail: lanes of a last partial vector (0: all full)
    ir::Expr first_row;         ///< along the tile axis
    std::vector<ir::Condition> when;
  };

  /// Buffers of one register tile.
  struct Registers {
    kernel::BufferId acc, a, b;
  };
  using PerVector = std::function<kernel::Stmt(const ir::Expr& vector, const ir::Expr& lane)>;

  // The shape of the loops (emit.cpp).
  kernel::Body task_body();
  kernel::Body without_tests(kernel::Body copies);
  std::vector<Variant> variants() const;
  void decode(const ir::Expr& outer, Env& env) const;
  kernel::Value at(const kernel::Value& v, const Env& env) const;
  ir::Expr at(const ir::Expr& e, const Env& env) const;
  static void set(Env& env, ir::Var v, ir::Expr e);
  ir::Expr k_linear(const Env& env) const { return linear(k_axes_, env); }
  ir::Expr linear(const std::vector<Axis>& axes, const Env& env) const;
  static Env in_loop(const KLoop& loop, const ir::Expr& position, Env env);
  ir::Expr first_row() const;
  ir::Expr first_tile_row() const;
  kernel::BufferId scratch(std::string name, std::int64_t size, kernel::Scope scope, int lanes = 1,
                           std::optional<DType> type = {});
  /// Of elements of operands.
  kernel::BufferId operand_scratch(std::string name, std::int64_t size, kernel::Scope scope,
                                   int lanes = 1) {
    return scratch(std::move(name), size, scope, lanes, element_);
  }

  // Operand copies (emit_pack.cpp).
  void plan_a();
  void plan_box();
  void plan_k_loops();
  void plan_b();
  void copy_a(kernel::Body& body);
  void copy_matrix(kernel::Body& body);
  /// Gets the environment of a row, and its slot among the rows that the task has copied.
  using PerRow = std::function<kernel::Body(Env env, const ir::Expr& slot)>;
  /// Puts more loops around a tile's rows, and what they stand for into the environment.
  using Rows = std::function<kernel::Body(Env env)>;
  using PerTile = std::function<kernel::Body(Env env, const Rows& rows)>;
  kernel::Body for_each_row(const PerTile& around, const PerRow& f);
  kernel::Body rows_of_tile(std::int64_t rows, ir::Var r, kernel::Body body);
  ir::Expr a_place(const ir::Expr& slot, const Env& k) const;
  kernel::Body for_each_row(const PerRow& f);
  kernel::Body matrix_row(const ir::Expr& slot, std::size_t level, Env env);
  const kernel::Load* load_of_b() const;
  std::optional<std::size_t> run_of_b() const;
  void copy_panel_along(std::size_t run, const ir::Expr& panel, const ir::Expr& base,
                        kernel::Body& body);
  void copy_panel(const ir::Expr& panel, const ir::Expr& base, kernel::Body& body);
  std::optional<kernel::Stmt> packing_phase();
  DType packed_type() const;
  Tensor pack_constant() const;
  /// Offsets of the constant operand's elements for every position of `axes`, less that of the
  /// first.
  std::vector<std::int64_t> offsets_of(const kernel::Load& load,
                                       const std::vector<Axis>& axes) const;

  // The box (emit_box.cpp): position[d] is the place in dimension d of the loops around.
  using Position = std::vector<ir::Expr>;
  void copy_box(std::size_t level, const Position& position, kernel::Body& body);
  void copy_box_range(std::size_t level, Position position, std::int64_t begin, std::int64_t end,
                      kernel::Body& body);
  bool few_channels() const;
  void copy_places(std::size_t level, Position position, std::int64_t begin, std::int64_t end,
                   kernel::Body& body);
  void zero_box(std::size_t level, Position position, kernel::Body& body);
  kernel::Stmt box_element(const Position& position, std::vector<ir::Condition> when);
  kernel::Stmt box_zero(const Position& position);
  Env box_env() const;
  ir::Expr box_offset() const;
  std::int64_t in_line(std::int64_t extent) const;

  // The register tile (emit_tile.cpp).
  kernel::Body tile(const Variant& v);
  kernel::Stmt for_each_vector(const Variant& v, const PerVector& f);
  /// `done`: steps before the ones of this level, for all loops around it.
  kernel::Body reduction(const Variant& v, const Registers& reg, std::size_t level, const Env& env,
                         const ir::Expr& done);
  std::int64_t tiles_of_panel() const;
  ir::Expr tile_of_panel() const;
  std::vector<ir::Expr> lines_of_turn(std::int64_t lines, std::int64_t all, const ir::Expr& done,
                                      std::int64_t steps) const;
  kernel::Body fetch_ahead(const ir::Expr& done, std::int64_t steps) const;
  kernel::Body fetch_columns(const ir::Expr& done, std::int64_t steps) const;
  ir::Expr start_of_panel(const ir::Expr& panel) const;
  kernel::Body fetch_operand(const ir::Expr& done, std::int64_t steps) const;
  kernel::Body fetch_rows(const Variant& v, const ir::Expr& done, std::int64_t steps) const;
  bool next_is_other_product() const;
  std::set<std::pair<kernel::BufferId, ir::Expr>> rows_of_results(bool far) const;
  kernel::Body fetch_results(const Variant& v, const ir::Expr& done, std::int64_t steps) const;
  kernel::Body step(const Variant& v, const Registers& reg, const Env& k);
  std::int64_t distinct_steps(const KLoop& loop) const;
  std::vector<ir::Condition> not_padding(const KLoop& loop, const ir::Expr& position) const;
  /// `in_memory`: where the accumulators are in block memory already.
  kernel::Body epilogue(const Variant& v, kernel::BufferId acc,
                        const std::optional<ir::Expr>& in_memory = {});
  // Sums (emit_sums.cpp). Over the rows: of a task's rows of one panel in its scratch, then of all
  // tasks in a phase of their own, in order. Along the rows: of one panel in registers, then of all
  // panels in such a phase.
  void plan_sums();
  kernel::Stmt add_to(kernel::BufferId buffer, const ir::Expr& place,
                      const kernel::Value& value) const;
  std::vector<Axis> row_axes() const;
  std::int64_t row_count() const;
  kernel::Body zero_row_sums();
  kernel::Body store_row_sums(const Env& env);
  kernel::Stmt add_row_sums();
  ir::Expr place_of_sums(const ir::Expr& column) const;
  kernel::Body zero_sums();
  kernel::Body store_sums();
  kernel::Stmt add_sums();
  kernel::Stmt results(Env env, kernel::BufferId source, const ir::Expr& in_source,
                       const ir::Expr& column, std::int64_t lanes);
  kernel::Body stores_of(const Env& env, ir::Var l, kernel::BufferId source,
                         const ir::Expr& in_source, const ir::Expr& column);
  ir::Expr a_tile_position(const Variant& v) const;

  // Vectors along the terms (emit_dots.cpp).
  void plan_dots();
  kernel::Body dots_tile(const Variant& v);
  kernel::Body dots_reduction(const Variant& v, const Registers& reg, std::size_t level,
                              const Env& env);
  /// Of a vector of terms, the first `count` of which are there.
  struct Lanes {
    ir::Var var;
    std::int64_t count;
  };
  kernel::Body dots_step(const Variant& v, const Registers& reg, const Env& k, const Lanes& lanes);
  kernel::Body dots_results(const Variant& v, kernel::BufferId acc);

  // Winograd's convolution (emit_winograd.cpp).
  void plan_winograd();
  kernel::Body winograd_body();
  kernel::Stmt input_transform();
  kernel::Stmt store_products(const Variant& v, kernel::BufferId acc);
  kernel::Stmt output_transform();
  kernel::Stmt filter_phase();
  Tensor pack_winograd() const;

  // Strassen's product (emit_strassen.cpp).
  void plan_strassen();
  kernel::Body strassen_body();
  using PerTerms =
      std::function<kernel::Stmt(const Env& env, const ir::Expr& term, std::int64_t lanes)>;
  kernel::Body for_each_term(std::size_t level, Env env, const ir::Expr& term, const PerTerms& f);
  kernel::Value halved_element(const Env& env, const ir::Expr& lane, int row, int half) const;
  kernel::Body row_factors(const Env& env, const ir::Expr& slot);
  kernel::Stmt halved_vector(const ir::Expr& slot, const Env& env, const ir::Expr& term,
                             std::int64_t lanes);
  kernel::Body strassen_tile(const Variant& v);
  kernel::Stmt join_products(const Variant& v);
  Tensor pack_strassen() const;
  std::vector<double> column_inverses(const float* from, const std::vector<std::int64_t>& on,
                                      const std::vector<std::int64_t>& ok) const;

  // A product in tile registers (emit_pieces.cpp, emit_columns.cpp).
  void plan_pieces();
  kernel::Value zero() const;
  void plan_column_terms();
  ir::Expr vector_at(const Env& place) const;
  ir::Expr in_block(std::size_t level, const ir::Expr& position) const;
  ir::Expr piece_place(const ir::Expr& slot, const ir::Expr& vector) const;
  kernel::Body split_terms(const ir::Expr& slot, const ir::Expr& vector, const Env& env,
                           std::int64_t lanes);
  kernel::Body pieces_of_row(const ir::Expr& slot, std::size_t level, Env env, Env place);
  void copy_rows_of_pieces(kernel::Body& body);
  kernel::Body pieces_tile(const Variant& v);
  kernel::Body pieces_by_depth();
  kernel::Body slices_before();
  kernel::Body products_in_loops(bool panels);
  bool rows_from_afar() const;
  kernel::TileProduct pieces_product(const Variant& v) const;
  void place_rows(const Variant& v, kernel::TileProduct& x) const;
  std::int64_t rows_before(const Variant& v) const;
  ir::Expr results_from(const Variant& v, const ir::Expr& place) const;
  ir::Expr place_of_sums() const;
  bool fetch_just_ahead() const;
  void fetch_panel(const ir::Expr& tile, kernel::TileProduct& x) const;
  void fetch_columns(const ir::Expr& tile, kernel::TileProduct& x) const;
  void fetch_results(const Variant& v, kernel::TileProduct& x) const;
  void fetch_rows(const Variant& v, kernel::TileProduct& x) const;
  bool blocks_of_rows() const;
  bool panels_stay() const;
  using PairPlace = std::function<ir::Expr(const ir::Expr& pair, int piece)>;
  kernel::Body split_columns(Env env, const ir::Expr& n, const ir::Expr& first, std::int64_t terms,
                             bool some, const PairPlace& place);
  void copy_pieces(const ir::Expr& panel, const ir::Expr& base, kernel::Body& body);
  kernel::Stmt columns_of_terms(const Env& env, const ir::Expr& panel, const ir::Expr& base,
                                std::int64_t terms);
  std::optional<kernel::Stmt> columns_without_terms(const ir::Expr& base);
  bool columns_by_terms() const;
  std::int64_t blocks_of_terms() const;
  kernel::Body terms_of_panels(const ir::Expr& block, const ir::Expr& base);
  Tensor pack_pieces() const;
  // What runs beside products (emit_turns.cpp).
  std::int64_t turns() const;
  std::vector<ir::Condition> idle_turns() const;
  bool can_overlap() const;
  std::int64_t sums_in_turn() const;
  ir::Expr place_of_turn(const ir::Expr& number) const;
  kernel::Body results_of_turn(const ir::Expr& number, std::optional<ir::Var> step);
  ir::Expr number_of_turn() const;
  kernel::Body terms_ahead(const ir::Expr& row, const ir::Expr& step, const ir::Expr& tile,
                           bool big);
  kernel::Body rows_ahead(ir::Var step);
  kernel::Body turn();

  /// Tiles side by side in a task of Winograd's, all its tiles.
  std::int64_t winograd_across() const {
    return ceil_div(p_.extents.tile, s_.winograd) / s_.column_blocks;
  }
  std::int64_t winograd_tiles() const { return s_.big * s_.mr + s_.small * (s_.mr - 1); }
  std::int64_t part_distance() const;
  const Tensor& constant_operand(const kernel::Load& load) const;
  const kernel::Load& operand_load() const;
  bool keeps_bytes() const;
  DType stored_as(kernel::BufferId buffer) const;
  kernel::Value operand_at(kernel::BufferId buffer, const ir::Expr& offset) const;

  Product& p_;
  kernel::Kernel& k_;
  const Schedule s_;
  const int lanes_;
  Env env_;  ///< batch and outer axes in terms of the task, row in terms of its loop
  ir::Var task_, panel_loop_, row_loop_, tile_loop_;
  ir::Expr outer_, panel_, row_, tile_;
  ir::Expr column_ = 0;  ///< of Winograd's: the first of the task
  std::vector<KLoop> k_loops_;
  std::vector<Axis> k_axes_;
  std::vector<Axis> a_terms_, b_terms_;  ///< of pieces: the same as each operand's copy walks them
  std::vector<Axis> b_batch_;
  kernel::Value a_main_, b_main_;  ///< operands as the tile reads them
  kernel::BufferId a_buffer_, b_buffer_;
  std::int64_t lda_ = 0, panel_size_ = 0;
  std::int64_t stored_parts_ = 1;  ///< elements of the packed constant that are one word
  std::int64_t transformed_place_ = 0, products_place_ = 0;  ///< elements of a place of Winograd's
  std::vector<std::int64_t> box_strides_, box_extents_;
  ir::Var slot_;      ///< row of the copied matrix
  ir::Var n_vector_;  ///< place in the panel
  DType element_;     ///< of operands in the main loop
  std::optional<Winograd> winograd_;
  std::optional<Strassen> strassen_;
  std::optional<Pieces> pieces_;
  std::optional<DirectRows> direct_;  ///< of pieces: rows that are not copied one by one
  std::int64_t a_block_ = 0;          ///< of pieces: elements from 16 rows of a tile to the next
  std::int64_t row_steps_ = 0;        ///< of pieces, in a block of the reduction
  ir::Expr block_ = 0;                ///< which
  std::int64_t steps_ = 0;            ///< of pieces, in a slice of the block
  ir::Expr slice_ = 0;                ///< which
  std::vector<std::int64_t> blocks_;  ///< by axis of a_terms_
  /// Of pieces: sums of a tile, of two, (by slices) of a panel's tiles or (by blocks) of all.
  kernel::BufferId acc_;
  bool overlap_ = false;  ///< of pieces: results while the next tile's products are computed
  WinogradTerms terms_ = WinogradTerms::single;
  ir::Var place_;  ///< one of the A², or seven, products
  struct Sum {
    std::size_t output;
    kernel::BufferId task, parts;
  };
  std::vector<Sum> sums_, row_sums_;  ///< over the rows, along them
  kernel::BufferId box_, transformed_, products_, factors_, inverses_;
};

}  // namespace heddle::lower::contract

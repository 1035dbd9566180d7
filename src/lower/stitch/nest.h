#pragma once
#include <algorithm>
#include <set>

#include "lower/stitch/emitter.h"

namespace heddle::lower::stitch {

/// What a nest writes: a value for each position of its domain, or for each row of it.
struct NestOutput {
  std::function<Value(Evaluator&, const Index&)> value;  ///< at a position of its own shape
  kernel::BufferId buffer;
  Layout layout;
  /// For each own dimension the dimension of the domain it follows, -1 where it is always 0.
  std::vector<int> dimensions;
  bool row = false;  ///< follows fewer dimensions than the domain has: stored once per row
};

/// The largest divisor of n that is at most `limit`.
inline std::int64_t divisor_below(std::int64_t n, std::int64_t limit) {
  for (std::int64_t d = std::min(n, limit); d > 1; --d)
    if (n % d == 0) return d;
  return 1;
}

inline Index own_index(const NestOutput& o, const Index& index) {
  Index own;
  for (int d : o.dimensions) own.push_back(d < 0 ? Expr(0) : index[static_cast<std::size_t>(d)]);
  return own;
}

/// A box of positions.
struct Domain {
  Shape begin, extent;
};

/// Loops over a domain: which run as tasks, which in order, which along the lanes.
class Nest {
 public:
  Nest(Emitter& out, std::vector<NestOutput> outputs, Domain domain);
  /// Boxes in which no concatenation has to be told apart; `domain` itself if there is none.
  static std::vector<Domain> boxes(Emitter& out, const std::vector<NestOutput>& outputs,
                                   const Domain& domain);

  std::int64_t tasks() const { return tasks_; }
  /// The body of task number `task`, whose variable is `bound`.
  kernel::Body emit(const Expr& task, Var bound);
  std::string describe() const;
  std::vector<Nest> parts(const std::vector<NestOutput>& outputs) const;
  /// What the values read with a stride along the lanes: buffers and strides.
  std::vector<std::pair<kernel::BufferId, std::int64_t>> strided_reads() const;

  /// What the outputs touch at a position of the domain.
  struct Traced {
    std::vector<Axis> dims;
    Index position;
    std::vector<Touch> touches;
    std::vector<Reduction> reductions;
    std::int64_t weight = 0;  ///< nodes of the values
  };
  static Traced trace(Emitter& out, const std::vector<NestOutput>& outputs, const Domain& domain);

 private:
  static bool is_nested(const Reduction& r, const Traced& t);
  void choose_order(const Traced& t);
  std::vector<Touch> large_touches() const;
  void choose_vector();
  void tile_transpose();
  std::pair<Axis, Axis> split(const Axis& axis, std::int64_t length);
  bool are_far(Var column) const;
  void split_far_columns();
  void keep_weights();
  void stage_tile(std::vector<kernel::Store>& stores);
  kernel::Body next_tile(const Expr& block) const;
  void stage_stores(std::vector<kernel::Store>& stores, const Lanes& l, Var tile, std::int64_t rows,
                    std::int64_t length);
  void choose_vector_count();
  bool streams_columns(std::int64_t vectors) const;
  void choose_tasks();
  std::int64_t work() const;
  void choose_kept(const Traced& t);
  bool on_vector(Var v) const;

  void place_tasks(const Expr& task);
  void loops(std::size_t at);
  void within(const ir::Expr& place, std::int64_t end, std::int64_t extent,
              const std::function<void(const ir::Expr& place)>& make);
  void vector_loops(std::size_t at);
  void innermost();
  std::vector<ir::Condition> first_task_of(const NestOutput& row) const;
  Index current_index() const;
  const Expr& original_of(std::size_t dim) const;

  Emitter& out_;
  std::vector<NestOutput> outputs_;
  Domain domain_;
  Axes axes_;
  struct Hoisted {
    std::vector<bool> needs;  ///< by axis
    std::int64_t count = 1;   ///< terms
  };
  std::vector<Hoisted> hoisted_;
  std::vector<std::size_t> order_;      ///< axes, outermost first
  std::optional<std::size_t> vector_;   ///< axis along the lanes
  std::optional<std::size_t> tiled_;    ///< axis inside the vectors
  std::optional<std::size_t> blocked_;  ///< blocks of the vectors' axis, around the tiles
  std::int64_t stored_before_ = 0;      ///< elements of the only tile that another nest stores
  bool transposes_ = false;             ///< tiled_ is contiguous to what the lanes are not
  std::optional<std::size_t> cut_;      ///< of dims_, where the last tile is no whole vector
  bool in_registers_ = false;           ///< such tiles are transposed in registers as they are read
  /// What the tile being emitted reads that way: buffer, offset.
  std::vector<std::pair<kernel::BufferId, Expr>> tile_reads_;
  std::vector<Var> dims_;      ///< of the domain, extents of 1 left out
  int width_ = 1, count_ = 1;  ///< lanes, vectors side by side
  std::size_t split_ = 0;      ///< order_[0..split_) are tasks, order_[split_] in blocks
  std::int64_t block_ = 1, blocks_ = 1, tasks_ = 1;
  std::int64_t weight_ = 1;
  std::vector<NodeId> kept_;  ///< each task computes them once, not in each of its rows
  std::vector<std::optional<Expr>> position_;  ///< by axis, while emitting
  Expr split_block_ = 0;
  std::vector<std::function<void()>> after_lanes_;  ///< copies due when a block of lanes is done
  std::set<std::pair<std::size_t, Index>> rows_done_;
};

}  // namespace heddle::lower::stitch

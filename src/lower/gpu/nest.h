#pragma once
#include "lower/stitch/nest.h"

namespace heddle::lower::gpu {

using stitch::Domain;
using stitch::Emitter;
using stitch::Index;
using stitch::NestOutput;
using stitch::Touch;

/// Loops over a domain as blocks of threads. A point is a position of the row axes (those that long
/// reductions depend on; all axes if there are none); a team of threads works on a point: it deals
/// out the reductions' terms and then the positions of the other axes among its members (AStitch,
/// ASPLOS'22, section 4: thread-, warp- and block-per-row by adaptive mapping to one wave). Where
/// memory runs along the points, neighbouring threads take neighbouring points (column reductions),
/// else they are members of one team.
class ThreadNest {
 public:
  /// `threads`: of a block, 0: as fits.
  ThreadNest(Emitter& out, std::vector<NestOutput> outputs, Domain domain, int threads);

  std::int64_t tasks() const { return tasks_; }
  /// The thread loops of block number `task`, whose variable is `bound`.
  kernel::Body emit(const ir::Expr& task, ir::Var bound);
  std::string describe() const;

 private:
  void choose_rows(const stitch::Nest::Traced& t);
  void choose_vector();
  void choose_team();
  void place(bool rows, const ir::Expr& linear, const std::function<void()>& make);
  void inner_positions();
  void innermost();
  Index index_at(const std::function<std::optional<ir::Expr>(ir::Var)>& more = {}) const;
  void row_outputs(const Index& index);

  Emitter& out_;
  std::vector<NestOutput> outputs_;
  Domain domain_;
  stitch::Axes axes_;
  std::vector<ir::Var> dims_;          ///< of the domain, extents of 1 left out
  std::vector<bool> row_;              ///< by axis
  std::vector<std::size_t> order_;     ///< axes, the one that varies fastest last
  std::int64_t terms_ = 0;             ///< of the longest reduction by teams
  bool teams_ = false;                 ///< some reduction is long
  bool columns_ = false;               ///< neighbouring threads are neighbouring points
  std::optional<std::size_t> vector_;  ///< axis along the lanes
  int width_ = 1;
  std::int64_t points_ = 1, inner_ = 1, tasks_ = 1;
  int per_block_ = 1;  ///< points
  int size_ = 1;       ///< threads of a team; those of several blocks are a cluster's
  int wanted_threads_ = 0;
  std::vector<std::optional<ir::Expr>> position_;  ///< by axis, while emitting
  std::vector<ir::Condition> valid_;
  stitch::Team team_;
  std::set<std::pair<std::size_t, Index>> rows_done_;
};

/// Accesses of 16 bytes that read a line of memory together: columns of a block.
constexpr int kLineAccesses = 8;

/// Threads of a cluster that work on one row, 0 if its reductions are better done in parts by a
/// phase of their own or by one block: long rows, few of them, on GPUs whose blocks can read each
/// other's shared memory. `lanes`: elements of an access.
int cluster_team(const Target& target, std::int64_t rows, std::int64_t terms, int lanes);

/// Phases whose tasks are single threads become blocks of at most `threads` threads, or exactly so
/// many; their scratch is private to a thread.
kernel::Kernel with_threads(kernel::Kernel k, int threads, bool exactly);

}  // namespace heddle::lower::gpu

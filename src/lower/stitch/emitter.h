#pragma once
#include <memory>

#include "lower/reduction.h"
#include "lower/stitch/axes.h"

namespace heddle::lower::stitch {

using Index = Evaluator::Index;

/// A loop body being filled. Statements land in it in the order in which they are needed; an inner
/// loop is appended when it is closed, so what is hoisted meanwhile comes before it.
struct Level {
  Level* parent = nullptr;
  int depth = 0;
  kernel::Body body;
};

/// True if `inner` is `outer` or lies inside it.
inline bool encloses(const Level* outer, const Level* inner) {
  for (; inner; inner = inner->parent)
    if (inner == outer) return true;
  return false;
}

/// More vectors than this side by side are a loop, and their accumulators lie in scratch memory.
constexpr int kMaxUnroll = 8;

/// A block of `count` vectors of `width` positions each, the innermost loops of every statement
/// that depends on them: position = unroll·stride + lane.
struct Lanes {
  Var lane, unroll;
  int width = 1, count = 1;
  Level* level = nullptr;  ///< where the block's position is known
  mutable bool used = false;
  /// Position inside the block, in elements of a register buffer.
  Expr place(int stride) const { return Expr(unroll) * Expr(stride) + Expr(lane); }
};

/// A value that is kept in a task's scratch memory because several phases of a row want it.
struct Saved {
  kernel::BufferId buffer;
  int phase = 0;            ///< the reduction that fills it
  Index index;              ///< position at which it was stored
  std::vector<bool> inner;  ///< dimensions that the filling loop runs over
  bool laned = false;       ///< one element per lane of the block
  const Lanes* lanes = nullptr;
  Level* level = nullptr;  ///< the row: valid while this level is open
  std::int64_t size = 0;   ///< elements of one team
};

/// Threads of a GPU block that work on one row together. All of them reach the level of the row.
struct Team {
  Var member;                        ///< number within the team
  int size = 1, stride = 1;          ///< threads; distance of neighbours in thread numbers
  Var point;                         ///< number of the team in the block
  int points = 1;                    ///< teams of the block
  std::vector<ir::Condition> valid;  ///< the team has a row (the last block may have fewer)
  Level* level = nullptr;            ///< the row
};

/// Writes loop nests: knows the open loops and at which of them each variable is bound, places
/// reductions at the outermost loop that defines them, and wraps statements in vector loops.
class Emitter {
 public:
  Emitter(const prim::Graph& g, kernel::Kernel& k, const Target& target, Evaluator& values);

  Var fresh(std::int64_t extent);
  const prim::Graph& graph() const { return g_; }
  kernel::Kernel& kernel() { return kernel_; }
  Evaluator& values() { return values_; }
  const Target& target() const { return target_; }
  int lanes() const { return lanes_per_vector_; }
  void set_lanes(int lanes) { lanes_per_vector_ = lanes; }
  /// Of a phase; 0: as its work and the threads want.
  std::int64_t wanted_tasks() const { return wanted_tasks_; }
  void want_tasks(std::int64_t tasks) { wanted_tasks_ = tasks; }

  /// Starts a task body; `task` is bound in it. Ends with end_task.
  void begin_task(const std::vector<Var>& bound);
  kernel::Body end_task();
  Var open(std::int64_t extent);
  void close(Var var, std::int64_t extent);
  /// The same with `by` iterations at a time unrolled; `extra` gives what follows each `by` of
  /// them.
  void close_unrolled(Var var, std::int64_t extent, int by,
                      const std::function<kernel::Body(const Expr& block)>& extra);
  /// Makes positions of the current level a block of vectors until leave_lanes.
  const Lanes* enter_lanes(int width, int count);
  void leave_lanes() { lanes_ = nullptr; }
  const Lanes* current_lanes() const { return lanes_; }

  /// From begin_task on, the task's threads are teams until end_task.
  void set_team(Team team);
  const std::optional<Team>& team() const { return team_; }
  /// Positions 0..count-1 dealt out to the members of the team.
  void deal(std::int64_t count, const std::function<void(const Expr& at)>& make);
  /// What `make` appends, under conditions.
  void under(std::vector<ir::Condition> conditions, const std::function<void()>& make);
  /// What `make` appends, with `var` = `value` where begin <= value < end.
  void with(Var var, Expr value, std::int64_t begin, std::int64_t end,
            const std::function<void()>& make);
  /// What `make` appends for the coordinates of row-major position `linear` in a box; each is a
  /// variable of its own, unless the box has one dimension.
  void decode(const Expr& linear, const Shape& extents,
              const std::function<void(const Index& position)>& make);
  /// True if all members of the team are at the same place where `exprs` are known.
  bool shared_by_team(const std::vector<Expr>& exprs) const;
  /// A store made where `depends` is known, under conditions; by one member if the team shares it.
  void store_once(const std::vector<Expr>& depends, std::vector<ir::Condition> conditions,
                  const std::function<kernel::Store()>& make);

  /// A statement at the current level, outside vectors.
  void statement(kernel::Stmt s) { append(std::move(s)); }
  /// Stores at the current level, in vector loops where they depend on the lanes.
  void store(std::vector<kernel::Store> stores);
  /// Rows of a buffer copied to scratch before the current vectors' loops: element (r, i) of `rows`
  /// x `length` is source[base + r·step + i] and lands at r·length + i.
  kernel::BufferId copy_rows(kernel::BufferId source, const Expr& base, std::int64_t step,
                             std::int64_t rows, std::int64_t length);
  /// Scratch of `size` elements as `like` stores them.
  kernel::BufferId tile_like(kernel::BufferId like, std::int64_t size);
  /// The other way round, at the current level: element (r, i), at i·rows + r in `tile`, goes to
  /// target[base + r·step + i].
  void write_columns(kernel::BufferId tile, kernel::BufferId target, const Expr& base,
                     std::int64_t step, std::int64_t rows, std::int64_t length);
  /// Stores under conditions where all variables of `depends` are bound: once per row, not per
  /// element.
  void store_at_level(const std::vector<Expr>& depends, std::vector<ir::Condition> conditions,
                      const std::function<kernel::Store()>& make);
  /// The values of `make`, with all reductions they need emitted before anything is saved or read
  /// back: what a reduction saves is used by the rest of the statement that needed it.
  std::vector<Value> prepared(const std::function<std::vector<Value>()>& make);
  /// The combined value; loops are emitted where `r.depends` is bound.
  Value reduce(const Reduction& r);
  void keep(NodeId node);
  /// Nodes worth keeping between phases (cluster.h).
  void set_save(std::vector<NodeId> nodes) { save_ = std::move(nodes); }

  /// What the values of `make` touch, reductions included, without emitting anything. `seen` hears
  /// of each reduction.
  std::vector<Touch> touches_of(const std::function<std::vector<Value>(Evaluator&)>& make,
                                const std::function<void(const Reduction&)>& seen = {});

 private:
  /// The reduction whose loops are being emitted.
  struct Phase {
    int number = 0;        ///< 0: none
    Level* row = nullptr;  ///< where its result is known
    Index coordinates;     ///< reduced coordinates of the term at hand
    Shape extents;
    bool team = false;  ///< a team adds it up
  };
  struct State {
    Level* current;
    const Lanes* lanes;
    std::vector<kernel::Store> pending;
    Phase phase;
    bool dry;
  };
  void nested(const std::function<void()>& make,
              const std::function<kernel::Stmt(kernel::Body)>& wrap);
  Level* level_of(const std::vector<Expr>& exprs) const;
  bool on_lanes(const std::vector<Expr>& exprs) const;
  State enter(Level* level, bool keep_lanes);
  void restore(State s);
  void vector_parts(std::int64_t length, const std::function<void(const Expr& at)>& make);
  void append(kernel::Stmt s) { current_->body.push_back(std::move(s)); }
  kernel::BufferId scratch(std::string name, DType type, std::int64_t size, kernel::Scope scope,
                           int lanes);

  // reduce.cpp
  struct Sum;
  std::optional<Value> reduce_inline(const Reduction& r, std::int64_t count);
  Value reduce_over_lanes(const Reduction& r);
  Value reduce_alone(const Reduction& r);
  Value reduce_by_team(const Reduction& r, bool laned);
  void team_loops(Sum& s, const std::function<void(const Expr& unit)>& innermost);
  Sum plan(const Reduction& r);
  void serial_loops(Sum& s, const std::function<void()>& innermost);
  void accumulate(const Sum& s, const Expr& at);
  void vector_loops(Sum& s);
  Value finish(const Sum& s);

  // save.cpp
  Value saved_value(NodeId node, const Index& index);
  void save(NodeId node, const Index& index, const Value& value);
  bool done(int phase) const;
  std::optional<Expr> saved_offset(const Saved& s, NodeId node, const Index& index) const;

  const prim::Graph& g_;
  kernel::Kernel& kernel_;
  const Target& target_;
  Evaluator& values_;
  int lanes_per_vector_ = 8;
  std::int64_t wanted_tasks_ = 0;
  std::vector<std::unique_ptr<Level>> levels_;
  std::vector<std::unique_ptr<Lanes>> blocks_;
  Level* current_ = nullptr;
  const Lanes* lanes_ = nullptr;
  std::vector<kernel::Store> pending_;
  std::vector<Level*> bound_at_;  ///< by variable
  std::vector<NodeId> save_;
  std::map<NodeId, std::vector<Saved>> saved_;
  std::int64_t saved_bytes_ = 0;
  Phase phase_;
  int phases_ = 0;
  std::optional<Team> team_;
  bool dry_ = false;       ///< values are computed for their reductions only
  std::vector<int> done_;  ///< phases whose loops are closed
};

}  // namespace heddle::lower::stitch

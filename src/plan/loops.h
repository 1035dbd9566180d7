#pragma once
#include <cstdint>
#include <utility>
#include <vector>

#include "plan/facts.h"

namespace heddle::plan {

/// Where a value is evaluated: per dimension, the loops its coordinate depends on.
struct Dim {
  std::uint64_t loops = 0, unit = 0;
  bool operator==(const Dim&) const = default;
};
struct Use {
  std::vector<Dim> dims;
  int innermost = 0;   ///< loop that is vectorised: bit index
  int instead = -1;    ///< or this one, around a reduction: whichever has neighbours
  double scale = 1;    ///< share of the iterations (pieces of a concat), or repetition
  double operand = 0;  ///< elements of the matrix, where this feeds a main loop
  std::uint64_t mask() const {
    std::uint64_t m = 0;
    for (const Dim& d : dims) m |= d.loops;
    return m;
  }
  bool operator==(const Use&) const = default;
};

/// The iteration space of one kernel, as its cost is reckoned: the loops, and where in them each
/// value is evaluated.
struct Loops {
  struct Reduction {
    std::uint64_t outer;
    Shape extents;
    int depth;
    std::vector<int> loops;
  };
  struct Read {
    NodeId node;
    std::vector<Use> uses;
  };

  const Facts& f;
  std::vector<int> local;       ///< NodeId → position in the kernel, -1
  std::vector<double> extents;  ///< of the loops
  std::vector<Reduction> reductions;
  std::vector<std::uint64_t> hoists;   ///< loops outside which a reduction is computed
  std::vector<std::vector<Use>> uses;  ///< by position
  std::vector<Read> reads;             ///< of values in memory

  explicit Loops(const Facts& facts);
  void enter(const std::vector<NodeId>& nodes);
  void leave(const std::vector<NodeId>& nodes);

  static std::uint64_t bit(int loop) { return std::uint64_t{1} << loop; }
  int new_loop(std::int64_t extent);
  /// Iterations of these loops.
  double product(std::uint64_t mask) const;
  void add_use(NodeId id, Use use);
  /// The use of an argument reached through index facts over `vars` (dims of the reader and more).
  static Use through(const AccessFacts& access, const std::vector<Dim>& vars, const Use& reader);
  /// Root loops of a value that nothing in the kernel reads: shared by outputs of equal shape.
  Use root_use(NodeId id, std::vector<std::pair<Shape, Use>>& roots);
  /// Loops of a reduction, shared by reductions side by side over the same extents.
  std::vector<int> loops_for(std::uint64_t outer, const Shape& over, int depth);
  /// A reduction can be outside the loops it does not depend on only if they are the inner ones.
  std::uint64_t hoist(std::uint64_t mask, double& scale);
  /// Loops outside every reduction: their iterations are the tasks.
  std::uint64_t outermost() const;
  static std::uint64_t first_loops(const std::vector<std::pair<Shape, Use>>& roots);
};

}  // namespace heddle::plan

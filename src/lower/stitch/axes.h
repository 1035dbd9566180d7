#pragma once
#include <vector>

#include "ir/expr.h"
#include "kernel/kernel.h"

namespace heddle::lower::stitch {

constexpr std::int64_t kLine = 64;  ///< bytes of a cache line

using ir::Expr;
using ir::Var;
using kernel::Value;

/// Something whose address or value depends on loop variables.
struct Touch {
  enum class Kind : std::uint8_t { load, store, other } kind = Kind::load;
  Expr offset;             ///< elements; for `other` a condition or an index used as data
  std::int64_t bytes = 4;  ///< of one element
  double weight = 1;       ///< how often, compared with others
  /// A condition low <= offset < high that chooses between pieces of a concatenation.
  bool chooses = false;
  std::int64_t low = 0, high = 0;
  kernel::BufferId buffer;
};

/// The loads, conditions and indices of a value, appended to `out`.
void collect_touches(const kernel::Kernel& k, const Value& root, std::vector<Touch>& out);

/// A loop to be: `var` stands for its position.
struct Axis {
  Var var;
  std::int64_t extent = 1;
};

/// A set of loops, and what the original variables are in terms of the loops' variables.
struct Axes {
  std::vector<Axis> loops;
  std::vector<std::pair<Var, Expr>> originals;
  std::vector<Touch> touches;  ///< in the loops' variables
};

/// Turns variables into the loops that make all touches simplest: a variable that is divided
/// somewhere is split there (not below `lanes`: vectors may hold several parts), neighbours that
/// everything sees as one are fused. `order`: variables from outermost to innermost. `fresh` gives
/// new variables and records their range.
Axes choose_axes(const std::vector<Axis>& order, std::vector<Touch> touches, ir::Ranges& ranges,
                 int lanes, const std::function<Var(std::int64_t extent)>& fresh);

/// How much a vector of positions along `var` gains: bytes that become whole vectors minus those
/// that must be gathered, in bytes per element. `least_bytes`: what gathering an element costs even
/// where it has fewer (on a CPU each takes an instruction, of whatever type).
double vector_score(const std::vector<Touch>& touches, Var var, std::int64_t least_bytes = 1);
/// Largest distance in bytes that a step along `var` moves; 0 if nothing depends on it.
std::int64_t largest_step(const std::vector<Touch>& touches, Var var);

}  // namespace heddle::lower::stitch

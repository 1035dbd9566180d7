#pragma once
#include <vector>

#include "lower/lower.h"

namespace heddle::lower {

/// Where a value is a part, as a whole or as one of its parts.
struct Member {
  NodeId root;
  int axis = 0;
  std::int64_t first = 0;  ///< in the root, along the axis
  bool operator==(const Member&) const = default;
};

/// A concatenation that need not be copied together: what makes its parts can store them where it
/// has them.
struct Join {
  struct Part {
    NodeId node;
    std::int64_t first = 0;  ///< in the root, along the axis
  };
  NodeId whole;
  /// The concatenation in whose memory all of this is: itself, or a longer one that its parts are
  /// parts of, too (the layers of a dense block).
  NodeId root;
  std::int64_t first = 0;  ///< of the whole in the root
  int axis = 0;
  std::vector<Part> parts;  ///< in order
};

/// On CPUs, of values that are computed and are not the program's outputs. A value is a part of one
/// root.
std::vector<Join> joins_of(const prim::Graph& g, const Target& target);

/// Where such a part lies in its root: at element `first` of it.
struct Place {
  Layout layout;  ///< from there
  std::int64_t first = 0;
};
Place place_in(const Layout& root, const Shape& part, int axis, std::int64_t first);

}  // namespace heddle::lower

#pragma once
#include <utility>
#include <vector>

#include "plan/facts.h"

namespace heddle::plan {

/// Values that cost next to nothing to store.
constexpr double kTinyBytes = 16384;

/// Readers of a value, seen through clonable views.
void real_readers(const Facts& facts, NodeId id, std::vector<NodeId>& out);

struct RegionOrder {
  /// What regions are cut from, arguments first: branches are contiguous, depth first from the
  /// outputs; sums over rows stand beside what they sum, large maps of leaves beside what reads
  /// them.
  std::vector<NodeId> nodes;
  /// A value and a sum over its rows, which one epilogue can make.
  std::vector<std::pair<NodeId, NodeId>> sums;
};
RegionOrder region_order(const Facts& facts);

}  // namespace heddle::plan

#pragma once
#include "ops/util.h"

/// Results whose extent along one axis depends on values: they have the largest extent there can
/// be, and a count (i64[]) of the positions that hold something. Call::bounded tells the importer.
namespace heddle::ops {

/// Positions at which mask [n] holds, in order, then zeros; and their count.
struct Compacted {
  NodeId positions, count;  ///< i64[n], i64[]
};
Compacted compacted(Builder& b, NodeId mask);
Result<Values> bounded_non_zero(const Call& call, Builder& b);
Result<Values> bounded_unique(const Call& call, Builder& b);
Result<Values> bounded_compress(const Call& call, Builder& b);
Result<Values> bounded_non_max_suppression(const Call& call, Builder& b);

}  // namespace heddle::ops

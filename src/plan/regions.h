#pragma once
#include "plan/facts.h"

namespace heddle::plan {

/// A part of the graph that is planned on its own.
struct Region {
  std::vector<NodeId>
      nodes;  ///< what it may compute, arguments first; clonable ones may be in several
  std::vector<NodeId> outputs;  ///< what must be in memory afterwards, sorted
};

/// Views that repeat their argument and position tensors: never worth memory, so readers that are
/// elementwise, views or reductions always absorb them.
bool clonable(const Facts& facts, NodeId id);
bool must_absorb(const Facts& facts, NodeId producer, NodeId reader);

/// Cuts the graph where one value (and perhaps tiny ones) carries everything that follows, and that
/// value would be in memory anyway: it feeds main loops. Larger pieces are cut at frontiers of a
/// few such values.
std::vector<Region> regions_of(const Facts& facts);

/// Nodes whose alternatives lie so far apart that no region of a sensible size holds them all: the
/// projections of both directions of an unrolled recurrent network, say. `share`: of the largest
/// region, that alternatives that overlap may span.
std::vector<NodeId> sprawling_alternatives(const Facts& facts, double share = 2.0 / 3);

/// How much alike regions are, up to the identity of what they read. same: a solution of one, by
/// position in `nodes`, is a solution of the other. like: views start elsewhere (the steps of an
/// unrolled loop); a solution costs about the same if its kernels are legal there.
enum class Likeness : std::uint8_t { none, like, same };
Likeness likeness(const Facts& facts, const Region& a, const Region& b);
/// Equal for regions that are at least like each other.
std::size_t structural_hash(const Facts& facts, const Region& r);

}  // namespace heddle::plan

#pragma once
#include "prim/graph.h"

namespace heddle::prim {

/// The graph with the small integers of quantised networks as bytes between operators: what is f32
/// of integers that were rounded and bounded is f32 of bytes (less a zero point), as products of
/// bytes read them. Fused with its readers it is as before (without_bytes); in memory it is a
/// quarter.
Graph with_bytes(const Graph& g);

/// A node that reads back bytes that with_bytes has made: the f32 value that they hold exactly, and
/// the nodes between the two.
struct ThroughBytes {
  NodeId value;
  std::vector<NodeId> between;
};
std::optional<ThroughBytes> without_bytes(const Graph& g, NodeId id);

}  // namespace heddle::prim

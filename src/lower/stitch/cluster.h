#pragma once
#include "lower/lower.h"

namespace heddle::lower::stitch {

bool inside(const Cluster& c, NodeId id);
/// Interior values worth keeping while a row goes through its phases: expensive ones that several
/// reductions or outputs want, sorted.
std::vector<NodeId> values_to_save(const prim::Graph& g, const Cluster& c, const Target& target);
/// Lanes of the widest type in play; types of 8 bytes use as many lanes as those of 4.
int lanes_for(const prim::Graph& g, const Cluster& c, const Target& target);
/// The Scan, Sort or Scatter of a cluster, which has loops of its own.
std::optional<NodeId> special_node(const prim::Graph& g, const Cluster& c);
bool depends_on(const prim::Graph& g, const Cluster& c, NodeId node, NodeId on);

}  // namespace heddle::lower::stitch

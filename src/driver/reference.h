#pragma once
#include <map>
#include <span>

#include "lower/lower.h"

namespace heddle::driver {

using NodeValues = std::map<prim::NodeId, Tensor>;

/// Nodes of a cluster (sorted by id) of which each value depends on a step: floor, a comparison, a
/// cast to an integer, the position of a maximum, … of a number that the cluster computes and so
/// rounds. An error however small may decide on which side of the step it lies.
std::vector<bool> depend_on_steps(const prim::Graph& graph, const std::vector<prim::NodeId>& nodes);

/// True of floor, a comparison, a remainder, … of real numbers: it jumps somewhere.
bool is_step(const prim::Graph& graph, prim::NodeId node);

/// What a kernel may give for one output, as working values (prim/interpret.h).
struct Allowed {
  Tensor exact;      ///< in float64
  Tensor low, high;  ///< the least and greatest of both sides of steps; empty without steps
  Tensor noise;      ///< how far rounding may take each element; empty: not asked
  /// Elements that are not judged (allow_overflow); empty: none.
  std::vector<bool> overflowed = {};
  /// Largest |found - allowed| (less what is noise, of those that are judged) over the largest
  /// |exact|; infinite where an integer or boolean is not allowed.
  double error_of(const Tensor& found) const;
  /// How many elements may be more than one number.
  std::int64_t uncertain() const;
};

/// How often values of a cluster are read in it, its outputs once more: after that they may go.
std::map<prim::NodeId, int> reads_in(const prim::Graph& graph, const lower::Cluster& cluster);

/// Whether the node adds up elements of its argument, by reduction or scan.
bool is_sum(const prim::Node& n);

/// The float64 interpreter's values of a cluster's outputs, from what the kernel reads. If steps
/// are uncertain they are taken again, with their arguments moved up and down by what rounding in
/// the kernel may change (1e-5 of the scale, which is what --accuracy standard promises, or the
/// step of a 16-bit type on the way), all together and each alone, and with values of 16-bit types
/// stored. A sum of remainders, stored in 16 bits on the way, may still leave this range.
std::vector<Allowed> reference_of(const prim::Graph& graph, const lower::Cluster& cluster,
                                  const NodeValues& read);

/// Whether a value of the cluster is more than the f16 that it would be stored in holds. Kernels
/// store some of these and keep others wide, so what hangs on them is marked as not judged in
/// `allowed`, one for each output.
bool allow_overflow(const prim::Graph& graph, const lower::Cluster& cluster, const NodeValues& read,
                    std::span<Allowed> allowed);

}  // namespace heddle::driver

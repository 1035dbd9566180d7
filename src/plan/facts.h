#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

#include "plan/plan.h"

namespace heddle::plan {

/// How one coordinate of an access depends on the iteration variables (bit i: variable i).
struct IndexFacts {
  std::uint64_t variables = 0;
  std::uint64_t unit = 0;  ///< affine with coefficient 1: neighbours in the variable are neighbours
  bool folds = false;      ///< holds a div, mod, min or max
};
using AccessFacts = std::vector<IndexFacts>;

/// The extents of a contraction seen as a batched matrix product.
struct MatmulShape {
  double batch = 1, m = 1, n = 1, k = 1;
};

/// What enumeration and cost ask again and again, computed once per graph. Indexed by
/// NodeId::value.
struct Facts {
  const prim::Graph* graph = nullptr;
  std::vector<NodeId> live;  ///< topological order
  std::vector<bool> is_live, leaf, inlined, main_loop, output;
  std::vector<bool> scattered;  ///< outputs that a main loop would store element by element
  std::vector<bool> written;    ///< live without alternatives
  std::vector<bool> joined;     ///< concatenations whose parts may be stored in place
  std::vector<double> elements, bytes;
  /// Bytes that what makes the value touches, from the last main loop on: some of them are in the
  /// caches when it is there.
  std::vector<double> made_among;
  /// Of main loops; empty: only as written.
  std::vector<std::vector<lower::contract::Algorithm>> algorithms;
  std::vector<Cluster> chains;                 ///< kernels of several contractions, sorted
  std::vector<std::vector<NodeId>> consumers;  ///< live ones, each once
  /// Consumers of the value's whole class, kept for its members; empty when they are `consumers`.
  std::vector<std::vector<NodeId>> class_consumers;
  std::vector<std::vector<NodeId>> class_members;  ///< by representative, where more than one
  /// View: one per piece; Contract: lhs, rhs; Gather: the data.
  std::vector<std::vector<AccessFacts>> accesses;
  std::vector<NodeId> class_of;
  std::vector<double> between;  ///< constants_between()
  double input_bytes = 0, output_bytes = 0;

  const prim::Node& operator[](NodeId id) const { return (*graph)[id]; }
  template <class T>
  const T* as(NodeId id) const {
    return std::get_if<T>(&(*graph)[id].op);
  }
  /// Leaves are in memory already (inputs and constants).
  bool is_leaf(NodeId id) const { return leaf[static_cast<std::size_t>(id.value)]; }
  /// Scalar constants, part of the code of whoever uses them.
  bool is_inlined(NodeId id) const { return inlined[static_cast<std::size_t>(id.value)]; }
  bool is_main_loop(NodeId id) const { return main_loop[static_cast<std::size_t>(id.value)]; }
  bool is_output(NodeId id) const { return output[static_cast<std::size_t>(id.value)]; }
  double elements_of(NodeId id) const { return elements[static_cast<std::size_t>(id.value)]; }
  bool is_chain(const Cluster& c) const {
    return std::binary_search(chains.begin(), chains.end(), c);
  }
  /// Its kernel alone would be timed with what is not done in the program.
  bool is_join(const Cluster& c) const {
    return c.outputs.size() == 1 && joined[static_cast<std::size_t>(c.outputs[0].value)];
  }
  double bytes_of(NodeId id) const { return bytes[static_cast<std::size_t>(id.value)]; }
  NodeId class_of_node(NodeId id) const { return class_of[static_cast<std::size_t>(id.value)]; }
  const std::vector<NodeId>& consumers_of(NodeId id) const {
    return consumers[static_cast<std::size_t>(id.value)];
  }
  /// Who reads the value or an alternative of it.
  const std::vector<NodeId>& readers_of(NodeId id) const {
    return (class_consumers.empty() ? consumers
                                    : class_consumers)[static_cast<std::size_t>(id.value)];
  }
  /// Alternatives of the value, itself among them; empty when there are none.
  const std::vector<NodeId>& members_of(NodeId id) const {
    static const std::vector<NodeId> kNone;
    if (class_members.empty()) return kNone;
    return class_members[static_cast<std::size_t>(class_of_node(id).value)];
  }
};
/// Live are the nodes from which an output can be reached, and where `class_of` says that a live
/// value has alternatives, those and what they are made of.
Facts facts_of(const prim::Graph& g, const Legality& legality,
               const std::vector<NodeId>& class_of = {});

AccessFacts facts_of(const prim::Access& access);
MatmulShape matmul_shape(const Facts& facts, NodeId contract);

}  // namespace heddle::plan

#pragma once
#include <compare>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <variant>
#include <vector>

#include "ir/expr.h"
#include "ir/scalar.h"
#include "support/hash.h"
#include "support/id.h"
#include "support/tensor.h"

namespace heddle::prim {

using NodeId = Id<struct NodeTag>;

/// Where a value of rank r is read: index[k] is the coordinate in dimension k, as a function of the
/// iteration variables; outside `inside` (a conjunction) the value is not read.
struct Access {
  std::vector<ir::Expr> index;
  std::vector<ir::Condition> inside;
  auto operator<=>(const Access&) const = default;
};

/// Graph input number `slot`.
struct Input {
  int slot = 0;
  auto operator<=>(const Input&) const = default;
};
/// A constant tensor, identified by the hash of its type and bytes.
struct Constant {
  Hash content;
  auto operator<=>(const Constant&) const = default;
};
/// out[i] = i[axis] (as the node's dtype): positions as data.
struct Iota {
  int axis = 0;
  auto operator<=>(const Iota&) const = default;
};
/// out[i] = fn(args[0][i], …): arguments all have the output's shape (broadcasting is a View).
/// For cast and comparisons the node's dtype differs from the arguments'.
struct Map {
  ir::ScalarFn fn = ir::ScalarFn::add;
  auto operator<=>(const Map&) const = default;
};
/// Piecewise quasi-affine data movement: out[i] = args[k][pieces[k].index(i)] for the first piece k
/// whose `inside` holds at i, else `fill`. One piece: reshape, transpose, broadcast, slice, pad,
/// flip, window (im2col). Several: concat. Variables: output dimensions.
struct View {
  std::vector<Access> pieces;
  double fill = 0;
  auto operator<=>(const View&) const = default;
};
/// Reduction over `axes` (sorted, removed from the shape). argmax/argmin: exactly one axis, i64.
struct Reduce {
  ir::Monoid fn = ir::Monoid::sum;
  std::vector<int> axes;
  auto operator<=>(const Reduce&) const = default;
};
/// out[o] = Σ_r lhs[lhs.index(o,r)] · rhs[rhs.index(o,r)], a term is 0 where either access is
/// outside. Variables: 0..rank(out)-1 output dimensions, then one for each of `reduced` (extents).
/// Accumulates in compute_type(output dtype).
struct Contract {
  std::vector<std::int64_t> reduced;
  Access lhs, rhs;
  auto operator<=>(const Contract&) const = default;
};
/// out[o] = data[c(o)], c[k] = base[k](o) plus args[1+j][o] for axes[j] == k; coordinates from data
/// are clamped to the dimension, so no index can read outside.
struct Gather {
  std::vector<int> axes;
  std::vector<ir::Expr> base;
  auto operator<=>(const Gather&) const = default;
};
/// A copy of args[0] in which, for each position u of args[1] (updates) in row-major order, element
/// c(u) (as in Gather, indices args[2+j][u]) becomes updates[u], or is combined with it. An
/// update whose data-dependent coordinate is outside its dimension is dropped.
struct Scatter {
  std::vector<int> axes;
  std::vector<ir::Expr> base;
  enum class Combine : std::uint8_t { assign, add, mul, max, min } combine = Combine::assign;
  auto operator<=>(const Scatter&) const = default;
};
/// Running combination along an axis (cumsum): out[i] = fn over args[0][0..i] (exclusive: 0..i-1);
/// reverse runs from the end.
struct Scan {
  ir::Monoid fn = ir::Monoid::sum;
  int axis = 0;
  bool exclusive = false, reverse = false;
  auto operator<=>(const Scan&) const = default;
};
/// The positions (i64) that sort args[0] along `axis` stably; values follow by Gather. Only the
/// first `count` positions are kept. NaN sorts as largest.
struct Sort {
  int axis = 0;
  bool descending = false;
  std::int64_t count = 0;
  auto operator<=>(const Sort&) const = default;
};
/// Counter-based random numbers (Philox 4x32-10, keyed by seed): element i of the row-major output
/// depends only on (seed, i), so results do not depend on the schedule.
struct Random {
  enum class Kind : std::uint8_t { uniform, normal } kind = Kind::uniform;  ///< [0,1) / N(0,1)
  std::uint64_t seed = 0;
  auto operator<=>(const Random&) const = default;
};

/// The sum of args[0] over all processes, alike in each of them: an effect. The channel tells it
/// from every other, so equal ones are not merged; it is its place in the order that all processes
/// keep. Always live; belongs between programs, never inside a kernel (collectives.h).
struct AllReduce {
  int channel = 0;
  auto operator<=>(const AllReduce&) const = default;
};

using Op = std::variant<Input, Constant, Iota, Map, View, Reduce, Contract, Gather, Scatter, Scan,
                        Sort, Random, AllReduce>;
std::string_view kind_name(const Op& op);
/// True if constant arguments make the value a constant.
bool folds(const Op& op);

struct Node {
  Op op;
  std::vector<NodeId> args;
  TensorType type;
  auto operator<=>(const Node&) const = default;
};

/// The source operator a node came from, for `explain`: "Softmax 'attn/softmax_3'".
struct Origin {
  std::string op, name;
  auto operator<=>(const Origin&) const = default;
};
using OriginId = Id<struct OriginTag>;

struct GraphInput {
  std::string name;
  TensorType type;
  bool operator==(const GraphInput&) const = default;
};
struct GraphOutput {
  std::string name;
  NodeId node;
  bool operator==(const GraphOutput&) const = default;
};

/// Append-only and hash-consed: adding an equal node returns the one that is there, so common
/// subexpressions are eliminated by construction. Ids are a topological order.
class Graph {
 public:
  NodeId add(Op op, std::vector<NodeId> args, TensorType type);
  NodeId add_input(std::string name, TensorType type);
  NodeId add_constant(const Tensor& value);

  const Node& operator[](NodeId id) const { return nodes_[id]; }
  std::int32_t size() const { return nodes_.size(); }
  const Tensor& constant(const Constant& c) const { return constants_.at(c.content); }
  /// The tensor of a Constant node, or null.
  const Tensor* constant_of(NodeId id) const;
  /// Frees the bytes of a Constant node: its tensor has a type and no data from now on.
  void drop_constant(NodeId id);
  /// Makes a constant of `from` known here, so that its node may be added without hashing it again.
  void adopt_constant(const Graph& from, const Constant& c);
  /// Makes `origins` (those of the graph that this one is made from) this graph's.
  void adopt_origins(const Graph& from) { origins_ = from.origins_; }

  std::vector<GraphInput> inputs;
  std::vector<GraphOutput> outputs;

  /// Origin given to the nodes added from now on.
  OriginId set_origin(Origin origin);
  void set_origin(OriginId id) { current_origin_ = id; }
  /// Of the operator that made the node.
  OriginId origin_id(NodeId id) const { return origins_of_[static_cast<std::size_t>(id.value)]; }
  /// That one and those of all that rewriting has put into the node; sorted, none for none.
  std::vector<OriginId> origins_of(NodeId id) const;
  /// The node stands for these source operators too.
  void add_origins(NodeId id, const std::vector<OriginId>& more);
  const Origin& origin(OriginId id) const { return origins_[id]; }
  const Table<OriginTag, Origin>& origins() const { return origins_; }
  /// Same nodes, inputs and outputs (constants by content); origins do not matter.
  friend bool operator==(const Graph& a, const Graph& b) {
    return a.inputs == b.inputs && a.outputs == b.outputs && a.nodes_ == b.nodes_;
  }

 private:
  Table<NodeTag, Node> nodes_;
  std::unordered_multimap<std::size_t, NodeId> index_;
  std::unordered_map<Hash, Tensor> constants_;
  Table<OriginTag, Origin> origins_;
  std::vector<OriginId> origins_of_;
  std::unordered_map<NodeId, std::vector<OriginId>> more_origins_;  // sorted, without origins_of_
  OriginId current_origin_;
};

/// Ids of the nodes from which an output or a collective can be reached, in topological order.
std::vector<NodeId> live_nodes(const Graph& g);
/// What a value is made of by nothing but views, each of one value; itself where it is no view.
NodeId behind_views(const Graph& g, NodeId id);
/// Consumers of each node (by id), among live nodes.
std::vector<std::vector<NodeId>> consumers(const Graph& g);
/// Copies the live part, each node through `rewrite` (given the new graph, the node with already
/// mapped arguments, and the old id); names and origins are kept: those of a node that is no longer
/// there go to what has absorbed it. The one way to rewrite.
Graph rebuild(const Graph& g,
              const std::function<NodeId(Graph& out, const Node& node, NodeId old)>& rewrite);
std::size_t hash_of(const Op& op);

}  // namespace heddle::prim

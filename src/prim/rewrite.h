#pragma once
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string_view>

#include "prim/builder.h"

namespace heddle::prim {

/// What a row sees: the graph being made, and facts about its nodes.
class RewriteContext {
 public:
  RewriteContext(Graph& graph, const std::vector<int>& uses) : b(graph), g(graph), uses_(uses) {}
  Builder b;
  Graph& g;
  /// True if at most one node reads it (unknown counts as many).
  bool used_once(NodeId id) const {
    const auto i = static_cast<std::size_t>(id.value);
    return i < uses_.size() && uses_[i] == 1;
  }
  /// True if it depends on constants and positions only.
  bool constant(NodeId id);

 private:
  const std::vector<int>& uses_;
  std::vector<bool> constant_;
};

/// One way to rewrite a node for the better: `statement` reads as the row is meant, `apply` gives
/// an equal value, or nullopt where it does not match. Destructive rows never lose; those that may
/// are in alternatives.h. `example` makes a value on which the row fires, over inputs that it adds.
struct RewriteRule {
  std::string_view name;
  std::string_view statement;
  std::optional<NodeId> (*apply)(RewriteContext& c, const Node& n);
  NodeId (*example)(Builder& b);
};

std::span<const RewriteRule> algebra_rules();
std::span<const RewriteRule> view_rules();
std::span<const RewriteRule> reduce_rules();
std::span<const RewriteRule> contract_rules();
std::span<const RewriteRule> linear_rules();
std::span<const RewriteRule> window_rules();
std::span<const RewriteRule> depth_rules();
std::span<const RewriteRule> integer_rules();
std::span<const RewriteRule> quantise_rules();
std::span<const RewriteRule> table_rules();
/// The row that a machine with products of four bytes does without.
inline constexpr std::string_view kBytesInHalves = "bytes-in-halves";
/// Rows that a machine without products of four bytes does without, and GPUs.
inline constexpr std::string_view kDepthwiseOfBytes = "depthwise-of-bytes";
inline constexpr std::string_view kContractOfRaggedIntegers = "contract-of-ragged-integers";
/// The row that a machine without products of bf16 in pairs does without.
inline constexpr std::string_view kBf16InPairs = "bf16-in-pairs";
/// The row for machines that look up bytes in registers.
inline constexpr std::string_view kByteTable = "byte-table";
/// The row that adds in another order, which strict accuracy does without.
inline constexpr std::string_view kContractOfResampled = "contract-of-resampled";
/// All of the above, in the order in which they are tried.
const std::vector<const RewriteRule*>& rewrite_rules();

/// How often each row fired.
using RewriteCounts = std::map<std::string_view, int>;

/// Applies the rows to every node, once through the graph.
Graph rewrite_once(const Graph& g, std::span<const RewriteRule* const> rules,
                   RewriteCounts* counts = nullptr);
/// All rows but those named in `disable` (comma-separated), to a fixed point, constants folded in
/// between.
Graph canonicalize(const Graph& g, std::string_view disable, RewriteCounts* counts = nullptr);
Graph canonicalize(const Graph& g);

// Matching helpers that rows share.

/// True of f32 and f64.
inline bool wide_float(DType t) { return t == DType::f32 || t == DType::f64; }
/// Channels of a picture, and the like: too few to be multiplied as vectors.
inline constexpr std::int64_t kFewChannels = 16;
/// True if the node is a Map of fn.
bool is_map(const Node& n, ir::ScalarFn fn);
/// The access of a View with one piece and no conditions, or null.
const Access* plain_view(const Graph& g, NodeId id);
/// The one-element constant of which this value is a broadcast, or null.
const Tensor* splat(const Graph& g, NodeId id);
/// Its value where it is a floating or integer splat.
std::optional<double> splat_value(const Graph& g, NodeId id);
/// Bounds of the elements of an integer value, from types, numbers and sums.
ir::Interval range_of_integers(const Graph& g, NodeId id);
/// A View made as simple as it can be: pieces that never hold or are never reached are dropped, an
/// identity is its argument, nothing left is a broadcast of `fill`.
NodeId add_view(Builder& b, std::vector<NodeId> args, std::vector<Access> pieces, double fill,
                const TensorType& type);

}  // namespace heddle::prim

#pragma once
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "ops/format.h"
#include "prim/builder.h"
#include "support/result.h"

namespace heddle::ops {

using prim::Builder;
using prim::NodeId;
using Values = std::vector<NodeId>;
using Attribute = std::variant<std::int64_t, double, std::string, Tensor, std::vector<std::int64_t>,
                               std::vector<double>, std::vector<std::string>>;

/// One use of an operator: a node of the source model with its arguments already translated.
struct Call {
  std::string op;    ///< "Conv"
  std::string name;  ///< node name, or its first output's name when it has none
  int opset = 0;     ///< opset version the model imports for the node's domain
  std::vector<std::optional<NodeId>> args;  ///< absent optional inputs are nullopt
  int outputs = 1;                          ///< outputs that somebody names
  std::vector<bool> output_used;
  std::map<std::string, Attribute, std::less<>> attributes;
  const prim::Graph* graph = nullptr;
  std::vector<Format> formats;          ///< of the arguments; those that are missing are plain
  Format value_format = Format::plain;  ///< of attribute `value` or `values_tensor`
  /// Set by fissions: output `output` has `extent` (i64[]) positions along `axis`, less than it has
  /// room for.
  struct Bounded {
    int output, axis;
    NodeId extent;
  };
  mutable std::vector<Bounded> bounded;
  mutable Format result_format = Format::plain;  ///< set by fissions that make another one
  /// Inputs that were no constants when their numbers were asked for.
  mutable std::vector<int> wanted;
  /// Set by the attribute readers below when an attribute has another type than was asked for;
  /// expand() then refuses the call.
  mutable std::string misread;

  NodeId in(int i) const { return *args[static_cast<std::size_t>(i)]; }
  bool has(int i) const {
    return i < static_cast<int>(args.size()) && args[static_cast<std::size_t>(i)].has_value();
  }
  Format format(int i) const {
    return i < static_cast<int>(formats.size()) ? formats[static_cast<std::size_t>(i)]
                                                : Format::plain;
  }
  bool has_attribute(std::string_view key) const {
    return attributes.find(key) != attributes.end();
  }
  std::int64_t attribute_int(std::string_view key, std::int64_t otherwise) const;
  double attribute_float(std::string_view key, double otherwise) const;
  std::string attribute_string(std::string_view key, std::string otherwise) const;
  std::vector<std::int64_t> attribute_ints(std::string_view key,
                                           std::vector<std::int64_t> otherwise) const;
  /// An axis attribute normalised to [0, rank).
  Result<int> axis(std::string_view key, std::int64_t otherwise, int rank) const;
  Result<int> normalize_axis(std::int64_t axis, int rank) const;
  Result<std::vector<int>> normalize_axes(const std::vector<std::int64_t>& axes, int rank) const;
  /// The integers of input i, which must be a constant by now (shapes, axes, pads …); the error
  /// names the node and input. Constant subgraphs have been folded before the call.
  Result<std::vector<std::int64_t>> constant_ints(int i) const;
  Result<const Tensor*> constant_tensor(int i) const;
  /// An error of this node: "Concat 'cat_3': …"
  template <class... A>
  Error error(fmt::format_string<A...> format, A&&... a) const {
    return fail("{} '{}': {}", op, name, fmt::format(format, std::forward<A>(a)...));
  }
  template <class... A>
  Error unsupported(fmt::format_string<A...> format, A&&... a) const {
    return heddle::unsupported("{} '{}': {}", op, name, fmt::format(format, std::forward<A>(a)...));
  }
};

/// A result of a host function.
struct HostValue {
  Tensor tensor;
  Format format = Format::plain;
};

/// An operator is its fission into primitives: that definition is its meaning, its shape inference
/// and its gradient. Rows of one name with different `since` hold from that opset on.
struct OpDef {
  std::string_view name;  ///< ONNX name; other domains as "com.microsoft::FastGelu"
  int since = 1;
  int min_inputs = 0, max_inputs = 0;  ///< max -1: variadic
  Result<Values> (*fission)(const Call&, Builder&) = nullptr;
  /// What it does with arguments in formats that only store: refuses them, moves their elements
  /// without reading them, or knows what they mean.
  enum class Stored : std::uint8_t { refuses, moves, knows } stored = Stored::refuses;
  /// What computes it where strings take part (ops/host.h); null: nothing does.
  Result<std::vector<HostValue>> (*host)(const Call&, std::span<const Tensor>) = nullptr;
};

/// All families (ops/registry.cpp lists them).
std::span<const std::span<const OpDef>> families();
/// The row with the largest `since` <= opset, or null.
const OpDef* find_op(std::string_view name, int opset);
/// That the call has as many inputs as the row wants.
Status check_arity(const Call& call, const OpDef& row);
/// Checks arity, runs the fission, and checks the number of results.
Result<Values> expand(const Call& call, Builder& b);

}  // namespace heddle::ops

#pragma once
#include <functional>
#include <map>
#include <optional>
#include <unordered_map>

#include "prim/builder.h"
#include "prim/sizes.h"

namespace heddle::prim {

/// The state of merge_sizes().
class SizeMerger {
 public:
  /// The node of each case that one node of the result stands for.
  using Nodes = std::vector<NodeId>;
  struct NodesHash {
    std::size_t operator()(const Nodes& nodes) const;
  };
  /// Values and those of their dimensions along which padding is to be zero.
  using Zeros = std::unordered_map<Nodes, std::vector<int>, NodesHash>;

  /// Values in `zeros` get their padding where they are made, once and for all that read them.
  SizeMerger(std::span<const Graph> cases, std::size_t largest, Zeros zeros)
      : cases_(cases), largest_(largest), zeros_(std::move(zeros)), b_(out_.graph) {}
  Status run();
  Sizes take() { return std::move(out_); }
  std::size_t misfit() const { return misfit_; }
  /// What products and windows read with zeros for padding.
  Zeros take_wanted() { return std::move(wanted_); }

 private:
  struct Form {
    enum class Kind { alike, constant, view } kind = Kind::alike;
    std::vector<bool>
        steps;  ///< view: the cases that have it; others are as if they read all of it
    std::vector<Nodes> args;
  };

  // sizes.cpp: the walk, and nodes whose kinds are simple.
  Error misfit(const Nodes& nodes, std::size_t c, std::string_view reason);
  Result<Form> form_of(const Nodes& nodes);
  bool evaluates(const Nodes& nodes);
  bool steps_along(const Nodes& nodes, std::size_t c) const;
  Status add_root(const Nodes& root);
  Result<NodeId> merge(const Nodes& nodes, const Form& form);
  Result<NodeId> merge_constant(const Nodes& nodes);
  Result<NodeId> merge_kind(const Nodes& nodes, const Form& form, const Reduce& op);
  Result<NodeId> merge_kind(const Nodes& nodes, const Form& form, const Scan& op);
  Result<NodeId> merge_kind(const Nodes& nodes, const Form& form, const Sort& op);
  Result<NodeId> plain(const Nodes& nodes, const Form& form);
  const Tensor* value_in(std::size_t c, NodeId id);

  // sizes_access.cpp: nodes with index expressions.
  Result<NodeId> merge_view(const Nodes& nodes, const Form& form);
  Result<NodeId> merge_pieces(const Nodes& nodes, const Form& form,
                              const std::vector<std::vector<const Access*>>& pieces, double fill);
  Result<NodeId> merge_kind(const Nodes& nodes, const Form& form, const Contract& op);
  Result<NodeId> merge_kind(const Nodes& nodes, const Form& form, const Gather& op);
  Result<NodeId> merge_kind(const Nodes& nodes, const Form& form, const Scatter& op);
  bool same_expr(std::size_t c, const ir::Expr& l, const ir::Expr& e, const Shape& variables) const;
  std::optional<std::vector<int>> masked_dims(const std::vector<const Access*>& accesses,
                                              const std::vector<Shape>& variables, const Nodes& arg,
                                              std::size_t& misfit) const;

  // sizes_gather.cpp: positions that depend on the size.
  /// A value that is `source`, picked along an axis; the index has extent 1 along the others.
  struct Picked {
    NodeId source;
    int axis = 0;
    NodeId index;
  };
  /// The expressions of all cases as one i32 value over positions of `shape`.
  Result<NodeId> computed(const Nodes& nodes, std::vector<ir::Expr> exprs, const Shape& shape);
  Result<NodeId> computed_quotient(const Nodes& nodes, const std::vector<ir::Expr>& exprs,
                                   const Shape& shape);
  Result<NodeId> computed_sum(const Nodes& nodes, const std::vector<ir::Expr>& exprs,
                              const Shape& shape);
  Result<NodeId> read_piece(const Nodes& nodes, const Nodes& arg,
                            const std::vector<const Access*>& accesses);
  Result<std::optional<NodeId>> inside_of(const Nodes& nodes,
                                          const std::vector<const Access*>& accesses);
  std::optional<NodeId> table(
      DType type, const Shape& used,
      const std::function<std::int64_t(std::size_t c, const std::vector<std::int64_t>& variables)>&
          at);
  Result<NodeId> position(const Nodes& nodes, const std::vector<ir::Expr>& exprs,
                          const Shape& used);
  Result<std::optional<NodeId>> inside_by_tables(const Nodes& nodes,
                                                 const std::vector<const Access*>& accesses);
  NodeId gathered(const Picked& picked, Gather gather, const std::vector<NodeId>& indices,
                  const Shape& out);
  std::optional<int> gathered_concat(const std::vector<std::vector<const Access*>>& pieces,
                                     const std::vector<Shape>& variables,
                                     const std::vector<Nodes>& args) const;
  NodeId merge_concat(const std::vector<Nodes>& args, int axis, const Shape& out);

  const Node& at(std::size_t c, const Nodes& nodes) const { return cases_[c][nodes[c]]; }
  const Shape& shape(std::size_t c, const Nodes& nodes) const { return at(c, nodes).type.shape; }
  const Node& largest(const Nodes& nodes) const { return at(largest_, nodes); }
  NodeId merged(const Nodes& nodes) const { return merged_.at(nodes); }
  std::vector<std::int64_t> extents(const Nodes& nodes, std::size_t dim) const;
  static bool varies(const std::vector<std::int64_t>& numbers);
  bool varies(const Nodes& nodes, std::size_t dim) const { return varies(extents(nodes, dim)); }

  /// A scalar that is `numbers[c]` in case c.
  NodeId number(const std::vector<std::int64_t>& numbers);
  NodeId given(std::vector<Tensor> values);
  NodeId identity_of(ir::Monoid fn, DType type);
  /// True at the positions that count along a dimension; extent 1 along others.
  NodeId counts(const Nodes& value, std::size_t dim);
  /// `x` with padding along `dims`, where the extents are those of `extents_of`, replaced.
  NodeId masked(NodeId x, const Nodes& extents_of, const std::vector<int>& dims, NodeId fill);
  NodeId masked(const Nodes& value, const std::vector<int>& dims, NodeId fill) {
    return masked(merged(value), value, dims, fill);
  }
  NodeId zero(DType type) { return is_float(type) ? b_.scalar(type, 0) : b_.scalar_int(type, 0); }
  /// The same with zeros, which it may have been made with.
  NodeId zeroed(const Nodes& value, const std::vector<int>& dims);
  /// `made` for these nodes, with zeros if they are wanted.
  NodeId with_zeros(const Nodes& nodes, NodeId made);

  std::span<const Graph> cases_;
  std::size_t largest_;
  const Zeros zeros_;
  Zeros wanted_;
  Sizes out_;
  Builder b_;
  std::unordered_map<Nodes, NodeId, NodesHash> merged_;
  std::map<NodeId, Picked> picked_;
  std::map<std::vector<std::int64_t>, NodeId> numbers_;
  std::map<std::vector<Hash>, NodeId> tensors_;
  std::map<std::pair<std::size_t, NodeId>, std::optional<Tensor>> evaluated_;
  std::int64_t given_bytes_ = 0;
  std::size_t misfit_ = 0;
};

}  // namespace heddle::prim

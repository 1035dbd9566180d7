#pragma once
#include <map>
#include <set>

#include "lower/gpu/nest.h"
#include "lower/stitch/nest.h"

namespace heddle::lower::stitch {

/// Writes the phases of one kernel.
class Phases {
 public:
  /// `threads`: of the blocks of every phase on a GPU; 0: as fits each.
  explicit Phases(const Request& request, int threads = 0);
  Result<Lowered> run();

 private:
  /// Outputs that share loops.
  struct Group {
    Shape shape;
    std::vector<NodeId> nodes;
    std::vector<NestOutput> outputs;
    Domain domain() const { return {Shape(shape.size(), 0), shape}; }
  };

  void add_arguments();
  Layout choose_layout(NodeId output);
  std::optional<Layout> followed_layout(NodeId output);
  double usual_step(const Expr& offset, const std::vector<std::optional<Var>>& vars, std::size_t d,
                    const Shape& shape) const;
  std::vector<Group> groups();
  bool join(Group& group, NodeId node);
  std::optional<std::vector<int>> row_of(const Group& group, NodeId node);
  NestOutput output_of(NodeId node) const;
  void drop_done(Group& group) const;

  // split.cpp
  void split_long_reductions(const Group& group);
  std::vector<Touch> touches_of_term(const Reduction& r, std::vector<ir::Var>& terms);
  bool adds_columns(const Reduction& r);
  /// In how many parts at most; 0: a phase of its own is not worth it. `most_results`: of the
  /// reductions beside it.
  std::int64_t parts_worth(const Group& group, const Reduction& r, std::int64_t most_results);
  std::int64_t gpu_parts_worth(const Reduction& r, std::int64_t most_results);
  bool split_reduction(const Group& group, const Reduction& r, std::int64_t most_results);
  void add_parts(const Reduction& r, kernel::BufferId parts, const Layout& layout);
  void keep_derived(const Group& group);
  void keep_compared_sums();
  bool of_split_reductions(NodeId node, std::int64_t most) const;
  kernel::BufferId temporary(std::string name, DType type, std::int64_t size);

  void pack_constants(const std::vector<Group>& groups);
  static std::vector<NestOutput> outputs_in(const Group& group, const Domain& box);
  void emit(const Group& group);
  template <class AnyNest>
  void emit_phase(std::vector<AnyNest> nests);
  void start_phase();
  void finish();

  // special.cpp
  void emit_scan(NodeId node);
  void emit_sort(NodeId node);
  void emit_sort_by_block(NodeId node);
  std::vector<bool> apart(const prim::Scatter& op, const Shape& updates);
  void emit_scatter(NodeId node);
  void update_rows(NodeId node, const Shape& updates);
  void update(NodeId node, const Index& at);

  const Request& request_;
  const int threads_;
  const prim::Graph& g_;
  const Cluster& cluster_;
  Lowered out_;
  Evaluator values_;
  Emitter emitter_;
  std::map<NodeId, kernel::BufferId> output_buffer_;
  std::map<NodeId, Layout> layout_;
  std::vector<NodeId> split_;  ///< reductions done in parts
  std::set<NodeId> kept_;      ///< what was derived from them and stored
  std::set<NodeId> done_;      ///< outputs among them, which are stored
};

}  // namespace heddle::lower::stitch

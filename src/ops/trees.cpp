#include <algorithm>
#include <array>
#include <map>

#include "ops/classical.h"
#include "ops/families.h"

/// Ensembles of decision trees (ai.onnx.ml). All trees are walked at once, a level at a time, as
/// look-ups in tables of their nodes; leaves lead to themselves.
namespace heddle::ops {
namespace {

using ir::ScalarFn;

constexpr std::int64_t kMostNodes = std::int64_t{1} << 22;

/// In the numbering of TreeEnsemble (opset 5).
enum class Branch : std::uint8_t { leq, lt, gte, gt, eq, neq, leaf };

/// All trees' nodes in one list.
struct Forest {
  std::vector<Branch> mode;
  std::vector<std::int64_t> feature, yes, no;
  std::vector<double> split;
  std::vector<bool> missing_is_yes;
  std::vector<std::int64_t> roots;
  std::vector<double> votes;  ///< [nodes, targets]
  std::vector<bool> has_vote;
  std::int64_t targets = 0;

  std::int64_t nodes() const { return static_cast<std::int64_t>(mode.size()); }
};

/// Steps from a root to the deepest leaf; nullopt if children do not lead downwards for ever.
std::optional<int> depth_of(const Forest& f) {
  std::vector<std::int64_t> level = f.roots;
  for (int depth = 0; depth <= 256; ++depth) {
    std::vector<std::int64_t> next;
    for (const std::int64_t i : level) {
      const auto at = static_cast<std::size_t>(i);
      if (f.mode[at] != Branch::leaf) next.insert(next.end(), {f.yes[at], f.no[at]});
    }
    std::sort(next.begin(), next.end());
    next.erase(std::unique(next.begin(), next.end()), next.end());
    if (next.empty()) return depth;
    level = std::move(next);
  }
  return std::nullopt;
}

Status check(const Call& call, const Forest& f, std::int64_t features) {
  const auto valid = [&](std::int64_t i) { return i >= 0 && i < f.nodes(); };
  if (f.roots.empty() || f.targets < 1) return call.error("there are no trees or no targets");
  if (f.nodes() > kMostNodes || f.targets > kMostNodes / std::max<std::int64_t>(1, f.nodes()))
    return call.unsupported("{} nodes with {} targets are too many", f.nodes(), f.targets);
  for (std::size_t i = 0; i < f.mode.size(); ++i) {
    if (!valid(f.yes[i]) || !valid(f.no[i])) return call.error("node {} has no such child", i);
    if (f.mode[i] != Branch::leaf && (f.feature[i] < 0 || f.feature[i] >= features))
      return call.error("node {} asks for feature {} of {}", i, f.feature[i], features);
  }
  return Ok{};
}

/// The leaves reached by rows x: [N, trees].
Result<NodeId> leaves(const Call& call, Builder& b, const Forest& f, NodeId x) {
  const auto depth = depth_of(f);
  if (!depth) return call.error("a tree is deeper than 256, or is none");
  const std::int64_t rows = b.shape(x)[0], trees = static_cast<std::int64_t>(f.roots.size());
  const auto table = [&](auto&& value_of, DType type) {
    Tensor t({type, {f.nodes()}});
    for (std::int64_t i = 0; i < f.nodes(); ++i)
      t.set(i, static_cast<double>(value_of(static_cast<std::size_t>(i))));
    return b.constant(t);
  };
  const NodeId feature = table([&](std::size_t i) { return f.feature[i]; }, DType::i64);
  const NodeId split = table([&](std::size_t i) { return f.split[i]; }, b.dtype(x));
  const NodeId yes = table([&](std::size_t i) { return f.yes[i]; }, DType::i64);
  const NodeId no = table([&](std::size_t i) { return f.no[i]; }, DType::i64);
  const NodeId missing =
      table([&](std::size_t i) { return f.missing_is_yes[i] ? 1 : 0; }, DType::b1);
  constexpr ScalarFn kCompare[] = {ScalarFn::less_equal, ScalarFn::less,  ScalarFn::greater_equal,
                                   ScalarFn::greater,    ScalarFn::equal, ScalarFn::not_equal};
  NodeId at = b.broadcast(constant_i64(b, f.roots), {rows, trees});
  for (int step = 0; step < *depth; ++step) {
    const NodeId value = b.take_along(x, b.take(feature, at, 0), 1);
    const NodeId threshold = b.take(split, at, 0);
    std::optional<NodeId> goes;
    for (int mode = 0; mode < 6; ++mode) {
      const auto is = [&](Branch m) { return static_cast<int>(m) == mode; };
      if (std::none_of(f.mode.begin(), f.mode.end(), is)) continue;
      const NodeId holds = b.map(kCompare[mode], {value, threshold});
      const NodeId here = table([&](std::size_t i) { return is(f.mode[i]) ? 1 : 0; }, DType::b1);
      goes = goes ? b.select(b.take(here, at, 0), holds, *goes) : holds;
    }
    const NodeId seen = b.select(b.map(ScalarFn::isnan, {value}), b.take(missing, at, 0), *goes);
    at = b.select(seen, b.take(yes, at, 0), b.take(no, at, 0));
  }
  return at;
}

enum class Aggregate : std::uint8_t { average, sum, min, max };

/// Votes of the leaves reached, aggregated over the trees: [N, targets].
Result<NodeId> vote(const Call& call, Builder& b, const Forest& f, NodeId x, Aggregate how) {
  const Shape in = b.shape(x);
  HEDDLE_TRY(check(call, f, in[1]));
  HEDDLE_TRY(
      checked(call, {in[0], static_cast<std::int64_t>(f.roots.size()), f.targets}, b.dtype(x)));
  const NodeId at = HEDDLE_TRY(leaves(call, b, f, x));
  const bool extreme = how == Aggregate::min || how == Aggregate::max;
  std::vector<double> votes = f.votes;
  if (extreme) {  // no vote is no candidate
    const double none = how == Aggregate::min ? std::numeric_limits<float>::max()
                                              : std::numeric_limits<float>::lowest();
    for (std::size_t i = 0; i < votes.size(); ++i)
      if (!f.has_vote[i]) votes[i] = none;
  }
  const NodeId table = constant_real(b, b.dtype(x), votes, {f.nodes(), f.targets});
  const NodeId all = b.take(table, at, 0);  // [N, trees, targets]
  if (extreme)
    return b.reduce(how == Aggregate::min ? ir::Monoid::min : ir::Monoid::max, all, {1}, false);
  const NodeId sum = b.reduce_sum(all, {1}, false);
  return how == Aggregate::sum ? sum : b.div(sum, static_cast<double>(f.roots.size()));
}

/// Position of each node of the older form by (tree, node).
using NodePositions = std::map<std::pair<std::int64_t, std::int64_t>, std::int64_t>;

/// Puts every node's position into `positions` and each tree's first node into the roots.
Status place_nodes(const Call& call, const std::vector<std::int64_t>& trees,
                   const std::vector<std::int64_t>& nodes, Forest& f, NodePositions& positions) {
  std::map<std::int64_t, std::int64_t> root;
  for (std::size_t i = 0; i < trees.size(); ++i) {
    const auto at = static_cast<std::int64_t>(i);
    if (!positions.emplace(std::pair{trees[i], nodes[i]}, at).second)
      return call.error("node {} of tree {} is given twice", nodes[i], trees[i]);
    root.emplace(trees[i], at);
  }
  for (const auto& [tree, at] : root) f.roots.push_back(at);
  return Ok{};
}

/// The attributes nodes_*: all but the votes.
Result<NodePositions> read_nodes(const Call& call, Forest& f) {
  const auto trees = call.attribute_ints("nodes_treeids", {});
  const auto nodes = call.attribute_ints("nodes_nodeids", {});
  const auto yes = call.attribute_ints("nodes_truenodeids", {});
  const auto no = call.attribute_ints("nodes_falsenodeids", {});
  const auto missing = call.attribute_ints("nodes_missing_value_tracks_true", {});
  f.feature = call.attribute_ints("nodes_featureids", {});
  f.split = HEDDLE_TRY(number_list(call, "nodes_values"));
  const auto found = call.attributes.find("nodes_modes");
  const auto* modes = found == call.attributes.end()
                          ? nullptr
                          : std::get_if<std::vector<std::string>>(&found->second);
  const std::size_t n = trees.size();
  if (modes == nullptr || modes->size() != n || nodes.size() != n || yes.size() != n ||
      no.size() != n || f.feature.size() != n || f.split.size() != n ||
      (!missing.empty() && missing.size() != n))
    return call.error("the lists of nodes differ in length");
  NodePositions positions;
  HEDDLE_TRY(place_nodes(call, trees, nodes, f, positions));
  static constexpr std::string_view kModes[] = {
      "BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ", "LEAF"};
  for (std::size_t i = 0; i < n; ++i) {
    const auto* mode = std::find(std::begin(kModes), std::end(kModes), (*modes)[i]);
    if (mode == std::end(kModes)) return call.error("node mode '{}'", (*modes)[i]);
    f.mode.push_back(static_cast<Branch>(mode - std::begin(kModes)));
    const auto child = [&](std::int64_t id) {
      const auto at = positions.find({trees[i], id});
      return f.mode[i] == Branch::leaf ? static_cast<std::int64_t>(i)
             : at == positions.end()   ? -1
                                       : at->second;
    };
    f.yes.push_back(child(yes[i]));
    f.no.push_back(child(no[i]));
    f.missing_is_yes.push_back(!missing.empty() && missing[i] != 0);
    if (f.mode[i] == Branch::leaf) f.feature[i] = 0;
  }
  return positions;
}

/// Room for every node's votes, none yet.
Status clear_votes(const Call& call, Forest& f) {
  if (f.targets < 1 || f.targets > kMostNodes / std::max<std::int64_t>(1, f.nodes()))
    return call.unsupported("{} nodes with {} targets", f.nodes(), f.targets);
  f.votes.assign(static_cast<std::size_t>(f.nodes() * f.targets), 0);
  f.has_vote.assign(f.votes.size(), false);
  return Ok{};
}

void add_vote(Forest& f, std::int64_t node, std::int64_t target, double weight) {
  const auto slot = static_cast<std::size_t>(node * f.targets + target);
  f.votes[slot] += weight;
  f.has_vote[slot] = true;
}

/// The nodes as TreeEnsembleRegressor and …Classifier have them: by (tree, node); votes are
/// `prefix`_treeids, _nodeids, _ids, _weights.
Result<Forest> read_forest(const Call& call, const std::string& prefix, std::int64_t targets) {
  Forest f;
  f.targets = targets;
  const NodePositions positions = HEDDLE_TRY(read_nodes(call, f));
  const auto trees = call.attribute_ints(prefix + "_treeids", {});
  const auto nodes = call.attribute_ints(prefix + "_nodeids", {});
  const auto ids = call.attribute_ints(prefix + "_ids", {});
  const auto weights = HEDDLE_TRY(number_list(call, prefix + "_weights"));
  if (trees.size() != ids.size() || nodes.size() != ids.size() || weights.size() != ids.size())
    return call.error("the lists of votes differ in length");
  HEDDLE_TRY(clear_votes(call, f));
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const auto at = positions.find({trees[i], nodes[i]});
    if (at == positions.end() || ids[i] < 0 || ids[i] >= targets)
      return call.error("vote {} is for target {} at node {} of tree {}", i, ids[i], nodes[i],
                        trees[i]);
    add_vote(f, at->second, ids[i], weights[i]);
  }
  return f;
}

/// base_values added to the scores, if there are any.
Result<NodeId> with_base(const Call& call, Builder& b, NodeId scores) {
  const auto base = HEDDLE_TRY(number_list(call, "base_values"));
  if (base.empty()) return scores;
  const auto n = static_cast<std::int64_t>(base.size());
  if (n != 1 && n != b.shape(scores)[1])
    return call.error("{} base_values for {} targets", n, b.shape(scores)[1]);
  return b.add(scores, constant_real(b, b.dtype(scores), base, {n}));
}

Result<Values> tree_regressor(const Call& call, Builder& b) {
  const NodeId x = HEDDLE_TRY(feature_rows(call, b));
  const Forest f = HEDDLE_TRY(read_forest(call, "target", call.attribute_int("n_targets", 1)));
  const int how =
      HEDDLE_TRY(choice(call, "aggregate_function", "SUM", {"AVERAGE", "SUM", "MIN", "MAX"}));
  const NodeId y = HEDDLE_TRY(vote(call, b, f, x, static_cast<Aggregate>(how)));
  return Values{b.cast(transformed(b, HEDDLE_TRY(with_base(call, b, y)), HEDDLE_TRY(post_of(call))),
                       DType::f32)};
}

Result<Values> tree_classifier(const Call& call, Builder& b) {
  const NodeId x = HEDDLE_TRY(feature_rows(call, b));
  const auto labels = HEDDLE_TRY(labels_of(call, "classlabels_int64s", "classlabels_strings"));
  if (labels.size() < 2) return call.unsupported("{} labels, want two or more", labels.size());
  const auto classes = static_cast<std::int64_t>(labels.size());
  const Forest f = HEDDLE_TRY(read_forest(call, "class", classes));
  const Post post = HEDDLE_TRY(post_of(call));
  NodeId y = b.cast(HEDDLE_TRY(vote(call, b, f, x, Aggregate::sum)), DType::f32);
  y = HEDDLE_TRY(with_base(call, b, y));
  const auto ids = call.attribute_ints("class_ids", {});
  const bool one_vote = !ids.empty() && std::all_of(ids.begin(), ids.end(),
                                                    [&](std::int64_t id) { return id == ids[0]; });
  if (one_vote && classes == 2) {  // the score of the second class; the first has the complement
    const NodeId second = b.slice_axis(y, 1, ids[0], 1);
    const NodeId first = post == Post::none || post == Post::probit
                             ? b.sub(b.scalar(DType::f32, 1), second)
                             : b.neg(second);
    y = b.concat({first, second}, 1);
  }
  const NodeId scores = transformed(b, y, post);
  const NodeId best = b.reduce(ir::Monoid::argmax, scores, {1}, false);
  return Values{HEDDLE_TRY(labelled(call, b, best, "classlabels_int64s", labels.size())), scores};
}

/// The attributes of TreeEnsemble: interior nodes and leaves are lists of their own.
struct EnsembleLists {
  std::vector<double> modes, splits, members, weights;
  std::vector<std::int64_t> features, missing, targets;
  std::array<std::vector<std::int64_t>, 2> child, child_is_leaf;  ///< [yes, no]
};

Result<EnsembleLists> read_lists(const Call& call) {
  EnsembleLists l;
  l.modes = HEDDLE_TRY(number_list(call, "nodes_modes"));
  l.splits = HEDDLE_TRY(number_list(call, "nodes_splits"));
  l.members = HEDDLE_TRY(number_list(call, "membership_values"));
  l.weights = HEDDLE_TRY(number_list(call, "leaf_weights"));
  l.features = call.attribute_ints("nodes_featureids", {});
  l.missing = call.attribute_ints("nodes_missing_value_tracks_true", {});
  l.targets = call.attribute_ints("leaf_targetids", {});
  l.child = {call.attribute_ints("nodes_truenodeids", {}),
             call.attribute_ints("nodes_falsenodeids", {})};
  l.child_is_leaf = {call.attribute_ints("nodes_trueleafs", {}),
                     call.attribute_ints("nodes_falseleafs", {})};
  const std::size_t n = l.modes.size();
  bool fits = l.splits.size() == n && l.features.size() == n &&
              l.targets.size() == l.weights.size() && (l.missing.empty() || l.missing.size() == n);
  for (std::size_t side = 0; side < 2; ++side)
    fits = fits && l.child[side].size() == n && l.child_is_leaf[side].size() == n;
  if (!fits) return call.error("the lists of nodes or leaves differ in length");
  for (std::size_t i = 0; i < n; ++i)
    if (!(l.modes[i] >= 0 && l.modes[i] <= 6))
      return call.error("node {} has mode {}", i, l.modes[i]);
  return l;
}

/// Makes the forest's nodes of the lists. Nodes keep their positions; leaves follow, then the rest
/// of the chains of tests of equality that tests of membership become.
class Ensemble {
 public:
  Ensemble(const EnsembleLists& lists, Forest& forest) : l_(lists), f_(forest) {}

  void add_all() {
    for (std::size_t i = 0; i < l_.modes.size(); ++i) {
      const Node n = {static_cast<Branch>(static_cast<int>(l_.modes[i])),
                      l_.splits[i],
                      l_.features[i],
                      child(0, i),
                      child(1, i),
                      !l_.missing.empty() && l_.missing[i] != 0};
      l_.modes[i] < 6 ? add(n) : add_membership(n);
    }
    for (std::int64_t i = 0; i < leaves(); ++i)
      add({Branch::leaf, 0, 0, first_leaf() + i, first_leaf() + i, false});
    for (const Node& n : chain_) add(n);
  }

  std::int64_t first_leaf() const { return static_cast<std::int64_t>(l_.modes.size()); }
  std::int64_t leaves() const { return static_cast<std::int64_t>(l_.weights.size()); }

 private:
  struct Node {
    Branch mode;
    double split;
    std::int64_t feature, yes, no;
    bool missing_is_yes;
  };

  /// The child's position, or -1 if it is none.
  std::int64_t child(std::size_t side, std::size_t i) const {
    const bool leaf = l_.child_is_leaf[side][i] != 0;
    const std::int64_t to = l_.child[side][i];
    if (to < 0 || to >= (leaf ? leaves() : first_leaf())) return -1;
    return leaf ? first_leaf() + to : to;
  }
  void add(const Node& n) {
    f_.mode.push_back(n.mode);
    f_.feature.push_back(n.feature);
    f_.split.push_back(n.split);
    f_.yes.push_back(n.yes);
    f_.no.push_back(n.no);
    f_.missing_is_yes.push_back(n.missing_is_yes);
  }
  /// The next members up to a NaN, one test each: the first here, the others in the chain.
  void add_membership(Node n) {
    std::vector<double> values;
    while (member_ < l_.members.size() && !std::isnan(l_.members[member_]))
      values.push_back(l_.members[member_++]);
    ++member_;
    if (values.empty()) values.push_back(std::numeric_limits<double>::quiet_NaN());  // no member
    n.mode = Branch::eq;
    const std::int64_t otherwise = n.no;
    for (std::size_t k = 0; k < values.size(); ++k) {
      const bool last = k + 1 == values.size();
      n.split = values[k];
      n.no = last ? otherwise
                  : first_leaf() + leaves() + static_cast<std::int64_t>(chain_.size() + (k > 0));
      k == 0 ? add(n) : chain_.push_back(n);
    }
  }

  const EnsembleLists& l_;
  Forest& f_;
  std::vector<Node> chain_;
  std::size_t member_ = 0;
};

/// Opset 5.
Result<Values> tree_ensemble(const Call& call, Builder& b) {
  const NodeId x = HEDDLE_TRY(feature_rows(call, b));
  const EnsembleLists lists = HEDDLE_TRY(read_lists(call));
  Forest f;
  f.targets = call.attribute_int("n_targets", 0);
  Ensemble nodes(lists, f);
  nodes.add_all();
  f.roots = call.attribute_ints("tree_roots", {});
  for (const std::int64_t r : f.roots)
    if (r < 0 || r >= nodes.first_leaf())
      return call.error("root {} of {} nodes", r, nodes.first_leaf());
  HEDDLE_TRY(clear_votes(call, f));
  for (std::size_t i = 0; i < lists.targets.size(); ++i) {
    const std::int64_t target = lists.targets[i];
    if (target < 0 || target >= f.targets)
      return call.error("leaf {} votes for target {} of {}", i, target, f.targets);
    add_vote(f, nodes.first_leaf() + static_cast<std::int64_t>(i), target, lists.weights[i]);
  }
  const std::int64_t how = call.attribute_int("aggregate_function", 1);
  if (how < 0 || how > 3) return call.error("aggregate_function is {}", how);
  const NodeId y = HEDDLE_TRY(vote(call, b, f, x, static_cast<Aggregate>(how)));
  return Values{transformed(b, y, HEDDLE_TRY(post_of(call)))};
}

constexpr OpDef kTreeOps[] = {
    {"ai.onnx.ml::TreeEnsembleRegressor", 1, 1, 1, tree_regressor},
    {"ai.onnx.ml::TreeEnsembleClassifier", 1, 1, 1, tree_classifier},
    {"ai.onnx.ml::TreeEnsemble", 5, 1, 1, tree_ensemble},
};

}  // namespace

std::span<const OpDef> tree_ops() { return kTreeOps; }

}  // namespace heddle::ops

// Long reductions with few results: summed in parts by a phase of their own, so that all threads
// have work. The number of parts depends on shape and layout only, so results do not depend on the
// threads.
#include <algorithm>
#include <numeric>

#include "lower/stitch/cluster.h"
#include "lower/stitch/phases.h"

namespace heddle::lower::stitch {

using kernel::Scope;

namespace {

constexpr std::int64_t kFewRows = 8;            // fewer results do not feed the threads
constexpr std::int64_t kLongReduction = 65536;  // terms in all that are worth a second phase
constexpr std::int64_t kMaxParts = 32;
constexpr std::int64_t kLongColumn = 256;  // terms
constexpr std::int64_t kVectorsPerStrip = 4;
constexpr std::int64_t kFewTerms = 32;    // that every GPU thread may add up for itself
constexpr std::int64_t kSmallShare = 16;  // a derived value this much smaller than what reads it

Expr offset_of(const Index& index, const Layout& layout) {
  Expr offset(0);
  for (std::size_t d = 0; d < index.size(); ++d) offset = offset + index[d] * layout.strides[d];
  return offset;
}

std::vector<int> all_dimensions(std::size_t rank) {
  std::vector<int> out(rank);
  std::iota(out.begin(), out.end(), 0);
  return out;
}

/// The axis that is cut, and into how many parts of how many terms.
struct Cut {
  std::size_t axis = 0;
  std::int64_t extent = 0, parts = 0, block = 0;
};

/// Parts are far from each other in memory, where axes step by `steps`, and each is dense; `least`
/// of them are wanted.
Cut cut_of(const Reduction& r, const std::vector<std::int64_t>& steps, std::int64_t least,
           std::int64_t most_parts) {
  Cut c;
  c.axis = static_cast<std::size_t>(std::max_element(r.extents.begin(), r.extents.end()) -
                                    r.extents.begin());
  std::int64_t most = -1;
  for (std::size_t d = 0; d < r.extents.size(); ++d)
    if (r.extents[d] >= least && steps[d] > most) {
      most = steps[d];
      c.axis = d;
    }
  c.extent = r.extents[c.axis];
  c.parts = std::min(most_parts, c.extent);
  for (std::int64_t p = c.parts; p >= kFewRows; --p)
    if (c.extent % p == 0) {
      c.parts = p;
      break;
    }
  c.block = (c.extent + c.parts - 1) / c.parts;
  return c;
}

/// Part `part` of a reduction.
Reduction part_of(const Reduction& whole, const Cut& c, const Expr& part) {
  Reduction some = whole;
  some.node = {};
  some.extents[c.axis] = c.block;
  some.depends.push_back(part);
  some.term = [=](Evaluator& v, const Index& position) {
    Index p = position;
    p[c.axis] = part * Expr(c.block) + position[c.axis];
    if (c.parts * c.block == c.extent) return whole.term(v, p);
    const auto within = ir::simplify({{p[c.axis], 0, c.extent}}, v.ranges());
    const Value none = identity_value(whole.fn, whole.type);
    return within ? kernel::guard(*within, whole.term(v, p), none) : none;
  };
  return some;
}

}  // namespace

void Phases::split_long_reductions(const Group& group) {
  constexpr int kMostRounds = 8;
  for (int i = 0; i < kMostRounds; ++i) {
    std::vector<Reduction> found;
    emitter_.touches_of(
        [&](Evaluator& values) {
          std::vector<Value> all;
          for (const NestOutput& o : group.outputs) {
            Index index;
            for (std::int64_t extent : o.row ? Shape(o.dimensions.size(), 1) : group.shape)
              index.push_back(extent == 1 ? Expr(0) : Expr(emitter_.fresh(extent)));
            values.ranges() = values_.ranges();
            all.push_back(o.value(values, index));
          }
          return all;
        },
        [&](const Reduction& r) { found.push_back(r); });
    std::stable_sort(found.begin(), found.end(),
                     [](const Reduction& a, const Reduction& b) { return a.node < b.node; });
    std::int64_t most = 0;
    for (const Reduction& r : found)
      if (r.node && element_count(r.extents) > kFewTerms)
        most = std::max(most, element_count(g_[r.node].type.shape));
    if (std::none_of(found.begin(), found.end(),
                     [&](const Reduction& r) { return split_reduction(group, r, most); }))
      return;
    keep_derived(group);
  }
}

/// What a term touches, over a new variable for each axis of the reduction.
std::vector<Touch> Phases::touches_of_term(const Reduction& r, std::vector<Var>& terms) {
  Index position;
  for (std::int64_t extent : r.extents) {
    terms.push_back(emitter_.fresh(extent));
    position.push_back(extent == 1 ? Expr(0) : Expr(terms.back()));
  }
  return emitter_.touches_of([&](Evaluator& values) {
    values.ranges() = values_.ranges();
    return std::vector<Value>{r.term(values, position)};
  });
}

/// True if neighbours in memory belong to different results, as in a sum over rows of a matrix or
/// over the pixels of a channels-last image.
bool Phases::adds_columns(const Reduction& r) {
  std::vector<Var> terms, results;
  for (const Expr& e : r.depends) ir::collect_variables(e, results);
  const auto touches = touches_of_term(r, terms);
  std::int64_t size = 0;
  bool columns = false;
  for (const Touch& t : touches) {
    if (t.kind != Touch::Kind::load || out_.kernel.buffers[t.buffer].size <= size) continue;
    size = out_.kernel.buffers[t.buffer].size;
    const auto next = [&](Var v) { return ir::coefficient_of(t.offset, v) == std::int64_t{1}; };
    columns = std::none_of(terms.begin(), terms.end(), next) &&
              std::any_of(results.begin(), results.end(), next);
  }
  return columns;
}

/// Reductions that leave most multiprocessors idle, and those that teams working on the rows of
/// other reductions would repeat for each row.
std::int64_t Phases::gpu_parts_worth(const Reduction& r, std::int64_t most_results) {
  constexpr std::int64_t kLong = 2048, kPart = 512, kMost = 256, kRepeated = 4096;
  const std::int64_t cores = request_.target.multiprocessors;
  const std::int64_t all = element_count(g_[r.node].type.shape), terms = element_count(r.extents);
  if (all == 0 || terms <= kFewTerms) return 0;
  const bool columns = adds_columns(r);
  const std::int64_t line = std::int64_t{gpu::kLineAccesses} * emitter_.lanes();
  const std::int64_t blocks = columns ? (all + line - 1) / line : all;
  const bool idle = columns ? blocks < cores : blocks * 2 < cores;
  const bool cluster =
      !columns && gpu::cluster_team(request_.target, all, terms, emitter_.lanes()) > 0;
  if (terms >= kLong && all * terms >= kLongReduction / 2 && idle && !cluster)
    return std::clamp<std::int64_t>(std::min(2 * cores / blocks, terms / kPart), 1, kMost);
  return all < most_results && most_results * terms > kRepeated ? 1 : 0;
}

std::int64_t Phases::parts_worth(const Group& group, const Reduction& r,
                                 std::int64_t most_results) {
  if (!r.node || std::find(split_.begin(), split_.end(), r.node) != split_.end()) return 0;
  const auto* reduce = std::get_if<prim::Reduce>(&g_[r.node].op);
  if (reduce && (reduce->fn == ir::Monoid::argmax || reduce->fn == ir::Monoid::argmin)) return 0;
  if (request_.target.is_gpu()) return gpu_parts_worth(r, most_results);
  const std::int64_t all = element_count(g_[r.node].type.shape), terms = element_count(r.extents);
  if (all == 0 || all * terms < kLongReduction) return 0;
  const bool columns = reduce && adds_columns(r);
  const std::int64_t strip = emitter_.lanes() * kVectorsPerStrip;
  if ((columns ? (all + strip - 1) / strip : all) < kFewRows) return kMaxParts;
  // Long columns are added up as they lie in memory, by tasks that each take some rows.
  const bool long_columns = columns && all == element_count(group.shape) && terms >= kLongColumn &&
                            all * terms >= 4 * kLongReduction;
  return long_columns ? kMaxParts : 0;
}

bool Phases::split_reduction(const Group& group, const Reduction& r, std::int64_t most_results) {
  const std::int64_t most_parts = parts_worth(group, r, most_results);
  if (most_parts == 0) return false;
  const Shape& shape = g_[r.node].type.shape;
  std::vector<Var> terms;
  const auto touches = touches_of_term(r, terms);
  std::vector<std::int64_t> steps;
  for (const Var v : terms) steps.push_back(largest_step(touches, v));
  // A CPU's few threads have work enough; of a GPU's multiprocessors none should be idle.
  const std::int64_t least = request_.target.is_gpu() ? most_parts : kFewRows;
  const Cut cut = cut_of(r, steps, least, most_parts);
  split_.push_back(r.node);

  Group partial{{cut.parts}, {}, {}};
  partial.shape.insert(partial.shape.end(), shape.begin(), shape.end());
  const Layout layout = row_major(partial.shape);
  const kernel::BufferId parts = temporary("parts", r.type, layout.size);
  // A position is asked for twice where values are saved on the way; its loops are written once.
  auto known = std::make_shared<std::vector<std::pair<Index, Value>>>();
  const auto part = [=, this, id = r.node](Evaluator& values, const Index& at) {
    for (const auto& [position, value] : *known)
      if (&values == &values_ && position == at) return value;
    Reduction whole;
    reduce_node(g_, id, Index(at.begin() + 1, at.end()), {}, [&](const Reduction& x) {
      whole = x;
      return identity_value(x.fn, x.type);
    });
    const Value out = values.reduce(part_of(whole, cut, at[0]));
    if (&values == &values_) known->emplace_back(at, out);
    return out;
  };
  partial.outputs.push_back({part, parts, layout, all_dimensions(partial.shape.size()), false});
  emit(partial);
  add_parts(r, parts, layout);
  return true;
}

/// The parts are added once, by a phase of their own: every reader would do it again.
void Phases::add_parts(const Reduction& r, kernel::BufferId parts, const Layout& layout) {
  const NodeId id = r.node;
  const Shape& shape = g_[id].type.shape;
  const Layout plain = row_major(shape);
  // An output of the working type is where the sum is stored, and then is done.
  const auto output = output_buffer_.find(id);
  const bool direct = output != output_buffer_.end() && layout_.at(id) == plain &&
                      out_.kernel.buffers[output->second].dtype == r.type;
  if (direct) done_.insert(id);
  const kernel::BufferId result = direct ? output->second : temporary("whole", r.type, plain.size);
  const std::int64_t count = layout.size / plain.size;
  const auto whole = [=, fn = r.fn, type = r.type](Evaluator& values, const Index& index) {
    Reduction sum{fn, type, {count}, {}, index, {}};
    sum.term = [=](Evaluator& v, const Index& p) {
      const Expr offset = p[0] * Expr(layout.strides[0]) + offset_of(index, plain);
      return kernel::load(parts, v.simplified(offset), type);
    };
    return values.reduce(sum);
  };
  Group total{shape, {}, {}};
  total.outputs.push_back({whole, result, plain, all_dimensions(shape.size()), false});
  emit(total);
  values_.bind(id, [=, this, fn = r.fn, type = r.type](Evaluator& values, const Index& index,
                                                       const Evaluator::Conditions& under) {
    const Value value = kernel::load(result, values.simplified(offset_of(index, plain)), type);
    return cast_to(kernel::guard(under, value, identity_value(fn, type)),
                   compute_type(g_[id].type.dtype));
  });
}

/// What is made of split reductions alone and then repeated (a mean, the reciprocal of a deviation)
/// is computed once, not by every reader.
void Phases::keep_derived(const Group& group) {
  std::map<Shape, Group> wanted;
  for (NodeId id : cluster_.nodes) {
    const Shape& shape = g_[id].type.shape;
    const bool small = element_count(shape) * kSmallShare <= element_count(group.shape);
    if (!small || !std::holds_alternative<prim::Map>(g_[id].op) || kept_.contains(id)) continue;
    const bool repeated =
        std::any_of(cluster_.nodes.begin(), cluster_.nodes.end(), [&](NodeId reader) {
          const prim::Node& n = g_[reader];
          return std::find(n.args.begin(), n.args.end(), id) != n.args.end() &&
                 element_count(n.type.shape) > element_count(shape);
        });
    if (!repeated || !of_split_reductions(id, element_count(group.shape) / kSmallShare)) continue;
    kept_.insert(id);
    const Layout layout = row_major(shape);
    const kernel::BufferId buffer = temporary("kept", g_[id].type.dtype, layout.size);
    Group& g = wanted.try_emplace(shape, Group{shape, {}, {}}).first->second;
    g.outputs.push_back(
        {[id](Evaluator& values, const Index& index) { return values.at(id, index); }, buffer,
         layout, all_dimensions(shape.size()), false});
    g.nodes.push_back(id);
  }
  for (auto& [shape, g] : wanted) {
    const std::vector<NodeId> nodes = std::exchange(g.nodes, {});
    emit(g);
    for (std::size_t i = 0; i < nodes.size(); ++i)
      values_.place(nodes[i], g.outputs[i].buffer, g.outputs[i].layout);
  }
}

/// The position of an extreme is found by comparing with it, so values that hold sums are computed
/// once and stored: a team may add them up in another order the second time.
void Phases::keep_compared_sums() {
  for (NodeId id : cluster_.nodes) {
    const auto* reduce = std::get_if<prim::Reduce>(&g_[id].op);
    if (!reduce || (reduce->fn != ir::Monoid::argmax && reduce->fn != ir::Monoid::argmin)) continue;
    const NodeId arg = g_[id].args[0];
    const bool sums = std::any_of(cluster_.nodes.begin(), cluster_.nodes.end(), [&](NodeId n) {
      return n < id && is_reduction(g_, n) && depends_on(g_, cluster_, arg, n);
    });
    if (!sums || values_.placed(arg)) continue;
    const Shape& shape = g_[arg].type.shape;
    const Layout layout = row_major(shape);
    const kernel::BufferId buffer =
        temporary("compared", compute_type(g_[arg].type.dtype), layout.size);
    Group group{shape, {}, {}};
    group.outputs.push_back(
        {[arg](Evaluator& values, const Index& index) { return values.at(arg, index); }, buffer,
         layout, all_dimensions(shape.size()), false});
    split_long_reductions(group);
    emit(group);
    values_.place(arg, buffer, layout);
  }
}

/// True if the value needs a split reduction, and others only if they are short: `most` terms in
/// all (the two products of a squeeze-and-excitation's gate).
bool Phases::of_split_reductions(NodeId node, std::int64_t most) const {
  const auto terms = [&](NodeId id) {
    if (const auto* c = std::get_if<prim::Contract>(&g_[id].op))
      return element_count(g_[id].type.shape) * element_count(c->reduced);
    return element_count(g_[g_[id].args[0]].type.shape);
  };
  bool some = false;
  std::set<NodeId> seen;
  std::vector<NodeId> next{node};
  while (!next.empty()) {
    const NodeId id = next.back();
    next.pop_back();
    if (!std::binary_search(cluster_.nodes.begin(), cluster_.nodes.end(), id) ||
        !seen.insert(id).second)
      continue;
    if (is_reduction(g_, id)) {
      if (std::find(split_.begin(), split_.end(), id) != split_.end()) {
        some = true;
        continue;
      }
      most -= terms(id);
      if (request_.target.is_gpu() || most < 0) return false;
    }
    next.insert(next.end(), g_[id].args.begin(), g_[id].args.end());
  }
  return some;
}

kernel::BufferId Phases::temporary(std::string name, DType type, std::int64_t size) {
  return out_.kernel.add_buffer({std::move(name), type, size, Scope::grid, -1, true, 1});
}

}  // namespace heddle::lower::stitch

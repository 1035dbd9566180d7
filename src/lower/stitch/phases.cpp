#include "lower/stitch/phases.h"

#include <algorithm>
#include <numeric>

#include "kernel/jam.h"
#include "kernel/traverse.h"
#include "lower/stitch/cluster.h"
#include "lower/stitch/prefetch.h"

namespace heddle::lower::stitch {

using kernel::Body;
using kernel::Scope;

namespace {

/// The tensor's elements where `layout` puts them.
Tensor rearranged(const Tensor& t, const Layout& layout, bool contents) {
  const TensorType packed{t.dtype(), {layout.size}};
  if (!contents) return {packed, nullptr, nullptr};
  Tensor out(packed);
  const auto size = static_cast<std::size_t>(size_of(t.dtype()));
  const Shape strides = row_major_strides(t.shape());
  for (std::int64_t i = 0; i < t.count(); ++i) {
    std::int64_t at = 0;
    for (std::size_t d = 0; d < strides.size(); ++d)
      at += i / strides[d] % t.shape()[d] * layout.strides[d];
    std::memcpy(out.mutable_data() + static_cast<std::size_t>(at) * size,
                t.data() + static_cast<std::size_t>(i) * size, size);
  }
  return out;
}

}  // namespace

Phases::Phases(const Request& request, int threads)
    : request_(request),
      threads_(threads),
      g_(*request.graph),
      cluster_(request.cluster),
      values_(g_),
      emitter_(g_, out_.kernel, request.target, values_) {
  const bool alone = request.target.is_gpu() && special_node(g_, cluster_);
  int lanes = alone ? 1 : lanes_for(g_, cluster_, request.target);
  for (const auto& [name, value] : request.tuning)
    if (name == "lanes" && value >= 1 && value < lanes) lanes = static_cast<int>(value);
  emitter_.set_lanes(lanes);
  for (const auto& [name, value] : request.tuning)
    if (name == "tasks") emitter_.want_tasks(std::max<std::int64_t>(0, value));
  emitter_.set_save(values_to_save(g_, cluster_, request.target));
}

Result<Lowered> Phases::run() {
  out_.kernel.name = "stitch";
  add_arguments();
  const auto special = special_node(g_, cluster_);
  if (special && element_count(g_[*special].type.shape) == 0) {
    start_phase();
    out_.kernel.body.push_back(
        kernel::loop(emitter_.fresh(0), 0, 0, kernel::Binding::grid, Body{}));
  } else if (special) {
    const prim::Op& op = g_[*special].op;
    if (std::holds_alternative<prim::Scan>(op)) emit_scan(*special);
    if (std::holds_alternative<prim::Sort>(op))
      request_.target.is_gpu() ? emit_sort_by_block(*special) : emit_sort(*special);
    if (std::holds_alternative<prim::Scatter>(op)) emit_scatter(*special);
  } else {
    const bool gpu = request_.target.is_gpu();
    if (gpu) keep_compared_sums();
    const std::vector<Group> all = groups();
    if (!gpu) pack_constants(all);
    for (Group group : all) {
      split_long_reductions(group);
      drop_done(group);
      if (!group.outputs.empty()) emit(group);
    }
  }
  finish();
  return std::move(out_);
}

/// Border cases split off, what is not used dropped: an input may be needed for its shape only.
void Phases::finish() {
  // Threads gain nothing from loops split at the borders.
  constexpr int kThreads = 128;
  out_.kernel = kernel::drop_unused_buffers(
      request_.target.is_gpu()
          ? gpu::with_threads(std::move(out_.kernel), threads_ ? threads_ : kThreads, threads_ > 0)
          : prefetch_rows(kernel::with_rows_side_by_side(kernel::partition_loops(out_.kernel)),
                          request_.target));
  std::vector<Argument> used;
  for (std::int32_t i = 0; i < out_.kernel.buffers.size(); ++i) {
    int& argument = out_.kernel.buffers[kernel::BufferId{i}].argument;
    if (argument < 0) continue;
    used.push_back(out_.arguments[static_cast<std::size_t>(argument)]);
    argument = static_cast<int>(used.size()) - 1;
  }
  out_.arguments = std::move(used);
}

void Phases::add_arguments() {
  kernel::Kernel& k = out_.kernel;
  add_inputs(request_, cluster_, k, out_, values_);
  for (NodeId node : cluster_.outputs) {
    layout_[node] = choose_layout(node);
    out_.output_layouts.push_back(layout_[node]);
    output_buffer_[node] = add_argument(g_, node, layout_[node], true, k, out_);
  }
}

Layout Phases::choose_layout(NodeId output) {
  if (request_.required_layout)
    if (auto required = request_.required_layout(output)) return *required;
  const Shape& shape = g_[output].type.shape;
  for (const auto& [node, layout] : layout_)
    if (g_[node].type.shape == shape) return ordered(shape, storage_order(layout, shape));
  if (shape.size() >= 3 && element_count(shape) > 0 && !special_node(g_, cluster_))
    if (auto followed = followed_layout(output)) return *followed;
  return row_major(shape);
}

/// Elements that one step along dimension `d` moves in the middle half of the positions: the stride
/// where the offset is affine, what it amounts to for reflections and resizing, and 1 where most
/// are neighbours (channels in blocks).
double Phases::usual_step(const Expr& offset, const std::vector<std::optional<Var>>& vars,
                          std::size_t d, const Shape& shape) const {
  const auto at = [&](std::int64_t position) {
    return ir::evaluate(ir::substitute(offset,
                                       [&](Var v) -> std::optional<Expr> {
                                         for (std::size_t i = 0; i < vars.size(); ++i)
                                           if (vars[i] == v)
                                             return Expr(i == d ? position : shape[i] / 2);
                                         return Expr(0);  // a reduction's term
                                       }),
                        {});
  };
  const std::int64_t low = shape[d] / 4, high = low + std::max<std::int64_t>(1, shape[d] / 2);
  if (vars[d] && !ir::coefficient_of(offset, *vars[d])) {
    constexpr std::int64_t kLooked = 64;
    const std::int64_t end = std::min(high, low + kLooked);
    std::int64_t next = 0;
    for (std::int64_t i = low; i < end; ++i) next += at(i + 1) - at(i) == 1;
    if (4 * next >= 3 * (end - low)) return 1;
  }
  return static_cast<double>(at(high) - at(low)) / static_cast<double>(high - low);
}

/// The order of dimensions in which the largest input is stored, if it decides all of them.
std::optional<Layout> Phases::followed_layout(NodeId output) {
  const Shape& shape = g_[output].type.shape;
  Index index;
  std::vector<std::optional<Var>> vars;
  for (std::int64_t extent : shape) {
    vars.push_back(extent == 1 ? std::nullopt : std::optional(emitter_.fresh(extent)));
    index.push_back(vars.back() ? Expr(*vars.back()) : Expr(0));
  }
  const auto touches = emitter_.touches_of(
      [&](Evaluator& values) { return std::vector<Value>{values.at(output, index)}; });
  Shape best;
  // Smaller inputs that decide every dimension are enlarged (resized), not repeated.
  std::int64_t size = element_count(shape) / 256;  // sixteen times as high and wide
  for (const Touch& t : touches) {
    if (t.kind != Touch::Kind::load || out_.kernel.buffers[t.buffer].size < size) continue;
    if (out_.kernel.buffers[t.buffer].size == size && !best.empty()) continue;
    Shape strides;
    for (std::size_t d = 0; d < shape.size(); ++d) {
      const double step = vars[d] ? usual_step(t.offset, vars, d, shape) : -1;
      if (step == 0 || (vars[d] && step < 0)) break;
      // Fractions of an element (a value read several times) still order the dimensions.
      strides.push_back(vars[d] ? static_cast<std::int64_t>(step * 256) : -1);
    }
    if (strides.size() != shape.size()) continue;
    size = out_.kernel.buffers[t.buffer].size;
    best = strides;
  }
  if (best.empty()) return std::nullopt;
  std::vector<int> order;
  for (std::size_t d = 0; d < shape.size(); ++d)
    if (best[d] >= 0) order.push_back(static_cast<int>(d));
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
    return best[static_cast<std::size_t>(a)] > best[static_cast<std::size_t>(b)];
  });
  // Extents of 1 take no room wherever they are.
  for (std::size_t d = 0; d < shape.size(); ++d)
    if (best[d] < 0) order.insert(order.begin(), static_cast<int>(d));
  return ordered(shape, order);
}

/// Rows stay with the loops that they are rows of.
void Phases::drop_done(Group& group) const {
  bool loops = false;  // other ones remain
  for (std::size_t i = 0; i < group.nodes.size(); ++i)
    loops = loops || (!done_.contains(group.nodes[i]) && !group.outputs[i].row);
  const bool all = std::all_of(group.nodes.begin(), group.nodes.end(),
                               [&](NodeId node) { return done_.contains(node); });
  if (!loops && !all) return;
  for (std::size_t i = group.nodes.size(); i-- > 0;)
    if (done_.contains(group.nodes[i])) {
      group.nodes.erase(group.nodes.begin() + static_cast<std::ptrdiff_t>(i));
      group.outputs.erase(group.outputs.begin() + static_cast<std::ptrdiff_t>(i));
    }
}

NestOutput Phases::output_of(NodeId node) const {
  std::vector<int> dimensions(g_[node].type.shape.size());
  std::iota(dimensions.begin(), dimensions.end(), 0);
  return {[node](Evaluator& values, const Index& index) { return values.at(node, index); },
          output_buffer_.at(node), layout_.at(node), std::move(dimensions), false};
}

/// Outputs of one shape share loops; those that are known once per row of a larger one are stored
/// there; the rest have loops of their own.
std::vector<Phases::Group> Phases::groups() {
  std::vector<NodeId> nodes = cluster_.outputs;
  std::stable_sort(nodes.begin(), nodes.end(), [&](NodeId a, NodeId b) {
    return element_count(g_[a].type.shape) > element_count(g_[b].type.shape);
  });
  std::vector<Group> out;
  for (NodeId node : nodes) {
    if (std::any_of(out.begin(), out.end(), [&](Group& group) { return join(group, node); }))
      continue;
    out.push_back({g_[node].type.shape, {node}, {output_of(node)}});
  }
  std::stable_sort(out.begin(), out.end(), [](const Group& a, const Group& b) {
    return *std::min_element(a.nodes.begin(), a.nodes.end()) <
           *std::min_element(b.nodes.begin(), b.nodes.end());
  });
  return out;
}

bool Phases::join(Group& group, NodeId node) {
  NestOutput o = output_of(node);
  if (g_[node].type.shape != group.shape) {
    const auto row = row_of(group, node);
    if (!row) return false;
    o.dimensions = *row;
    o.row = true;
  }
  group.nodes.push_back(node);
  group.outputs.push_back(std::move(o));
  return true;
}

/// The dimensions of the group's loops that `node` follows where it is used there; nullopt unless
/// each of its elements is used at one position of some of the loops.
std::optional<std::vector<int>> Phases::row_of(const Group& group, NodeId node) {
  if (std::none_of(group.nodes.begin(), group.nodes.end(),
                   [&](NodeId o) { return depends_on(g_, cluster_, o, node); }))
    return std::nullopt;
  Index position;
  for (std::int64_t extent : group.shape) position.push_back(Expr(emitter_.fresh(extent)));
  std::optional<std::vector<int>> found;
  const Shape& shape = g_[node].type.shape;
  Evaluator probe = values_.blank();
  probe.set_combine([&](const Reduction& r) {
    Index terms;
    for (std::int64_t extent : r.extents) terms.push_back(Expr(emitter_.fresh(extent)));
    probe.ranges() = values_.ranges();
    return element_count(r.extents)     ? r.term(probe, terms),
           identity_value(r.fn, r.type) : identity_value(r.fn, r.type);
  });
  probe.set_observer([&](NodeId id, const Index& index, const Value&) {
    if (id != node || found) return;
    std::vector<int> dimensions;
    std::vector<bool> used(position.size(), false);
    for (std::size_t d = 0; d < index.size(); ++d) {
      int at = shape[d] == 1 && index[d].is_constant(0) ? -1 : -2;
      for (std::size_t p = 0; p < position.size() && at == -2; ++p)
        if (!used[p] && index[d] == position[p] && group.shape[p] == shape[d]) {
          at = static_cast<int>(p);
          used[p] = true;
        }
      if (at == -2) return;
      dimensions.push_back(at);
    }
    found = dimensions;
  });
  for (NodeId o : group.nodes)
    if (g_[o].type.shape == group.shape) probe.at(o, position);
  return found;
}

/// Constants that would be read with a stride along the lanes are stored the other way round.
void Phases::pack_constants(const std::vector<Group>& groups) {
  for (std::size_t i = 0; i < out_.arguments.size(); ++i) {
    Argument& argument = out_.arguments[i];
    const Tensor* t = g_.constant_of(argument.node);
    if (!t || t->shape().size() < 2) continue;
    const kernel::BufferId buffer{static_cast<std::int32_t>(i)};
    const Layout old = row_major(t->shape());
    for (const Group& group : groups) {
      const Nest nest(emitter_, group.outputs, group.domain());
      for (const auto& [read, stride] : nest.strided_reads()) {
        if (read != buffer || argument.kind == Argument::Kind::packed) continue;
        const auto at = std::find(old.strides.begin(), old.strides.end(), stride);
        if (at == old.strides.end()) continue;
        std::vector<int> order(old.strides.size());
        std::iota(order.begin(), order.end(), 0);
        std::rotate(order.begin() + (at - old.strides.begin()),
                    order.begin() + (at - old.strides.begin()) + 1, order.end());
        const Layout layout = ordered(t->shape(), order);
        argument = {Argument::Kind::packed, argument.node,
                    rearranged(*t, layout, request_.contents)};
        values_.place(argument.node, buffer, layout);
      }
    }
  }
}

void Phases::start_phase() {
  if (!out_.kernel.body.empty()) out_.kernel.body.push_back({kernel::Barrier{Scope::grid}});
}

/// One grid loop: the tasks of each nest in turn.
template <class AnyNest>
void Phases::emit_phase(std::vector<AnyNest> nests) {
  start_phase();
  std::int64_t total = 0;
  for (const AnyNest& n : nests) total += n.tasks();
  const Var task = emitter_.fresh(total);
  Body body;
  std::int64_t start = 0;
  for (AnyNest& n : nests) {
    if (n.tasks() == 0) continue;
    const std::int64_t end = start + n.tasks();
    values_.ranges()[static_cast<std::size_t>(task.index)] = ir::Interval{start, end - 1};
    Body part = n.emit(Expr(task) - Expr(start), task);
    if (n.tasks() == total)
      body = std::move(part);
    else
      body.push_back(kernel::when({{Expr(task), start, end}}, std::move(part)));
    start = end;
    if (!out_.schedule.empty()) out_.schedule += "; ";
    out_.schedule += n.describe();
  }
  out_.kernel.body.push_back(kernel::loop(task, 0, total, kernel::Binding::grid, std::move(body)));
}

/// Rows that do not follow a dimension in which the domain is cut are stored by the first box.
std::vector<NestOutput> Phases::outputs_in(const Group& group, const Domain& box) {
  std::vector<NestOutput> out = group.outputs;
  std::erase_if(out, [&](const NestOutput& o) {
    for (std::size_t d = 0; o.row && d < box.begin.size(); ++d)
      if (box.begin[d] > 0 && std::ranges::count(o.dimensions, static_cast<int>(d)) == 0)
        return true;
    return false;
  });
  return out;
}

void Phases::emit(const Group& group) {
  std::vector<Domain> boxes = Nest::boxes(emitter_, group.outputs, group.domain());
  if (request_.target.is_gpu()) {
    constexpr int kThreads = 256;
    // The same in all parts of a phase.
    const int threads = threads_ == 0 && boxes.size() > 1 ? kThreads : threads_;
    std::vector<gpu::ThreadNest> nests;
    for (const Domain& box : boxes)
      nests.emplace_back(emitter_, outputs_in(group, box), box, threads);
    emit_phase(std::move(nests));
  } else {
    std::vector<Nest> nests;
    for (const Domain& box : boxes) {
      const Nest whole(emitter_, outputs_in(group, box), box);
      for (Nest& part : whole.parts(outputs_in(group, box))) nests.push_back(std::move(part));
    }
    emit_phase(std::move(nests));
  }
  // Later phases read what earlier ones have stored.
  for (NodeId node : group.nodes)
    if (output_buffer_.contains(node))
      values_.place(node, output_buffer_.at(node), layout_.at(node));
}

}  // namespace heddle::lower::stitch

// Primitives with loops of their own: running combinations, sorting, data-dependent stores.
#include "lower/reduction.h"
#include "lower/stitch/phases.h"

namespace heddle::lower::stitch {

using kernel::Binding;
using kernel::Body;
using kernel::Scope;
using kernel::Store;

namespace {

/// The coordinates of row number `row`, all dimensions but `axis`; `axis` is at `at`.
Index row_index(const Shape& shape, std::size_t axis, const Expr& row, const Expr& at) {
  Index index(shape.size(), Expr(0));
  Expr rest = row;
  for (std::size_t d = shape.size(); d-- > 0;) {
    if (d == axis) {
      index[d] = at;
      continue;
    }
    index[d] = ir::floor_mod(rest, shape[d]);
    rest = ir::floor_div(rest, shape[d]);
  }
  return index;
}

std::int64_t rows_of(const Shape& shape, std::size_t axis) {
  std::int64_t rows = 1;
  for (std::size_t d = 0; d < shape.size(); ++d)
    if (d != axis) rows *= shape[d];
  return rows;
}

}  // namespace

/// One task per row and one position after the other along the axis; the carried value in a
/// register.
void Phases::emit_scan(NodeId id) {
  const auto& op = std::get<prim::Scan>(g_[id].op);
  const Shape& shape = g_[id].type.shape;
  const auto axis = static_cast<std::size_t>(op.axis);
  const DType type = compute_type(g_[id].type.dtype);
  const std::int64_t length = shape[axis];
  const std::int64_t rows = length == 0 ? 0 : rows_of(shape, axis);
  // Neighbouring rows run along the lanes where the scan itself does not.
  const bool laned = axis + 1 < shape.size() && emitter_.lanes() > 1 && rows > 1;
  const std::int64_t inner = laned ? shape.back() : 1;
  const Var task = emitter_.fresh(inner == 0 ? 0 : rows / inner);
  emitter_.begin_task({task});
  const int width = emitter_.lanes();
  const auto row_of_positions = [&](const Expr& lane_position) {
    const kernel::BufferId carry = out_.kernel.add_buffer(
        {"carry", type, laned ? width : 1, Scope::lane, -1, false, laned ? width : 1});
    const Lanes* l = emitter_.current_lanes();
    const Expr place = l ? l->place(width) : Expr(0);
    emitter_.store({Store{carry, place, identity_value(op.fn, type), {}}});
    const std::optional<Var> step =
        length > 1 ? std::optional(emitter_.open(length)) : std::nullopt;
    Expr at = step ? Expr(*step) : Expr(0);
    if (op.reverse) at = Expr(length - 1) - at;
    Expr row(task);
    if (laned) row = row * Expr(inner) + lane_position;
    Index index = row_index(shape, axis, row, at);
    for (Expr& e : index) e = values_.simplified(e);
    const Value before = kernel::load(carry, place, type);
    const Value next =
        kernel::apply(ir::combiner(op.fn), {before, values_.at(g_[id].args[0], index)}, type);
    const Expr offset = values_.simplified(offset_in(layout_.at(id), index));
    emitter_.store({Store{output_buffer_.at(id), offset, op.exclusive ? before : next, {}},
                    Store{carry, place, next, {}}});
    if (step) emitter_.close(*step, length);
  };
  if (!laned) {
    row_of_positions(0);
  } else {
    const std::int64_t whole = inner / width, tail = inner % width;
    if (whole > 0) {
      const std::optional<Var> block =
          whole > 1 ? std::optional(emitter_.open(whole)) : std::nullopt;
      const Lanes* l = emitter_.enter_lanes(width, 1);
      row_of_positions((block ? Expr(*block) * Expr(width) : Expr(0)) + l->place(width));
      emitter_.leave_lanes();
      if (block) emitter_.close(*block, whole);
    }
    if (tail > 0) {
      const Lanes* l = emitter_.enter_lanes(static_cast<int>(tail), 1);
      row_of_positions(Expr(whole * width) + l->place(width));
      emitter_.leave_lanes();
    }
  }
  start_phase();
  out_.kernel.body.push_back(
      kernel::loop(task, 0, inner == 0 ? 0 : rows / inner, Binding::grid, emitter_.end_task()));
  out_.schedule = fmt::format("scan rows={}", rows);
}

/// One task per row: keys to scratch, the run-time routine, positions to the output.
///   heddle_sort(keys, positions, n, count, descending, type): sorts 0..n-1 stably by keys (a NaN
///   is the largest); `positions` (i64) has room for n, its first `count` elements are the result;
///   keys are of DType number `type` and may be overwritten.
void Phases::emit_sort(NodeId id) {
  const auto& op = std::get<prim::Sort>(g_[id].op);
  const NodeId arg = g_[id].args[0];
  const Shape& in = g_[arg].type.shape;
  const auto axis = static_cast<std::size_t>(op.axis);
  const DType type = compute_type(g_[arg].type.dtype);
  const std::int64_t length = in[axis];
  const std::int64_t rows = op.count == 0 || length == 0 ? 0 : rows_of(in, axis);
  const Var task = emitter_.fresh(rows);
  const auto keys = out_.kernel.add_buffer({"keys", type, length, Scope::block, -1, false, 1});
  const auto order =
      out_.kernel.add_buffer({"order", DType::i64, length, Scope::block, -1, false, 1});
  emitter_.begin_task({task});
  const auto each = [&](std::int64_t extent, const std::function<Store(const Expr&)>& make) {
    const std::optional<Var> loop =
        extent > 1 ? std::optional(emitter_.open(extent)) : std::nullopt;
    const Expr at = loop ? Expr(*loop) : Expr(0);
    emitter_.store({make(at)});
    if (loop) emitter_.close(*loop, extent);
  };
  each(length, [&](const Expr& at) {
    Index index = row_index(in, axis, Expr(task), at);
    for (Expr& e : index) e = values_.simplified(e);
    return Store{keys, at, values_.at(arg, index), {}};
  });
  emitter_.statement({kernel::Routine{
      "heddle_sort",
      {keys, order},
      {Expr(length), Expr(op.count), Expr(op.descending ? 1 : 0), Expr(static_cast<int>(type))}}});
  each(op.count, [&](const Expr& at) {
    Index index = row_index(in, axis, Expr(task), at);
    for (Expr& e : index) e = values_.simplified(e);
    return Store{output_buffer_.at(id),
                 values_.simplified(offset_in(layout_.at(id), index)),
                 kernel::load(order, at, DType::i64),
                 {}};
  });
  start_phase();
  out_.kernel.body.push_back(kernel::loop(task, 0, rows, Binding::grid, emitter_.end_task()));
  out_.schedule = fmt::format("sort rows={}", rows);
}

/// The same by a block of threads per row: the routine's last integer is where the row starts in
/// both buffers, which are shared by all rows if a block's own memory is too small.
void Phases::emit_sort_by_block(NodeId id) {
  constexpr int kThreads = 256;
  const auto& op = std::get<prim::Sort>(g_[id].op);
  const NodeId arg = g_[id].args[0];
  const Shape& in = g_[arg].type.shape;
  const auto axis = static_cast<std::size_t>(op.axis);
  const DType type = compute_type(g_[arg].type.dtype);
  const std::int64_t length = in[axis];
  const std::int64_t rows = op.count == 0 || length == 0 ? 0 : rows_of(in, axis);
  const bool fits = length * (size_of(type) + 8) <= request_.target.shared_bytes / 2;
  const Scope scope = fits ? Scope::block : Scope::grid;
  const std::int64_t size = fits ? length : length * rows;
  const auto keys = out_.kernel.add_buffer({"keys", type, size, scope, -1, !fits, 1});
  const auto order = out_.kernel.add_buffer({"order", DType::i64, size, scope, -1, !fits, 1});
  const Var task = emitter_.fresh(rows), member = emitter_.fresh(kThreads),
            point = emitter_.fresh(1);
  emitter_.begin_task({task, member, point});
  emitter_.set_team({member, kThreads, 1, point, 1, {}, nullptr});
  const Expr start = fits ? Expr(0) : Expr(task) * Expr(length);
  const auto index_at = [&](const Expr& at) {
    Index index = row_index(in, axis, Expr(task), at);
    for (Expr& e : index) e = values_.simplified(e);
    return index;
  };
  emitter_.deal(length, [&](const Expr& at) {
    emitter_.store({Store{keys, start + at, values_.at(arg, index_at(at)), {}}});
  });
  emitter_.statement({kernel::Routine{"heddle_sort",
                                      {keys, order},
                                      {Expr(length), Expr(op.count), Expr(op.descending ? 1 : 0),
                                       Expr(static_cast<int>(type)), start}}});
  emitter_.deal(op.count, [&](const Expr& at) {
    emitter_.store({Store{output_buffer_.at(id),
                          values_.simplified(offset_in(layout_.at(id), index_at(at))),
                          kernel::load(order, start + at, DType::i64),
                          {}}});
  });
  start_phase();
  Body body{kernel::loop(member, 0, kThreads, Binding::thread, emitter_.end_task())};
  out_.kernel.body.push_back(kernel::loop(task, 0, rows, Binding::grid, std::move(body)));
  out_.schedule = fmt::format("sort blocks={} threads={}", rows, kThreads);
}

/// Dimensions of the updates along which no two reach the same element: each is a coordinate of its
/// own of the result, whatever the indices say.
std::vector<bool> Phases::apart(const prim::Scatter& op, const Shape& updates) {
  Index at;
  std::vector<Var> vars;
  for (std::int64_t extent : updates) {
    vars.push_back(emitter_.fresh(extent));
    at.push_back(Expr(vars.back()));
  }
  std::vector<bool> out(updates.size(), false);
  for (std::size_t d = 0; d < op.base.size(); ++d) {
    if (std::find(op.axes.begin(), op.axes.end(), static_cast<int>(d)) != op.axes.end()) continue;
    const Expr base = values_.simplified(ir::substitute(op.base[d], at));
    std::vector<Var> used;
    ir::collect_variables(base, used);
    if (used.size() != 1 || ir::coefficient_of(base, used[0]).value_or(0) == 0) continue;
    for (std::size_t u = 0; u < vars.size(); ++u) out[u] = out[u] || vars[u] == used[0];
  }
  return out;
}

/// A copy, then the updates one after another: later ones win. On a GPU a thread for each position
/// of the dimensions that keep them apart, else one task.
void Phases::emit_scatter(NodeId id) {
  const auto& op = std::get<prim::Scatter>(g_[id].op);
  const prim::Node& node = g_[id];
  Group copy{node.type.shape, {id}, {output_of(id)}};
  copy.outputs[0].value = [arg = node.args[0]](Evaluator& values, const Index& index) {
    return values.at(arg, index);
  };
  emit(copy);
  const Shape& updates = g_[node.args[1]].type.shape;
  if (element_count(updates) == 0 || element_count(node.type.shape) == 0) return;
  std::vector<bool> own = apart(op, updates);
  if (!request_.target.is_gpu()) {
    if (!own.empty() && own.back() && updates.back() >= emitter_.lanes())
      return update_rows(id, updates);
    own.assign(updates.size(), false);
  }
  Shape dealt;
  for (std::size_t u = 0; u < updates.size(); ++u)
    if (own[u] && updates[u] > 1) dealt.push_back(updates[u]);
  const std::int64_t tasks = element_count(dealt);
  const Var task = emitter_.fresh(tasks);
  emitter_.begin_task({task});
  emitter_.decode(dealt.empty() ? Expr(0) : Expr(task), dealt, [&](const Index& position) {
    std::vector<std::pair<Var, std::int64_t>> loops;
    Index at;
    std::size_t next = 0;
    for (std::size_t u = 0; u < updates.size(); ++u) {
      if (updates[u] == 1) {
        at.push_back(Expr(0));
      } else if (own[u]) {
        at.push_back(position[next++]);
      } else {
        loops.emplace_back(emitter_.open(updates[u]), updates[u]);
        at.push_back(Expr(loops.back().first));
      }
    }
    update(id, at);
    for (std::size_t i = loops.size(); i-- > 0;) emitter_.close(loops[i].first, loops[i].second);
  });
  start_phase();
  out_.kernel.body.push_back(kernel::loop(task, 0, tasks, Binding::grid, emitter_.end_task()));
  out_.schedule += "; updates in order";
  if (tasks > 1) out_.schedule += fmt::format(" at {} positions", tasks);
}

/// Updates of whole rows, which no two share an element along: vectors, a task for each part of the
/// row.
void Phases::update_rows(NodeId id, const Shape& updates) {
  const int width = emitter_.lanes();
  const std::int64_t whole = updates.back() / width, tail = updates.back() % width;
  const std::int64_t tasks = tail != 0 ? 1 : whole % 4 == 0 ? 4 : whole % 2 == 0 ? 2 : 1;
  const Var task = emitter_.fresh(tasks);
  emitter_.begin_task({task});
  Index at;
  std::vector<std::pair<Var, std::int64_t>> loops;
  for (std::size_t u = 0; u + 1 < updates.size(); ++u) {
    loops.emplace_back(emitter_.open(updates[u]), updates[u]);
    at.push_back(Expr(loops.back().first));
  }
  const Var block = emitter_.open(whole / tasks);
  at.push_back((Expr(task) * Expr(whole / tasks) + Expr(block)) * Expr(width) +
               emitter_.enter_lanes(width, 1)->place(width));
  update(id, at);
  emitter_.leave_lanes();
  emitter_.close(block, whole / tasks);
  if (tail > 0) {
    at.back() = Expr(whole * width) + emitter_.enter_lanes(static_cast<int>(tail), 1)->place(width);
    update(id, at);
    emitter_.leave_lanes();
  }
  for (std::size_t i = loops.size(); i-- > 0;) emitter_.close(loops[i].first, loops[i].second);
  start_phase();
  out_.kernel.body.push_back(kernel::loop(task, 0, tasks, Binding::grid, emitter_.end_task()));
  out_.schedule += fmt::format("; updates in order, rows in {} parts", tasks);
}

/// Stores the update at position `at`.
void Phases::update(NodeId id, const Index& at) {
  const auto& op = std::get<prim::Scatter>(g_[id].op);
  const prim::Node& node = g_[id];
  std::vector<Value> moving(node.type.shape.size());
  for (std::size_t j = 0; j < op.axes.size(); ++j) {
    const auto axis = static_cast<std::size_t>(op.axes[j]);
    Value i = cast_to(values_.at(node.args[2 + j], at), DType::i64);
    moving[axis] =
        moving[axis] ? kernel::apply(ir::ScalarFn::add, {moving[axis], i}, DType::i64) : i;
  }
  const Layout& layout = layout_.at(id);
  Expr offset(0);
  std::vector<kernel::Load::Dynamic> dynamic;
  for (std::size_t d = 0; d < moving.size(); ++d) {
    const Expr base = values_.simplified(ir::substitute(op.base[d], at));
    if (!moving[d]) {
      offset = offset + base * layout.strides[d];
      continue;
    }
    if (!base.is_constant(0))
      moving[d] = kernel::apply(ir::ScalarFn::add, {index_value(base), moving[d]}, DType::i64);
    dynamic.push_back({moving[d], node.type.shape[d], layout.strides[d]});
  }
  offset = values_.simplified(offset);
  const DType type = compute_type(node.type.dtype);
  Value value = values_.at(node.args[1], at);
  using Combine = prim::Scatter::Combine;
  if (op.combine != Combine::assign) {
    const ir::ScalarFn fn = op.combine == Combine::add   ? ir::ScalarFn::add
                            : op.combine == Combine::mul ? ir::ScalarFn::mul
                            : op.combine == Combine::max ? ir::ScalarFn::max
                                                         : ir::ScalarFn::min;
    Value old = std::make_shared<const kernel::ValueNode>(
        kernel::ValueNode{kernel::Load{output_buffer_.at(id), offset, dynamic}, type});
    value = kernel::apply(fn, {old, value}, type);
  }
  emitter_.store({Store{output_buffer_.at(id), offset, value, dynamic}});
}

}  // namespace heddle::lower::stitch

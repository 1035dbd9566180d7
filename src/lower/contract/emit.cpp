#include "lower/contract/emit.h"

#include "kernel/traverse.h"

namespace heddle::lower::contract {

using ir::Expr;
using ir::Var;
using kernel::Binding;
using kernel::Body;
using kernel::Scope;
using kernel::Value;

Emitter::Emitter(Product& product, const Schedule& schedule)
    : p_(product),
      k_(product.kernel),
      s_(schedule),
      lanes_(product.request.target.lanes(product.problem.type)),
      element_(product.problem.element()) {
  for (const KLoop& loop : p_.k) k_axes_.insert(k_axes_.end(), loop.axes.begin(), loop.axes.end());
  for (const Axis& axis : p_.outer)
    if (axis.role != Role::m) b_batch_.push_back(axis);
  panel_size_ = p_.extents.k * s_.nv * lanes_;
  if (s_.winograd > 0) winograd_ = winograd_of(p_, lanes_);
  if (s_.strassen) strassen_ = strassen_of(p_, lanes_);
  if (s_.pieces) pieces_ = pieces_of(p_, s_.a);
  if (winograd_)
    terms_ = *winograd_terms(*p_.request.graph, p_.problem, p_.request.target, s_.winograd);
}

Value Emitter::at(const Value& v, const Env& env) const {
  return kernel::substitute(v, [&](Var x) {
    const auto i = static_cast<std::size_t>(x.index);
    return i < env.size() ? env[i] : std::nullopt;
  });
}

Expr Emitter::at(const Expr& e, const Env& env) const {
  return ir::substitute(e, [&](Var x) {
    const auto i = static_cast<std::size_t>(x.index);
    return i < env.size() ? env[i] : std::nullopt;
  });
}

void Emitter::set(Env& env, Var v, Expr e) {
  const auto i = static_cast<std::size_t>(v.index);
  if (env.size() <= i) env.resize(i + 1);
  env[i] = std::move(e);
}

/// Position in the row-major order of axes.
Expr Emitter::linear(const std::vector<Axis>& axes, const Env& env) const {
  Expr out(0);
  for (const Axis& axis : axes) out = out * Expr(axis.extent) + at(Expr(axis.var), env);
  return out;
}

kernel::BufferId Emitter::scratch(std::string name, std::int64_t size, Scope scope, int lanes,
                                  std::optional<DType> type) {
  kernel::Buffer buffer;
  buffer.name = std::move(name);
  buffer.dtype = type.value_or(p_.problem.type);
  buffer.size = size;
  buffer.scope = scope;
  buffer.lanes = lanes;
  return k_.add_buffer(std::move(buffer));
}

/// The type of values that a buffer is given.
DType Emitter::stored_as(kernel::BufferId buffer) const {
  return compute_type(k_.buffers[buffer].dtype);
}

/// What a buffer has at an offset, in the type of the products.
Value Emitter::operand_at(kernel::BufferId buffer, const Expr& offset) const {
  return cast_to(kernel::load(buffer, offset, stored_as(buffer)), p_.problem.type);
}

/// Row of the row axis at which the task starts, and place of its first tile.
Expr Emitter::first_row() const {
  Env zero;
  set(zero, row_loop_, 0);
  return at(row_, zero);
}
Expr Emitter::first_tile_row() const {
  if (s_.tile_blocks() == 1) return Expr(0);
  if (winograd_) return column_;
  Env zero;
  set(zero, tile_loop_, 0);
  return at(tile_, zero) * Expr(s_.mr);
}

/// The batch and outer axes of independent product number `outer`.
void Emitter::decode(const Expr& outer, Env& env) const {
  std::int64_t below = 1;
  for (std::size_t i = p_.outer.size(); i-- > 0;) {
    const Axis& axis = p_.outer[i];
    Expr value = ir::floor_div(outer, below);
    if (i > 0) value = ir::floor_mod(value, axis.extent);
    set(env, axis.var, value);
    below *= axis.extent;
  }
}

/// Tiles and panels come in at most two shapes each; conditions choose the one that applies.
std::vector<Emitter::Variant> Emitter::variants() const {
  const std::int64_t width = s_.nv * lanes_;
  const std::int64_t n = strassen_ ? strassen_->columns * lanes_ : p_.extents.n;
  const std::int64_t full = n / width, rest = n - full * width;
  struct Side {
    std::int64_t nv, tail;
    ir::Condition when;
  };
  std::vector<Side> sides;
  if (full > 0) sides.push_back({s_.nv, 0, {panel_, 0, full}});
  if (rest > 0)
    sides.push_back({(rest + lanes_ - 1) / lanes_, rest % lanes_, {panel_, full, full + 1}});
  std::vector<Variant> out;
  for (const Side& side : sides) {
    std::vector<ir::Condition> when{side.when};
    if (p_.row) when.push_back({row_, 0, p_.extents.rows});
    if (s_.big > 0) {
      auto big = when;
      big.push_back({tile_, 0, s_.big});
      out.push_back({s_.mr, side.nv, side.tail, tile_ * Expr(s_.mr), big});
    }
    if (s_.small > 0) {
      auto small = when;
      small.push_back({tile_, s_.big, s_.tiles()});
      out.push_back({s_.mr - 1, side.nv, side.tail, tile_ * Expr(s_.mr - 1) + Expr(s_.big), small});
    }
  }
  return out;
}

/// The copies of a task with their loops cut where conditions change (padding, pieces of a
/// concatenation), so that no element is tested.
Body Emitter::without_tests(Body copies) {
  if (copies.empty()) return copies;
  kernel::Kernel alone{k_.name, k_.buffers, k_.variables, {}};
  const std::int64_t tasks = s_.tasks(p_.extents);
  alone.body = {kernel::loop(task_, 0, tasks, Binding::grid, std::move(copies))};
  alone = kernel::partition_loops(alone);
  k_.variables = alone.variables;
  return *std::get<kernel::For>(alone.body[0].op).body;
}

Body Emitter::task_body() {
  Body body;
  if (!pieces_ || direct_)
    copy_a(body);
  else if (s_.depth == 1)
    copy_rows_of_pieces(body);
  if (s_.b == BSource::task && !pieces_) {
    const Var p = k_.new_var();
    Body copy;
    Env env;
    set(env, panel_loop_, Expr(p));
    copy_panel(at(panel_, env), Expr(p) * Expr(panel_size_), copy);
    body.push_back(kernel::loop(p, 0, s_.panels_per_task, Binding::serial, std::move(copy)));
  }
  body = without_tests(std::move(body));
  if (s_.depth > 1) body = pieces_by_depth();
  const Body before = s_.slices > 1 ? slices_before() : Body{};
  Body tiles;
  if (overlap_ || (s_.beside && !direct_))
    tiles = turn();
  else
    for (const Variant& v : variants()) tiles.push_back(kernel::when(v.when, tile(v)));
  if (s_.beside)
    tiles = {kernel::loop(panel_loop_, 0, s_.panels_per_task, Binding::serial, std::move(tiles))};
  Body rows{kernel::loop(tile_loop_, 0, s_.tiles_per_task, Binding::serial, std::move(tiles))};
  if (p_.row)
    rows = {kernel::loop(row_loop_, 0, s_.rows_per_task, Binding::serial, std::move(rows))};
  rows.insert(rows.begin(), before.begin(), before.end());
  if (s_.b == BSource::task && pieces_) {
    // One panel at a time, which stays near until its tiles are done.
    Body copy;
    copy_panel(panel_, Expr(0), copy);
    rows.insert(rows.begin(), std::make_move_iterator(copy.begin()),
                std::make_move_iterator(copy.end()));
  }
  if (!s_.beside)
    rows = {kernel::loop(panel_loop_, 0, s_.panels_per_task, Binding::serial, std::move(rows))};
  for (kernel::Stmt& s : zero_sums()) body.push_back(std::move(s));
  for (kernel::Stmt& s : rows) body.push_back(std::move(s));
  if (overlap_)
    for (kernel::Stmt& s : results_of_turn(Expr(turns() - 1), std::nullopt))
      body.push_back(std::move(s));
  for (kernel::Stmt& s : store_sums()) body.push_back(std::move(s));
  return body;
}

Lowered Emitter::run() {
  task_ = k_.new_var();
  panel_loop_ = k_.new_var();
  row_loop_ = k_.new_var();
  tile_loop_ = k_.new_var();
  const Expr task(task_);
  const std::int64_t qn = s_.panel_blocks(), row_blocks = s_.row_blocks(p_.extents),
                     tile_blocks = s_.tile_blocks();
  const Expr m_block = ir::floor_mod(ir::floor_div(task, qn), row_blocks * tile_blocks);
  outer_ = ir::floor_div(task, qn * row_blocks * tile_blocks);
  decode(outer_, env_);
  panel_ = ir::floor_mod(task, qn) * Expr(s_.panels_per_task) + Expr(panel_loop_);
  row_ = p_.row ? m_block * Expr(s_.rows_per_task) + Expr(row_loop_) : Expr(0);
  if (winograd_) {
    row_ = ir::floor_div(m_block, tile_blocks) * Expr(s_.rows_per_task);
    column_ = ir::floor_mod(m_block, tile_blocks) * Expr(winograd_across() * s_.winograd);
  }
  tile_ = p_.row ? Expr(tile_loop_) : m_block * Expr(s_.tiles_per_task) + Expr(tile_loop_);
  if (p_.row) set(env_, p_.row->var, row_);

  plan_sums();
  if (pieces_) {
    plan_pieces();
  } else {
    plan_a();
    winograd_ ? plan_winograd() : strassen_ ? plan_strassen() : s_.dots ? plan_dots() : plan_b();
  }
  Lowered out;
  Body kernel_body;
  if (auto phase = packing_phase()) {
    kernel_body.push_back(*phase);
    kernel_body.push_back({kernel::Barrier{Scope::grid}});
  }
  Body tasks = winograd_ ? winograd_body() : strassen_ ? strassen_body() : task_body();
  kernel_body.push_back(
      kernel::loop(task_, 0, s_.tasks(p_.extents), Binding::grid, std::move(tasks)));
  const auto then = [&](kernel::Stmt phase) {
    kernel_body.push_back({kernel::Barrier{Scope::grid}});
    kernel_body.push_back(std::move(phase));
  };
  if (!sums_.empty()) then(add_sums());
  if (!row_sums_.empty()) then(add_row_sums());
  k_.body = std::move(kernel_body);
  k_.name = fmt::format("contract_{}", p_.problem.contract.value);

  // Arguments: the buffers that are used, in order of their creation.
  const std::vector<bool> used = kernel::used_buffers(k_);
  const auto argument = [&](kernel::BufferId buffer, Argument a) {
    if (!used[static_cast<std::size_t>(buffer.value)]) return;
    k_.buffers[buffer].argument = static_cast<int>(out.arguments.size());
    out.arguments.push_back(std::move(a));
  };
  for (const Values::Input& in : p_.values.inputs())
    argument(in.buffer, {Argument::Kind::value, in.node, {}});
  if (s_.b == BSource::constant)
    argument(b_buffer_, {Argument::Kind::packed, p_.problem.b,
                         winograd_   ? pack_winograd()
                         : strassen_ ? pack_strassen()
                         : pieces_   ? pack_pieces()
                                     : pack_constant()});
  out.output_layouts.resize(p_.outputs.size());
  for (const Output& o : p_.outputs) {
    argument(o.buffer, {Argument::Kind::value, o.node, {}});
    out.output_layouts[o.position] = o.layout;
  }
  out.kernel = kernel::simplify(kernel::drop_unused_buffers(k_));
  out.schedule = to_string(s_);
  return out;
}

}  // namespace heddle::lower::contract

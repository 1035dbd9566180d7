// Sums of what a product makes, in its epilogue (EVT's reductions: bias and norm gradients over the
// rows, statistics of norms along them). Parts are those of tasks and of panels, so results do not
// depend on the threads.
#include "lower/contract/emit.h"

namespace heddle::lower::contract {

using ir::Expr;
using ir::ScalarFn;
using ir::Var;
using kernel::Binding;
using kernel::Body;
using kernel::BufferId;
using kernel::Scope;
using kernel::Value;

void Emitter::plan_sums() {
  const std::int64_t width = s_.nv * lanes_, blocks = s_.tasks(p_.extents) / s_.panel_blocks();
  for (std::size_t i = 0; i < p_.outputs.size(); ++i) {
    if (!p_.outputs[i].sum) continue;
    const DType type = p_.outputs[i].value->dtype;
    if (p_.problem.along_rows(*p_.outputs[i].sum))
      row_sums_.push_back({i, scratch("sum", lanes_, Scope::lane, lanes_, type),
                           scratch("parts", s_.panels * row_count(), Scope::grid, 1, type)});
    else
      sums_.push_back({i, scratch("sums", s_.panels_per_task * width, Scope::block, 1, type),
                       scratch("parts", blocks * s_.panels * width, Scope::grid, 1, type)});
  }
  for (const auto* sums : {&sums_, &row_sums_})
    for (const Sum& sum : *sums) k_.buffers[sum.parts].written = true;
}

namespace {

Value sum_of(std::vector<Value> terms) {
  while (terms.size() > 1) {  // a tree: its depth is the latency
    std::vector<Value> next;
    for (std::size_t i = 0; i + 1 < terms.size(); i += 2)
      next.push_back(kernel::apply(ScalarFn::add, {terms[i], terms[i + 1]}, terms[i]->dtype));
    if (terms.size() % 2) next.push_back(terms.back());
    terms = std::move(next);
  }
  return terms[0];
}

}  // namespace

/// One element more of each lane's sum, at `place` of the buffer.
kernel::Stmt Emitter::add_to(BufferId buffer, const Expr& place, const Value& value) const {
  const Value sum = kernel::load(buffer, place, value->dtype);
  return kernel::store(buffer, place, kernel::apply(ScalarFn::add, {sum, value}, value->dtype));
}

std::vector<Axis> Emitter::row_axes() const {
  std::vector<Axis> axes = p_.outer;
  for (const auto& axis : {p_.row, p_.tile})
    if (axis) axes.push_back(*axis);
  return axes;
}

std::int64_t Emitter::row_count() const {
  std::int64_t count = 1;
  for (const Axis& axis : row_axes()) count *= axis.extent;
  return count;
}

Body Emitter::zero_row_sums() {
  Body out;
  for (const Sum& sum : row_sums_) {
    const Var l = k_.new_var();
    const DType type = p_.outputs[sum.output].value->dtype;
    out.push_back(kernel::loop(l, 0, lanes_, Binding::vector,
                               {kernel::store(sum.task, Expr(l), kernel::imm(type, 0))}));
  }
  return out;
}

/// The sums of one panel of a row: `env` says of which.
Body Emitter::store_row_sums(const Env& env) {
  Body out;
  Expr row(0);
  for (const Axis& axis : row_axes()) row = row * Expr(axis.extent) + at(Expr(axis.var), env);
  for (const Sum& sum : row_sums_) {
    std::vector<Value> lanes;
    for (int l = 0; l < lanes_; ++l)
      lanes.push_back(kernel::load(sum.task, Expr(l), p_.outputs[sum.output].value->dtype));
    out.push_back(
        kernel::store(sum.parts, panel_ * Expr(row_count()) + row, sum_of(std::move(lanes))));
  }
  return out;
}

/// A task for each vector of rows.
kernel::Stmt Emitter::add_row_sums() {
  const std::int64_t rows = row_count(), whole = rows / lanes_, rest = rows % lanes_;
  const std::vector<Axis> axes = row_axes();
  const Var task = k_.new_var();
  const auto vector = [&](const Sum& sum, int count) {
    const Output& o = p_.outputs[sum.output];
    const DType type = o.value->dtype;
    const BufferId acc = scratch("whole", lanes_, Scope::lane, lanes_, type);
    const Var b = k_.new_var(), l = k_.new_var(), z = k_.new_var(), lane = k_.new_var();
    const Expr first = Expr(task) * Expr(lanes_);
    const Value part = kernel::load(sum.parts, Expr(b) * Expr(rows) + first + Expr(l), type);
    Body more{kernel::loop(l, 0, count, Binding::vector, {add_to(acc, Expr(l), part)})};
    Env env;
    Expr row = first + Expr(lane);
    for (std::size_t i = axes.size(); i-- > 0; row = ir::floor_div(row, axes[i].extent))
      set(env, axes[i].var, i > 0 ? ir::floor_mod(row, axes[i].extent) : row);
    const Value total = kernel::load(acc, Expr(lane), type);
    return Body{kernel::loop(z, 0, lanes_, Binding::vector,
                             {kernel::store(acc, Expr(z), kernel::imm(type, 0))}),
                kernel::loop(b, 0, s_.panels, Binding::serial, std::move(more)),
                kernel::loop(lane, 0, count, Binding::unroll,
                             {kernel::store(o.buffer, at(o.offset, env), total)})};
  };
  Body body;
  for (const Sum& sum : row_sums_) {
    if (whole > 0) body.push_back(kernel::when({{Expr(task), 0, whole}}, vector(sum, lanes_)));
    if (rest > 0)
      body.push_back(
          kernel::when({{Expr(task), whole, whole + 1}}, vector(sum, static_cast<int>(rest))));
  }
  return kernel::loop(task, 0, (rows + lanes_ - 1) / lanes_, Binding::grid, std::move(body));
}

/// Place in the task's sums of a vector of a panel's columns.
Expr Emitter::place_of_sums(const Expr& column) const {
  return (Expr(panel_loop_) * Expr(s_.nv) + column) * Expr(lanes_);
}

Body Emitter::zero_sums() {
  Body out;
  for (const Sum& sum : sums_) {
    const Var c = k_.new_var(), l = k_.new_var();
    const Expr place = Expr(c) * Expr(lanes_) + Expr(l);
    const DType type = p_.outputs[sum.output].value->dtype;
    Body lanes{kernel::loop(l, 0, lanes_, Binding::vector,
                            {kernel::store(sum.task, place, kernel::imm(type, 0))})};
    out.push_back(
        kernel::loop(c, 0, s_.panels_per_task * s_.nv, Binding::serial, std::move(lanes)));
  }
  return out;
}

Body Emitter::store_sums() {
  Body out;
  const std::int64_t width = s_.nv * lanes_;
  const Expr block = ir::floor_div(Expr(task_), s_.panel_blocks());
  for (const Sum& sum : sums_) {
    const Var p = k_.new_var(), c = k_.new_var(), l = k_.new_var();
    Env env;
    set(env, panel_loop_, Expr(p));
    const Expr panel = at(panel_, env), column = Expr(c) * Expr(lanes_) + Expr(l);
    const Expr from = at(place_of_sums(Expr(c)), env) + Expr(l),
               to = (block * Expr(s_.panels) + panel) * Expr(width) + column;
    const DType type = p_.outputs[sum.output].value->dtype;
    Body lanes{kernel::loop(l, 0, lanes_, Binding::vector,
                            {kernel::store(sum.parts, to, kernel::load(sum.task, from, type))})};
    Body columns{kernel::loop(c, 0, s_.nv, Binding::serial, std::move(lanes))};
    columns = {kernel::when({{panel, 0, s_.panels}}, std::move(columns))};
    out.push_back(kernel::loop(p, 0, s_.panels_per_task, Binding::serial, std::move(columns)));
  }
  return out;
}

/// A task for each vector of columns.
kernel::Stmt Emitter::add_sums() {
  const std::int64_t width = s_.nv * lanes_, blocks = s_.tasks(p_.extents) / s_.panel_blocks();
  const Var task = k_.new_var();
  Body body;
  for (const Sum& sum : sums_) {
    const Output& o = p_.outputs[sum.output];
    const Var b = k_.new_var(), l = k_.new_var(), z = k_.new_var();
    const DType type = o.value->dtype;
    const BufferId acc = scratch("whole", lanes_, Scope::lane, lanes_, type);
    body.push_back(kernel::loop(z, 0, lanes_, Binding::vector,
                                {kernel::store(acc, Expr(z), kernel::imm(type, 0))}));
    const Expr from = Expr(b) * Expr(s_.panels * width) + Expr(task) * Expr(lanes_) + Expr(l);
    Body lanes{kernel::loop(l, 0, lanes_, Binding::vector,
                            {add_to(acc, Expr(l), kernel::load(sum.parts, from, type))})};
    body.push_back(kernel::loop(b, 0, blocks, Binding::serial, std::move(lanes)));
    const std::int64_t extent = p_.extents.n, whole = extent / lanes_, rest = extent % lanes_;
    const auto part = [&](std::int64_t first, std::int64_t last, std::int64_t count) {
      if (first == last) return;
      const Var lane = k_.new_var();
      Env env;
      if (p_.n) set(env, p_.n->var, Expr(task) * Expr(lanes_) + Expr(lane));
      Body store{kernel::store(o.buffer, at(o.offset, env), kernel::load(acc, Expr(lane), type))};
      body.push_back(kernel::when({{Expr(task), first, last}},
                                  {kernel::loop(lane, 0, count, Binding::vector, store)}));
    };
    part(0, whole, lanes_);
    if (rest > 0) part(whole, whole + 1, rest);
  }
  const std::int64_t vectors = (p_.extents.n + lanes_ - 1) / lanes_;
  return kernel::loop(task, 0, vectors, Binding::grid, std::move(body));
}

}  // namespace heddle::lower::contract

// Sums over the rows of a product in its epilogue (column reductions of EVT: bias and norm
// gradients). Parts are those of tasks, so results do not depend on the threads.
#include "lower/contract/emit.h"

namespace heddle::lower::contract {

using ir::Expr;
using ir::ScalarFn;
using ir::Var;
using kernel::Binding;
using kernel::Body;
using kernel::Scope;
using kernel::Value;

void Emitter::plan_sums() {
  const std::int64_t width = s_.nv * lanes_, blocks = s_.tasks(p_.extents) / s_.panel_blocks();
  for (std::size_t i = 0; i < p_.outputs.size(); ++i) {
    if (!p_.outputs[i].sum) continue;
    const DType type = p_.outputs[i].value->dtype;
    sums_.push_back({i, scratch("sums", width, Scope::block, 1, type),
                     scratch("parts", blocks * s_.panels * width, Scope::grid, 1, type)});
    k_.buffers[sums_.back().parts].written = true;
  }
}

Body Emitter::zero_sums() {
  Body out;
  for (const Sum& sum : sums_) {
    const Var c = k_.new_var(), l = k_.new_var();
    const Expr place = Expr(c) * Expr(lanes_) + Expr(l);
    const DType type = p_.outputs[sum.output].value->dtype;
    Body lanes{kernel::loop(l, 0, lanes_, Binding::vector,
                            {kernel::store(sum.task, place, kernel::imm(type, 0))})};
    out.push_back(kernel::loop(c, 0, s_.nv, Binding::serial, std::move(lanes)));
  }
  return out;
}

Body Emitter::store_sums() {
  Body out;
  const std::int64_t width = s_.nv * lanes_;
  const Expr block = ir::floor_div(Expr(task_), s_.panel_blocks());
  for (const Sum& sum : sums_) {
    const Var c = k_.new_var(), l = k_.new_var();
    const Expr place = Expr(c) * Expr(lanes_) + Expr(l);
    const Expr to = (block * Expr(s_.panels) + panel_) * Expr(width) + place;
    const DType type = p_.outputs[sum.output].value->dtype;
    Body lanes{kernel::loop(l, 0, lanes_, Binding::vector,
                            {kernel::store(sum.parts, to, kernel::load(sum.task, place, type))})};
    Body vectors{kernel::loop(c, 0, s_.nv, Binding::serial, std::move(lanes))};
    out.push_back(kernel::when({{panel_, 0, s_.panels}}, std::move(vectors)));
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
    const kernel::BufferId acc = scratch("whole", lanes_, Scope::lane, lanes_, type);
    body.push_back(kernel::loop(z, 0, lanes_, Binding::vector,
                                {kernel::store(acc, Expr(z), kernel::imm(type, 0))}));
    const Expr from = Expr(b) * Expr(s_.panels * width) + Expr(task) * Expr(lanes_) + Expr(l);
    const Value more = kernel::apply(
        ScalarFn::add, {kernel::load(acc, Expr(l), type), kernel::load(sum.parts, from, type)},
        type);
    Body lanes{kernel::loop(l, 0, lanes_, Binding::vector, {kernel::store(acc, Expr(l), more)})};
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

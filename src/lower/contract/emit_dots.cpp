// A register tile whose vectors run along the terms.
#include "kernel/traverse.h"
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

/// The constant columns one after another, the terms of each in the order of the reductions.
void Emitter::plan_dots() {
  b_buffer_ = operand_scratch("columns", p_.extents.n * p_.extents.k, Scope::grid);
  k_.buffers[b_buffer_].dtype = packed_type();
}

Body Emitter::dots_tile(const Variant& v) {
  Registers reg;
  const std::int64_t columns = p_.extents.n;
  reg.acc = scratch("acc", v.mr * columns * lanes_, Scope::lane, lanes_);
  reg.b = operand_scratch("b", columns * lanes_, Scope::lane, lanes_);
  reg.a = operand_scratch("a", lanes_, Scope::lane, lanes_);
  Variant vectors = v;
  vectors.nv = columns;
  Body body{for_each_vector(vectors, [&](const Expr& i, const Expr& l) {
    return kernel::store(reg.acc, i * Expr(lanes_) + l, kernel::imm(p_.problem.type, 0));
  })};
  for (kernel::Stmt& s : dots_reduction(v, reg, 0, env_)) body.push_back(std::move(s));
  for (kernel::Stmt& s : dots_results(v, reg.acc)) body.push_back(std::move(s));
  return body;
}

/// The reduction loops; the innermost walks its line in vectors.
Body Emitter::dots_reduction(const Variant& v, const Registers& reg, std::size_t level,
                             const Env& env) {
  const KLoop& loop = k_loops_[level];
  const Var x = k_.new_var();
  if (level + 1 < k_loops_.size())
    return {kernel::loop(
        x, 0, loop.extent, Binding::serial,
        {kernel::when(not_padding(loop, Expr(x)),
                      dots_reduction(v, reg, level + 1, in_loop(loop, Expr(x), env)))})};
  const auto step = [&](const Expr& first, std::int64_t lanes) {
    const Var l = k_.new_var();
    return dots_step(v, reg, in_loop(loop, first + Expr(l), env), {l, lanes});
  };
  // Where rows overlap, vectors that two steps share would be kept in registers.
  const std::int64_t vectors = loop.extent / lanes_;
  HEDDLE_CHECK(vectors > 0, "dots of {} terms by {} lanes", loop.extent, lanes_);
  std::int64_t unroll = std::min(vectors, s_.unroll);
  unroll = std::clamp<std::int64_t>(distinct_steps(loop) / lanes_, 1, unroll);
  const std::int64_t whole = vectors / unroll * unroll;
  const Var u = k_.new_var();
  Body out{kernel::loop(
      x, 0, whole / unroll, Binding::serial,
      {kernel::loop(u, 0, unroll, Binding::unroll,
                    step((Expr(x) * Expr(unroll) + Expr(u)) * Expr(lanes_), lanes_))})};
  for (std::int64_t at = whole * lanes_; at < loop.extent; at += lanes_)
    for (kernel::Stmt& s : step(Expr(at), std::min<std::int64_t>(lanes_, loop.extent - at)))
      out.push_back(std::move(s));
  return out;
}

/// One vector of terms, whose lanes are at `k`: each column's, then each row's against all of them.
Body Emitter::dots_step(const Variant& v, const Registers& reg, const Env& k, const Lanes& lanes) {
  const DType type = p_.problem.type;
  const std::int64_t columns = p_.extents.n;
  const Var c = k_.new_var(), r = k_.new_var(), c2 = k_.new_var();
  // A last vector lacks lanes; whole registers with zeros there are faster than parts of them.
  const auto load = [&](BufferId to, const Expr& vector, const Value& term) {
    const Var l = k_.new_var();
    Value value = term;
    if (lanes.count < lanes_)
      value = kernel::guard({{Expr(lanes.var), 0, lanes.count}}, term, kernel::imm(element_, 0));
    value = kernel::substitute(
        value, [&](Var x) { return x == lanes.var ? std::optional<Expr>(Expr(l)) : std::nullopt; });
    return kernel::loop(l, 0, lanes_, Binding::vector,
                        {kernel::store(to, vector * Expr(lanes_) + Expr(l), value)});
  };
  const Value column =
      kernel::load(b_buffer_, Expr(c) * Expr(p_.extents.k) + k_linear(k), element_);
  Body out{kernel::loop(c, 0, columns, Binding::unroll, {load(reg.b, Expr(c), column)})};

  Env a_env = k;
  set(a_env, p_.tile->var, a_tile_position(v) + Expr(r));
  if (s_.a == ASource::box && p_.row) set(a_env, p_.row->var, Expr(row_loop_));
  Body row{load(reg.a, 0, at(a_main_, a_env))};
  const Var l = k_.new_var();
  const Expr i = (Expr(r) * Expr(columns) + Expr(c2)) * Expr(lanes_) + Expr(l);
  const Value product =
      p_.problem.product(kernel::load(reg.a, Expr(l), element_),
                         kernel::load(reg.b, Expr(c2) * Expr(lanes_) + Expr(l), element_));
  const Value sum = kernel::apply(ScalarFn::add, {kernel::load(reg.acc, i, type), product}, type);
  Body add{kernel::loop(l, 0, lanes_, Binding::vector, {kernel::store(reg.acc, i, sum)})};
  row.push_back(kernel::loop(c2, 0, columns, Binding::unroll, std::move(add)));
  out.push_back(kernel::loop(r, 0, v.mr, Binding::unroll, std::move(row)));
  return out;
}

/// The sums of the lanes, then the epilogue: vectors of rows where the results lie so, else of
/// columns.
Body Emitter::dots_results(const Variant& v, BufferId acc) {
  const std::int64_t columns = p_.extents.n;
  const bool of_rows = v.mr <= lanes_ && std::ranges::all_of(p_.outputs, [&](const Output& o) {
                         return ir::coefficient_of(o.offset, p_.tile->var) == 1;
                       });
  const std::int64_t row = columns * lanes_;  // as the epilogue has them
  const BufferId tile = scratch("tile", of_rows ? row : v.mr * row, Scope::block);
  Body body;
  for (std::int64_t r = 0; r < v.mr; ++r)
    for (std::int64_t c = 0; c < columns; ++c) {
      const auto lanes = std::make_shared<kernel::ValueNode>(kernel::ValueNode{
          kernel::LaneReduce{ir::Monoid::sum, acc, Expr((r * columns + c) * lanes_)},
          p_.problem.type});
      body.push_back(kernel::store(tile, Expr(of_rows ? c * lanes_ + r : r * row + c), lanes));
    }
  if (!of_rows) {
    for (kernel::Stmt& s : epilogue(v, tile, Expr(0))) body.push_back(std::move(s));
    return body;
  }
  const Var c = k_.new_var(), l = k_.new_var();
  Env env = env_;
  set(env, p_.tile->var, v.first_row + Expr(l));
  if (p_.n) set(env, p_.n->var, Expr(c));
  body.push_back(
      kernel::loop(c, 0, columns, Binding::serial,
                   {kernel::loop(l, 0, v.mr, Binding::vector,
                                 stores_of(env, l, tile, Expr(c) * Expr(lanes_), Expr(0)))}));
  return body;
}

}  // namespace heddle::lower::contract

// Few rows against many: teams of threads read the longer side once, each value in a register for
// all rows of the shorter one.
#include "lower/contract/gpu/emit.h"

namespace heddle::lower::contract::gpu {

using ir::Expr;
using ir::ScalarFn;
using kernel::Binding;
using kernel::Body;
using kernel::BufferId;
using kernel::Scope;

/// Along the reductions where memory runs that way: neighbouring threads are members of one team.
/// Along the rows otherwise: neighbouring threads are neighbouring teams.
Body Emitter::stream_loop() {
  constexpr std::int64_t kUnroll = 4;  // steps whose reads are on their way together
  const Side& s = g_.longer();
  const DType type = p_.problem.type;
  const std::int64_t teams = threads_ / t_.team, few = g_.shorter().extent;
  const int step = s.along_k ? s.vector : 1;
  member_ = s.along_k ? ir::floor_mod(Expr(thread_), t_.team) : ir::floor_div(Expr(thread_), teams);
  team_ = s.along_k ? ir::floor_div(Expr(thread_), t_.team) : ir::floor_mod(Expr(thread_), teams);
  acc_ = buffer("acc", type, few * t_.each, Scope::lane);
  long_ = buffer("longer", type, std::int64_t{t_.each} * step, Scope::lane);
  short_ = buffer("shorter", type, step, Scope::lane);
  Body body{each(few * t_.each, Binding::unroll, [&](const Expr& i) {
    return Body{kernel::store(acc_, i, kernel::imm(type, 0))};
  })};
  const std::int64_t steps = (g_.k_extent + step - 1) / step, rounds = steps / t_.team;
  const auto round = [&](const Expr& i) { return stream_step(i * Expr(t_.team) + member_); };
  if (rounds >= kUnroll)
    body.push_back(each(rounds / kUnroll, Binding::serial, [&](const Expr& i) {
      return Body{each(kUnroll, Binding::unroll,
                       [&](const Expr& u) { return round(i * Expr(kUnroll) + u); })};
    }));
  const std::int64_t left = rounds % kUnroll;
  if (left > 0)
    body.push_back(
        each(left, Binding::unroll, [&](const Expr& u) { return round(Expr(rounds - left) + u); }));
  if (steps % t_.team != 0) {
    const ir::Var last = k_.new_var();
    body.push_back(
        kernel::let(last, Expr(rounds * t_.team) + member_, 0, steps, stream_step(Expr(last))));
  }
  return body;
}

/// One step of a thread: number `k` along the reductions.
Body Emitter::stream_step(const Expr& k) {
  const Side &s = g_.longer(), &few = g_.shorter();
  const int step = s.along_k ? s.vector : 1;
  return bound(k, (g_.k_extent + step - 1) / step, [&](const Expr& at_k) {
    return decoded(s.k, step, at_k, [&] {
      Body body = stream_rows();
      // The shorter side may see the reductions in its own way.
      for (kernel::Stmt& one : decoded(few.k, step, at_k, [&] { return stream_products(); }))
        body.push_back(std::move(one));
      return body;
    });
  });
}

/// The thread's values of the longer side, to registers: [row][step].
Body Emitter::stream_rows() {
  const Side& s = g_.longer();
  const Expr tile = &s == &g_.m ? m0_ : n0_;
  const std::int64_t teams = threads_ / t_.team;
  const auto row = [&](const Expr& number, int step, const Expr& to) {
    const std::int64_t rows = s.extent / step;
    const Expr inside =
        s.extent % (teams * t_.each) == 0 ? number : ir::min(number, Expr(rows - 1));
    return bound(inside, rows, [&](const Expr& r) {
      return decoded(s.rows, step, r, [&] {
        return stream_lanes(s, s.along_k ? s.k.back() : s.rows.back(),
                            s.along_k ? s.vector : t_.each, long_, to);
      });
    });
  };
  if (!s.along_k) return row(tile * Expr(teams) + team_, t_.each, Expr(0));
  return {each(t_.each, Binding::unroll, [&](const Expr& r) {
    return row((tile * Expr(teams) + team_) * Expr(t_.each) + r, 1, r * Expr(s.vector));
  })};
}

/// `width` values along `axis` from where env_ is, to registers.
Body Emitter::stream_lanes(const Side& s, const Axis& axis, int width, BufferId to,
                           const Expr& first) {
  const auto value = [&](const Expr& lane, const Env& env) {
    kernel::Value v = at(s.value, env);
    if (v->dtype != p_.problem.type) v = kernel::apply(ScalarFn::cast, {v}, p_.problem.type);
    return kernel::store(to, first + lane, v);
  };
  if (width == 1) return {value(Expr(0), env_)};
  return {each(width, Binding::vector, [&](const Expr& l) {
    Env env = env_;
    set(env, axis.var, at(Expr(axis.var), env_) + l);
    return Body{value(l, env)};
  })};
}

/// What was read times every row of the shorter side.
Body Emitter::stream_products() {
  const Side &s = g_.longer(), &few = g_.shorter();
  const DType type = p_.problem.type;
  const int step = s.along_k ? s.vector : 1;
  return {each(few.extent, Binding::unroll, [&](const Expr& row) {
    return decoded(few.rows, 1, row, [&] {
      Body body = stream_lanes(few, few.k.back(), step, short_, Expr(0));
      body.push_back(each(t_.each, Binding::unroll, [&](const Expr& r) {
        return Body{each(step, Binding::unroll, [&](const Expr& l) {
          const Expr at = row * Expr(t_.each) + r;
          const auto product = kernel::apply(
              ScalarFn::mul,
              {kernel::load(long_, r * Expr(step) + l, type), kernel::load(short_, l, type)}, type);
          return Body{kernel::store(
              acc_, at,
              kernel::apply(ScalarFn::add, {kernel::load(acc_, at, type), product}, type))};
        })};
      }));
      return body;
    });
  })};
}

/// Teams add up; their first members bring the results to block memory.
Body Emitter::stream_results() {
  const Side& s = g_.longer();
  const DType type = p_.problem.type;
  const std::int64_t few = g_.shorter().extent;
  kernel::Combine sum;
  sum.buffer = acc_;
  sum.count = static_cast<int>(few * t_.each);
  sum.width = t_.team;
  sum.stride = s.along_k ? 1 : threads_ / t_.team;
  const BufferId staged = buffer("results", type, std::int64_t{t_.bm} * t_.bn, Scope::block);
  Body body{{sum}};
  body.push_back(kernel::when(
      {{member_, 0, 1}}, {each(few, Binding::unroll, [&](const Expr& f) {
        return Body{each(t_.each, Binding::unroll, [&](const Expr& r) {
          const Expr row = team_ * Expr(t_.each) + r;
          const Expr to = &s == &g_.n ? f * Expr(t_.bn) + row : row * Expr(t_.bn) + f;
          return Body{kernel::store(staged, to, kernel::load(acc_, f * Expr(t_.each) + r, type))};
        })};
      })}));
  for (kernel::Stmt& one : from_block(staged, t_.bn)) body.push_back(std::move(one));
  return body;
}

}  // namespace heddle::lower::contract::gpu

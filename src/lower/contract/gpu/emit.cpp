#include "lower/contract/gpu/emit.h"

#include <numeric>

#include "kernel/traverse.h"

namespace heddle::lower::contract::gpu {

using ir::Expr;
using ir::ScalarFn;
using ir::Var;
using kernel::Binding;
using kernel::Body;
using kernel::Scope;
using kernel::Stmt;

Emitter::Emitter(Gemm& gemm, const Tiles& tiles, const Target& target)
    : g_(gemm),
      p_(gemm.product),
      k_(gemm.product.kernel),
      t_(tiles),
      threads_(gpu::threads_of(gemm, tiles)),
      resident_(target.multiprocessors * blocks_together(gemm, target, tiles)) {}

kernel::BufferId Emitter::buffer(std::string name, DType type, std::int64_t size, Scope scope) {
  return k_.add_buffer({std::move(name), type, size, scope, -1, false, 1});
}

Stmt Emitter::each(std::int64_t count, Binding binding, const Made& make) {
  const Var v = k_.new_var();
  return kernel::loop(v, 0, count, binding, make(Expr(v)));
}

/// A name for a value that is in [0, extent), unless it has one.
Body Emitter::bound(const Expr& value, std::int64_t extent, const Made& make) {
  if (value.constant() || value.variable()) return make(value);
  const Var v = k_.new_var();
  return {kernel::let(v, value, 0, extent, make(Expr(v)))};
}

Body Emitter::decoded(const std::vector<Axis>& axes, int step, const Expr& linear,
                      const std::function<Body()>& make) {
  const std::function<Body(std::size_t, const Expr&)> next = [&](std::size_t left,
                                                                 const Expr& rest) -> Body {
    if (left == 0) return make();
    const Axis& axis = axes[left - 1];
    const std::int64_t unit = left == axes.size() ? step : 1, extent = axis.extent / unit;
    std::int64_t outside = 1;
    for (std::size_t i = 0; i + 1 < left; ++i) outside *= axes[i].extent;
    const Expr here = left == 1 ? rest : ir::floor_mod(rest, extent);
    return bound(here, extent, [&](const Expr& value) {
      set(env_, axis.var, value * Expr(unit));
      if (left == 1) return make();
      return bound(ir::floor_div(rest, extent), outside,
                   [&](const Expr& outer) { return next(left - 1, outer); });
    });
  };
  return next(axes.size(), linear);
}

/// Binds what tile number tile_ is; neighbours in time share rows of both sides in the
/// second-level cache.
Body Emitter::in_tile(const std::function<Body()>& make) {
  constexpr std::int64_t kGroup = 8;
  const std::int64_t tiles_m = ceil_div(g_.m.extent, t_.bm), tiles_n = ceil_div(g_.n.extent, t_.bn);
  std::int64_t group = std::min(tiles_m, kGroup);
  while (tiles_m % group != 0) --group;
  const Expr in_batch = ir::floor_mod(tile_, tiles_m * tiles_n);
  const Expr in_group = ir::floor_mod(in_batch, group * tiles_n);
  const Expr m =
      ir::floor_div(in_batch, group * tiles_n) * Expr(group) + ir::floor_mod(in_group, group);
  return bound(m, tiles_m, [&](const Expr& tile_m) {
    m0_ = tile_m;
    return bound(ir::floor_div(in_group, group), tiles_n, [&](const Expr& tile_n) {
      n0_ = tile_n;
      return decoded(g_.batch, 1, ir::floor_div(tile_, tiles_m * tiles_n), make);
    });
  });
}

/// A ring of stages: tile i + stages - 1 is on its way while tile i is multiplied.
Body Emitter::main_loop() {
  Body body;
  const bool groups = g_.unit == Unit::wgmma;
  const std::int64_t results = g_.unit != Unit::scalar
                                   ? std::int64_t{t_.bm / t_.warps_m} * (t_.bn / t_.warps_n) / 32
                                   : std::int64_t{t_.tm} * t_.tn;
  const DType type = p_.problem.type;
  acc_ = buffer("acc", type, results, Scope::lane);
  tm_ = tile_of(g_.m, true);
  tn_ = tile_of(g_.n, false);
  body.push_back(each(results, Binding::unroll, [&](const Expr& i) {
    return Body{kernel::store(acc_, i, kernel::imm(type, 0))};
  }));
  // Products of a warpgroup read their tiles one step longer.
  const std::int64_t ahead = t_.stages - (groups ? 2 : 1);
  const Expr first = split_ * Expr(k_tiles_);
  for (std::int64_t s = 0; s < ahead; ++s) {
    if (s < k_tiles_) {
      append(body, copies(first + Expr(s), Expr(s), Step::async));
      append(body, copies(first + Expr(s), Expr(s), Step::fetch));
      append(body, copies(first + Expr(s), Expr(s), Step::deposit));
    }
    body.push_back({kernel::CopyGroup{}});
  }
  body.push_back(each(k_tiles_, Binding::serial, [&](const Expr& i) {
    Body step{{kernel::CopyGroup{false, static_cast<int>(ahead - 1)}}};
    if (groups) step.push_back({kernel::MmaWait{1}});
    step.push_back({kernel::Barrier{Scope::block, groups}});
    if (groups) append(step, multiply(ir::floor_mod(i, t_.stages)));
    const Expr next = i + Expr(ahead), stage = ir::floor_mod(next, t_.stages);
    const auto when = [&](Body inner) {
      if (k_tiles_ > ahead && !inner.empty())
        step.push_back(kernel::when({{next, 0, k_tiles_}}, std::move(inner)));
    };
    Body start = copies(first + next, stage, Step::async);
    append(start, copies(first + next, stage, Step::fetch));
    when(std::move(start));
    step.push_back({kernel::CopyGroup{}});
    if (!groups) append(step, multiply(ir::floor_mod(i, t_.stages)));
    when(copies(first + next, stage, Step::deposit));
    return step;
  }));
  if (groups) body.push_back({kernel::MmaWait{0}});
  return body;
}

Body Emitter::multiply(const Expr& stage) {
  if (g_.unit != Unit::scalar) return {multiply_mma(stage)};
  return multiply_scalar(stage);
}

Stmt Emitter::multiply_mma(const Expr& stage) {
  kernel::Mma x;
  x.acc = acc_;
  x.warps_m = t_.warps_m, x.warps_n = t_.warps_n;
  x.tiles_m = t_.bm / t_.warps_m / 16, x.tiles_n = t_.bn / t_.warps_n / 8;
  x.k = t_.bk;
  x.warpgroup = g_.unit == Unit::wgmma || g_.unit == Unit::tma;
  const auto operand = [&](const Tile& tile) {
    const std::int64_t ld = pitch(g_, *tile.side, t_, tile.is_m);
    kernel::Mma::Operand o{tile.memory, stage * Expr(stage_size(g_, *tile.side, t_, tile.is_m)), ld,
                           1};
    if (!tile.side->k_inside) std::swap(o.row, o.step);
    if (x.warpgroup) o.row = 8, o.step = ld;
    if (g_.unit == Unit::tma) o.row = t_.bk, o.step = 1;
    return o;
  };
  x.a = operand(tm_);
  x.b = operand(tn_);
  return {x};
}

/// Each thread: an outer product of tm by tn elements at every step.
Body Emitter::multiply_scalar(const Expr& stage) {
  const DType type = p_.problem.type;
  const std::int64_t columns = t_.bn / t_.tn;
  const kernel::BufferId a = buffer("a", type, t_.tm, Scope::lane);
  const kernel::BufferId b = buffer("b", type, t_.tn, Scope::lane);
  const auto load = [&](const Tile& tile, kernel::BufferId to, int count, const Expr& place,
                        const Expr& k) {
    const std::int64_t size = stage_size(g_, *tile.side, t_, tile.is_m);
    const std::int64_t ld = pitch(g_, *tile.side, t_, tile.is_m);
    const int width = vector_of(count), groups = count / width;
    const std::int64_t span = (tile.is_m ? t_.bm : t_.bn) / groups;
    return each(groups, Binding::unroll, [&](const Expr& h) {
      return Body{each(width, Binding::vector, [&](const Expr& l) {
        const Expr from =
            stage * Expr(size) + k * Expr(ld) + h * Expr(span) + place * Expr(width) + l;
        return Body{kernel::store(to, h * Expr(width) + l, kernel::load(tile.memory, from, type))};
      })};
    });
  };
  return {each(t_.bk, Binding::unroll, [&](const Expr& k) {
    Body step{load(tm_, a, t_.tm, ir::floor_div(Expr(thread_), columns), k),
              load(tn_, b, t_.tn, ir::floor_mod(Expr(thread_), columns), k)};
    step.push_back(each(t_.tm, Binding::unroll, [&](const Expr& i) {
      return Body{each(t_.tn, Binding::unroll, [&](const Expr& j) {
        const Expr at = i * Expr(t_.tn) + j;
        const auto product = kernel::apply(
            ScalarFn::mul, {kernel::load(a, i, type), kernel::load(b, j, type)}, type);
        return Body{kernel::store(
            acc_, at, kernel::apply(ScalarFn::add, {kernel::load(acc_, at, type), product}, type))};
      })};
    }));
    return step;
  })};
}

int Emitter::vector_of(int count) const {
  return std::min(count, static_cast<int>(16 / size_of(p_.problem.type)));
}

/// What blocks do: number `task` is a share of the reductions of one tile.
void Emitter::place(const Expr& task) {
  tile_ = ir::floor_div(task, t_.splits);
  split_ = ir::floor_mod(task, t_.splits);
}

Lowered Emitter::run() {
  const std::int64_t tiles =
      g_.batch_extent * ceil_div(g_.m.extent, t_.bm) * ceil_div(g_.n.extent, t_.bn);
  k_tiles_ = ceil_div(ceil_div(g_.k_extent, t_.bk), t_.splits);
  if (t_.splits > 1)
    partials_ = buffer("partials", p_.problem.type, tiles * t_.splits * t_.bm * t_.bn, Scope::grid);
  const Var task = k_.new_var();
  thread_ = k_.new_var();
  std::int64_t blocks = tiles * t_.splits;
  Body body;
  if (g_.unit == Unit::tma) {
    tasks_ = blocks;
    blocks = std::min(blocks, resident_);
    body = copied_by_one(Expr(task), blocks);
  } else {
    place(Expr(task));
    body = in_tile([&] {
      Body all = g_.unit == Unit::stream ? stream_loop() : main_loop();
      append(all, t_.splits > 1 ? store_partial() : results());
      return all;
    });
  }
  Body kernel_body{
      kernel::loop(task, 0, blocks, Binding::grid,
                   {kernel::loop(thread_, 0, threads_, Binding::thread, std::move(body))})};
  if (t_.splits > 1) {
    kernel_body.push_back({kernel::Barrier{Scope::grid}});
    kernel_body.push_back(second_phase(tiles));
  }
  if (has_parts()) {
    kernel_body.push_back({kernel::Barrier{Scope::grid}});
    kernel_body.push_back(sum_phase());
  }
  k_.body = std::move(kernel_body);
  k_.name = fmt::format("contract_{}", p_.problem.contract.value);
  Lowered out;
  finish(out);
  return out;
}

/// Arguments: the buffers that are used, in order of their creation.
void Emitter::finish(Lowered& out) {
  const std::vector<bool> used = kernel::used_buffers(k_);
  const auto argument = [&](kernel::BufferId id, Argument a) {
    if (!used[static_cast<std::size_t>(id.value)]) return;
    k_.buffers[id].argument = static_cast<int>(out.arguments.size());
    out.arguments.push_back(std::move(a));
  };
  for (const Values::Input& in : p_.values.inputs())
    argument(in.buffer, {Argument::Kind::value, in.node, {}});
  for (const Side* s : {&g_.m, &g_.n})
    if (s->packed) argument(s->plain->buffer, {Argument::Kind::packed, s->source, s->packed()});
  out.output_layouts.resize(p_.outputs.size());
  for (const Output& o : p_.outputs) {
    argument(o.buffer, {Argument::Kind::value, o.node, {}});
    out.output_layouts[o.position] = o.layout;
  }
  out.kernel = kernel::simplify(kernel::drop_unused_buffers(k_));
  out.schedule = to_string(g_, t_);
  out.kernel.resident =
      (t_.splits > 1 || has_parts()) && t_.resident && kernel::can_be_resident(out.kernel);
  if (out.kernel.resident) out.schedule += " in one launch";
}

}  // namespace heddle::lower::contract::gpu

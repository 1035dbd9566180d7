#include "lower/contract/gpu/emit.h"

namespace heddle::lower::contract::gpu {

using ir::Expr;
using kernel::Binding;
using kernel::Body;
using kernel::Scope;

Emitter::Tile Emitter::tile_of(const Side& side, bool is_m) {
  Tile out{&side, is_m, {}, {}, 0, 0};
  const std::string name = is_m ? "m" : "n";
  out.memory = buffer(name + "_tiles", side.stored, t_.stages * stage_size(g_, side, t_, is_m),
                      Scope::block);
  const std::int64_t elements = std::int64_t{is_m ? t_.bm : t_.bn} * t_.bk;
  out.chunks = elements / side.vector;
  out.per_thread = static_cast<int>((out.chunks + threads_ - 1) / threads_);
  if (!side.async)
    out.registers = buffer(name + "_next", compute_type(side.stored),
                           std::int64_t{out.per_thread} * side.vector, Scope::lane);
  return out;
}

/// What one step of the ring does for both sides.
Body Emitter::copies(const Expr& k_tile, const Expr& stage, Step step) {
  Body out;
  for (const Tile* tile : {&tm_, &tn_}) {
    if (tile->side->async != (step == Step::async)) continue;
    for (kernel::Stmt& s : copy(*tile, k_tile, stage, step)) out.push_back(std::move(s));
  }
  return out;
}

/// The chunks of a tile are dealt out so that neighbouring threads read neighbouring memory.
Body Emitter::copy(const Tile& tile, const Expr& k_tile, const Expr& stage, Step step) {
  return {each(tile.per_thread, Binding::unroll, [&](const Expr& i) {
    const Expr chunk = i * Expr(threads_) + Expr(thread_);
    if (tile.chunks % threads_ == 0) return copy_chunk(tile, i, chunk, k_tile, stage, step);
    const ir::Var c = k_.new_var();
    return Body{
        kernel::let(c, chunk, 0, tile.chunks, copy_chunk(tile, i, Expr(c), k_tile, stage, step))};
  })};
}

/// Rows beyond the last repeat it, since their results are dropped; reductions beyond the last are
/// zeros.
Body Emitter::copy_chunk(const Tile& tile, const Expr& i, const Expr& chunk, const Expr& k_tile,
                         const Expr& stage, Step step) {
  const Side& s = *tile.side;
  const int width = s.vector, size = tile.is_m ? t_.bm : t_.bn;
  const std::int64_t inner = (s.along_k ? t_.bk : size) / width;
  const Expr fast = ir::floor_mod(chunk, inner), slow = ir::floor_div(chunk, inner);
  const int k_step = s.along_k ? width : 1, row_step = s.along_k ? 1 : width;
  const Expr row = s.along_k ? slow : fast, k = s.along_k ? fast : slow;
  const std::int64_t ld = pitch(g_, s, t_, tile.is_m);
  const Expr in_row = row * Expr(row_step), in_k = k * Expr(k_step);
  const Expr in_tile = g_.unit == Unit::wgmma ? ir::floor_div(in_k, 8) * Expr(ld) + in_row * Expr(8)
                       : s.k_inside           ? in_row * Expr(ld) + in_k
                                              : in_k * Expr(ld) + in_row;
  const Expr to = stage * Expr(stage_size(g_, s, t_, tile.is_m)) + in_tile;
  const auto lanes = [&](const std::function<kernel::Stmt(const Expr& l)>& one) {
    if (width == 1) return Body{one(Expr(0))};
    return Body{each(width, Binding::vector, [&](const Expr& l) { return Body{one(l)}; })};
  };
  if (step == Step::deposit)
    return lanes([&](const Expr& l) {
      return kernel::store(
          tile.memory, to + l,
          kernel::load(tile.registers, i * Expr(width) + l, compute_type(s.stored)));
    });
  // Whole chunks, but for the zeros at the end of a packed operand.
  const std::int64_t rows = (s.extent + row_step - 1) / row_step,
                     ks = (g_.k_extent + k_step - 1) / k_step;
  const bool ragged_rows = s.extent % size != 0;
  const bool ragged_k = k_tiles_ * t_.splits * t_.bk != g_.k_extent;
  const Expr row_at = (tile.is_m ? m0_ : n0_) * Expr(size / row_step) + row;
  const Expr k_at = k_tile * Expr(t_.bk / k_step) + k;
  const auto inside = [&](const Expr& e, std::int64_t extent, bool ragged) {
    return ragged ? ir::min(e, Expr(extent - 1)) : e;
  };
  return bound(inside(row_at, rows, ragged_rows), rows, [&](const Expr& r) {
    return decoded(s.rows, row_step, r, [&] {
      return bound(inside(k_at, ks, ragged_k), ks, [&](const Expr& q) {
        return decoded(s.k, k_step, q, [&]() -> Body {
          std::vector<ir::Condition> conditions;
          if (ragged_k) conditions.push_back({k_at, 0, ks});
          if (step == Step::async) {
            const auto own = at(s.plain->conditions, env_);
            conditions.insert(conditions.end(), own.begin(), own.end());
            return {{kernel::Copy{tile.memory, s.plain->buffer, to, at(s.plain->offset, env_),
                                  width, std::move(conditions)}}};
          }
          const Env saved = env_;
          const Axis& last = s.along_k ? s.k.back() : s.rows.back();
          Body out = lanes([&](const Expr& l) {
            if (width > 1) set(env_, last.var, at(Expr(last.var), saved) + l);
            kernel::Value value = at(s.value, env_);
            value = kernel::guard(conditions, value, kernel::imm(value->dtype, 0));
            return kernel::store(tile.registers, i * Expr(width) + l, value);
          });
          env_ = saved;
          return out;
        });
      });
    });
  });
}

}  // namespace heddle::lower::contract::gpu

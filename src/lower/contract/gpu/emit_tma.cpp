// Warp-specialised products (Hopper): one thread asks the copy engine for tiles, warpgroups
// multiply them. Blocks stay: each takes one tile of the result after the other, and the tiles of
// the next are brought while results are stored. (CUTLASS calls it a persistent warp-specialised
// mainloop.)
#include "lower/contract/gpu/emit.h"

namespace heddle::lower::contract::gpu {

using ir::Expr;
using kernel::Binding;
using kernel::Body;
using kernel::BufferId;
using kernel::Event;
using kernel::Scope;
using kernel::Stmt;

namespace {

Stmt init(BufferId events, std::int64_t arrivals) {
  return {Event{Event::Kind::init, events, 0, 0, arrivals}};
}
Stmt wait(BufferId events, const Expr& index, const Expr& parity) {
  return {Event{Event::Kind::wait, events, index, parity, 0}};
}
Stmt arrive(BufferId events, const Expr& index, std::int64_t bytes = 0) {
  return {Event{Event::Kind::arrive, events, index, 0, bytes}};
}

}  // namespace

/// The block's share of the work; steps of all its tasks use the stages in turn.
Body Emitter::copied_by_one(const Expr& block, std::int64_t blocks) {
  const int multiplying = threads_ - kCopyThreads;
  tm_ = Tile{&g_.m, true, {}, {}, 0, 0};
  tn_ = Tile{&g_.n, false, {}, {}, 0, 0};
  for (Tile* tile : {&tm_, &tn_}) {
    tile->memory = buffer(tile->is_m ? "m_tiles" : "n_tiles", tile->side->stored,
                          t_.stages * stage_size(g_, *tile->side, t_, tile->is_m), Scope::block);
    k_.buffers[tile->memory].use = kernel::Use::tiles;
  }
  for (BufferId* events : {&full_, &empty_}) {
    *events = buffer(events == &full_ ? "full" : "empty", DType::i64, t_.stages, Scope::block);
    k_.buffers[*events].use = kernel::Use::events;
  }
  const Expr thread(thread_);
  Body body{kernel::when({{thread, 0, 1}}, {init(full_, 1), init(empty_, t_.warps_m)}),
            {kernel::Barrier{Scope::block}}};
  const auto role = [&](int threads, int registers, Body inner) {
    return kernel::Roles::Role{threads, registers, std::make_shared<const Body>(std::move(inner))};
  };
  // The register file has 168 for each of 384 threads; copying needs few.
  const bool give = multiplying > 128;
  Body multiplied =
      each_task(block, blocks, [&](const Expr& step) { return multiply_tiles(step); });
  Body brought = each_task(block, blocks, [&](const Expr& step) { return bring_tiles(step); });
  kernel::Roles roles;
  roles.roles.push_back(role(multiplying, give ? 232 : 0, std::move(multiplied)));
  roles.roles.push_back(
      role(kCopyThreads, give ? 40 : 0,
           {kernel::when({{thread, multiplying, multiplying + 1}}, std::move(brought))}));
  body.push_back({std::move(roles)});
  return body;
}

/// `make` gets the number of the task's first step among all of the block.
Body Emitter::each_task(const Expr& block, std::int64_t blocks, const Made& make) {
  return {each(ceil_div(tasks_, blocks), Binding::serial, [&](const Expr& round) {
    const ir::Var task = k_.new_var();
    place(Expr(task));
    return Body{kernel::let(task, round * Expr(blocks) + block, 0, tasks_,
                            in_tile([&] { return make(round * Expr(k_tiles_)); }))};
  })};
}

Body Emitter::bring_tiles(const Expr& first_step) {
  return {each(k_tiles_, Binding::serial, [&](const Expr& k) {
    const Expr step = first_step + k, stage = ir::floor_mod(step, t_.stages);
    const Expr used = ir::floor_mod(ir::floor_div(step, t_.stages) + Expr(1), 2);
    const Expr k_tile = split_ * Expr(k_tiles_) + k;
    const std::int64_t bytes = std::int64_t{t_.bm + t_.bn} * t_.bk * size_of(g_.m.stored);
    return Body{wait(empty_, stage, used), arrive(full_, stage, bytes),
                tile_copy(tm_, k_tile, stage), tile_copy(tn_, k_tile, stage)};
  })};
}

Stmt Emitter::tile_copy(const Tile& tile, const Expr& k_tile, const Expr& stage) {
  const TileView& view = *tile.side->view;
  const int rows = tile.is_m ? t_.bm : t_.bn;
  kernel::TileCopy x;
  x.to = tile.memory;
  x.to_offset = stage * Expr(stage_size(g_, *tile.side, t_, tile.is_m));
  x.from = tile.side->plain->buffer;
  x.extents = view.extents;
  x.strides = view.strides;
  x.box.assign(view.axes.size(), 1);
  x.box[0] = t_.bk;
  x.box[1] = rows;
  for (std::size_t d = 0; d < view.axes.size(); ++d) {
    const Expr at_d = d == 0   ? k_tile * Expr(t_.bk)
                      : d == 1 ? (tile.is_m ? m0_ : n0_) * Expr(rows)
                               : at(Expr(view.axes[d]), env_);
    x.at.push_back(at_d + Expr(view.start[d]));
  }
  x.events = full_;
  x.event = stage;
  return {std::move(x)};
}

/// A stage is free again when the product after its own has started and its own is done.
Body Emitter::multiply_tiles(const Expr& first_step) {
  const std::int64_t results = t_.bn / 2;
  acc_ = buffer("acc", p_.problem.type, results, Scope::lane);
  Body body{each(results, Binding::unroll, [&](const Expr& i) {
    return Body{kernel::store(acc_, i, kernel::imm(p_.problem.type, 0))};
  })};
  const Expr lane = ir::floor_mod(Expr(thread_), kernel::kWarp);
  const auto free = [&](const Expr& step) {
    return kernel::when({{lane, 0, 1}}, {arrive(empty_, ir::floor_mod(step, t_.stages))});
  };
  body.push_back(each(k_tiles_, Binding::serial, [&](const Expr& k) {
    const Expr step = first_step + k, stage = ir::floor_mod(step, t_.stages);
    const Expr parity = ir::floor_mod(ir::floor_div(step, t_.stages), 2);
    return Body{wait(full_, stage, parity),
                multiply_mma(stage),
                {kernel::MmaWait{1}},
                kernel::when({{k, 1, k_tiles_}}, {free(step - Expr(1))})};
  }));
  body.push_back({kernel::MmaWait{0}});
  body.push_back(free(first_step + Expr(k_tiles_ - 1)));
  append(body, t_.splits > 1 ? store_partial() : warp_results());
  return body;
}

/// Each warp brings its rows through block memory of its own into runs along n, some columns at a
/// time, and then through the epilogue.
Body Emitter::warp_results() {
  constexpr int kRows = 16;
  const int columns = results_columns(t_), ld = results_pitch(t_), width = store_width(g_, t_);
  const DType type = p_.problem.type;
  const BufferId staged = buffer("results", type, std::int64_t{t_.bm} * ld, Scope::block);
  const Expr lane = ir::floor_mod(Expr(thread_), kernel::kWarp);
  const Expr warp = ir::floor_div(Expr(thread_), kernel::kWarp);
  const Expr own = warp * Expr(std::int64_t{kRows} * ld);
  const std::int64_t line = columns / width;
  plan_sums({kernel::kWarp, line, width, 1, 0, t_.warps_m, t_.bn / columns, warp, 0, 0});
  return {each(t_.bn / columns, Binding::unroll, [&](const Expr& part) {
    site_.part_n = part;
    site_.first = part * Expr(line);
    Body body{each(columns / 8, Binding::unroll, [&](const Expr& j) {
      return Body{each(2, Binding::unroll, [&](const Expr& h) {
        return Body{each(2, Binding::vector, [&](const Expr& l) {
          const Expr row = ir::floor_div(lane, 4) + h * Expr(8);
          const Expr column = j * Expr(8) + ir::floor_mod(lane, 4) * Expr(2) + l;
          const Expr element = (part * Expr(columns / 8) + j) * Expr(4) + h * Expr(2) + l;
          return Body{kernel::store(staged, own + row * Expr(ld) + column,
                                    kernel::load(acc_, element, type))};
        })};
      })};
    })};
    body.push_back({kernel::Barrier{Scope::warp}});
    append(body, open_sums(false));
    body.push_back(each(kRows * line / kernel::kWarp, Binding::serial, [&](const Expr& i) {
      const Expr vector = i * Expr(kernel::kWarp) + lane;
      const Expr row = ir::floor_div(vector, line), q = ir::floor_mod(vector, line);
      Body all = open_sums(true);
      append(
          all,
          store_vector(warp * Expr(kRows) + row, part * Expr(line) + q, width, [&](const Expr& l) {
            return kernel::load(staged, own + row * Expr(ld) + q * Expr(width) + l, type);
          }));
      append(all, close_rows(warp * Expr(kRows) + row));
      return all;
    }));
    append(body, close_columns());
    body.push_back({kernel::Barrier{Scope::warp}});
    return body;
  })};
}

}  // namespace heddle::lower::contract::gpu

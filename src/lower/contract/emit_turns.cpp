// Register tiles of a task in turns: the results of one are made, or the next one's rows split,
// beside the products, which tile registers and vector registers do at the same time.
#include "kernel/traverse.h"
#include "lower/contract/emit.h"

namespace heddle::lower::contract {

using ir::Expr;
using ir::Var;
using kernel::Binding;
using kernel::Body;
using kernel::For;

std::int64_t Emitter::turns() const {
  return s_.panels_per_task * s_.rows_per_task * s_.tiles_per_task;
}

/// The condition of turns for which the last task has no tile, panel or row.
std::vector<ir::Condition> Emitter::idle_turns() const {
  std::vector<ir::Condition> out;
  const auto dimension = [&](const Expr& at, std::int64_t count, std::int64_t all) {
    if (all > count) out.push_back({at, count, all});
  };
  dimension(panel_, s_.panels, s_.panel_blocks() * s_.panels_per_task);
  dimension(tile_, s_.tiles(), s_.tile_blocks() * s_.tiles_per_task);
  if (p_.row) dimension(row_, p_.extents.rows, s_.row_blocks(p_.extents) * s_.rows_per_task);
  return out;
}

/// Where results take long. Each kind of tile is written once for each that it may follow.
bool Emitter::can_overlap() const {
  constexpr std::size_t kFewKinds = 2;
  return p_.extents.epilogue > kFewOperations && s_.depth == 1 && steps_ > 1 && turns() > 1 &&
         variants().size() <= kFewKinds && idle_turns().size() <= 1;
}

/// Tiles whose sums are kept: those of the panel, and the one before, whose results are made.
std::int64_t Emitter::sums_in_turn() const { return s_.slices > 1 ? tiles_of_panel() + 1 : 2; }

Expr Emitter::place_of_turn(const Expr& number) const {
  return ir::floor_mod(number, sums_in_turn()) * Expr(s_.mr * s_.nv * lanes_);
}

/// The results of a turn, if there is one of that number: all rows, or those of a step.
Body Emitter::results_of_turn(const Expr& number, std::optional<Var> step) {
  const std::int64_t some = (s_.mr + steps_ - 1) / steps_;  // in a step
  const Var n = k_.new_var(), panel = k_.new_var(), block = k_.new_var(), tile = k_.new_var();
  Body out;
  for (const Variant& v : variants()) {
    Body rows = epilogue(v, acc_, results_from(v, place_of_turn(Expr(n))));
    if (step) {
      const For all = std::get<For>(rows.front().op);
      const Var r = k_.new_var();
      const Expr row = Expr(*step) * Expr(some) + Expr(r);
      Body one = kernel::substitute(
          *all.body, [&](Var x) { return x == all.var ? std::optional<Expr>(row) : std::nullopt; });
      one = {kernel::when({{row, 0, v.mr}}, std::move(one))};
      rows = {kernel::loop(r, 0, some, Binding::serial, std::move(one))};
    }
    out.push_back(kernel::when(v.when, std::move(rows)));
  }
  const auto in_turn = [&](Var loop, Var here, const Expr& value, std::int64_t count) {
    const Expr is = count > 1 ? Expr(here) : Expr(0);
    out = kernel::substitute(
        out, [&](Var x) { return x == loop ? std::optional<Expr>(is) : std::nullopt; });
    if (count > 1) out = {kernel::let(here, value, 0, count, std::move(out))};
  };
  if (s_.beside) {
    in_turn(panel_loop_, panel, ir::floor_mod(Expr(n), s_.panels_per_task), s_.panels_per_task);
    in_turn(tile_loop_, tile, ir::floor_div(Expr(n), s_.panels_per_task), s_.tiles_per_task);
  } else {
    const Expr before = ir::floor_div(Expr(n), s_.tiles_per_task);
    in_turn(tile_loop_, tile, ir::floor_mod(Expr(n), s_.tiles_per_task), s_.tiles_per_task);
    in_turn(row_loop_, block, ir::floor_mod(before, s_.rows_per_task), s_.rows_per_task);
    in_turn(panel_loop_, panel, ir::floor_div(before, s_.rows_per_task), s_.panels_per_task);
  }
  return {kernel::let(n, number, 0, turns(), std::move(out))};
}

/// The terms of a tile, the `step`th, of a row of a tile that the task has next.
Body Emitter::terms_ahead(const Expr& row, const Expr& step, const Expr& tile, bool big) {
  const std::int64_t depth = pieces_->depth(), whole = p_.extents.k / depth,
                     rest = p_.extents.k % depth;
  const Expr slot = ir::floor_mod(Expr(tile_loop_) + Expr(1), 2) * Expr(s_.mr) + row;
  Env env = env_;
  set(env, p_.tile->var, row + (big ? tile * Expr(s_.mr) : tile * Expr(s_.mr - 1) + Expr(s_.big)));
  const auto split = [&](const Expr& first, std::int64_t terms) {
    set(env, a_terms_[0].var, first);
    return split_terms(slot, ir::floor_div(first, kHalf), env, terms);
  };
  Body out;
  if (whole > 0) out.push_back(kernel::when({{step, 0, whole}}, split(step * Expr(depth), depth)));
  if (rest == 0) return out;
  Body last;  // and zeros behind them
  for (std::int64_t first = 0; first < depth; first += kHalf)
    for (kernel::Stmt& s :
         split(Expr(whole * depth + first), std::clamp<std::int64_t>(rest - first, 0, kHalf)))
      last.push_back(std::move(s));
  out.push_back(kernel::when({{step, whole, whole + 1}}, std::move(last)));
  return out;
}

/// In each step of a tile's products with all panels, a share of the next tile's rows.
Body Emitter::rows_ahead(Var step) {
  const Expr turn = Expr(panel_loop_) * Expr(steps_) + Expr(step), tile = tile_ + Expr(1);
  Body out;
  for (const bool big : {true, false}) {
    if (big ? s_.big == 0 : s_.small == 0) continue;
    const std::int64_t rows = big ? s_.mr : s_.mr - 1,
                       each = (rows + s_.panels_per_task - 1) / s_.panels_per_task;
    const Var i = k_.new_var(), unit = k_.new_var(), row = k_.new_var(), at = k_.new_var();
    Body body = terms_ahead(Expr(row), Expr(at), tile, big);
    body = {kernel::let(at, ir::floor_div(Expr(unit), rows), 0, steps_, std::move(body))};
    body = {kernel::let(row, ir::floor_mod(Expr(unit), rows), 0, rows, std::move(body))};
    body = {kernel::let(unit, turn * Expr(each) + Expr(i), 0, rows * steps_, std::move(body))};
    out.push_back(kernel::when({{tile, big ? 0 : s_.big, big ? s_.big : s_.tiles()},
                                {Expr(tile_loop_), 0, s_.tiles_per_task - 1}},
                               {kernel::loop(i, 0, each, Binding::serial, std::move(body))}));
  }
  return out;
}

Expr Emitter::number_of_turn() const {
  if (s_.beside) return Expr(tile_loop_) * Expr(s_.panels_per_task) + Expr(panel_loop_);
  Expr number(panel_loop_);
  if (p_.row) number = number * Expr(s_.rows_per_task) + Expr(row_loop_);
  return number * Expr(s_.tiles_per_task) + Expr(tile_loop_);
}

/// Products of one turn, and in each step some rows of the results of the turn before, or of the
/// next tile.
Body Emitter::turn() {
  const Expr number = number_of_turn(), before = number - Expr(1);
  Body out;
  for (const Variant& v : variants()) {
    const Var step = k_.new_var();
    kernel::TileProduct x = pieces_product(v);
    x.along = step;
    Body all, both{kernel::Stmt{std::move(x)}};
    if (overlap_)
      for (kernel::Stmt& s : results_of_turn(before, step)) both.push_back(std::move(s));
    if (s_.beside && !direct_)
      for (kernel::Stmt& s : rows_ahead(step)) both.push_back(std::move(s));
    all.push_back(kernel::loop(step, 0, steps_, Binding::serial, std::move(both)));
    if (!overlap_)
      for (kernel::Stmt& s : epilogue(v, acc_, results_from(v, Expr(0))))
        all.push_back(std::move(s));
    out.push_back(kernel::when(v.when, std::move(all)));
  }
  if (overlap_)
    for (const ir::Condition& idle : idle_turns())
      out.push_back(kernel::when({idle}, results_of_turn(before, std::nullopt)));
  return out;
}

}  // namespace heddle::lower::contract

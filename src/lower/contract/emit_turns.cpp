// Register tiles of a task in turns: the results of one are made while the products of the next
// are, which tile registers and vector registers do side by side.
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

/// Where results take long. Sums over rows are of one panel; each kind of tile is written once for
/// each that it may follow.
bool Emitter::can_overlap() const {
  constexpr std::size_t kFewKinds = 2;
  return p_.extents.epilogue > kFewOperations && s_.depth == 1 && steps_ > 1 && turns() > 1 &&
         sums_.empty() && variants().size() <= kFewKinds && idle_turns().size() <= 1;
}

Expr Emitter::place_of_turn(const Expr& number) const {
  return ir::floor_mod(number, 2) * Expr(s_.mr * s_.nv * lanes_);
}

/// The results of a turn, if there is one of that number: all rows, or those of a step.
Body Emitter::results_of_turn(const Expr& number, std::optional<Var> step) {
  const std::int64_t some = (s_.mr + steps_ - 1) / steps_;  // in a step
  const Var n = k_.new_var(), panel = k_.new_var(), block = k_.new_var(), tile = k_.new_var();
  Body out;
  for (const Variant& v : variants()) {
    Body rows = epilogue(v, acc_, place_of_turn(Expr(n)));
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
  const Expr before = ir::floor_div(Expr(n), s_.tiles_per_task);
  in_turn(tile_loop_, tile, ir::floor_mod(Expr(n), s_.tiles_per_task), s_.tiles_per_task);
  in_turn(row_loop_, block, ir::floor_mod(before, s_.rows_per_task), s_.rows_per_task);
  in_turn(panel_loop_, panel, ir::floor_div(before, s_.rows_per_task), s_.panels_per_task);
  return {kernel::let(n, number, 0, turns(), std::move(out))};
}

/// Products of one turn, and results of the one before: some rows in each step.
Body Emitter::overlapped_tile() {
  Expr number(panel_loop_);
  if (p_.row) number = number * Expr(s_.rows_per_task) + Expr(row_loop_);
  number = number * Expr(s_.tiles_per_task) + Expr(tile_loop_);
  const Expr before = number - Expr(1);
  Body out;
  for (const Variant& v : variants()) {
    const Var step = k_.new_var();
    kernel::TileProduct x = pieces_product(v);
    x.to = place_of_turn(number);
    x.along = step;
    Body both{kernel::Stmt{std::move(x)}};
    for (kernel::Stmt& s : results_of_turn(before, step)) both.push_back(std::move(s));
    out.push_back(
        kernel::when(v.when, {kernel::loop(step, 0, steps_, Binding::serial, std::move(both))}));
  }
  for (const ir::Condition& idle : idle_turns())
    out.push_back(kernel::when({idle}, results_of_turn(before, std::nullopt)));
  return out;
}

}  // namespace heddle::lower::contract

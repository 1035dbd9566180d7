#include "lower/contract/gpu/emit.h"

namespace heddle::lower::contract::gpu {

using ir::Expr;
using kernel::Binding;
using kernel::Body;
using kernel::Value;

/// A split's tile as it is, [row][column], for the second phase.
Body Emitter::store_partial() {
  const DType type = p_.problem.type;
  const Expr start = (tile_ * Expr(t_.splits) + split_) * Expr(std::int64_t{t_.bm} * t_.bn);
  if (g_.unit != Unit::scalar)
    return fragment_pairs([&](const Expr& row, const Expr& column, const Expr& element) {
      return kernel::store(partials_, start + row * Expr(t_.bn) + column,
                           kernel::load(acc_, element, type));
    });
  const int width = vector_of(t_.tn);
  return scalar_vectors([&](const Expr& row, const Expr& column, const Expr& acc) {
    return Body{each(width, Binding::vector, [&](const Expr& l) {
      return Body{kernel::store(partials_, start + row * Expr(t_.bn) + column * Expr(width) + l,
                                kernel::load(acc_, acc + l, type))};
    })};
  });
}

/// Adds the splits of each tile in order and does the epilogue.
kernel::Stmt Emitter::second_phase(std::int64_t tiles) {
  constexpr std::int64_t kThreads = 256;
  const int width = store_width(g_, t_);
  const std::int64_t area = std::int64_t{t_.bm} * t_.bn, line = t_.bn / width, all = area / width;
  // Blocks like those of the first phase can share its launch.
  const std::int64_t threads = all % threads_ == 0 ? threads_ : std::min(kThreads, all);
  const std::int64_t blocks = all / threads;
  const ir::Var task = k_.new_var();
  thread_ = k_.new_var();
  tile_ = ir::floor_div(Expr(task), blocks);
  const Expr vector = ir::floor_mod(Expr(task), blocks) * Expr(threads) + Expr(thread_);
  const Expr row = ir::floor_div(vector, line), column = ir::floor_mod(vector, line);
  plan_sums({static_cast<int>(threads), line, width, 1, 0, blocks, 1,
             ir::floor_mod(Expr(task), blocks), 0, 0});
  Body body = in_tile([&] {
    Body all = open_sums(false);
    append(all, open_sums(true));
    append(all, store_vector(row, column, width, [&](const Expr& l) {
             const DType type = p_.problem.type;
             const Expr at =
                 tile_ * Expr(t_.splits * area) + row * Expr(t_.bn) + column * Expr(width) + l;
             Value total = kernel::load(partials_, at, type);
             for (int s = 1; s < t_.splits; ++s)
               total =
                   kernel::apply(ir::ScalarFn::add,
                                 {total, kernel::load(partials_, at + Expr(s * area), type)}, type);
             return total;
           }));
    append(all, close_rows(row));
    append(all, close_columns());
    return all;
  });
  return kernel::loop(task, 0, tiles * blocks, Binding::grid,
                      {kernel::loop(thread_, 0, threads, Binding::thread, std::move(body))});
}

}  // namespace heddle::lower::contract::gpu

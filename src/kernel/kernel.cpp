#include "kernel/kernel.h"

#include <algorithm>
#include <functional>

#include "kernel/traverse.h"

namespace heddle::kernel {
namespace {

Value make(ValueNode node) { return std::make_shared<const ValueNode>(std::move(node)); }

}  // namespace

Value imm(DType dtype, double real) {
  if (is_float(dtype)) return make({Imm{real, 0}, dtype});
  return imm_int(dtype, static_cast<std::int64_t>(real));
}

Value imm_int(DType dtype, std::int64_t integer) {
  if (is_float(dtype)) return make({Imm{static_cast<double>(integer), 0}, dtype});
  return make({Imm{0, integer}, dtype});
}

Value load(BufferId buffer, Expr offset, DType dtype) {
  return make({Load{buffer, std::move(offset), {}}, dtype});
}

Value apply(ir::ScalarFn fn, std::vector<Value> args, DType dtype) {
  HEDDLE_CHECK(static_cast<int>(args.size()) == ir::info(fn).arity, "{} takes {} arguments, not {}",
               ir::info(fn).name, ir::info(fn).arity, args.size());
  return make({Apply{fn, std::move(args)}, dtype});
}

Value guard(std::vector<ir::Condition> conditions, Value then, Value otherwise) {
  if (conditions.empty()) return then;
  const DType dtype = then->dtype;
  return make({Guard{std::move(conditions), std::move(then), std::move(otherwise)}, dtype});
}

Value with_origin(Value v, std::int32_t origin) {
  const Load* plain = std::get_if<Load>(&v->op);
  if (v->origin >= 0 || std::holds_alternative<Imm>(v->op) || (plain && plain->dynamic.empty()))
    return v;
  ValueNode named = *v;
  named.origin = origin;
  return make(std::move(named));
}

Stmt loop(Var var, std::int64_t begin, std::int64_t end, Binding binding, Body body) {
  return {For{var, begin, end, binding, std::make_shared<const Body>(std::move(body))}};
}

Stmt let(Var var, Expr value, std::int64_t begin, std::int64_t end, Body body) {
  return {Let{var, std::move(value), begin, end, std::make_shared<const Body>(std::move(body))}};
}

Stmt store(BufferId buffer, Expr offset, Value value) {
  return {Store{buffer, std::move(offset), std::move(value), {}}};
}

Stmt when(std::vector<ir::Condition> conditions, Body body) {
  return {If{std::move(conditions), std::make_shared<const Body>(std::move(body))}};
}

int Kernel::arguments() const {
  int count = 0;
  for (const Buffer& buffer : buffers) count += buffer.argument >= 0;
  return count;
}

std::int64_t TileCopy::bytes() const {
  std::int64_t bytes = 2;
  for (std::int64_t n : box) bytes *= n;
  return bytes;
}

int threads_of(const For& phase) {
  std::int64_t threads = 0;
  const std::function<void(const Body&, std::int64_t)> visit = [&](const Body& body,
                                                                   std::int64_t outer) {
    for (const Stmt& s : body) {
      if (const If* branch = std::get_if<If>(&s.op)) visit(*branch->body, outer);
      const For* loop = std::get_if<For>(&s.op);
      if (!loop || loop->binding != Binding::thread) continue;
      threads = std::max(threads, outer * loop->end);
      visit(*loop->body, outer * loop->end);
    }
  };
  visit(*phase.body, 1);
  return static_cast<int>(threads);
}

bool can_be_resident(const Kernel& k) {
  int phases = 0, threads = 0;
  bool fits = true;
  for (const Stmt& s : k.body) {
    const For* phase = std::get_if<For>(&s.op);
    if (!phase) continue;
    const int own = threads_of(*phase);
    fits = fits && own > 0 && own <= kBlockThreads && (phases++ == 0 || own == threads);
    threads = own;
    for_each_stmt(*phase->body, [&](const Stmt& x) {
      fits =
          fits && !std::holds_alternative<Roles>(x.op) && !std::holds_alternative<TileCopy>(x.op);
    });
  }
  return fits && phases > 0;
}

int fragment_row(const Mma& x, int thread, int element) {
  const int warp = thread / kWarp, lane = thread % kWarp, tile = element / 4;
  return (warp / x.warps_n * x.tiles_m + tile / x.tiles_n) * 16 + lane / 4 + element % 4 / 2 * 8;
}

int fragment_column(const Mma& x, int thread, int element) {
  const int warp = thread / kWarp, lane = thread % kWarp, tile = element / 4;
  return (warp % x.warps_n * x.tiles_n + tile % x.tiles_n) * 8 + lane % 4 * 2 + element % 2;
}

std::int64_t TileProduct::a_span(DType buffer) const {
  std::int64_t furthest = 0;
  for (const Term& t : terms) furthest = std::max(furthest, t.a);
  const int in_last = rows - (tile_rows() - 1) * height;
  return furthest + (tile_rows() - 1) * a.block + a.place_of(steps() - 1) + (in_last - 1) * a_row +
         row_bytes / size_of(buffer);
}

std::int64_t TileProduct::b_span() const {
  std::int64_t furthest = 0;
  for (const Term& t : terms) furthest = std::max(furthest, t.b);
  return furthest + (tile_columns() - 1) * b.block + (steps() - 1) * b.step +
         row_bytes / 4 * kColumns;
}

bool is_collective(const Stmt& s) {
  bool found = false;
  for_each_stmt({s}, [&](const Stmt& x) {
    found = found || std::holds_alternative<Barrier>(x.op) ||
            std::holds_alternative<Combine>(x.op) || std::holds_alternative<Routine>(x.op) ||
            std::holds_alternative<Mma>(x.op) || std::holds_alternative<MmaWait>(x.op) ||
            std::holds_alternative<Roles>(x.op);
  });
  return found;
}

}  // namespace heddle::kernel

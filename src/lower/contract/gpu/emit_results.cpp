#include <algorithm>
#include <bit>

#include "kernel/traverse.h"
#include "lower/contract/gpu/emit.h"

namespace heddle::lower::contract::gpu {

using ir::Expr;
using kernel::Binding;
using kernel::Body;
using kernel::BufferId;
using kernel::Scope;
using kernel::Value;

Body Emitter::results() {
  if (g_.unit == Unit::stream) return stream_results();
  return g_.unit == Unit::scalar ? scalar_results() : staged_results();
}

/// The runs along n that a thread holds: row and vector in the block's tile, first accumulator.
Body Emitter::scalar_vectors(
    const std::function<Body(const Expr& row, const Expr& column, const Expr& acc)>& make,
    const std::function<Body(const Expr& row, Body vectors)>& around) {
  const int wm = vector_of(t_.tm), wn = vector_of(t_.tn);
  const std::int64_t columns = t_.bn / t_.tn, span_m = t_.bm / (t_.tm / wm),
                     span_n = t_.bn / (t_.tn / wn);
  const Expr row_place = ir::floor_div(Expr(thread_), columns);
  const Expr column_place = ir::floor_mod(Expr(thread_), columns);
  return {each(t_.tm / wm, Binding::unroll, [&](const Expr& hm) {
    return Body{each(wm, Binding::unroll, [&](const Expr& i) {
      const Expr row = hm * Expr(span_m) + row_place * Expr(wm) + i;
      Body vectors{each(t_.tn / wn, Binding::unroll, [&](const Expr& hn) {
        group_ = hn;
        return make(row, hn * Expr(span_n / wn) + column_place,
                    (hm * Expr(wm) + i) * Expr(t_.tn) + hn * Expr(wn));
      })};
      return around ? around(row, std::move(vectors)) : vectors;
    })};
  })};
}

/// Straight from the registers.
Body Emitter::scalar_results() {
  const int width = vector_of(t_.tn), line = t_.bn / t_.tn;
  plan_sums({threads_, line, width, t_.tn / width, line, 1, 1, 0, 0, 0});
  Body body = open_sums(false);
  append(body, scalar_vectors(
                   [&](const Expr& row, const Expr& column, const Expr& acc) {
                     return store_vector(row, column, width, [&, acc](const Expr& l) {
                       return kernel::load(acc_, acc + l, p_.problem.type);
                     });
                   },
                   [&](const Expr& row, Body vectors) {
                     Body all = open_sums(true);
                     append(all, std::move(vectors));
                     append(all, close_rows(row));
                     return all;
                   }));
  append(body, close_columns());
  return body;
}

/// A thread's fragments (kernel::fragment_row, fragment_column): pairs along n in a vector loop.
Body Emitter::fragment_pairs(const std::function<kernel::Stmt(const Expr& row, const Expr& column,
                                                              const Expr& element)>& make) {
  const std::int64_t tiles_n = t_.bn / t_.warps_n / 8, tiles_m = t_.bm / t_.warps_m / 16;
  const Expr lane = ir::floor_mod(Expr(thread_), kernel::kWarp);
  const Expr warp = ir::floor_div(Expr(thread_), kernel::kWarp);
  const Expr row = ir::floor_div(warp, t_.warps_n) * Expr(tiles_m * 16) + ir::floor_div(lane, 4);
  const Expr column =
      ir::floor_mod(warp, t_.warps_n) * Expr(tiles_n * 8) + ir::floor_mod(lane, 4) * Expr(2);
  return {each(tiles_m, Binding::unroll, [&](const Expr& i) {
    return Body{each(tiles_n, Binding::unroll, [&](const Expr& j) {
      return Body{each(2, Binding::unroll, [&](const Expr& h) {
        return Body{each(2, Binding::vector, [&](const Expr& l) {
          return Body{make(row + i * Expr(16) + h * Expr(8), column + j * Expr(8) + l,
                           (i * Expr(tiles_n) + j) * Expr(4) + h * Expr(2) + l)};
        })};
      })};
    })};
  })};
}

/// The accumulators of tensor cores are scattered: through block memory into runs along n.
Body Emitter::staged_results() {
  const DType type = p_.problem.type;
  const std::int64_t ld = t_.bn + 8;
  const BufferId staged = buffer("results", type, t_.bm * ld, Scope::block);
  // Before the barrier others may still read tiles, whose room the results may use.
  Body body{{kernel::Barrier{Scope::block}}};
  for (kernel::Stmt& s : fragment_pairs([&](const Expr&row, const Expr&column, const Expr&element) {
         return kernel::store(staged, row * Expr(ld) + column, kernel::load(acc_, element, type));
       }))
    body.push_back(std::move(s));
  for (kernel::Stmt& s : from_block(staged, ld)) body.push_back(std::move(s));
  return body;
}

/// The block's tile, once its threads have stored it to block memory, through the epilogue.
Body Emitter::from_block(BufferId staged, std::int64_t ld) {
  const int width = store_width(g_, t_);
  const std::int64_t own = t_.bn / width;
  // Sums want each thread to stay with its columns.
  const auto line =
      p_.sums() ? static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(own))) : own;
  const std::int64_t vectors = t_.bm * line;
  plan_sums({threads_, line, width, 1, 0, 1, 1, 0, 0, 0});
  Body body{{kernel::Barrier{Scope::block}}};
  append(body, open_sums(false));
  body.push_back(each(ceil_div(vectors, threads_), Binding::serial, [&](const Expr& i) {
    const ir::Var c = k_.new_var();
    const Expr number = i * Expr(threads_) + Expr(thread_);
    const Expr r = ir::floor_div(Expr(c), line), q = ir::floor_mod(Expr(c), line);
    Body vector = store_vector(r, q, width, [&](const Expr& l) {
      return kernel::load(staged, r * Expr(ld) + q * Expr(width) + l, p_.problem.type);
    });
    if (own != line) vector = {kernel::when({{q, 0, own}}, std::move(vector))};
    Body all = open_sums(true);
    all.push_back(kernel::let(c, number, 0, vectors, std::move(vector)));
    append(all, close_rows(ir::floor_div(number, line)));
    return all;
  }));
  append(body, close_columns());
  return body;
}

/// Stores the outputs of a vector: row and vector number inside the block's tile.
Body Emitter::store_vector(const Expr& row, const Expr& column, int width, const Source& source) {
  const Env saved = env_;
  const std::int64_t m = g_.m.extent, n = g_.n.extent;
  const bool whole = !g_.out_n.empty() && g_.out_n.back().extent % width == 0;
  const auto inside = [&](const Expr& e, std::int64_t extent, const Made& make) {
    const ir::Var v = k_.new_var();
    return Body{kernel::let(v, e, 0, extent, make(Expr(v)))};
  };
  Body out = inside(m0_ * Expr(t_.bm) + row, m, [&](const Expr& r) {
    return decoded(g_.out_m, 1, r, [&] {
      const Expr first = n0_ * Expr(t_.bn / width) + column;
      if (whole)
        return inside(first, n / width, [&](const Expr& q) {
          return decoded(g_.out_n, width, q, [&] {
            return Body{each(width, Binding::vector, [&](const Expr& l) {
              const Env outer = env_;
              const ir::Var last = g_.out_n.back().var;
              set(env_, last, at(Expr(last), outer) + l);
              Body lanes = store_lanes(width, source, l);
              env_ = outer;
              return lanes;
            })};
          });
        });
      return Body{each(width, Binding::unroll, [&](const Expr& l) {
        return inside(first * Expr(width) + l, n, [&](const Expr& c) {
          return decoded(g_.out_n, 1, c, [&] { return store_lanes(width, source, l); });
        });
      })};
    });
  });
  env_ = saved;
  return out;
}

/// Every output in order; later ones use earlier ones.
Body Emitter::store_lanes(int width, const Source& source, const Expr& lane) {
  std::vector<std::pair<BufferId, Value>> with{{p_.result, source(lane)}};
  Body stores;
  for (std::size_t i = 0; i < p_.outputs.size(); ++i) {
    const Output& o = p_.outputs[i];
    Value value = replace_loads(at(o.value, env_), with);
    if (o.sum) {
      const auto sum =
          std::find_if(sums_.begin(), sums_.end(), [&](const Sum& s) { return s.output == i; });
      stores.push_back(add_to(*sum, value, lane));
      continue;
    }
    if (i + 1 < p_.outputs.size() && o.node != p_.problem.contract) {
      const BufferId shared = buffer("shared", value->dtype, width, Scope::lane);
      stores.push_back(kernel::store(shared, lane, value));
      value = kernel::load(shared, lane, value->dtype);
      with.emplace_back(o.stand_in, value);
    }
    stores.push_back(kernel::store(o.buffer, at(o.offset, env_), value));
  }
  return stores;
}

}  // namespace heddle::lower::contract::gpu

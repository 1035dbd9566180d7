// How an attention's tiles come into block memory and are multiplied, and how large they are.
#include <algorithm>

#include "kernel/bounds.h"
#include "kernel/traverse.h"
#include "lower/gpu/attention_emit.h"
#include "support/math.h"

namespace heddle::lower::gpu {

using ir::Expr;
using ir::ScalarFn;
using ir::Var;
using kernel::Binding;
using kernel::Body;
using kernel::BufferId;
using kernel::Scope;
using kernel::Value;

namespace {

constexpr int kAccess = 16;
constexpr std::int64_t kDeepest = 128, kDeepestScalar = 256;

/// Elements of the tiles as they are stored; 16-bit operands alike are multiplied by tensor cores.
DType stored_type(const prim::Graph& g, const Attention& a) {
  const DType type = g[a.q.node].type.dtype;
  const bool same = g[a.k.node].type.dtype == type && g[a.v.node].type.dtype == type;
  return same && (type == DType::bf16 || type == DType::f16) ? type : DType::f32;
}

/// Extents that tiles are padded to.
struct Padded {
  std::int64_t depth, columns;
};
Padded padding(const Attention& a, bool mma) {
  const std::int64_t columns = a.extent(a.column);
  if (mma) return {round_up(a.extent(a.depth), 16), round_up(columns, 8)};
  const std::int64_t width = columns <= kAcross ? 1 : columns <= 2 * kAcross ? 2 : 4;
  return {round_up(a.extent(a.depth), 4), round_up(columns, kAcross * width)};
}

/// Elements between rows: 16 bytes more, an odd number of them, so that neighbours lie in different
/// banks.
std::int64_t pitch(std::int64_t n, DType type) {
  const std::int64_t unit = kAccess / size_of(type);
  std::int64_t units = (n + unit - 1) / unit;
  return (units + 1 + units % 2) * unit;
}

}  // namespace

std::int64_t shared_bytes(const prim::Graph& g, const Attention& a, const AttentionTiles& t) {
  const DType type = stored_type(g, a);
  const Padded p = padding(a, t.mma);
  // Tensor cores read tiles either way round: the larger.
  const auto tile = [&](std::int64_t across, std::int64_t along) {
    const std::int64_t plain = across * pitch(along, type);
    return t.mma ? std::max(plain, along * pitch(across, type)) : plain;
  };
  return size_of(type) * (tile(t.rows, p.depth) + 2 * tile(t.keys, p.depth) +
                          2 * tile(t.keys, p.columns) + t.rows * pitch(t.keys, type));
}

std::vector<AttentionTiles> attention_tiles(const prim::Graph& g, const Attention& a,
                                            const Target& target, const Tuning& fixed) {
  const bool mma = stored_type(g, a) != DType::f32;
  const std::int64_t deepest = mma ? kDeepest : kDeepestScalar;
  const std::int64_t depth = a.extent(a.depth), columns = a.extent(a.column);
  std::vector<AttentionTiles> out;
  if (std::max(depth, columns) > deepest || a.extent(a.key) < 2) return out;
  std::int64_t batches = 1;
  for (Var v : a.batch) batches *= a.extent(v);
  const auto pinned = [&](std::string_view name, int value) {
    return std::all_of(fixed.begin(), fixed.end(),
                       [&](const auto& one) { return one.first != name || one.second == value; });
  };
  const auto waves = [&](int rows) {
    return static_cast<double>(batches * ((a.extent(a.row) + rows - 1) / rows)) /
           target.multiprocessors;
  };
  constexpr int kMmaRows[] = {64, 128, 32, 16}, kScalarRows[] = {64, 32, 16};
  for (int rows : mma ? std::span<const int>(kMmaRows) : std::span<const int>(kScalarRows))
    for (int keys : {64, 32}) {
      AttentionTiles t{mma, rows, keys, mma ? rows * 2 : 128};
      if (!mma && (keys > 32 || rows / 16 * round_up(columns, kAcross) / kAcross > 64)) continue;
      if (!pinned("rows", rows) || !pinned("keys", keys)) continue;
      if (shared_bytes(g, a, t) <= target.shared_bytes) out.push_back(t);
    }
  // Smaller blocks where large ones leave multiprocessors idle or rows empty; the largest only
  // where there are many.
  const auto badness = [&](const AttentionTiles& t) {
    const double idle = std::max(0.0, 1 - waves(t.rows));
    const double empty = 1 - static_cast<double>(a.extent(a.row)) /
                                 static_cast<double>(round_up(a.extent(a.row), t.rows));
    const double small = t.rows >= 128 ? (waves(128) >= 4 ? -0.05 : 0.2) : 16.0 / t.rows;
    const double narrow = t.keys == 64 ? 0 : a.extent(a.key) <= 32 ? -0.1 : 0.1;
    return idle + empty + 0.3 * small + narrow;
  };
  std::stable_sort(out.begin(), out.end(), [&](const AttentionTiles& x, const AttentionTiles& y) {
    return badness(x) < badness(y);
  });
  return out;
}

namespace {

struct Plain {
  BufferId buffer;
  Expr offset;
};
/// A load as it is.
std::optional<Plain> plain_of(const Value& v) {
  const auto* load = std::get_if<kernel::Load>(&v->op);
  if (!load || !load->dynamic.empty()) return std::nullopt;
  return Plain{load->buffer, load->offset};
}

/// Elements along `v` that lie side by side and aligned.
int contiguous(const Expr& offset, Var v, std::int64_t extent, int most) {
  if (ir::coefficient_of(offset, v) != 1) return 1;
  int width = most;
  while (width > 1 && (extent % width != 0 || !kernel::multiple_of(offset - Expr(v), width)))
    width /= 2;
  return width;
}

}  // namespace

AttentionEmitter::Tile AttentionEmitter::tile_of(const Attention::Operand& o, const char* name,
                                                 std::int64_t across, int stages) {
  const DType type = stored_type(g_, a_);
  const Padded p = padding(a_, t_.mma);
  Tile t;
  t.operand = &o;
  t.value =
      kernel::guard(o.inside, values_.at(o.node, o.index, o.inside), kernel::imm(DType::f32, 0));
  t.across = across;
  t.along = o.along == a_.column ? p.columns : p.depth;
  const int most = kAccess / static_cast<int>(size_of(type));
  if (const auto plain = plain_of(t.value)) {
    const int along = contiguous(plain->offset, o.along, a_.extent(o.along), most);
    const int beside = contiguous(plain->offset, o.across, a_.extent(o.across), most);
    const bool runs = ir::coefficient_of(plain->offset, o.across) == 1 &&
                      ir::coefficient_of(plain->offset, o.along) != 1;
    t.along_memory = beside <= along && !runs;
    t.vector = std::max(along, beside);
    t.source = plain->buffer;
    t.offset = plain->offset;
    t.async = k_.buffers[plain->buffer].dtype == type && t.vector * size_of(type) >= 4;
  }
  const bool turned = t_.mma && !t.along_memory;
  // One product at a time: vectors are read along `along`, whatever memory is like.
  if (!t_.mma && !t.along_memory) t.vector = 1, t.async = t.async && size_of(type) >= 4;
  t.row = turned ? 1 : pitch(t.along, type);
  t.step = turned ? pitch(t.across, type) : 1;
  t.size = turned ? t.along * t.step : t.across * t.row;
  t.memory = buffer(name, type, stages * t.size, Scope::block);
  return t;
}

/// Tile `number` along the rows or keys to a stage, dealt out so that neighbouring threads read
/// neighbouring memory.
Body AttentionEmitter::copies(const Tile& t, const Expr& number, const Expr& stage) {
  const std::int64_t chunks = t.across * t.along / t.vector;
  return {each((chunks + t_.threads - 1) / t_.threads, Binding::unroll, [&](const Expr& i) {
    const Expr chunk = i * Expr(t_.threads) + Expr(thread_);
    if (chunks % t_.threads == 0) return copy_chunk(t, chunk, number, stage);
    const Var c = fresh(chunks);
    return Body{kernel::let(c, chunk, 0, chunks, copy_chunk(t, Expr(c), number, stage))};
  })};
}

/// Zeros where there is no such row, key, depth or column.
Body AttentionEmitter::copy_chunk(const Tile& t, const Expr& chunk, const Expr& number,
                                  const Expr& stage) {
  const Attention::Operand& o = *t.operand;
  const int beside = t.along_memory ? 1 : t.vector, along = t.along_memory ? t.vector : 1;
  const std::int64_t inner = t.along_memory ? t.along / along : t.across / beside;
  const Expr fast = ir::floor_mod(chunk, inner), slow = ir::floor_div(chunk, inner);
  const Expr x = t.along_memory ? fast : slow, r = t.along_memory ? slow : fast;
  const Expr to = stage * Expr(t.size) + r * Expr(t.row * beside) + x * Expr(t.step * along);
  const std::int64_t rows = a_.extent(o.across) / beside, length = a_.extent(o.along) / along;
  const bool ragged = a_.extent(o.across) % t.across != 0, short_ = t.along != a_.extent(o.along);
  const Expr at = number * Expr(t.across / beside) + r;
  std::vector<ir::Condition> conditions;
  if (ragged) conditions.push_back({at, 0, rows});
  if (short_) conditions.push_back({x, 0, length});
  return let(ragged ? ir::min(at, Expr(rows - 1)) : at, rows, [&](const Expr& across) {
    return let(short_ ? ir::min(x, Expr(length - 1)) : x, length, [&](const Expr& place) {
      const auto here = [&](const Expr& lane) -> kernel::Replacement {
        const Expr a = across * Expr(beside) + (t.along_memory ? Expr(0) : lane);
        const Expr b = place * Expr(along) + (t.along_memory ? lane : Expr(0));
        return [=, &o](Var v) -> std::optional<Expr> {
          if (v == o.across) return a;
          if (v == o.along) return b;
          return std::nullopt;
        };
      };
      if (t.async)
        return Body{{kernel::Copy{t.memory, t.source, to, ir::substitute(t.offset, here(Expr(0))),
                                  t.vector, conditions}}};
      const auto one = [&](const Expr& lane) {
        const Value v = kernel::substitute(t.value, here(lane));
        return Body{kernel::store(t.memory, to + lane,
                                  kernel::guard(conditions, v, kernel::imm(v->dtype, 0)))};
      };
      return t.vector == 1 ? one(Expr(0)) : Body{each(t.vector, Binding::vector, one)};
    });
  });
}

Body AttentionEmitter::multiply(BufferId acc, const Fragment& f, const Tile& a, const Expr& a_stage,
                                const Tile& b, const Expr& b_stage, bool b_along_k) {
  if (!t_.mma) return multiply_scalar(acc, f, a, b, b_stage, b_along_k);
  kernel::Mma x;
  x.acc = acc;
  x.warps_m = t_.threads / kernel::kWarp;
  x.tiles_m = f.rows, x.tiles_n = f.columns;
  x.k = static_cast<int>(a.along);
  x.a = {a.memory, a_stage, a.row, a.step};
  x.b = {b.memory, b_stage, b.row, b.step};
  if (!b_along_k) std::swap(x.b.row, x.b.step);
  return {{x}};
}

/// Four reductions at a time: vectors of both sides, then all products of them.
Body AttentionEmitter::multiply_scalar(BufferId acc, const Fragment& f, const Tile& a,
                                       const Tile& b, const Expr& b_stage, bool b_along_k) {
  constexpr int kStep = 4;
  const auto get = [](BufferId m, const Expr& at) { return kernel::load(m, at, DType::f32); };
  const int columns = f.columns * f.widths;
  const BufferId fa = buffer("a", DType::f32, f.rows * kStep, Scope::lane);
  const BufferId fb = buffer("b", DType::f32, b_along_k ? columns * kStep : columns, Scope::lane);
  const Expr place = ir::floor_mod(Expr(thread_), kAcross);
  const auto products = [&](const Expr& l, const Expr& b_base, std::int64_t b_step) {
    return each(f.rows, Binding::unroll, [&](const Expr& i) {
      return Body{each(columns, Binding::unroll, [&](const Expr& j) {
        const Expr e = i * Expr(columns) + j;
        const Value product = kernel::apply(
            ScalarFn::mul, {get(fa, i * Expr(kStep) + l), get(fb, b_base + j * Expr(b_step))},
            DType::f32);
        return Body{kernel::store(
            acc, e, kernel::apply(ScalarFn::add, {get(acc, e), product}, DType::f32))};
      })};
    });
  };
  return {each(a.along / kStep, Binding::serial, [&](const Expr& k) {
    Body body = rows(f, [&](const Expr& slot, const Expr& row, const Expr&) {
      return Body{each(kStep, Binding::vector, [&](const Expr& l) {
        return Body{kernel::store(fa, slot * Expr(kStep) + l,
                                  get(a.memory, row * Expr(a.row) + k * Expr(kStep) + l))};
      })};
    });
    if (b_along_k)
      body.push_back(each(columns, Binding::unroll, [&](const Expr& j) {
        return Body{each(kStep, Binding::vector, [&](const Expr& l) {
          const Expr from =
              b_stage + (j * Expr(kAcross) + place) * Expr(b.row) + k * Expr(kStep) + l;
          return Body{kernel::store(fb, j * Expr(kStep) + l, get(b.memory, from))};
        })};
      }));
    body.push_back(each(kStep, Binding::unroll, [&](const Expr& l) {
      Body one;
      if (!b_along_k)
        one.push_back(each(f.columns, Binding::unroll, [&](const Expr& j) {
          const auto store = [&](const Expr& v) {
            const Expr from = b_stage + (k * Expr(kStep) + l) * Expr(b.row) +
                              (j * Expr(kAcross) + place) * Expr(f.widths) + v;
            return Body{kernel::store(fb, j * Expr(f.widths) + v, get(b.memory, from))};
          };
          if (f.widths == 1) return store(Expr(0));
          return Body{each(f.widths, Binding::vector, store)};
        }));
      one.push_back(b_along_k ? products(l, l, kStep) : products(l, Expr(0), 1));
      return one;
    }));
    return body;
  })};
}

}  // namespace heddle::lower::gpu

#include "lower/contract/gpu/gemm.h"

#include <algorithm>
#include <numeric>

#include "kernel/bounds.h"
#include "kernel/traverse.h"

namespace heddle::lower::contract::gpu {

using ir::Expr;
using ir::Var;
using kernel::Load;
using kernel::Value;

namespace {

constexpr std::int64_t kWarpgroupRows = 128;  // for products by warpgroups
constexpr int kAccess = 16;                   // bytes of the widest access of a thread

/// Merges neighbouring axes that step evenly through the values.
void merge(std::vector<Axis>& axes, const std::vector<Value*>& values) {
  for (std::size_t i = 0; i + 1 < axes.size();) {
    const Axis outer = axes[i], inner = axes[i + 1];
    bool even = true;
    for (const Value* v : values)
      for (const Expr& e : expressions_of(*v)) {
        const auto a = ir::coefficient_of(e, outer.var), b = ir::coefficient_of(e, inner.var);
        even = even && a && b && *a == *b * inner.extent;
      }
    if (!even) {
      ++i;
      continue;
    }
    for (Value* v : values)
      *v = kernel::substitute(
          *v, [&](Var x) { return x == outer.var ? std::optional<Expr>(Expr(0)) : std::nullopt; });
    axes[i + 1].extent *= outer.extent;
    axes.erase(axes.begin() + static_cast<std::ptrdiff_t>(i));
  }
}

std::int64_t product_of(const std::vector<Axis>& axes) {
  std::int64_t count = 1;
  for (const Axis& axis : axes) count *= axis.extent;
  return count;
}

/// Elements along the innermost of `axes` that lie side by side, aligned, under the same
/// conditions: at most `most`.
int contiguous(const Expr& offset, const std::vector<ir::Condition>& conditions,
               const std::vector<Axis>& axes, int most) {
  if (axes.empty()) return 1;
  const Axis& inner = axes.back();
  if (ir::coefficient_of(offset, inner.var) != 1) return 1;
  for (const ir::Condition& c : conditions)
    if (ir::depends_on(c.expr, inner.var)) return 1;
  int width = most;
  while (width > 1 &&
         (inner.extent % width != 0 || !kernel::multiple_of(offset - Expr(inner.var), width)))
    width /= 2;
  return width;
}

struct Maker {
  Gemm& g;
  Product& p = g.product;

  void run(bool tf32, std::optional<Unit> unit, bool packing) {
    sides();
    order_reductions();
    const auto dtype = [&](NodeId id) { return (*p.request.graph)[id].type.dtype; };
    const DType a = dtype(p.problem.a), b = dtype(p.problem.b);
    const bool half = a == b && (a == DType::f16 || a == DType::bf16);
    if (half || (tf32 && p.problem.type == DType::f32)) g.unit = Unit::mma;
    if (std::min(g.m.extent, g.n.extent) <= kFewRows) g.unit = Unit::stream;
    g.possible = {g.unit};
    const DType stored = half ? a : p.problem.type;
    for (Side* s : {&g.m, &g.n}) {
      s->stored = stored;
      s->k = g.k;
      access(*s);
    }
    if (g.unit == Unit::mma && half && p.request.target.warpgroups &&
        g.m.extent >= kWarpgroupRows && g.n.extent >= kWarpgroupRows / 2 && chunked(g.m) &&
        chunked(g.n)) {
      g.possible.push_back(Unit::wgmma);
      if (p.request.target.stage_threads == 0 && (packs(g.m) || view_of(g.m)) &&
          (packs(g.n) || view_of(g.n)))
        g.possible.push_back(Unit::tma);
    }
    g.unit = unit.value_or(g.unit);
    for (Side* s : {&g.m, &g.n}) {
      if (packing) pack(*s);
      if (g.unit == Unit::tma) s->view = view_of(*s);
    }
  }

  /// n is the side along which the first output is contiguous.
  void sides() {
    std::vector<Axis> outer_m, outer_n;
    for (const Axis& axis : p.outer) {
      if (axis.role == Role::batch) g.batch.push_back(axis);
      if (axis.role == Role::m) outer_m.push_back(axis);
      if (axis.role == Role::n) outer_n.push_back(axis);
    }
    if (p.row) outer_m.push_back(*p.row);
    if (p.tile) outer_m.push_back(*p.tile);
    if (p.n) outer_n.push_back(*p.n);
    g.batch_extent = product_of(g.batch);
    g.m.value = p.a;
    g.n.value = p.b;
    g.m.rows = g.out_m = outer_m;
    g.n.rows = p.problem.of(Role::n);
    g.out_n = outer_n;
    g.m.source = p.problem.a;
    g.n.source = p.problem.b;
    g.m.extent = product_of(g.m.rows);
    g.n.extent = product_of(g.n.rows);
    const Expr& stored = p.outputs.front().offset;
    const auto runs_along = [&](const std::vector<Axis>& axes) {
      return std::any_of(axes.begin(), axes.end(), [&](const Axis& axis) {
        return ir::coefficient_of(stored, axis.var) == 1;
      });
    };
    if (runs_along(g.out_m) && !runs_along(g.out_n)) {
      std::swap(g.m, g.n);
      std::swap(g.out_m, g.out_n);
      g.swapped = true;
    }
    merge(g.m.rows, {&g.m.value});
    merge(g.n.rows, {&g.n.value});
  }

  /// In the order of the operand that is no constant (constants can be rearranged).
  void order_reductions() {
    g.k = p.problem.of(Role::k);
    const bool other = p.request.graph->constant_of(p.problem.a) != nullptr;
    const Load* load = first_load(other ? p.b : p.a);
    std::stable_sort(g.k.begin(), g.k.end(), [&](const Axis& x, const Axis& y) {
      return stride_of(load, x.var) > stride_of(load, y.var);
    });
    merge(g.k, {&g.m.value, &g.n.value});
    if (g.k.empty()) g.k.push_back({p.kernel.new_var(), 1, Role::k});
    g.k_extent = product_of(g.k);
  }

  /// Whole accesses along the reductions, as it lies or once packed.
  bool chunked(const Side& s) const {
    return (s.async && s.along_k && s.vector == kAccess / size_of(s.stored)) || packable(s);
  }

  const Tensor* packable(const Side& s) const {
    const auto plain = plain_of(s.value);
    if (!plain || !plain->conditions.empty()) return nullptr;
    for (const Values::Input& in : p.values.inputs())
      if (in.buffer == plain->buffer &&
          in.layout == row_major((*p.request.graph)[in.node].type.shape))
        return p.request.graph->constant_of(in.node);
    return nullptr;
  }

  bool by_warpgroups() const { return g.unit == Unit::wgmma || g.unit == Unit::tma; }
  /// True if warpgroups need it packed.
  bool packs(const Side& s) const {
    return packable(s) && (s.vector * size_of(s.stored) != kAccess || !s.along_k);
  }

  /// A sum of multiples of one reduction, one row and batch axes, of at most four dimensions in
  /// all.
  std::optional<TileView> view_of(const Side& s) const {
    if (!s.async || !s.along_k || s.vector * size_of(s.stored) != kAccess) return std::nullopt;
    if (!s.plain->conditions.empty() || s.k.size() != 1 || s.rows.size() != 1) return std::nullopt;
    TileView out;
    std::vector<Axis> axes{s.k[0], s.rows[0]};
    axes.insert(axes.end(), g.batch.begin(), g.batch.end());
    Expr rest = s.plain->offset;
    for (const Axis& axis : axes) {
      const auto stride = ir::coefficient_of(s.plain->offset, axis.var);
      if (!stride || *stride < 0 || axis.extent >= INT32_MAX) return std::nullopt;
      if (*stride == 0 && out.axes.size() >= 2) continue;  // all batches read the same
      rest = rest - Expr(axis.var) * Expr(*stride);
      out.axes.push_back(axis.var);
      out.extents.push_back(axis.extent);
      out.strides.push_back(*stride);
    }
    const auto start = rest.constant();
    if (!start || *start < 0 || out.axes.size() > 4) return std::nullopt;
    for (std::size_t d = 0; d < out.axes.size(); ++d)
      if (d == 0 ? out.strides[d] != 1 : out.strides[d] < 1 || out.strides[d] % 8 != 0)
        return std::nullopt;
    place(out, *start);
    return out;
  }
  /// Where element `start` lies: the widest strides first.
  static void place(TileView& view, std::int64_t start) {
    view.start.assign(view.axes.size(), 0);
    std::vector<std::size_t> order(view.axes.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::sort(order.begin(), order.end(),
              [&](std::size_t a, std::size_t b) { return view.strides[a] > view.strides[b]; });
    for (std::size_t d : order) {
      view.start[d] = start / view.strides[d];
      start %= view.strides[d];
      view.extents[d] += view.start[d];
    }
  }

  /// A constant that cannot be read in whole accesses is rearranged so that it can.
  void pack(Side& s) {
    const int width = kAccess / static_cast<int>(size_of(s.stored));
    const bool in_rows =
        by_warpgroups() || (g.unit == Unit::stream && p.request.target.whole_pieces);
    if (s.vector == width && (!in_rows || s.along_k)) return;
    // Streams take steps along both sides' own reductions.
    if (g.unit == Unit::stream && g.k.back().extent % width != 0) return;
    const Tensor* constant = packable(s);
    if (!constant) return;
    const Expr offset = plain_of(s.value)->offset;
    const auto padded = [&](std::int64_t n) { return (n + width - 1) / width * width; };
    const bool along_k = g.unit != Unit::scalar;
    const Axis row{p.kernel.new_var(), along_k ? s.extent : padded(s.extent), Role::m};
    const Axis k{p.kernel.new_var(), along_k ? padded(g.k_extent) : g.k_extent, Role::k};
    s.packed = [=, this_side = Side(s), batches = g.batch, vars = p.kernel.variables] {
      return packed(*constant, offset, this_side, batches, along_k, row.extent, k.extent, vars);
    };
    Expr batch(0);
    for (const Axis& axis : g.batch) batch = batch * Expr(axis.extent) + Expr(axis.var);
    const Expr line = along_k ? Expr(row.var) * Expr(k.extent) + Expr(k.var)
                              : Expr(k.var) * Expr(row.extent) + Expr(row.var);
    kernel::Buffer buffer;
    buffer.name = "packed";
    buffer.dtype = s.stored;
    buffer.size = g.batch_extent * row.extent * k.extent;
    const kernel::BufferId id = p.kernel.add_buffer(std::move(buffer));
    s.value = kernel::load(id, batch * Expr(row.extent * k.extent) + line, compute_type(s.stored));
    s.rows = {row};
    s.k = {k};
    access(s);
  }

  /// [batch][row][k] or [batch][k][row], zeros beyond the last. The offset is a sum of functions of
  /// batch, row and reduction, so three tables give every element.
  static Tensor packed(const Tensor& from, const Expr& offset, const Side& s,
                       const std::vector<Axis>& batches, bool along_k, std::int64_t rows,
                       std::int64_t ks, std::int32_t variables) {
    std::vector<std::int64_t> vars(static_cast<std::size_t>(variables), 0);
    const std::int64_t zero = ir::evaluate(offset, vars);
    const auto table = [&](const std::vector<Axis>& axes) {
      std::vector<std::int64_t> out(static_cast<std::size_t>(product_of(axes)));
      for (std::size_t i = 0; i < out.size(); ++i) {
        auto rest = static_cast<std::int64_t>(i);
        for (std::size_t a = axes.size(); a-- > 0; rest /= axes[a].extent)
          vars[static_cast<std::size_t>(axes[a].var.index)] = rest % axes[a].extent;
        out[i] = ir::evaluate(offset, vars) - zero;
      }
      for (const Axis& axis : axes) vars[static_cast<std::size_t>(axis.var.index)] = 0;
      return out;
    };
    const auto ob = table(batches), orow = table(s.rows), ok = table(s.k);
    Tensor out({s.stored, {static_cast<std::int64_t>(ob.size()), rows, ks}});
    for (std::size_t b = 0; b < ob.size(); ++b)
      for (std::size_t r = 0; r < orow.size(); ++r)
        for (std::size_t k = 0; k < ok.size(); ++k) {
          const std::int64_t source = zero + ob[b] + orow[r] + ok[k];
          const auto row = static_cast<std::int64_t>(r), step = static_cast<std::int64_t>(k);
          const std::int64_t place = along_k ? row * ks + step : step * rows + row;
          const std::int64_t to = static_cast<std::int64_t>(b) * rows * ks + place;
          is_float(s.stored) ? out.set(to, from.at(source)) : out.set_int(to, from.int_at(source));
        }
    return out;
  }

  /// Which way the operand is read, and how wide.
  void access(Side& s) {
    const int size = static_cast<int>(size_of(s.stored)), most = kAccess / size;
    s.plain = plain_of(s.value);
    const Load* load = first_load(s.value);
    if (load) {
      const bool bare = s.plain.has_value();
      std::vector<ir::Condition> conditions;
      if (bare) conditions = s.plain->conditions;
      const int k = contiguous(load->offset, conditions, s.k, most);
      const int rows = contiguous(load->offset, conditions, s.rows, most);
      s.along_k = k > rows || (k == rows && !runs_along_rows(load, s));
      s.vector = std::max(k, rows);
    }
    // Threads that multiply one by one read vectors along the rows of the product.
    s.k_inside = (g.unit == Unit::mma || by_warpgroups()) && s.along_k;
    if (g.unit == Unit::scalar && s.along_k) s.vector = 1;
    const bool same = s.plain && p.kernel.buffers[s.plain->buffer].dtype == s.stored;
    s.async = same && s.vector * size >= 4;
    if (!s.async) s.plain.reset();
  }

  bool runs_along_rows(const Load* load, const Side& s) const {
    if (s.rows.empty()) return false;
    const std::int64_t rows = stride_of(load, s.rows.back().var);
    const std::int64_t k = stride_of(load, s.k.back().var);
    return rows > 0 && (k == 0 || rows < k);
  }
};

}  // namespace

std::optional<Plain> plain_of(const Value& v) {
  Plain out;
  const kernel::ValueNode* node = v.get();
  while (const auto* guard = std::get_if<kernel::Guard>(&node->op)) {
    const auto* zero = std::get_if<kernel::Imm>(&guard->otherwise->op);
    if (!zero || zero->real != 0 || zero->integer != 0) return std::nullopt;
    out.conditions.insert(out.conditions.end(), guard->conditions.begin(), guard->conditions.end());
    node = guard->then.get();
  }
  const Load* load = std::get_if<Load>(&node->op);
  if (!load || !load->dynamic.empty()) return std::nullopt;
  out.buffer = load->buffer;
  out.offset = load->offset;
  return out;
}

void set(Env& env, Var v, Expr e) {
  const auto i = static_cast<std::size_t>(v.index);
  if (env.size() <= i) env.resize(i + 1);
  env[i] = std::move(e);
}

namespace {
kernel::Replacement replacement(const Env& env) {
  return [&env](Var x) {
    const auto i = static_cast<std::size_t>(x.index);
    return i < env.size() ? env[i] : std::nullopt;
  };
}
}  // namespace

Value at(const Value& v, const Env& env) { return kernel::substitute(v, replacement(env)); }
Expr at(const Expr& e, const Env& env) { return ir::substitute(e, replacement(env)); }
std::vector<ir::Condition> at(std::vector<ir::Condition> list, const Env& env) {
  for (ir::Condition& c : list) c.expr = at(c.expr, env);
  return list;
}

Gemm make_gemm(Product& product, bool tf32, std::optional<Unit> unit, bool packing) {
  Gemm out{product, Unit::scalar, {}, {}, {}, {}, {}, 1, 1, {}, {}, false};
  Maker{out}.run(tf32, unit, packing);
  return out;
}

}  // namespace heddle::lower::contract::gpu

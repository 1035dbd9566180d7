#include "lower/contract/gpu/gemm.h"

#include <algorithm>

#include "kernel/bounds.h"
#include "kernel/traverse.h"

namespace heddle::lower::contract::gpu {

using ir::Expr;
using ir::Var;
using kernel::Load;
using kernel::Value;

namespace {

constexpr int kAccess = 16;  // bytes of the widest access of a thread

/// The load under casts to the compute type and guards against zero; nullopt if something is
/// computed.
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

const Load* first_load(const Value& v) {
  const Load* found = nullptr;
  kernel::for_each_value(v, [&](const Value& x) {
    const Load* load = std::get_if<Load>(&x->op);
    if (load && load->dynamic.empty() && !found) found = load;
  });
  return found;
}

std::int64_t stride_of(const Load* load, Var v) {
  return load ? std::abs(ir::coefficient_of(load->offset, v).value_or(0)) : 0;
}

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

  void run(bool tf32) {
    sides();
    order_reductions();
    const auto dtype = [&](NodeId id) { return (*p.request.graph)[id].type.dtype; };
    const DType a = dtype(p.problem.a), b = dtype(p.problem.b);
    const bool half = a == b && (a == DType::f16 || a == DType::bf16);
    const bool rounded = tf32 && p.problem.type == DType::f32;
    if (half || rounded) g.unit = Unit::mma;
    if (std::min(g.m.extent, g.n.extent) <= kFewRows) g.unit = Unit::stream;
    const DType stored = half ? a : p.problem.type;
    for (Side* s : {&g.m, &g.n}) {
      s->stored = stored;
      s->k = g.k;
      access(*s);
      pack(*s);
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

  /// A constant that cannot be read in whole accesses is rearranged so that it can.
  void pack(Side& s) {
    const int width = kAccess / static_cast<int>(size_of(s.stored));
    const auto plain = plain_of(s.value);
    if (s.vector == width || !plain || !plain->conditions.empty()) return;
    // Streams take steps along both sides' own reductions.
    if (g.unit == Unit::stream && g.k.back().extent % width != 0) return;
    const Tensor* constant = nullptr;
    for (const Values::Input& in : p.values.inputs())
      if (in.buffer == plain->buffer &&
          in.layout == row_major((*p.request.graph)[in.node].type.shape))
        constant = p.request.graph->constant_of(in.node);
    if (!constant) return;
    const auto padded = [&](std::int64_t n) { return (n + width - 1) / width * width; };
    const bool along_k = g.unit != Unit::scalar;
    const Axis row{p.kernel.new_var(), along_k ? s.extent : padded(s.extent), Role::m};
    const Axis k{p.kernel.new_var(), along_k ? padded(g.k_extent) : g.k_extent, Role::k};
    s.packed = packed(*constant, plain->offset, s, along_k, row.extent, k.extent);
    Expr batch(0);
    for (const Axis& axis : g.batch) batch = batch * Expr(axis.extent) + Expr(axis.var);
    const Expr line = along_k ? Expr(row.var) * Expr(k.extent) + Expr(k.var)
                              : Expr(k.var) * Expr(row.extent) + Expr(row.var);
    kernel::Buffer buffer;
    buffer.name = "packed";
    buffer.dtype = s.stored;
    buffer.size = s.packed->count();
    const kernel::BufferId id = p.kernel.add_buffer(std::move(buffer));
    s.value = kernel::load(id, batch * Expr(row.extent * k.extent) + line, compute_type(s.stored));
    s.rows = {row};
    s.k = {k};
    access(s);
  }

  /// [batch][row][k] or [batch][k][row], zeros beyond the last. The offset is a sum of functions of
  /// batch, row and reduction, so three tables give every element.
  Tensor packed(const Tensor& from, const Expr& offset, const Side& s, bool along_k,
                std::int64_t rows, std::int64_t ks) const {
    std::vector<std::int64_t> vars(static_cast<std::size_t>(p.kernel.variables), 0);
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
    const auto ob = table(g.batch), orow = table(s.rows), ok = table(g.k);
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
    s.k_inside = g.unit == Unit::mma && s.along_k;
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

Gemm make_gemm(Product& product, bool tf32) {
  Gemm out{product, Unit::scalar, {}, {}, {}, {}, 1, 1, {}, {}};
  Maker{out}.run(tf32);
  return out;
}

}  // namespace heddle::lower::contract::gpu

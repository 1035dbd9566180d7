#include "lower/contract/gpu/tree.h"

#include <algorithm>
#include <map>

#include "kernel/traverse.h"
#include "lower/contract/gpu/library.h"

namespace heddle::lower::contract::gpu {
namespace {

using kernel::BufferId;
using kernel::Load;
using kernel::TreeProduct;
using kernel::Value;

constexpr std::int64_t kFewestRows = 128, kFewestColumns = 64;  // of a tile that is worth it
constexpr std::int64_t kMost = INT32_MAX;
constexpr std::size_t kMostMatrices = 16;

bool is_half(DType t) { return t == DType::f16 || t == DType::bf16; }

struct TreeMaker {
  const Gemm& g;
  const Product& p = g.product;
  TreeProduct out = {};
  std::map<std::pair<int, ir::Expr>, int> loaded = {};  ///< buffer and offset: number of the matrix

  DType dtype(BufferId buffer) const { return p.kernel.buffers[buffer].dtype; }

  bool operand(const Side& side) {
    const auto plain = plain_of(side.value);
    if (!plain || !plain->conditions.empty() || !is_half(dtype(plain->buffer))) return false;
    const auto steps = steps_of(plain->offset, g.batch, side.rows, side.k);
    if (!steps) return false;
    TreeProduct::Matrix m{plain->buffer.value, dtype(plain->buffer), steps->start,
                          steps->batch,        steps->row,           steps->column};
    if (m.column != 1 && m.row != 1) return false;
    out.matrices.push_back(m);
    return out.is_aligned(m, m.column == 1 ? out.depth : side.extent);
  }

  bool output(const Output& o) {
    const auto steps = steps_of(o.offset, g.batch, g.out_m, g.out_n);
    const DType type = dtype(o.buffer);
    if (!steps || steps->column != 1 || !(is_half(type) || type == DType::f32)) return false;
    out.matrices.push_back(
        {o.buffer.value, type, steps->start, steps->batch, steps->row, steps->column});
    return out.is_aligned(out.matrices.back(), out.columns);
  }

  /// The number of a matrix that is loaded; nullopt if it is no matrix.
  std::optional<int> load(const Load& x) {
    if (!x.dynamic.empty() || p.kernel.buffers[x.buffer].scope != kernel::Scope::grid)
      return std::nullopt;
    const DType type = dtype(x.buffer);
    if (!is_half(type) && type != DType::f32) return std::nullopt;
    const auto known = loaded.find({x.buffer.value, x.offset});
    if (known != loaded.end()) return known->second;
    const auto steps = steps_of(x.offset, g.batch, g.out_m, g.out_n);
    if (!steps || out.matrices.size() == kMostMatrices) return std::nullopt;
    const int number = static_cast<int>(out.matrices.size());
    out.matrices.push_back(
        {x.buffer.value, type, steps->start, steps->batch, steps->row, steps->column});
    return loaded[{x.buffer.value, x.offset}] = number;
  }

  /// The value over numbered matrices; null where a part of it is no function of loads.
  Value numbered(const Value& v, std::size_t position) {
    bool sound = true;
    std::map<const kernel::ValueNode*, Value> memo;
    const std::function<Value(const Value&)> visit = [&](const Value& x) -> Value {
      if (const auto found = memo.find(x.get()); found != memo.end()) return found->second;
      Value made = x;
      if (const Load* one = std::get_if<Load>(&x->op)) {
        std::optional<int> number;
        if (one->buffer == p.result) number = TreeProduct::kSums;
        for (std::size_t i = 0; i < position; ++i)
          if (one->buffer == p.outputs[i].stand_in) number = number_of(i);
        if (!number) number = load(*one);
        sound = sound && number && x->dtype == DType::f32;
        made = kernel::load(BufferId{number.value_or(0)}, ir::Expr(0), x->dtype);
      } else if (std::holds_alternative<kernel::Apply>(x->op)) {
        kernel::Mapper m;
        m.value = visit;
        made = kernel::map_children(x, m);
      } else {
        sound = sound && std::holds_alternative<kernel::Imm>(x->op);
      }
      return memo[x.get()] = made;
    };
    const Value made = visit(v);
    return sound && v->dtype == DType::f32 ? made : nullptr;
  }

  /// Of an output: the last comes first.
  int number_of(std::size_t position) const {
    return TreeProduct::kOut + static_cast<int>(p.outputs.size() - 1 - position);
  }

  bool run() {
    const bool small = g.m.extent < kFewestRows || g.n.extent < kFewestColumns;
    const bool large = std::max({g.m.extent, g.n.extent, g.k_extent, g.batch_extent}) > kMost;
    if (p.problem.type != DType::f32 || p.outputs.size() > 2 || small || large) return false;
    out.batches = g.batch_extent;
    out.rows = g.m.extent;
    out.columns = g.n.extent;
    out.depth = g.k_extent;
    if (!operand(g.m) || !operand(g.n) || out.matrices[0].dtype != out.matrices[1].dtype)
      return false;
    for (std::size_t i = p.outputs.size(); i-- > 0;)
      if (!output(p.outputs[i])) return false;
    for (std::size_t i = 0; i < p.outputs.size(); ++i) {
      out.values.push_back(numbered(p.outputs[i].value, i));
      if (!out.values.back()) return false;
    }
    return true;
  }
};

}  // namespace

std::optional<TreeProduct> tree_product(const Gemm& gemm) {
  TreeMaker maker{gemm};
  if (!maker.run()) return std::nullopt;
  return std::move(maker.out);
}

}  // namespace heddle::lower::contract::gpu

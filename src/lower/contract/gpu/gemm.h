#pragma once
#include <functional>

#include "kernel/traverse.h"
#include "lower/contract/product.h"
#include "support/math.h"

namespace heddle::lower::contract::gpu {

/// Points of all of them.
inline std::int64_t count_of(const std::vector<Axis>& axes) {
  std::int64_t count = 1;
  for (const Axis& axis : axes) count *= axis.extent;
  return count;
}

/// What copies read without computing: a load, zero where a condition fails.
struct Plain {
  kernel::BufferId buffer;
  ir::Expr offset;
  std::vector<ir::Condition> conditions;
};

/// The load under casts to the compute type and guards against zero; nullopt if something is
/// computed.
std::optional<Plain> plain_of(const kernel::Value& v);

/// An operand as a tensor that the copy engine takes tiles of: reductions, rows, batches; the part
/// that is multiplied begins at `start`.
struct TileView {
  std::vector<std::int64_t> extents, strides, start;
  std::vector<ir::Var> axes;
};

/// One operand of a tiled product.
struct Side {
  kernel::Value value;     ///< over its rows, its reductions and the batch axes
  std::vector<Axis> rows;  ///< outer to inner; of a packed operand one axis
  std::vector<Axis> k;     ///< the reductions as it sees them, in the order of Gemm::k
  std::int64_t extent = 1;
  std::optional<Plain> plain;
  DType stored = DType::f32;     ///< type of its tile in block memory
  bool along_k = true;           ///< memory runs along the reductions, else along the rows
  int vector = 1;                ///< elements of one copy along that
  bool async = false;            ///< copied as it is, asynchronously
  bool k_inside = true;          ///< its tile in block memory: [row][k], else [k][row]
  std::optional<TileView> view;  ///< if it is one
  /// A constant rearranged at compile time to the order in which it is read: makes it.
  std::function<Tensor()> packed;
  NodeId source;
};

/// How the multiply-adds are done.
enum class Unit : std::uint8_t {
  scalar,  ///< one thread, one product at a time: exact in every type
  mma,     ///< tensor cores, a warp at a time (f16, bf16, tf32)
  wgmma,   ///< tensor cores, four warps at a time (f16, bf16 on sm_90a), asynchronously
  tma,     ///< the same; the copy engine brings tiles, for which one thread asks
  stream,  ///< few rows on one side: teams of threads read the other side once, past block memory
};

/// A contraction as a batched product of two matrices: rows of `m` times rows of `n`. The sides are
/// chosen so that the first output is contiguous along n.
struct Gemm {
  Product& product;
  Unit unit = Unit::scalar;
  std::vector<Unit> possible;
  Side m, n;
  std::vector<Axis> batch, k;
  std::int64_t k_extent = 1, batch_extent = 1;
  std::vector<Axis> out_m, out_n;  ///< as outputs see the rows of the sides
  bool swapped = false;            ///< m is the problem's n

  /// The side with more rows, and the other.
  const Side& longer() const { return m.extent > n.extent ? m : n; }
  const Side& shorter() const { return m.extent > n.extent ? n : m; }
};
constexpr std::int64_t kFewRows = 8;  ///< of the shorter side, for Unit::stream

/// Multiplied as `unit`, which must be one of `possible`; by default the first of them. `tf32`: f32
/// products on tensor cores, rounded to tf32. `packing`: constants may be rearranged.
Gemm make_gemm(Product& product, bool tf32, std::optional<Unit> unit = {}, bool packing = true);

using Env = std::vector<std::optional<ir::Expr>>;  ///< by Var::index
void set(Env& env, ir::Var v, ir::Expr e);
kernel::Value at(const kernel::Value& v, const Env& env);
ir::Expr at(const ir::Expr& e, const Env& env);
std::vector<ir::Condition> at(std::vector<ir::Condition> list, const Env& env);

}  // namespace heddle::lower::contract::gpu

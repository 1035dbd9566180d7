#include <algorithm>

#include "ops/families.h"
#include "ops/util.h"

/// Matrix products.
namespace heddle::ops {
namespace {

/// Shapes that NumPy's matmul accepts.
Status want_matmul(const Call& call, Builder& b, NodeId x, NodeId y) {
  const Shape& s = b.shape(x);
  const Shape& t = b.shape(y);
  if (s.empty() || t.empty()) return call.error("found a scalar, want rank 1 or more");
  const std::int64_t inner = t.size() == 1 ? t[0] : t[t.size() - 2];
  if (s.back() != inner)
    return call.error("shapes {} and {} do not multiply", to_string(s), to_string(t));
  if (s.size() > 2 && t.size() > 2 &&
      !broadcast_shapes({s.begin(), s.end() - 2}, {t.begin(), t.end() - 2})) {
    return call.error("batch dimensions of {} and {} do not broadcast", to_string(s), to_string(t));
  }
  return Ok{};
}

Result<Values> matmul(const Call& call, Builder& b) {
  HEDDLE_TRY(want_number(call, b, 0));
  HEDDLE_TRY(want_type(call, b, 1, b.dtype(call.in(0))));
  HEDDLE_TRY(want_matmul(call, b, call.in(0), call.in(1)));
  return Values{b.matmul(call.in(0), call.in(1))};
}

/// alpha·op(A)·op(B) + beta·C
Result<Values> gemm(const Call& call, Builder& b) {
  HEDDLE_TRY(want_number(call, b, 0));
  HEDDLE_TRY(want_type(call, b, 1, b.dtype(call.in(0))));
  HEDDLE_TRY(want_rank(call, b, 0, 2, 2));
  HEDDLE_TRY(want_rank(call, b, 1, 2, 2));
  NodeId x = call.in(0), y = call.in(1);
  if (call.attribute_int("transA", 0) != 0) x = b.transpose(x, {1, 0});
  if (call.attribute_int("transB", 0) != 0) y = b.transpose(y, {1, 0});
  HEDDLE_TRY(want_matmul(call, b, x, y));
  NodeId product = b.matmul(x, y);
  const double alpha = call.attribute_float("alpha", 1), beta = call.attribute_float("beta", 1);
  if (alpha != 1) product = b.mul(product, alpha);
  if (!call.has(2)) return Values{product};
  NodeId c = call.in(2);
  HEDDLE_TRY(want_type(call, b, 2, b.dtype(x)));
  const auto shape = broadcast_shapes(b.shape(c), b.shape(product));
  if (!shape || *shape != b.shape(product))
    return call.error("input 2 has shape {}, want one that broadcasts to {}", to_string(b.shape(c)),
                      to_string(b.shape(product)));
  if (beta != 1) c = b.mul(c, beta);
  return Values{b.add(product, c)};
}

constexpr OpDef kLinearOps[] = {
    {"MatMul", 1, 2, 2, matmul},
    {"Gemm", 1, 2, 3, gemm},
};

}  // namespace

std::span<const OpDef> linear_ops() { return kLinearOps; }

}  // namespace heddle::ops

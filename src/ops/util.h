#pragma once
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "ops/ops.h"

/// What several family files share; nothing here knows an operator.
namespace heddle::ops {

/// The numbers of texts (support/text_id.h).
Result<std::vector<std::int64_t>> text_ids(const std::vector<std::string>& texts);
/// Attribute `ints`, or the numbers of attribute `texts`, in which case the result's format is
/// text.
Result<std::vector<std::int64_t>> labels_of(const Call& call, std::string_view ints,
                                            std::string_view texts);

using prim::Access;

/// Most elements that an operator may materialise as a constant of its own (tables, windows).
constexpr std::int64_t kMaxTableElements = std::int64_t{1} << 24;

inline ir::Expr dim(int i) { return ir::Expr(ir::Var{i}); }
/// d0, d1, … of a value of the rank.
std::vector<ir::Expr> dims(int rank);
inline std::int64_t at(const Shape& s, int i) { return s[static_cast<std::size_t>(i)]; }

/// `shape`, if its extents are not negative and its bytes are below the limit.
Result<Shape> checked(const Call& call, Shape shape, DType type);
/// Fails unless the rank of input i is in [low, high].
Status want_rank(const Call& call, Builder& b, int i, int low, int high);
Status want_int(const Call& call, Builder& b, int i);
Status want_number(const Call& call, Builder& b, int i);
Status want_float(const Call& call, Builder& b, int i);
Status want_type(const Call& call, Builder& b, int i, DType type);
Status want_shape(const Call& call, Builder& b, int i, const Shape& shape);

/// NumPy broadcasting of two shapes; nullopt where they do not fit.
std::optional<Shape> broadcast_shapes(const Shape& a, const Shape& b);

/// Constants: i64 vectors, and doubles stored as `type`.
NodeId constant_i64(Builder& b, const std::vector<std::int64_t>& values, Shape shape);
NodeId constant_i64(Builder& b, const std::vector<std::int64_t>& values);
NodeId constant_real(Builder& b, DType type, const std::vector<double>& values, Shape shape);

/// The ONNX number of an element type (TensorProto.DataType), as attributes "to" and "dtype" have
/// it.
Result<DType> dtype_of_onnx(const Call& call, std::int64_t number);
/// Attribute `key` as an element type, or `otherwise` when absent.
Result<DType> attribute_dtype(const Call& call, std::string_view key, DType otherwise);
/// One integer from a constant input holding exactly one.
Result<std::int64_t> constant_int(const Call& call, int i);
/// One real number from a constant input holding exactly one.
Result<double> constant_real(const Call& call, int i);
/// Attribute or, where the operator moved it there, input i: nullopt if neither is present.
Result<std::optional<std::vector<std::int64_t>>> ints_from(const Call& call, std::string_view key,
                                                           int i);
/// A string attribute that must be one of the choices; gives its position.
Result<int> choice(const Call& call, std::string_view key, std::string otherwise,
                   const std::vector<std::string>& choices);

/// The one result of another operator (of opset 21) on these arguments.
Result<NodeId> expand_as(const Call& call, Builder& b, std::string op,
                         std::vector<std::optional<NodeId>> args, std::vector<Format> formats,
                         std::map<std::string, Attribute, std::less<>> attributes);

/// Indices that wrap below zero: i < 0 ? i + extent : i, as i64.
NodeId wrap_indices(Builder& b, NodeId indices, std::int64_t extent);
/// Truth of an integer-typed comparison with a scalar.
NodeId compare(Builder& b, ir::ScalarFn fn, NodeId x, std::int64_t value);
/// `e`, clamped to [0, extent) unless the ranges of the variables already keep it there.
ir::Expr clamp_index(const ir::Expr& e, std::int64_t extent, const ir::Ranges& ranges);
/// A product of extents, or nullopt on overflow or a negative factor.
std::optional<std::int64_t> checked_product(const Shape& shape, int begin, int end);

}  // namespace heddle::ops

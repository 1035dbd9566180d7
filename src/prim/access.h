#pragma once
#include <optional>

#include "prim/graph.h"

namespace heddle::prim {

/// Variable number i: a dimension, or a reduction behind them.
inline ir::Expr var(std::size_t i) { return ir::Var{static_cast<std::int32_t>(i)}; }
/// The first `count` variables, as a substitution that changes nothing.
std::vector<ir::Expr> identity_variables(std::size_t count);
/// index[i] = d_i for each dimension (0 where the extent is 1), no conditions.
Access identity_access(const Shape& shape);
/// Simplifies indices and conditions with the ranges of the variables; nullopt if never inside.
std::optional<Access> simplified(const Access& a, const Shape& variables);
/// outer reads a value whose element i is inner's at i: the access that reads inner's source
/// directly. Variables are outer's.
Access compose(const Access& outer, const Access& inner);
/// True if range analysis shows every index inside `shape` wherever `a` is inside.
bool shown_in_bounds(const Access& a, const Shape& variables, const Shape& shape);
/// Like shown_in_bounds, and tries every point when there are at most `max_points`.
bool in_bounds(const Access& a, const Shape& variables, const Shape& shape,
               std::int64_t max_points);
/// Σ index[k]·stride[k] for a row-major value of this shape.
ir::Expr flat_index(const std::vector<ir::Expr>& index, const Shape& shape);
/// The coordinates of element number `flat` of a row-major value of this shape.
std::vector<ir::Expr> unflatten(const ir::Expr& flat, const Shape& shape);
/// True if a view of shape `to` only regroups a value (a reshape): elements keep their order.
bool regroups(const Access& a, const Shape& from, const Shape& to);
/// True if it does, and one of its dimensions holds parts of one of the value's and all of others
/// (channels in groups, with all their positions) or all of the value's last ones (one group).
bool crosses_groups(const Access& a, const Shape& from, const Shape& to);
/// True if no variable is divided: every index and condition is affine.
bool is_affine(const Access& a);
/// Nodes of all its expressions.
std::int64_t size_of(const Access& a);
/// Compositions beyond this size cost more to evaluate than the copy that they save.
constexpr std::int64_t kMaxAccessSize = 160;
/// The output's dimensions, then the sum's: what a contraction's accesses count as variables.
Shape variables_of(const Node& n, const Contract& k);
bool depends_on(const Access& a, ir::Var var);
/// Replaces variable i by values[i].
Access substitute(const Access& a, const std::vector<ir::Expr>& values);

}  // namespace heddle::prim

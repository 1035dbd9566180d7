#pragma once
#include "prim/rewrite.h"

namespace heddle::prim {

/// A contraction's variables by who reads them (rows and columns of the product), and whether there
/// is a reduction along which both operands hold pairs, or four, to be multiplied by one
/// instruction.
struct ProductExtents {
  std::int64_t lhs = 1, rhs = 1, both = 1, reduced = 1;
  bool pairs = false, quads = false;
  std::optional<std::size_t> short_of_four;  ///< a reduction that zeros behind it make such a one
  /// A reduction of many terms, whose number four does not divide.
  std::optional<std::size_t> many;
  bool ragged = false;  ///< and that one goes in groups, of which the last has fewer
};
ProductExtents extents_of(const Contract& k, const Shape& out, const Shape& lhs, const Shape& rhs);

/// Without pairs, or where there is no matrix (depthwise convolution), wide types are as fast.
bool worth_pairs(const ProductExtents& e);
/// A convolution of each channel alone, by a filter of several rows and columns.
bool is_depthwise(const Contract& k, const ProductExtents& e);

/// The dimension of an operand, whole, that the variable runs over.
std::optional<std::size_t> whole_dimension(const Access& a, const Shape& shape, ir::Var v,
                                           std::int64_t extent);

/// Lays the constant right operand out by the variables that read it, each a dimension of its own:
/// then it steps by ones along every reduction. False if that is no rearrangement.
bool in_order_of_loops(RewriteContext& c, NodeId& rhs, Contract& k, const Shape& out);
/// Two reductions along which the left operand steps as one would (channels that are two groups
/// taken in turn) as one, the constant right operand laid out so. False if there are none.
bool one_reduction(RewriteContext& c, NodeId& rhs, Contract& k, const Shape& out);

}  // namespace heddle::prim

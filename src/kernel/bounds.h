#pragma once
#include <set>

#include "kernel/traverse.h"

namespace heddle::kernel {

/// Accesses (buffer, offset) whose bounds the range analysis does not see.
using Unproven = std::set<std::pair<std::int32_t, Expr>>;
/// verify(), but such accesses are collected.
Status verify(const Kernel& k, Unproven* unproven);

/// Bounds of `e` where every condition holds; nullopt if a variable is unknown. Tighter than bounds
/// of the ranges alone: multiples of (condition - its own bounded value) are added to cancel terms.
/// The search ends early once the bounds lie within `needed`.
std::optional<ir::Interval> bounds_under(const Expr& e, const Conditions& conditions,
                                         const ir::Ranges& ranges,
                                         std::optional<ir::Interval> needed = std::nullopt);

/// True if `e` is a multiple of n whatever its variables are.
bool multiple_of(const Expr& e, std::int64_t n);

/// Ranges of a kernel's variables while walking into loops.
void set_range(ir::Ranges& ranges, Var var, std::optional<ir::Interval> range);

}  // namespace heddle::kernel

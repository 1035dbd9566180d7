#pragma once
#include <functional>
#include <unordered_map>

#include "kernel/kernel.h"

namespace heddle::kernel {

// The one traversal of kernel IR: everything that walks or rewrites values and statements is
// written on these functions, so a new node is added in one place.

using Conditions = std::vector<ir::Condition>;

/// What map_children applies to each kind of part; an empty function keeps the part.
struct Mapper {
  std::function<Value(const Value&)> value;
  std::function<Expr(const Expr&)> expr;
  std::function<Conditions(const Conditions&)> conditions;
  std::function<BufferId(BufferId)> buffer;
  std::function<Body(const Body&)> body;  ///< statements only: bodies of For and If
};
/// The node with its parts replaced; `v` itself when nothing changed.
Value map_children(const Value& v, const Mapper& mapper);
/// The statement with its parts replaced.
Stmt map_children(const Stmt& s, const Mapper& mapper);

/// Direct children of a value: arguments, dynamic offsets, both branches of a guard.
void for_each_child(const ValueNode& v, const std::function<void(const Value&)>& f);
/// Index expressions held directly by a value; conditions count as their expressions.
void for_each_expr(const ValueNode& v, const std::function<void(const Expr&)>& f);
/// Every node reachable from `root`, once each, children first.
void for_each_value(const Value& root, const std::function<void(const Value&)>& f);

/// Values held directly by a statement (not those of nested bodies).
void for_each_value_of(const Stmt& s, const std::function<void(const Value&)>& f);
/// Every statement, nested ones included, outer before inner.
void for_each_stmt(const Body& body, const std::function<void(const Stmt&)>& f);

/// Buffers that some statement reads or writes, by BufferId::value.
std::vector<bool> used_buffers(const Kernel& k);
/// The kernel without the buffers that nothing uses, the others renumbered in order.
Kernel drop_unused_buffers(const Kernel& k);

inline void append(Body& to, Body from) {
  for (Stmt& s : from) to.push_back(std::move(s));
}

using Replacement = std::function<std::optional<Expr>(Var)>;
/// Replaces variables in every index expression.
Value substitute(const Value& v, const Replacement& replacement);
Body substitute(const Body& body, const Replacement& replacement);
/// The statements on other buffers; what they share, they share again.
Body rename_buffers(const Body& body, const std::function<BufferId(BufferId)>& to);

}  // namespace heddle::kernel

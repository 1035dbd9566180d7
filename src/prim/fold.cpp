#include "prim/fold.h"

#include <algorithm>
#include <new>
#include <unordered_map>

#include "prim/access.h"
#include "prim/interpret.h"
#include "prim/lines.h"
#include "prim/rewrite.h"

namespace heddle::prim {
namespace {

double work_of(const Graph& g, NodeId id) {
  const Node& n = g[id];
  double work = static_cast<double>(element_count(n.type.shape));
  if (const auto* c = std::get_if<Contract>(&n.op))
    for (const std::int64_t e : c->reduced) work *= static_cast<double>(e);
  for (const NodeId a : n.args)
    work = std::max(work, static_cast<double>(element_count(g[a].type.shape)));
  return work;
}

std::int64_t bytes_of(const TensorType& t) { return element_count(t.shape) * size_of(t.dtype); }

/// Nodes that `id` is computed from, arguments first; empty if some leaf is no constant or a limit
/// is exceeded.
std::vector<NodeId> constant_cone(const Graph& g, NodeId id, const FoldLimits& limits) {
  std::vector<NodeId> cone, stack = {id};
  std::unordered_map<NodeId, bool> seen = {{id, true}};
  double work = 0;
  while (!stack.empty()) {
    const NodeId at = stack.back();
    stack.pop_back();
    const Node& n = g[at];
    if (!folds(n.op)) return {};
    const bool is_constant = std::holds_alternative<Constant>(n.op);
    if (!is_constant || at == id) {
      work += work_of(g, at);
      if (bytes_of(n.type) > limits.max_bytes || work > limits.max_work) return {};
    }
    cone.push_back(at);
    for (const NodeId a : n.args)
      if (seen.try_emplace(a, true).second) stack.push_back(a);
  }
  std::sort(cone.begin(), cone.end());  // ids are a topological order
  return cone;
}

/// A Map over f32 constants and views of them without working copies in double: weights that are
/// scaled are large.
std::optional<Tensor> map_directly(const Graph& g, NodeId id) {
  const Node& n = g[id];
  const auto* m = std::get_if<Map>(&n.op);
  if (m == nullptr || n.type.dtype != DType::f32) return std::nullopt;
  const Access place = identity_access(n.type.shape);
  std::vector<LineWalker::Operand> operands = {{&place, &n.type.shape}};
  std::vector<const float*> data;
  for (const NodeId a : n.args) {
    const bool view = plain_view(g, a) != nullptr;
    const Tensor* t = g.constant_of(view ? g[a].args[0] : a);
    if (t == nullptr || t->dtype() != DType::f32) return std::nullopt;
    operands.push_back({view ? plain_view(g, a) : &place, &t->shape()});
    data.push_back(t->as<float>().data());
  }
  Tensor out(n.type);
  float* to = out.as_mutable<float>().data();
  LineWalker lines(n.type.shape, operands);
  lines.walk([&](const auto& base, const auto& step, std::int64_t length) {
    double args[3] = {};
    for (std::int64_t i = 0; i < length; ++i) {
      for (std::size_t k = 0; k < data.size(); ++k)
        args[k] = data[k][base[k + 1] + i * step[k + 1]];
      to[base[0] + i * step[0]] =
          static_cast<float>(ir::apply(m->fn, std::span<const double>(args, data.size())));
    }
  });
  return out;
}

/// A constant whose elements a view takes in their order, in its shape.
std::optional<Tensor> regrouped(const Graph& g, NodeId id) {
  const Access* view = plain_view(g, id);
  const Tensor* t = view ? g.constant_of(g[id].args[0]) : nullptr;
  if (t == nullptr || !regroups(*view, t->shape(), g[id].type.shape)) return std::nullopt;
  return t->reshaped(g[id].type.shape);
}

}  // namespace

std::optional<Tensor> evaluate_constant(const Graph& g, NodeId id, const FoldLimits& limits) {
  if (const Tensor* t = g.constant_of(id)) return *t;
  if (auto same = regrouped(g, id)) return same;
  const std::vector<NodeId> cone = constant_cone(g, id, limits);
  if (cone.empty()) return std::nullopt;
  std::unordered_map<NodeId, Tensor> values;
  try {
    if (auto direct = map_directly(g, id)) return direct;
    for (const NodeId at : cone) {
      std::vector<Tensor> args;
      for (const NodeId a : g[at].args) args.push_back(values.at(a));
      values[at] = evaluate_node(g, at, args);
    }
    return from_reference(values.at(id), g[id].type.dtype);
  } catch (const std::bad_alloc&) {
    return std::nullopt;
  }
}

Graph fold_constants(const Graph& g) { return fold_constants(g, FoldLimits{}); }

Graph fold_constants(const Graph& g, const FoldLimits& limits) {
  constexpr std::int64_t kSmall = 4096;
  // Operands of products are laid out anew at every run where they are not constants.
  std::vector<bool> multiplied(static_cast<std::size_t>(g.size()));
  for (const NodeId id : live_nodes(g))
    if (std::holds_alternative<Contract>(g[id].op) && is_float(g[id].type.dtype))
      for (const NodeId a : g[id].args) multiplied[static_cast<std::size_t>(a.value)] = true;
  // By new id: bytes of the constants that a value is computed from, or -1 if not constant.
  std::unordered_map<NodeId, std::int64_t> source_bytes;
  return rebuild(g, [&](Graph& out, const Node& n, NodeId old) {
    const NodeId plain = out.add(n.op, n.args, n.type);
    std::int64_t bytes = 0;
    if (std::holds_alternative<Constant>(n.op)) bytes = bytes_of(n.type);
    if (!folds(n.op)) bytes = -1;
    for (std::size_t i = 0; i < n.args.size() && bytes >= 0; ++i) {
      const std::int64_t arg = source_bytes.at(n.args[i]);
      const bool repeated =
          std::find(n.args.begin(), n.args.begin() + static_cast<std::ptrdiff_t>(i), n.args[i]) !=
          n.args.begin() + static_cast<std::ptrdiff_t>(i);
      bytes = arg < 0 ? -1 : bytes + (repeated ? 0 : arg);
    }
    source_bytes[plain] = bytes;
    if (bytes < 0 || std::holds_alternative<Constant>(n.op)) return plain;
    // A view that repeats its source is cheaper than the copy it describes, however small, and one
    // element stays a scalar, which kernels hold as an immediate.
    const bool view = std::holds_alternative<View>(n.op);
    if (view && element_count(out[n.args[0]].type.shape) == 1) return plain;
    const bool larger = bytes_of(n.type) > (view ? bytes : std::max(bytes, kSmall));
    if (larger && (view || !multiplied[static_cast<std::size_t>(old.value)])) return plain;
    const auto value = evaluate_constant(out, plain, limits);
    if (!value) return plain;
    const NodeId folded = out.add_constant(*value);
    source_bytes[folded] = bytes_of(n.type);
    return folded;
  });
}

}  // namespace heddle::prim

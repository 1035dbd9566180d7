#include "grad/grad.h"

#include "grad/rules.h"
#include "prim/text.h"
#include "support/match.h"

namespace heddle::grad {
namespace {

using prim::Graph;
using prim::Node;

bool is_differentiable(const Graph& g, NodeId id) { return is_float(g[id].type.dtype); }

/// "CumProd 'running': scan f32[3]"
std::string name_of(const Graph& g, NodeId id) {
  const prim::OriginId from = g.origin_id(id);
  const std::string what = prim::describe(g, id);
  if (from.value < 0) return what;
  return fmt::format("{} '{}': {}", g.origin(from).op, g.origin(from).name, what);
}

class Reverse {
 public:
  Reverse(Graph& g, std::span<const Seed> seeds, std::span<const NodeId> wrt)
      : g_(g), b_(g), size_(static_cast<std::size_t>(g.size())), adjoints_(size_) {
    mark_live(seeds);
    mark_dependent(wrt);
  }

  Status run(std::span<const Seed> seeds) {
    for (const Seed& s : seeds) add(s.value, s.adjoint);
    for (std::size_t i = size_; i-- > 0;) {
      const NodeId id{static_cast<std::int32_t>(i)};
      if (!adjoints_[i] || !depends_[i]) continue;
      HEDDLE_TRY(visit(id, *adjoints_[i]));
    }
    return Ok{};
  }
  std::optional<NodeId> adjoint(NodeId id) const {
    return adjoints_[static_cast<std::size_t>(id.value)];
  }

 private:
  void mark_live(std::span<const Seed> seeds) {
    std::vector<bool> live(size_);
    for (const Seed& s : seeds) live[static_cast<std::size_t>(s.value.value)] = true;
    consumers_.resize(size_);
    for (std::size_t i = size_; i-- > 0;) {
      if (!live[i]) continue;
      const NodeId id{static_cast<std::int32_t>(i)};
      for (NodeId arg : g_[id].args) {
        live[static_cast<std::size_t>(arg.value)] = true;
        consumers_[static_cast<std::size_t>(arg.value)].push_back(id);
      }
    }
  }
  void mark_dependent(std::span<const NodeId> wrt) {
    depends_.resize(size_);
    for (NodeId id : wrt) {
      depends_[static_cast<std::size_t>(id.value)] = true;
      inputs_only_ = inputs_only_ && g_[id].args.empty();
    }
    for (std::size_t i = 0; i < size_; ++i) {
      const NodeId id{static_cast<std::int32_t>(i)};
      if (!is_differentiable(g_, id)) continue;
      for (NodeId arg : g_[id].args)
        if (depends_[static_cast<std::size_t>(arg.value)]) depends_[i] = true;
    }
  }

  void add(NodeId id, NodeId value) {
    auto& into = adjoints_[static_cast<std::size_t>(id.value)];
    into = into ? b_.add(*into, value) : value;
  }

  Status visit(NodeId id, NodeId adjoint) {
    const Node n = g_[id];
    if (n.args.empty()) return Ok{};
    // Adjoints belong to the operator whose derivative they are.
    if (const prim::OriginId from = g_.origin_id(id); from.value >= 0)
      g_.set_origin(prim::Origin{g_.origin(from).op + ".grad", g_.origin(from).name});
    Context c{g_, Builder(g_), id, n, adjoint, {}, {}, inputs_only_, {}};
    c.wanted = [&](std::size_t k) {
      return depends_[static_cast<std::size_t>(n.args[k].value)] &&
             is_differentiable(g_, n.args[k]);
    };
    c.add = [&](std::size_t k, NodeId value) {
      if (c.wanted(k)) add(n.args[k], value);
    };
    c.add_through = [&](NodeId value, NodeId of_it) {
      if (depends_[static_cast<std::size_t>(value.value)]) add(value, of_it);
    };
    const bool any = [&] {
      for (std::size_t k = 0; k < n.args.size(); ++k)
        if (c.wanted(k)) return true;
      return false;
    }();
    if (!any || element_count(n.type.shape) == 0) return Ok{};
    if (std::holds_alternative<prim::Reduce>(n.op) && cancels(g_, id, consumers_)) return Ok{};
    const Status done = match(
        n.op, [&](const prim::Map& op) { return differentiate(c, op); },
        [&](const prim::View& op) { return differentiate(c, op); },
        [&](const prim::Contract& op) { return differentiate(c, op); },
        [&](const prim::Gather& op) { return differentiate(c, op); },
        [&](const prim::Scatter& op) { return differentiate(c, op); },
        [&](const prim::Reduce& op) { return differentiate(c, op); },
        [&](const prim::Scan& op) { return differentiate(c, op); },
        [&](const prim::AllReduce& op) { return differentiate(c, op); },
        [](const auto&) { return Status(Ok{}); });  // positions and leaves have no derivative
    if (!done) return unsupported("{}: {}", name_of(g_, id), done.error().message);
    return Ok{};
  }

  Graph& g_;
  Builder b_;
  std::size_t size_;
  std::vector<std::optional<NodeId>> adjoints_;  ///< by id
  bool inputs_only_ = true;                      ///< with_respect_to
  std::vector<bool> depends_;                    ///< on something in with_respect_to, by id
  std::vector<std::vector<NodeId>> consumers_;   ///< among what the seeds' values need
};

}  // namespace

Result<std::vector<NodeId>> gradients(Graph& g, std::span<const Seed> seeds,
                                      std::span<const NodeId> with_respect_to) {
  for (const Seed& s : seeds) {
    if (!is_differentiable(g, s.value))
      return fail("{}: gradient of a value of type {}, want a floating type", name_of(g, s.value),
                  to_string(g[s.value].type));
    if (g[s.adjoint].type != g[s.value].type)
      return fail("{}: adjoint of type {}, want {}", name_of(g, s.value),
                  to_string(g[s.adjoint].type), to_string(g[s.value].type));
  }
  for (NodeId id : with_respect_to)
    if (!is_differentiable(g, id))
      return fail("{}: gradient for a value of type {}, want a floating type", name_of(g, id),
                  to_string(g[id].type));
  Reverse reverse(g, seeds, with_respect_to);
  HEDDLE_TRY(reverse.run(seeds));
  std::vector<NodeId> out;
  for (NodeId id : with_respect_to) {
    const auto adjoint = reverse.adjoint(id);
    out.push_back(adjoint ? *adjoint : Builder(g).full(g[id].type, 0));
  }
  return out;
}

}  // namespace heddle::grad

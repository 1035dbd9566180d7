#include <algorithm>

#include "plan/plan.h"

namespace heddle::plan {
namespace {

bool in(const std::vector<NodeId>& sorted, NodeId id) {
  return std::binary_search(sorted.begin(), sorted.end(), id);
}

/// Worth a register tile: enough work, and a reduction that is not trivial.
bool big_contract(const prim::Graph& g, NodeId id) {
  const auto* contract = std::get_if<prim::Contract>(&g[id].op);
  if (!contract) return false;
  const double k = static_cast<double>(element_count(contract->reduced));
  return k >= 2 && static_cast<double>(element_count(g[id].type.shape)) * k >= 16384;
}

/// Reads each element of its argument at most once, so nothing below it is recomputed.
bool keeps_count(const prim::Graph& g, NodeId id) {
  const auto* view = std::get_if<prim::View>(&g[id].op);
  return view && view->pieces.size() == 1 && view->pieces[0].inside.empty() &&
         element_count(g[id].type.shape) == element_count(g[g[id].args[0]].type.shape);
}

/// Prologue: maps and views. Epilogue: maps of the tile, permuting views, values broadcast to it.
bool main_loop_cluster(const prim::Graph& g, const Cluster& c, NodeId loop) {
  std::vector<NodeId> above, below;  // operands' side, result's side
  for (auto it = c.nodes.rbegin(); it != c.nodes.rend(); ++it) {
    if (*it == loop) {
      above.insert(above.end(), g[loop].args.begin(), g[loop].args.end());
    } else if (std::find(above.begin(), above.end(), *it) != above.end()) {
      above.insert(above.end(), g[*it].args.begin(), g[*it].args.end());
    }
  }
  below.push_back(loop);
  for (NodeId id : c.nodes) {
    const prim::Op& op = g[id].op;
    const bool map = std::holds_alternative<prim::Map>(op);
    const bool view = std::holds_alternative<prim::View>(op);
    if (id != loop && !map && !view && !std::holds_alternative<prim::Iota>(op)) return false;
    const bool reads_below =
        std::any_of(g[id].args.begin(), g[id].args.end(), [&](NodeId a) { return in(below, a); });
    if (id == loop || !reads_below) continue;
    if (view && !keeps_count(g, id)) return false;
    if (std::find(above.begin(), above.end(), id) != above.end()) return false;
    below.push_back(id);  // stays sorted: nodes are visited in order
  }
  return std::all_of(c.outputs.begin(), c.outputs.end(), [&](NodeId o) { return in(below, o); });
}

bool stitchable(const prim::Graph& g, const Cluster& c) {
  for (NodeId id : c.nodes) {
    const prim::Op& op = g[id].op;
    if (std::holds_alternative<prim::Scatter>(op) || std::holds_alternative<prim::Scan>(op) ||
        std::holds_alternative<prim::Sort>(op)) {
      return false;
    }
  }
  // Several outputs share the loops of the largest, or are reductions inside them.
  auto largest = *std::max_element(c.outputs.begin(), c.outputs.end(), [&](NodeId a, NodeId b) {
    return element_count(g[a].type.shape) < element_count(g[b].type.shape);
  });
  for (NodeId o : c.outputs) {
    if (g[o].type.shape == g[largest].type.shape) continue;
    bool feeds = false;
    for (NodeId id : c.nodes) {
      feeds = feeds || std::find(g[id].args.begin(), g[id].args.end(), o) != g[id].args.end();
    }
    if (!feeds) return false;
  }
  return true;
}

bool structurally_supported(const prim::Graph& g, const Cluster& c) {
  std::vector<NodeId> loops;
  for (NodeId id : c.nodes) {
    if (big_contract(g, id)) loops.push_back(id);
  }
  if (loops.size() > 1) return false;
  return loops.empty() ? stitchable(g, c) : main_loop_cluster(g, c, loops[0]);
}

}  // namespace

Legality structural_legality() { return {structurally_supported, big_contract}; }

}  // namespace heddle::plan

#include <algorithm>
#include <map>
#include <set>

#include "plan/candidates.h"

namespace heddle::plan {
namespace {

constexpr std::size_t kConesPerRoot = 4;  // cones of a root that grow further outputs
constexpr std::size_t kMaxOutputs = 6;
constexpr std::size_t kMaxSiblingRoots = 6;  // roots over one input that are paired
constexpr double kSmallLaunches = 4;         // a kernel is small below this many launches' time

struct Multi {
  const Facts& f;
  const Region& region;
  const Options& options;
  CostModel& cost;
  std::map<NodeId, std::vector<const Candidate*>> by_root;  // cheapest first
  std::set<NodeId> wanted;                                  // classes useful to have in memory
  std::map<NodeId, std::size_t> position;
  std::vector<std::vector<bool>> ancestors;  // by position
  std::set<Cluster> seen;
  std::vector<Candidate> out;

  Multi(const Facts& facts, const Region& r, const std::vector<Candidate>& cones, const Options& o,
        CostModel& c)
      : f(facts), region(r), options(o), cost(c) {
    for (NodeId id : region.outputs) wanted.insert(f.class_of_node(id));
    for (const Candidate& k : cones) {
      by_root[k.cluster.outputs[0]].push_back(&k);
      for (NodeId in : k.inputs) wanted.insert(f.class_of_node(in));
    }
    for (auto& [root, list] : by_root) {
      std::stable_sort(list.begin(), list.end(), [](const Candidate* a, const Candidate* b) {
        return a->cost.us - static_cast<double>(a->cluster.nodes.size()) * 1e-9 <
               b->cost.us - static_cast<double>(b->cluster.nodes.size()) * 1e-9;
      });
    }
    find_ancestors();
  }

  void find_ancestors() {
    for (std::size_t i = 0; i < region.nodes.size(); ++i) position[region.nodes[i]] = i;
    ancestors.assign(region.nodes.size(), std::vector<bool>(region.nodes.size()));
    for (std::size_t i = 0; i < region.nodes.size(); ++i) {
      for (NodeId arg : f[region.nodes[i]].args) {
        auto it = position.find(arg);
        if (it == position.end()) continue;
        ancestors[i][it->second] = true;
        for (std::size_t k = 0; k < ancestors[i].size(); ++k) {
          if (ancestors[it->second][k]) ancestors[i][k] = true;
        }
      }
    }
  }
  bool is_wanted(NodeId id) const { return wanted.count(f.class_of_node(id)) > 0; }
  bool is_ancestor(NodeId a, NodeId of) const {
    auto x = position.find(a), y = position.find(of);
    return x != position.end() && y != position.end() && ancestors[y->second][x->second];
  }

  /// An input that needs one of the kernel's own outputs would wait for itself.
  bool waits_for_itself(const Cluster& c) const {
    for (NodeId in : reads_of(*f.graph, c)) {
      for (NodeId o : c.outputs) {
        if (is_ancestor(o, in)) return true;
      }
    }
    return false;
  }

  /// Scalars that others read (the corrections of an optimiser) are not made by a kernel that reads
  /// more than they need: whoever waits for them would wait for that, and keep memory meanwhile.
  bool holds_up_scalars(const Cluster& c) const {
    const auto inside = [&](NodeId id) {
      return std::binary_search(c.nodes.begin(), c.nodes.end(), id);
    };
    return std::any_of(c.outputs.begin(), c.outputs.end(), [&](NodeId scalar) {
      const auto& readers = f.readers_of(scalar);
      if (f.elements_of(scalar) > 1 || std::all_of(readers.begin(), readers.end(), inside))
        return false;
      std::set<NodeId> own{scalar};
      for (auto id = c.nodes.rbegin(); id != c.nodes.rend(); ++id)
        if (own.contains(*id))
          for (NodeId arg : f[*id].args)
            if (inside(arg)) own.insert(arg);
      const Cluster cone{{own.begin(), own.end()}, {scalar}};
      return reads_of(*f.graph, cone).size() < reads_of(*f.graph, c).size();
    });
  }

  void offer(Candidate::Kind kind, std::vector<NodeId> nodes, std::vector<NodeId> outputs) {
    if (nodes.size() > static_cast<std::size_t>(options.max_cluster)) return;
    if (outputs.size() > kMaxOutputs) return;
    std::sort(outputs.begin(), outputs.end());
    Cluster c{std::move(nodes), std::move(outputs)};
    int loops = 0;
    for (NodeId id : c.nodes) loops += f.is_main_loop(id);
    if (loops > 1 || !seen.insert(c).second || waits_for_itself(c) || holds_up_scalars(c)) return;
    if (!options.legality.supports(*f.graph, c)) return;
    out.push_back(make_candidate(f, kind, std::move(c), options, cost));
  }

  /// Interior values with readers outside are stored on the way.
  void aux_stores() {
    for (const auto& [root, list] : by_root) {
      std::set<const Candidate*> chosen(
          list.begin(),
          list.begin() + static_cast<std::ptrdiff_t>(std::min(list.size(), kConesPerRoot)));
      chosen.insert(*std::max_element(list.begin(), list.end(), [](auto* a, auto* b) {
        return a->cluster.nodes.size() < b->cluster.nodes.size();
      }));
      // A weight with its moments, say: for each set of outputs on the way the cheapest cone, and
      // the cheapest that waits for no other elementwise kernel.
      std::set<std::vector<NodeId>> sets = {{}}, whole = {{}};
      for (const Candidate* k : list) {
        const std::vector<NodeId> inside = outputs_inside(*k, root);
        if (sets.insert(inside).second) chosen.insert(k);
        if (!waits_for_others(*k) && whole.insert(inside).second) chosen.insert(k);
      }
      for (const Candidate* k : list)
        if (chosen.count(k)) aux_stores_of(*k, root);
    }
  }
  /// A gradient that a main loop makes is there in any case.
  bool waits_for_others(const Candidate& k) const {
    return std::any_of(k.inputs.begin(), k.inputs.end(), [&](NodeId in) {
      return f.elements_of(in) > 1 && position.count(in) > 0 && !f.is_main_loop(in);
    });
  }
  std::vector<NodeId> outputs_inside(const Candidate& k, NodeId root) const {
    std::vector<NodeId> out;
    for (NodeId id : k.cluster.nodes)
      if (id != root && std::binary_search(region.outputs.begin(), region.outputs.end(), id))
        out.push_back(id);
    return out;
  }
  void aux_stores_of(const Candidate& k, NodeId root) {
    std::vector<NodeId> more;
    for (NodeId id : k.cluster.nodes) {
      if (id == root || clonable(f, id) || !is_wanted(id)) continue;
      bool used_outside = std::binary_search(region.outputs.begin(), region.outputs.end(), id);
      for (NodeId r : f.readers_of(id)) {
        used_outside =
            used_outside || !std::binary_search(k.cluster.nodes.begin(), k.cluster.nodes.end(), r);
      }
      if (used_outside) more.push_back(id);
    }
    if (more.size() > 4) more.erase(more.begin(), more.end() - 4);  // nearest the result
    for (NodeId id : more) offer(Candidate::Kind::aux_store, k.cluster.nodes, {id, root});
    if (more.size() > 1) {
      more.push_back(root);
      offer(Candidate::Kind::aux_store, k.cluster.nodes, more);
    }
  }

  /// A product and the sums of what it makes: bias and norm gradients over the rows, statistics of
  /// norms along them. One sum each, all over the same axes, and all.
  void epilogue_sums() {
    std::map<NodeId, std::vector<const Candidate*>> sums_of;  // by what they read
    for (const auto& [root, list] : by_root) {
      if (!f.as<prim::Reduce>(root) || !is_wanted(root)) continue;
      for (const Candidate* k : list)
        for (NodeId in : k->inputs) sums_of[in].push_back(k);
    }
    for (const auto& [root, sums] : sums_of) {
      const auto products = by_root.find(root);
      if (products == by_root.end()) continue;
      std::size_t tried = 0;
      for (const Candidate* product : products->second) {
        const auto& nodes = product->cluster.nodes;
        if (std::none_of(nodes.begin(), nodes.end(), [&](NodeId n) { return f.is_main_loop(n); }))
          continue;
        if (++tried > kConesPerRoot) break;
        std::map<std::vector<int>, Cluster> together;  // by axes; by none: all
        for (const Candidate* sum : sums) {
          const NodeId own = sum->cluster.outputs[0];
          const std::vector<NodeId> both = unite(nodes, sum->cluster.nodes);
          const bool known = together.contains({}) && contains(together[{}].outputs, own);
          if (known || !options.legality.supports(*f.graph, sorted_outputs(both, {root, own})))
            continue;
          offer(Candidate::Kind::aux_store, both, {root, own});
          for (const auto& axes : {std::vector<int>{}, f.as<prim::Reduce>(own)->axes}) {
            Cluster& c = together.try_emplace(axes, Cluster{nodes, {root}}).first->second;
            c.nodes = unite(c.nodes, sum->cluster.nodes);
            c.outputs.push_back(own);
          }
        }
        for (auto& [axes, c] : together)
          if (c.outputs.size() > 2)
            offer(Candidate::Kind::aux_store, std::move(c.nodes), std::move(c.outputs));
      }
    }
  }
  static bool contains(const std::vector<NodeId>& list, NodeId id) {
    return std::find(list.begin(), list.end(), id) != list.end();
  }
  static Cluster sorted_outputs(std::vector<NodeId> nodes, std::vector<NodeId> outputs) {
    std::sort(outputs.begin(), outputs.end());
    return {std::move(nodes), std::move(outputs)};
  }

  /// Cones that read a common large value and are independent.
  void siblings() {
    std::map<NodeId, std::set<NodeId>> roots_over;
    for (const auto& [root, list] : by_root) {
      if (!is_wanted(root)) continue;
      for (const Candidate* k : list) {
        if (!k->cluster.outputs.empty() && k->cost.flops >= 0) {
          for (NodeId in : reads_of(*f.graph, k->cluster)) {
            if (!f.as<prim::Constant>(in)) roots_over[in].insert(root);
          }
        }
      }
    }
    for (const auto& [value, roots] : roots_over) {
      if (roots.size() < 2 || roots.size() > 24) continue;
      siblings_over(value, {roots.begin(), roots.end()});
    }
  }
  /// The cheapest cone of a root that reads `value`.
  const Candidate* cone_over(NodeId root, NodeId value) {
    for (const Candidate* k : by_root[root]) {
      const auto reads = reads_of(*f.graph, k->cluster);
      if (std::find(reads.begin(), reads.end(), value) != reads.end()) return k;
    }
    return nullptr;
  }
  void siblings_over(NodeId value, std::vector<NodeId> roots) {
    for (std::size_t i = 0; i < roots.size(); ++i) {
      std::vector<NodeId> group = {roots[i]}, nodes = cone_over(roots[i], value)->cluster.nodes;
      std::size_t paired = 0;
      for (std::size_t j = i + 1; j < roots.size() && paired < kMaxSiblingRoots; ++j) {
        if (f[roots[j]].type.shape != f[roots[i]].type.shape) continue;
        if (is_ancestor(roots[i], roots[j]) || is_ancestor(roots[j], roots[i])) continue;
        ++paired;
        const std::vector<NodeId>& other = cone_over(roots[j], value)->cluster.nodes;
        offer(Candidate::Kind::sibling, unite(cone_over(roots[i], value)->cluster.nodes, other),
              {roots[i], roots[j]});
        nodes = unite(nodes, other);
        group.push_back(roots[j]);
      }
      if (group.size() > 2) offer(Candidate::Kind::sibling, nodes, group);
    }
  }
  static std::vector<NodeId> unite(const std::vector<NodeId>& a, const std::vector<NodeId>& b) {
    std::vector<NodeId> u;
    std::set_union(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(u));
    return u;
  }

  /// Small kernels of equal shape that do not wait for each other share a launch.
  void packs() {
    std::map<TensorType, std::vector<NodeId>> small;
    for (const auto& [root, list] : by_root) {
      if (!is_wanted(root)) continue;
      if (list[0]->cost.us <= kSmallLaunches * list[0]->cost.launch_us) {
        small[f[root].type].push_back(root);
      }
    }
    for (const auto& [type, roots] : small) {
      for (std::size_t i = 0; i < roots.size(); ++i) {
        std::vector<NodeId> group = {roots[i]}, nodes = by_root[roots[i]][0]->cluster.nodes;
        for (std::size_t j = i + 1; j < roots.size() && group.size() < kMaxOutputs; ++j) {
          const bool independent = std::none_of(group.begin(), group.end(), [&](NodeId g) {
            return is_ancestor(g, roots[j]) || is_ancestor(roots[j], g);
          });
          if (!independent) continue;
          nodes = unite(nodes, by_root[roots[j]][0]->cluster.nodes);
          group.push_back(roots[j]);
          if (group.size() == 2) offer(Candidate::Kind::packed, nodes, group);
        }
        if (group.size() > 2) offer(Candidate::Kind::packed, nodes, group);
      }
    }
  }
};

}  // namespace

std::vector<Candidate> multi_output(const Facts& facts, const Region& region,
                                    const std::vector<Candidate>& cones, const Options& options,
                                    CostModel& cost) {
  Multi multi(facts, region, cones, options, cost);
  multi.aux_stores();
  multi.epilogue_sums();
  multi.siblings();
  multi.packs();
  return std::move(multi.out);
}

}  // namespace heddle::plan

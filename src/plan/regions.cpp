#include "plan/regions.h"

#include <algorithm>
#include <map>
#include <set>

namespace heddle::plan {
namespace {

constexpr double kTinyBytes = 16384;
constexpr std::size_t kSplitAbove = 72;      // nodes: frontiers of several values are tried
constexpr std::size_t kWidestCut = 512;      // values: an unrolled loop keeps one open per step
constexpr std::size_t kStepsReading = 8;     // readers of a value that every step of a loop reads
constexpr std::size_t kLargestRegion = 160;  // nodes: cut at the narrowest frontier, come what may

/// Readers of a value, seen through clonable views.
void real_readers(const Facts& f, NodeId id, std::vector<NodeId>& out) {
  for (NodeId c : f.readers_of(id)) {
    if (clonable(f, c)) {
      real_readers(f, c, out);
    } else {
      out.push_back(c);
    }
  }
}

/// Readers in the graph as it is written: what alternatives read does not decide where to cut.
std::vector<NodeId> written_readers(const Facts& f, NodeId id) {
  std::vector<NodeId> out;
  for (NodeId r : f.readers_of(id)) {
    if (f.written[static_cast<std::size_t>(r.value)]) out.push_back(r);
  }
  return out;
}

bool feeds_main_loop(const Facts& f, NodeId id, int depth = 0) {
  for (NodeId c : written_readers(f, id)) {
    if (f.is_main_loop(c)) return true;
    if (depth < 4 && f.as<prim::View>(c) && feeds_main_loop(f, c, depth + 1)) return true;
  }
  return false;
}

/// In memory in any sensible plan: read by main loops, and by something else or by nothing else.
bool surely_stored(const Facts& f, NodeId id) {
  if (f.as<prim::View>(id) || !feeds_main_loop(f, id)) return false;
  const std::vector<NodeId> readers = written_readers(f, id);
  // A view in between may be part of either side's kernel.
  return readers.size() > 1 || f.is_main_loop(readers[0]);
}

/// Each element is read for many sums, so no kernel computes it where it is read.
bool summed_often(const Facts& f, NodeId id, int depth = 0) {
  constexpr double kOften = 64;
  for (NodeId c : written_readers(f, id)) {
    if (const auto* contract = f.as<prim::Contract>(c)) {
      const double terms = f.elements_of(c) * static_cast<double>(element_count(contract->reduced));
      if (terms >= kOften * f.elements_of(id)) return true;
    }
    if (depth < 4 && f.as<prim::View>(c) && summed_often(f, c, depth + 1)) return true;
  }
  return false;
}

/// Order in which branches are contiguous: depth first from the outputs.
std::vector<NodeId> depth_first(const Facts& f) {
  std::vector<NodeId> order;
  std::vector<bool> seen(static_cast<std::size_t>(f.graph->size()));
  std::vector<std::pair<NodeId, std::size_t>> stack;
  auto push = [&](NodeId id) {
    if (seen[static_cast<std::size_t>(id.value)] || f.is_leaf(id)) return;
    seen[static_cast<std::size_t>(id.value)] = true;
    stack.push_back({id, 0});
  };
  auto push_class = [&](NodeId id) {
    push(id);
    for (NodeId m : f.members_of(id)) push(m);
  };
  for (const prim::GraphOutput& o : f.graph->outputs) {
    push_class(o.node);
    while (!stack.empty()) {
      auto& [id, next] = stack.back();
      if (next < f[id].args.size()) {
        push_class(f[id].args[next++]);
      } else {
        if (!clonable(f, id) || f.is_output(id)) order.push_back(id);
        stack.pop_back();
      }
    }
  }
  return order;
}

struct Cutter {
  const Facts& f;
  std::vector<NodeId> order;
  std::vector<int> position, last_use;  // by node; by position
  std::set<NodeId> known;               // in memory because an earlier cut needs it

  explicit Cutter(const Facts& facts) : f(facts), order(depth_first(facts)) {
    position.assign(static_cast<std::size_t>(f.graph->size()), -1);
    for (std::size_t i = 0; i < order.size(); ++i) {
      position[static_cast<std::size_t>(order[i].value)] = static_cast<int>(i);
    }
    last_use.resize(order.size());
    for (std::size_t i = 0; i < order.size(); ++i) {
      std::vector<NodeId> readers;
      real_readers(f, order[i], readers);
      last_use[i] = static_cast<int>(i);
      for (NodeId r : readers) {
        last_use[i] = std::max(last_use[i], position[static_cast<std::size_t>(r.value)]);
      }
    }
  }

  std::vector<std::vector<NodeId>> frontiers() const {
    std::vector<std::vector<NodeId>> out(order.size());
    std::set<int> open;
    for (std::size_t p = 0; p < order.size(); ++p) {
      open.insert(static_cast<int>(p));
      for (auto it = open.begin(); it != open.end();) {
        it = last_use[static_cast<std::size_t>(*it)] <= static_cast<int>(p) ? open.erase(it)
                                                                            : std::next(it);
      }
      if (open.size() > kWidestCut) {
        out[p] = {NodeId{}};  // too wide to be a cut
        continue;
      }
      for (int i : open) out[p].push_back(order[static_cast<std::size_t>(i)]);
    }
    return out;
  }

  /// What a frontier holds: values in memory anyway that are new, and others that would be forced.
  struct Frontier {
    int stored = 0, forced = 0, waiting = 0;
    bool wide = false;
  };
  Frontier classify(const std::vector<NodeId>& frontier) const {
    Frontier out;
    for (NodeId id : frontier) {
      if (!id) {
        out.wide = true;
      } else if (known.count(id) || f.is_output(id)) {
        continue;
      } else if (surely_stored(f, id)) {
        ++out.stored;
      } else if (f.bytes_of(id) > kTinyBytes) {
        const bool shared = f.as<prim::Map>(id) && written_readers(f, id).size() > 1;
        ++(shared ? out.waiting : out.forced);
      } else {
        out.waiting += out.waiting == 0;  // tiny ones count together
      }
    }
    return out;
  }
  bool strong(const std::vector<NodeId>& frontier) const {
    const Frontier x = classify(frontier);
    if (x.wide || x.forced) return false;
    return x.stored == 1 && only_tiny_wait(frontier);
  }
  bool only_tiny_wait(const std::vector<NodeId>& frontier) const {
    return std::all_of(frontier.begin(), frontier.end(), [&](NodeId id) {
      return known.count(id) || f.is_output(id) || surely_stored(f, id) ||
             f.bytes_of(id) <= kTinyBytes;
    });
  }
  /// A residual stream and a value that feeds main loops, say.
  bool weak(const std::vector<NodeId>& frontier) const {
    const Frontier x = classify(frontier);
    return !x.wide && !x.forced && x.stored >= 1 && x.stored + x.waiting <= 3;
  }

  /// Between the steps of an unrolled loop: of what is new since `begin`, the state goes on, which
  /// is summed over, and perhaps something that every step reads. What is open all the time
  /// (earlier outputs) is in memory whatever is cut.
  bool ends_a_step(const std::vector<std::vector<NodeId>>& fronts, int begin, int p) const {
    int state = 0, fresh = 0;
    for (NodeId id : fronts[static_cast<std::size_t>(p)]) {
      if (!id) return false;
      if (position[static_cast<std::size_t>(id.value)] < begin) continue;
      ++fresh;
      if (!f.as<prim::View>(id) && summed_often(f, id)) {
        ++state;
      } else if (f.bytes_of(id) > kTinyBytes && written_readers(f, id).size() < kStepsReading) {
        return false;
      }
    }
    return state >= 1 && fresh <= 3;
  }

  std::set<NodeId> fan_in(NodeId id) const {
    std::set<NodeId> out;
    std::vector<NodeId> work = {id};
    while (!work.empty()) {
      NodeId n = work.back();
      work.pop_back();
      if (f.is_leaf(n) || !out.insert(n).second) continue;
      work.insert(work.end(), f[n].args.begin(), f[n].args.end());
    }
    return out;
  }

  /// All members of a class are in one region, with what not all of them need: no cut in between.
  void keep_classes_whole(std::vector<std::vector<NodeId>>& fronts) const {
    for (const auto& members : f.class_members) {
      std::map<NodeId, std::size_t> needed_by;
      std::size_t live = 0;
      for (NodeId m : members) {
        if (!f.is_live[static_cast<std::size_t>(m.value)]) continue;
        ++live;
        for (NodeId n : fan_in(m)) ++needed_by[n];
      }
      int first = static_cast<int>(order.size()), last = -1;
      for (const auto& [id, count] : needed_by) {
        const int p = position[static_cast<std::size_t>(id.value)];
        if (p < 0 || count == live) continue;
        first = std::min(first, p);
        last = std::max(last, p);
      }
      for (int p = first; p < last; ++p) fronts[static_cast<std::size_t>(p)] = {NodeId{}};
    }
  }

  /// A kernel of several contractions is in one region.
  void keep_chains_whole(std::vector<std::vector<NodeId>>& fronts) const {
    for (const Cluster& chain : f.chains) {
      int first = static_cast<int>(order.size()), last = -1;
      for (NodeId id : chain.nodes) {
        const int p = position[static_cast<std::size_t>(id.value)];
        if (p < 0) continue;
        first = std::min(first, p);
        last = std::max(last, p);
      }
      for (int p = first; p < last; ++p) fronts[static_cast<std::size_t>(p)] = {NodeId{}};
    }
  }

  /// Positions after which a region ends.
  std::vector<int> cuts() {
    auto fronts = frontiers();
    keep_classes_whole(fronts);
    keep_chains_whole(fronts);
    std::vector<int> ends;
    auto accept = [&](int p) {
      ends.push_back(p);
      known.insert(fronts[static_cast<std::size_t>(p)].begin(),
                   fronts[static_cast<std::size_t>(p)].end());
    };
    const int n = static_cast<int>(order.size());
    for (int p = 0; p + 1 < n; ++p) {
      if (strong(fronts[static_cast<std::size_t>(p)])) accept(p);
    }
    refine(ends, kSplitAbove, [&](int begin, int end) {
      for (int p = begin + 7; p + 1 < end; ++p) {
        if (weak(fronts[static_cast<std::size_t>(p)])) return p;
      }
      return -1;
    });
    refine(ends, kSplitAbove, [&](int begin, int end) {
      for (int p = begin + 7; p + 1 < end; ++p) {
        if (ends_a_step(fronts, begin, p)) return p;
      }
      return -1;
    });
    refine(ends, kLargestRegion, [&](int begin, int end) {
      int best = -1;
      for (int p = begin + (end - begin) / 4; p < end - (end - begin) / 4; ++p) {
        const auto& front = fronts[static_cast<std::size_t>(p)];
        const bool wide = !front.empty() && !front[0];
        if (!wide && (best < 0 || front.size() < fronts[static_cast<std::size_t>(best)].size())) {
          best = p;
        }
      }
      return best;
    });
    ends.push_back(n - 1);
    return ends;
  }

  /// Splits pieces larger than `limit` at the position that `choose(begin, end)` gives.
  template <class F>
  void refine(std::vector<int>& ends, std::size_t limit, F&& choose) {
    const int n = static_cast<int>(order.size());
    for (bool again = true; again;) {
      again = false;
      std::sort(ends.begin(), ends.end());
      int begin = 0;
      std::vector<int> more;
      for (std::size_t e = 0; e <= ends.size(); ++e) {
        const int end = e < ends.size() ? ends[e] + 1 : n;
        if (static_cast<std::size_t>(end - begin) > limit) {
          const int p = choose(begin, end);
          if (p >= begin && p + 1 < end) more.push_back(p);
        }
        begin = end;
      }
      again = !more.empty();
      ends.insert(ends.end(), more.begin(), more.end());
    }
    std::sort(ends.begin(), ends.end());
  }
};

/// Clonable nodes that a region reads become its own.
void add_clones(const Facts& f, std::set<NodeId>& nodes) {
  std::vector<NodeId> work(nodes.begin(), nodes.end());
  while (!work.empty()) {
    NodeId id = work.back();
    work.pop_back();
    for (NodeId arg : f[id].args) {
      if (clonable(f, arg) && nodes.insert(arg).second) work.push_back(arg);
    }
  }
}

/// The member that is a graph output, if any, else the first live one.
bool speaks_for_class(const Facts& f, NodeId id) {
  for (NodeId m : f.members_of(id)) {
    if (f.is_output(m)) return m == id;
  }
  for (NodeId m : f.members_of(id)) {
    if (f.is_live[static_cast<std::size_t>(m.value)]) return m == id;
  }
  return true;
}

/// Depth first from the outputs, so that equal regions list their nodes alike whatever their ids.
std::vector<NodeId> canonical_order(const Facts& f, std::set<NodeId> left,
                                    const std::vector<NodeId>& outputs) {
  std::vector<NodeId> out;
  std::vector<std::pair<NodeId, std::size_t>> stack;
  auto walk = [&](NodeId root) {
    if (!left.erase(root)) return;
    stack.push_back({root, 0});
    while (!stack.empty()) {
      auto& [id, next] = stack.back();
      if (next == f[id].args.size()) {
        out.push_back(id);
        stack.pop_back();
      } else {
        const NodeId arg = f[id].args[next++];
        // Alternatives of what is read come before the reader, as it does not matter who makes it.
        if (left.erase(arg)) stack.push_back({arg, 0});
        for (NodeId m : f.members_of(arg)) {
          if (left.erase(m)) stack.push_back({m, 0});
        }
      }
    }
  };
  for (NodeId o : outputs) {
    walk(o);
    for (NodeId m : f.members_of(o)) walk(m);
  }
  while (!left.empty()) walk(*left.rbegin());
  return out;
}

/// Nodes are named by position, arguments outside the region by first use.
struct Naming {
  const Facts& f;
  std::map<NodeId, int> names = {};
  int outside = 0;
  Naming(const Facts& facts, const Region& r) : f(facts) {
    for (std::size_t i = 0; i < r.nodes.size(); ++i) names[r.nodes[i]] = static_cast<int>(i);
  }
  int of(NodeId id) {
    auto [it, fresh] = names.try_emplace(id, -1 - outside);
    if (fresh) ++outside;
    return it->second;
  }
  int kind_of(NodeId id) const {
    return f.is_inlined(id) ? 0 : f.as<prim::Constant>(id) ? 1 : f.is_leaf(id) ? 2 : 3;
  }
};

bool is_region_output(const Region& r, NodeId id) {
  return std::binary_search(r.outputs.begin(), r.outputs.end(), id);
}

}  // namespace

bool clonable(const Facts& f, NodeId id) {
  if (f.as<prim::Iota>(id)) return true;
  return f.as<prim::View>(id) && f[id].args.size() == 1 &&
         f.elements_of(id) > f.elements_of(f[id].args[0]) &&
         std::get<prim::View>(f[id].op).pieces[0].inside.empty();
}

bool must_absorb(const Facts& f, NodeId producer, NodeId reader) {
  return clonable(f, producer) &&
         (f.as<prim::Map>(reader) || f.as<prim::View>(reader) || f.as<prim::Reduce>(reader));
}

namespace {

Region region_of(const Facts& facts, std::set<NodeId> nodes) {
  Region r;
  for (NodeId id : nodes) {
    bool used = facts.is_output(id);
    std::vector<NodeId> readers;
    real_readers(facts, id, readers);
    for (NodeId reader : readers) used = used || !nodes.count(reader);
    // One member speaks for its class.
    if (used && !speaks_for_class(facts, id)) used = false;
    if (used) r.outputs.push_back(id);
  }
  add_clones(facts, nodes);
  r.nodes = canonical_order(facts, nodes, r.outputs);
  return r;
}

}  // namespace

std::vector<Region> regions_of(const Facts& facts) {
  Cutter cutter(facts);
  std::vector<Region> out;
  if (cutter.order.empty()) return out;
  int begin = 0;
  for (int end : cutter.cuts()) {
    out.push_back(region_of(facts, {cutter.order.begin() + begin, cutter.order.begin() + end + 1}));
    begin = end + 1;
  }
  return out;
}

Region whole_region(const Facts& facts) {
  Cutter cutter(facts);
  return region_of(facts, {cutter.order.begin(), cutter.order.end()});
}

namespace {

/// A view of one part as if it started at the origin.
prim::Op without_offsets(const prim::Op& op) {
  const auto* view = std::get_if<prim::View>(&op);
  if (view == nullptr || view->pieces.size() != 1) return op;
  prim::View moved = *view;
  for (ir::Expr& e : moved.pieces[0].index) {
    const ir::IndexNode& n = e.node();
    if (n.kind == ir::IndexNode::Kind::sum && n.constant != 0 && n.constant != INT64_MIN)
      e = e - n.constant;
  }
  return moved;
}

}  // namespace

std::size_t structural_hash(const Facts& f, const Region& r) {
  Naming naming(f, r);
  std::size_t h = r.nodes.size();
  for (NodeId id : r.nodes) {
    h = combine(h, prim::hash_of(without_offsets(f[id].op)));
    h = combine(h, static_cast<std::size_t>(f[id].type.dtype));
    for (std::int64_t e : f[id].type.shape) h = combine(h, static_cast<std::size_t>(e));
    for (NodeId a : f[id].args) {
      h = combine(h, static_cast<std::size_t>(naming.of(a)));
      h = combine(h, static_cast<std::size_t>(naming.kind_of(a)));
    }
    h = combine(h, is_region_output(r, id));
  }
  return h;
}

Likeness likeness(const Facts& f, const Region& a, const Region& b) {
  if (a.nodes.size() != b.nodes.size()) return Likeness::none;
  Likeness found = Likeness::same;
  Naming in_a(f, a), in_b(f, b);
  for (std::size_t i = 0; i < a.nodes.size(); ++i) {
    const prim::Node &x = f[a.nodes[i]], &y = f[b.nodes[i]];
    if (x.type != y.type || x.args.size() != y.args.size()) return Likeness::none;
    if (x.op != y.op) {
      if (without_offsets(x.op) != without_offsets(y.op)) return Likeness::none;
      found = Likeness::like;
    }
    if (is_region_output(a, a.nodes[i]) != is_region_output(b, b.nodes[i])) return Likeness::none;
    const NodeId class_a = f.class_of_node(a.nodes[i]), class_b = f.class_of_node(b.nodes[i]);
    if (in_a.of(class_a) != in_b.of(class_b)) return Likeness::none;
    for (std::size_t k = 0; k < x.args.size(); ++k) {
      if (in_a.of(x.args[k]) != in_b.of(y.args[k]) ||
          in_a.kind_of(x.args[k]) != in_b.kind_of(y.args[k]) ||
          f[x.args[k]].type != f[y.args[k]].type) {
        return Likeness::none;
      }
    }
  }
  return found;
}

}  // namespace heddle::plan

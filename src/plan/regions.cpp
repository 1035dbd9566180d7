#include "plan/regions.h"

#include <algorithm>
#include <map>
#include <set>

#include "plan/region_order.h"

namespace heddle::plan {
namespace {

constexpr std::size_t kSplitAbove = 72;      // nodes: frontiers of several values are tried
constexpr std::size_t kWidestCut = 512;      // values: an unrolled loop keeps one open per step
constexpr std::size_t kStepsReading = 8;     // readers of a value that every step of a loop reads
constexpr std::size_t kLargestRegion = 112;  // nodes: cut at the narrowest frontier, come what may
constexpr int kShortest = 8;                 // nodes

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

/// An input of the graph in another type, for one main loop, which may convert what it copies.
bool converted_input(const Facts& f, NodeId id) {
  const auto* map = f.as<prim::Map>(id);
  if (!map || map->fn != ir::ScalarFn::cast || !f.is_leaf(f[id].args[0])) return false;
  const std::vector<NodeId> readers = written_readers(f, id);
  return readers.size() == 1 && f.is_main_loop(readers[0]);
}

/// In memory in any sensible plan: read by main loops, and by something else or by nothing else.
bool surely_stored(const Facts& f, NodeId id) {
  if (f.as<prim::View>(id) || converted_input(f, id) || !feeds_main_loop(f, id)) return false;
  const std::vector<NodeId> readers = written_readers(f, id);
  // A view in between may be part of either side's kernel.
  return readers.size() > 1 || f.is_main_loop(readers[0]);
}

/// Each element is read for many sums, so no kernel computes it where it is read; or it is summed
/// over and so small that storing it costs nothing.
/// Only the sums that `counts` are looked at.
template <class Counts>
bool summed_often(const Facts& f, NodeId id, const Counts& counts, int depth = 0) {
  constexpr double kOften = 64;
  if (converted_input(f, id)) return false;
  for (NodeId c : written_readers(f, id)) {
    if (const auto* contract = f.as<prim::Contract>(c); contract && counts(c)) {
      if (f.bytes_of(id) <= kTinyBytes) return true;
      const double terms = f.elements_of(c) * static_cast<double>(element_count(contract->reduced));
      if (terms >= kOften * f.elements_of(id)) return true;
    }
    if (depth < 4 && f.as<prim::View>(c) && summed_often(f, c, counts, depth + 1)) return true;
  }
  return false;
}

struct Cutter {
  const Facts& f;
  RegionOrder in_order;
  const std::vector<NodeId>& order = in_order.nodes;
  std::vector<int> position, last_use;           // by node; by position
  std::set<NodeId> known;                        // in memory because an earlier cut needs it
  std::vector<bool> blocked;                     // positions inside a class
  std::vector<std::vector<NodeId>> fronts = {};  // by position: what is read after it
  std::vector<int> ends = {};                    // cuts so far

  explicit Cutter(const Facts& facts) : f(facts), in_order(region_order(facts)) {
    position.assign(static_cast<std::size_t>(f.graph->size()), -1);
    for (std::size_t i = 0; i < order.size(); ++i) {
      position[static_cast<std::size_t>(order[i].value)] = static_cast<int>(i);
    }
    last_use.resize(order.size());
    blocked.resize(order.size());
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
    double stored_bytes = 0, waiting_bytes = 0;  // of the largest
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
        out.stored_bytes = std::max(out.stored_bytes, f.bytes_of(id));
      } else if (f.bytes_of(id) > kTinyBytes) {
        const bool shared = f.as<prim::Map>(id) && written_readers(f, id).size() > 1;
        ++(shared ? out.waiting : out.forced);
        out.waiting_bytes = std::max(out.waiting_bytes, f.bytes_of(id));
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
    return !x.wide && !x.forced && x.stored >= 1 && x.stored + x.waiting <= 3 &&
           x.waiting_bytes <= x.stored_bytes;
  }

  /// Between the steps of an unrolled loop: of what is new since `begin`, the state goes on, which
  /// is summed over next, and perhaps something that every step reads. What is open all the time
  /// (earlier outputs) is in memory whatever is cut.
  bool ends_a_step(int begin, int p) const {
    int state = 0, fresh = 0;
    const auto beyond = [&](NodeId sum) { return position_of(sum) > p; };
    for (NodeId id : fronts[static_cast<std::size_t>(p)]) {
      if (!id) return false;
      if (position[static_cast<std::size_t>(id.value)] < begin) continue;
      ++fresh;
      if (!f.as<prim::View>(id) && summed_often(f, id, beyond)) {
        ++state;
      } else if (f.bytes_of(id) > kTinyBytes && written_readers(f, id).size() < kStepsReading) {
        return false;
      }
    }
    return state >= 1 && fresh <= 4;
  }

  /// First and last position of what not all members of a class need.
  std::pair<int, int> span_of(const std::vector<NodeId>& members) const {
    std::vector<int> needed_by(position.size()), seen(position.size(), -1);
    std::vector<NodeId> work;
    int live = 0;
    for (NodeId m : members) {
      if (!f.is_live[static_cast<std::size_t>(m.value)]) continue;
      work.push_back(m);
      while (!work.empty()) {
        const NodeId n = work.back();
        work.pop_back();
        if (f.is_leaf(n) || seen[static_cast<std::size_t>(n.value)] == live) continue;
        seen[static_cast<std::size_t>(n.value)] = live;
        ++needed_by[static_cast<std::size_t>(n.value)];
        work.insert(work.end(), f[n].args.begin(), f[n].args.end());
      }
      ++live;
    }
    int first = static_cast<int>(order.size()), last = -1;
    for (std::size_t i = 0; i < needed_by.size(); ++i) {
      if (position[i] < 0 || needed_by[i] == 0 || needed_by[i] == live) continue;
      first = std::min(first, position[i]);
      last = std::max(last, position[i]);
    }
    return {first, last};
  }

  /// All members of a class are in one region, with what not all of them need: no cut in between.
  void keep_classes_whole() {
    for (const auto& members : f.class_members) {
      if (members.empty()) continue;
      const auto [first, last] = span_of(members);
      keep_whole(first, last);
    }
  }
  void keep_whole(int first, int last) {
    for (int p = first; p < last; ++p) {
      fronts[static_cast<std::size_t>(p)] = {NodeId{}};
      blocked[static_cast<std::size_t>(p)] = true;
    }
  }

  /// A kernel of several contractions is in one region, and so is a product with sums over its
  /// rows.
  void keep_kernels_whole() {
    for (const Cluster& chain : f.chains) {
      int first = static_cast<int>(order.size()), last = -1;
      for (NodeId id : chain.nodes) {
        const int p = position_of(id);
        if (p < 0) continue;
        first = std::min(first, p);
        last = std::max(last, p);
      }
      keep_whole(first, last);
    }
    for (const auto& [value, sum] : in_order.sums) {
      const int first = position_of(value), last = position_of(sum);
      if (first >= 0 && last - first < kShortest) keep_whole(first, last);
    }
  }
  int position_of(NodeId id) const { return position[static_cast<std::size_t>(id.value)]; }

  /// Where to end a region that starts at `begin` and nothing else ends: where the least has to be
  /// stored for it. Positions count from the beginning, so that equal layers are cut alike.
  int narrowest(int begin, int end) const {
    const int longest = static_cast<int>(kLargestRegion);
    const int last = std::min(begin + longest - 1, end - kShortest);
    std::set<int> open;
    double bytes = 0, least = 0;
    int best = -1;
    for (int p = begin; p <= last; ++p) {
      open.insert(p);
      bytes += weight(p);
      for (auto it = open.begin(); it != open.end();) {
        const bool done = last_use[static_cast<std::size_t>(*it)] <= p;
        if (done) bytes -= weight(*it);
        it = done ? open.erase(it) : std::next(it);
      }
      if (p < begin + longest / 3 || blocked[static_cast<std::size_t>(p)]) continue;
      if (best < 0 || bytes <= least) {
        best = p;
        least = bytes;
      }
    }
    return best;
  }
  /// Bytes that a cut moves which would perhaps not move; values are worth something of themselves.
  double weight(int p) const {
    const NodeId id = order[static_cast<std::size_t>(p)];
    return known.count(id) || f.is_output(id) || surely_stored(f, id) ? 0 : 1024 + f.bytes_of(id);
  }

  void accept(int p) {
    const auto& front = fronts[static_cast<std::size_t>(p)];
    ends.push_back(p);
    known.insert(front.begin(), front.end());
  }

  /// Positions after which a region ends.
  std::vector<int> cuts() {
    fronts = frontiers();
    keep_classes_whole();
    keep_kernels_whole();
    const int n = static_cast<int>(order.size());
    for (int p = 0; p + 1 < n; ++p) {
      if (strong(fronts[static_cast<std::size_t>(p)])) accept(p);
    }
    for (const bool nothing_waits : {true, false}) {
      refine(kSplitAbove, [&](int begin, int end) {
        for (int p = begin + 7; p + 1 < end; ++p) {
          const auto& front = fronts[static_cast<std::size_t>(p)];
          if (weak(front) && (!nothing_waits || only_tiny_wait(front))) return p;
        }
        return -1;
      });
    }
    refine(kSplitAbove, [&](int begin, int end) {
      for (int p = begin + 7; p + 1 < end; ++p) {
        if (ends_a_step(begin, p)) return p;
      }
      return -1;
    });
    refine(kLargestRegion, [&](int begin, int end) { return narrowest(begin, end); });
    ends.push_back(n - 1);
    return ends;
  }

  /// Splits pieces larger than `limit` at the position that `choose(begin, end)` gives.
  template <class F>
  void refine(std::size_t limit, F&& choose) {
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
      for (int p : more) accept(p);
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

std::vector<NodeId> sprawling_alternatives(const Facts& facts, double share) {
  std::vector<NodeId> out;
  if (facts.class_members.empty()) return out;
  const Cutter cutter(facts);
  struct Span {
    int first, last;
    const std::vector<NodeId>* members;
  };
  std::vector<Span> spans;
  for (const auto& members : facts.class_members) {
    if (members.empty()) continue;
    const auto [first, last] = cutter.span_of(members);
    if (first < last) spans.push_back({first, last, &members});
  }
  std::stable_sort(spans.begin(), spans.end(), [](const Span& a, const Span& b) {
    return a.last - a.first < b.last - b.first;
  });
  // Narrow ones first: those that overlap are one stretch without a cut.
  std::map<int, int> stretches;  // first → last
  for (const Span& s : spans) {
    int first = s.first, last = s.last;
    std::vector<int> joined;
    for (const auto& [a, b] : stretches) {
      if (a >= s.last || b <= s.first) continue;
      first = std::min(first, a);
      last = std::max(last, b);
      joined.push_back(a);
    }
    if (last - first >= share * static_cast<double>(kLargestRegion)) {
      out.insert(out.end(), s.members->begin(), s.members->end());
      continue;
    }
    for (int a : joined) stretches.erase(a);
    stretches[first] = last;
  }
  return out;
}

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

}  // namespace heddle::plan

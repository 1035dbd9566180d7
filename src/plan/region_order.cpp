#include "plan/region_order.h"

#include <algorithm>

#include "plan/regions.h"

namespace heddle::plan {

void real_readers(const Facts& f, NodeId id, std::vector<NodeId>& out) {
  for (NodeId c : f.readers_of(id)) {
    if (clonable(f, c)) {
      real_readers(f, c, out);
    } else {
      out.push_back(c);
    }
  }
}

namespace {

/// Sums over the rows of a value, perhaps times others that are there already: bias and norm
/// gradients. They ride in the epilogue that makes the value, if they are in its region. `seen` but
/// not `placed` is what waits for the value.
void sums_over_rows(const Facts& f, NodeId value, const std::vector<bool>& seen,
                    const std::vector<bool>& placed, std::vector<NodeId>& out, int depth = 0) {
  const auto is = [](const std::vector<bool>& what, NodeId id) {
    return what[static_cast<std::size_t>(id.value)];
  };
  const auto there = [&](NodeId arg) { return arg == value || f.is_leaf(arg) || is(placed, arg); };
  const auto view_of_such = [&](NodeId arg) {
    return clonable(f, arg) && f[arg].args.size() == 1 && there(f[arg].args[0]);
  };
  for (NodeId reader : f.readers_of(value)) {
    const auto& args = f[reader].args;
    if (f.members_of(reader).size() > 1 || (is(seen, reader) && !is(placed, reader)) ||
        !std::all_of(args.begin(), args.end(),
                     [&](NodeId arg) { return there(arg) || view_of_such(arg); }))
      continue;
    if (const auto* reduce = f.as<prim::Reduce>(reader)) {
      const int rank = static_cast<int>(f[args[0]].type.shape.size());
      if (reduce->fn == ir::Monoid::sum && f.bytes_of(reader) <= kTinyBytes &&
          std::find(reduce->axes.begin(), reduce->axes.end(), rank - 1) == reduce->axes.end())
        out.push_back(reader);
    } else if (depth < 2 && (f.as<prim::Map>(reader) || f.as<prim::View>(reader))) {
      sums_over_rows(f, reader, seen, placed, out, depth + 1);
    }
  }
}

/// Order in which branches are contiguous: depth first from the outputs.
RegionOrder depth_first(const Facts& f) {
  RegionOrder order;
  std::vector<bool> seen(static_cast<std::size_t>(f.graph->size())), placed = seen;
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
        const NodeId done = id;
        stack.pop_back();
        placed[static_cast<std::size_t>(done.value)] = true;
        if (!clonable(f, done) || f.is_output(done)) order.nodes.push_back(done);
        if (f.is_leaf(done) || !(f.as<prim::Map>(done) || f.as<prim::Contract>(done))) continue;
        std::vector<NodeId> sums;
        sums_over_rows(f, done, seen, placed, sums);
        for (NodeId sum : sums) {
          push(sum);
          order.sums.push_back({done, sum});
        }
      }
    }
  }
  return order;
}

/// Large maps of nothing but leaves and scalars (decays of an embedding and its moments) stand
/// beside their only reader: a cut between them would store what takes nothing to compute again.
std::vector<NodeId> beside_readers(const Facts& f, std::vector<NodeId> order) {
  constexpr double kLarge = 16e6;  // bytes: smaller ones are not worth another cut of the rest
  const auto index = [](NodeId id) { return static_cast<std::size_t>(id.value); };
  std::vector<NodeId> reader(static_cast<std::size_t>(f.graph->size()));  // of those that move
  for (NodeId id : order) {
    const bool moves =
        f.as<prim::Map>(id) && f.bytes_of(id) >= kLarge && !f.is_output(id) &&
        f.members_of(id).size() <= 1 &&
        std::all_of(f[id].args.begin(), f[id].args.end(), [&](NodeId arg) {
          if (clonable(f, arg) && f[arg].args.size() == 1) arg = f[arg].args[0];
          return f.is_leaf(arg) || f.elements_of(arg) == 1 || reader[index(arg)].value >= 0;
        });
    std::vector<NodeId> readers;
    if (moves) real_readers(f, id, readers);
    if (readers.size() == 1) reader[index(id)] = readers[0];
  }
  std::vector<std::size_t> place(reader.size());
  for (std::size_t i = order.size(); i-- > 0;) {
    const NodeId to = reader[index(order[i])];
    place[index(order[i])] = to.value >= 0 ? place[index(to)] : i;
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](NodeId a, NodeId b) { return place[index(a)] < place[index(b)]; });
  return order;
}

}  // namespace

RegionOrder region_order(const Facts& f) {
  RegionOrder order = depth_first(f);
  order.nodes = beside_readers(f, std::move(order.nodes));
  return order;
}

}  // namespace heddle::plan

#include <algorithm>
#include <charconv>
#include <cstdlib>

#include "plan/clusters.h"

namespace heddle::plan {
namespace {

std::string ids(const std::vector<NodeId>& nodes) {
  std::string out;
  for (NodeId id : nodes) out += fmt::format(" %{}", id.value);
  return out;
}

std::string cost_text(const Cost& c) {
  return fmt::format(
      "cost={:.3f} {} memory={:.3f} compute={:.3f} launch={:.3f} bytes={:.0f} flops={:.0f}", c.us,
      name_of(c.provenance), c.memory_us, c.compute_us, c.launch_us, c.bytes, c.flops);
}

std::string cluster_text(const Cluster& c) {
  return fmt::format("{} ->{}", ids(c.nodes), ids(c.outputs));
}

/// Reads one line from left to right; the first misfit is remembered.
struct Line {
  std::string_view rest;
  bool good = true;

  bool take(std::string_view word) {
    while (!rest.empty() && rest[0] == ' ') rest.remove_prefix(1);
    if (!rest.starts_with(word)) return false;
    rest.remove_prefix(word.size());
    return true;
  }
  void want(std::string_view word) { good = take(word) && good; }
  double number() {
    const std::string text(rest.substr(0, std::min<std::size_t>(rest.size(), 40)));
    char* end = nullptr;
    const double value = std::strtod(text.c_str(), &end);
    good = good && end != text.c_str();
    rest.remove_prefix(static_cast<std::size_t>(end - text.c_str()));
    return value;
  }
  double field(std::string_view name) {
    want(name);
    want("=");
    return number();
  }
  std::vector<NodeId> nodes() {
    std::vector<NodeId> out;
    while (take("%")) {
      std::int32_t value = -1;
      auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), value);
      good = good && error == std::errc();
      rest.remove_prefix(static_cast<std::size_t>(end - rest.data()));
      out.push_back(NodeId{value});
      if (!good) break;
    }
    good = good && !out.empty();
    return out;
  }
  Cluster cluster() {
    Cluster c;
    c.nodes = nodes();
    want("->");
    c.outputs = nodes();
    return c;
  }
  Cost cost() {
    Cost c;
    c.us = field("cost");
    c.provenance = take("measured") ? Provenance::measured : Provenance::modelled;
    if (c.provenance == Provenance::modelled) want("modelled");
    c.memory_us = field("memory");
    c.compute_us = field("compute");
    c.launch_us = field("launch");
    c.bytes = field("bytes");
    c.flops = field("flops");
    return c;
  }
  std::string word() {
    take("");
    const std::size_t end = std::min(rest.find(' '), rest.size());
    std::string out(rest.substr(0, end));
    rest.remove_prefix(end);
    return out;
  }
};

void parse_header(Line& line, Plan& plan) {
  line.want("strategy=");
  auto strategy = strategy_named(line.word());
  line.good = line.good && strategy.has_value();
  plan.strategy = strategy.value_or(Strategy::full);
  plan.cost_us = line.field("cost");
  plan.lower_bound_us = line.field("bound");
  plan.stats.nodes = static_cast<int>(line.field("nodes"));
  plan.stats.regions = static_cast<int>(line.field("regions"));
  plan.stats.unique_regions = static_cast<int>(line.field("unique"));
  plan.stats.candidates = static_cast<int>(line.field("candidates"));
  plan.stats.solver_nodes = static_cast<int>(line.field("solver_nodes"));
  plan.stats.cut_rows = static_cast<int>(line.field("cut_rows"));
}

void parse_line(Line& line, Plan& plan) {
  if (line.take("kernel")) {
    Kernel k;
    k.cluster = line.cluster();
    k.cost = line.cost();
    plan.kernels.push_back(std::move(k));
  } else if (line.take("not")) {
    Rejected r;
    r.cluster = line.cluster();
    r.cost = line.cost();
    r.plan_delta_us = line.field("delta");
    line.want(":");
    line.take(" ");
    r.reason = std::string(line.rest);
    line.rest = {};
    line.good = line.good && !plan.kernels.empty();
    if (line.good) plan.kernels.back().rejected.push_back(std::move(r));
  } else if (line.take("substitute")) {
    const auto wanted = line.nodes();
    line.want("=");
    const auto instead = line.nodes();
    if (line.good) plan.substitutes.push_back({wanted[0], instead[0]});
  } else if (line.take("plan")) {
    parse_header(line, plan);
  } else {
    line.good = false;
  }
  line.take("");
  line.good = line.good && (line.rest.empty() || line.rest[0] == '#');
}

bool in_graph(const prim::Graph& g, const Cluster& c) {
  auto all_in = [&](const std::vector<NodeId>& nodes) {
    return std::all_of(nodes.begin(), nodes.end(),
                       [&](NodeId id) { return id.value >= 0 && id.value < g.size(); });
  };
  return all_in(c.nodes) && all_in(c.outputs);
}

}  // namespace

std::string print(const prim::Graph& g, const Plan& plan) {
  std::string out = fmt::format(
      "plan strategy={} cost={:.3f} bound={:.3f} nodes={} regions={} unique={} candidates={} "
      "solver_nodes={} cut_rows={}\n",
      name_of(plan.strategy), plan.cost_us, plan.lower_bound_us, plan.stats.nodes,
      plan.stats.regions, plan.stats.unique_regions, plan.stats.candidates, plan.stats.solver_nodes,
      plan.stats.cut_rows);
  for (const Kernel& k : plan.kernels) {
    out += fmt::format("kernel{} {}", cluster_text(k.cluster), cost_text(k.cost));
    std::string from;
    for (prim::OriginId o : k.origins) {
      const prim::Origin& origin = g.origin(o);
      from += fmt::format("{} {} '{}'", from.empty() ? "" : ",", origin.op, origin.name);
    }
    out += (from.empty() ? "" : " # from" + from) + "\n";
    for (const Rejected& r : k.rejected) {
      out += fmt::format("  not{} {} delta={:.3f} : {}\n", cluster_text(r.cluster),
                         cost_text(r.cost), r.plan_delta_us, r.reason);
    }
  }
  for (const Substitute& s : plan.substitutes) {
    out += fmt::format("substitute %{} = %{}\n", s.wanted.value, s.instead.value);
  }
  return out;
}

Result<Plan> parse(const prim::Graph& g, std::string_view text) {
  Plan plan;
  int number = 0;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    Line line{text.substr(0, end)};
    text.remove_prefix(std::min(end + 1, text.size()));
    ++number;
    line.take("");
    if (line.rest.empty()) continue;
    parse_line(line, plan);
    if (!line.good) return fail("plan text, line {}: unexpected '{}'", number, line.rest);
  }
  for (std::size_t i = 0; i < plan.kernels.size(); ++i) {
    Kernel& k = plan.kernels[i];
    if (!in_graph(g, k.cluster)) return fail("kernel {}: a node is not in the graph", i);
    k.inputs = reads_of(g, k.cluster);
    k.origins = origins_of(g, k.cluster);
  }
  HEDDLE_TRY(verify(g, plan));
  return plan;
}

}  // namespace heddle::plan

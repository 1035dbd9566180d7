#include "prim/text.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <fstream>
#include <set>
#include <sstream>

#include "ir/text.h"
#include "support/match.h"

namespace heddle::prim {
namespace {

constexpr std::string_view kCombines[] = {"assign", "add", "mul", "max", "min"};

std::string exprs_text(const std::vector<ir::Expr>& exprs) {
  std::string text = "(";
  for (std::size_t i = 0; i < exprs.size(); ++i)
    text += (i == 0 ? "" : ", ") + ir::to_string(exprs[i]);
  return text + ")";
}

std::string access_text(const Access& a) {
  std::string text = exprs_text(a.index);
  for (std::size_t i = 0; i < a.inside.size(); ++i)
    text += (i == 0 ? " where " : " and ") + ir::to_string(a.inside[i]);
  return text;
}

std::string bytes_text(const Tensor& t) {
  std::string text = " bytes \"";
  for (std::int64_t i = 0; i < t.bytes(); ++i)
    fmt::format_to(std::back_inserter(text), "{:02x}", static_cast<unsigned>(t.data()[i]));
  return text + '"';
}

/// False for what numbers do not tell: which NaN it is.
bool numbers_say_all(const Tensor& t) {
  Tensor again(t.type());
  for (std::int64_t i = 0; i < t.count(); ++i)
    is_float(t.dtype()) ? again.set(i, t.at(i)) : again.set_int(i, t.int_at(i));
  return std::equal(t.data(), t.data() + t.bytes(), again.data());
}

std::string constant_text(const Graph& g, const Constant& c, const PrintOptions& options) {
  const Tensor& t = g.constant(c);
  if (t.count() > options.max_inline)
    return options.embed ? bytes_text(t) : fmt::format(" @{}", to_string(c.content));
  if (!numbers_say_all(t)) return bytes_text(t);
  std::string text = " {";
  for (std::int64_t i = 0; i < t.count(); ++i) {
    if (i > 0) text += ", ";
    // Integers print exactly, floats so that they read back the same.
    text += is_float(t.dtype()) ? ir::real_text(t.at(i)) : fmt::format("{}", t.int_at(i));
  }
  return text + "}";
}

std::string op_text(const Graph& g, const Op& op, const PrintOptions& options) {
  return match(
      op, [](const Input& o) { return fmt::format(" {}", o.slot); },
      [&](const Constant& o) { return constant_text(g, o, options); },
      [](const Iota& o) { return fmt::format(" axis {}", o.axis); },
      [](const Map&) { return std::string(); },
      [](const View& o) {
        std::string text;
        for (const Access& a : o.pieces) text += (text.empty() ? " " : " else ") + access_text(a);
        return text + fmt::format(" fill {}", ir::real_text(o.fill));
      },
      [](const Reduce& o) { return fmt::format(" axes {}", o.axes); },
      [](const Contract& o) {
        return fmt::format(" reduce {} lhs {} rhs {}", o.reduced, access_text(o.lhs),
                           access_text(o.rhs));
      },
      [](const Gather& o) { return fmt::format(" axes {} base {}", o.axes, exprs_text(o.base)); },
      [](const Scatter& o) {
        return fmt::format(" axes {} base {} combine {}", o.axes, exprs_text(o.base),
                           kCombines[static_cast<int>(o.combine)]);
      },
      [](const Scan& o) {
        return fmt::format(" axis {}{}{}", o.axis, o.exclusive ? " exclusive" : "",
                           o.reverse ? " reverse" : "");
      },
      [](const Sort& o) {
        return fmt::format(" axis {} count {}{}", o.axis, o.count,
                           o.descending ? " descending" : "");
      },
      [](const Random& o) {
        return fmt::format(" {} seed {}", o.kind == Random::Kind::uniform ? "uniform" : "normal",
                           static_cast<std::int64_t>(o.seed));
      },
      [](const AllReduce& o) { return fmt::format(" channel {}", o.channel); });
}

/// "reduce sum", "map add": the kind and its function.
std::string head_text(const Op& op) {
  std::string text(kind_name(op));
  if (const auto* m = std::get_if<Map>(&op)) text += fmt::format(" {}", ir::info(m->fn).name);
  if (const auto* r = std::get_if<Reduce>(&op)) text += fmt::format(" {}", name_of(r->fn));
  if (const auto* s = std::get_if<Scan>(&op)) text += fmt::format(" {}", name_of(s->fn));
  return text;
}

/// `origin "Conv" "c1"`, then, after commas, what else the node stands for.
std::string origin_text(const Graph& g, NodeId id) {
  const OriginId own = id ? g.origin_id(id) : OriginId{};
  const Origin first = own ? g.origin(own) : Origin{};
  std::string text = fmt::format("origin {} {}", ir::quote(first.op), ir::quote(first.name));
  std::set<Origin> others;  // not in the order of ids, which a text does not keep
  if (id)
    for (const OriginId o : g.origins_of(id)) others.insert(g.origin(o));
  others.erase(first);
  for (const Origin& o : others) text += fmt::format(", {} {}", ir::quote(o.op), ir::quote(o.name));
  return text + "\n";
}

}  // namespace

std::string describe(const Graph& g, NodeId id) {
  return fmt::format("{} {}", head_text(g[id].op), to_string(g[id].type));
}

std::string print_node(const Graph& g, NodeId id, const PrintOptions& options) {
  const Node& n = g[id];
  std::string text = fmt::format("%{} = {}", id.value, head_text(n.op));
  for (std::size_t i = 0; i < n.args.size(); ++i)
    text += fmt::format("{} %{}", i == 0 ? "" : ",", n.args[i].value);
  return text + fmt::format("{} : {}", op_text(g, n.op, options), to_string(n.type));
}

std::string print(const Graph& g, const PrintOptions& options) {
  std::string text;
  for (const GraphInput& in : g.inputs)
    text += fmt::format("input {} : {}\n", ir::quote(in.name), to_string(in.type));
  std::string origin = origin_text(g, NodeId{});
  for (const NodeId id : live_nodes(g)) {
    if (std::string here = origin_text(g, id); here != origin) {
      origin = std::move(here);
      text += origin;
    }
    text += print_node(g, id, options) + '\n';
  }
  for (const GraphOutput& o : g.outputs)
    text += fmt::format("output {} = %{}\n", ir::quote(o.name), o.node.value);
  return text;
}

ConstantTable large_constants(const Graph& g, const PrintOptions& options) {
  ConstantTable table;
  if (options.embed) return table;
  for (const NodeId id : live_nodes(g))
    if (const auto* c = std::get_if<Constant>(&g[id].op))
      if (g.constant(*c).count() > options.max_inline) table.emplace(c->content, g.constant(*c));
  return table;
}

std::string constants_beside(const std::string& path) { return path + ".hedc"; }

Status save_constants(const ConstantTable& constants, const std::string& path) {
  std::ofstream out(path, std::ios::binary);
  out << "hedc1\n";
  std::vector<Hash> order;
  for (const auto& [hash, tensor] : constants) order.push_back(hash);
  std::sort(order.begin(), order.end());  // equal tables make equal files
  for (const Hash& hash : order) {
    const Tensor& t = constants.at(hash);
    out << to_string(hash) << ' ' << to_string(t.type()) << '\n';
    out << t.view();
  }
  out.close();
  if (!out) return fail("cannot write constants to '{}'", path);
  return Ok{};
}

}  // namespace heddle::prim

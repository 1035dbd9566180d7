#include <algorithm>
#include <map>

#include "lower/contract/box.h"
#include "lower/contract/depthwise.h"
#include "lower/contract/dots.h"
#include "lower/contract/emit.h"
#include "lower/contract/gpu/lower.h"
#include "lower/contract/rows.h"
#include "lower/evaluate.h"
#include "lower/lower.h"

namespace heddle::lower::contract {
namespace {

constexpr std::size_t kSchedulesWorthMeasuring = 8, kSchedulesOfAKind = 2;

bool elementwise(const prim::Node& node) {
  return std::holds_alternative<prim::Map>(node.op) ||
         std::holds_alternative<prim::View>(node.op) ||
         std::holds_alternative<prim::Constant>(node.op) ||
         std::holds_alternative<prim::Iota>(node.op) ||
         std::holds_alternative<prim::Gather>(node.op) ||
         std::holds_alternative<prim::Reduce>(node.op);
}

/// Operand sources and copies once that costs are known.
Schedule prepared(const Product& p, const Schedule& model, const Tuning& tuning) {
  Schedule s = model;
  for (const auto& [key, value] : tuning) {
    if (key == "unroll") s.unroll = std::clamp<std::int64_t>(value, 1, 16);
    if (key == "staged") s.staged = value != 0;
  }
  // Packing in each task would repeat the work for every block of rows: do it once, in a phase.
  if (s.b == BSource::task && row_tasks(p, s) > 1) s.b = BSource::phase;
  return s;
}

/// The constant operand comes from memory once: a network's constants seldom stay in a cache, and
/// transformed ones are larger; products of many terms hide most of that.
double cold_cycles(const Product& p, const Schedule& s) {
  constexpr double kBytesPerCycle = 7;
  constexpr std::int64_t kFewRows = 64;
  if (s.b != BSource::constant || s.pieces) return 0;  // pieces' model knows
  const auto a = static_cast<double>(s.winograd + 2);
  const auto terms = winograd_terms(*p.request.graph, p.problem, p.request.target, s.winograd);
  const bool pairs = s.winograd > 0 && terms != WinogradTerms::single;
  const double bytes =
      static_cast<double>(p.extents.n * p.extents.k * p.extents.element_bytes) / (pairs ? 2 : 1);
  const double halves_share = p.extents.tile < kFewRows ? 7.0 / 4 : 5.0 / 4;
  const double share = s.winograd > 0 ? a * a / 9 : s.strassen ? halves_share : 1;
  return bytes * share / kBytesPerCycle;
}

/// A way to compute the cluster.
struct Choice {
  std::shared_ptr<Product> product;
  Schedule schedule;
};

/// Appends the best schedules of one product: of joined values as written and by halves, of single
/// ones Winograd's convolution, of copied and boxed ones those in tile registers.
void add_choices(const std::shared_ptr<Product>& product, Form form, const Tuning& fixed,
                 std::size_t count, std::vector<Choice>& out) {
  const Product& p = *product;
  const Target& target = p.request.target;
  const int lanes = target.lanes(p.problem.type);
  const auto kind = pinned(fixed, "winograd"), by_halves = pinned(fixed, "strassen");
  // Schedules of before there were such do not name them.
  const auto later = [&](std::string_view name) {
    return pinned(fixed, "mr") ? pinned(fixed, name).value_or(0) : pinned(fixed, name);
  };
  const auto by_pieces = later("pieces"), by_dots = later("dots");
  const auto add = [&](const std::vector<Schedule>& all) {
    for (const Schedule& s : all) {
      out.push_back({product, s});
      out.back().schedule.cycles += cold_cycles(p, s);
    }
  };
  const bool plain = kind.value_or(0) == 0 && by_halves.value_or(0) == 0;
  const bool written = form == Form::joined;
  if (form == Form::flat) {
    if (kind.value_or(0) == 0 && by_halves.value_or(1) == 1 && by_pieces.value_or(0) == 0 &&
        by_dots.value_or(0) == 0)
      add(strassen_schedules(p, target, lanes, fixed, count));
    return;
  }
  if (form == Form::copied || form == Form::boxed) {
    if (plain && by_pieces.value_or(1) == 1)
      add(pieces_schedules(p, form, target, lanes, fixed, count));
    return;
  }
  if (by_pieces.value_or(0) == 1) return;
  if ((written || form == Form::column) && plain && by_dots.value_or(1) == 1)
    add(dots_schedules(p, target, lanes, fixed, count));
  if (by_dots.value_or(0) == 1 || form == Form::column) return;
  if (written && plain) {
    // A line of padding around an image is little, and little is known of what it saves.
    constexpr double kMuch = 0.75;
    Extents e = p.extents;
    if (const double inside = p.base.a == ASource::box ? share_inside(p) : 1; inside < kMuch)
      e.inside = inside;
    add(schedules(e, target, lanes, p.base, fixed, count));
  }
  if (written && kind.value_or(0) == 0 && by_halves.value_or(1) == 1 && target.strassen &&
      !p.sums())
    add(strassen_schedules(p, target, lanes, fixed, count));
  for (std::int64_t m : {2, 4})
    if (!written && kind.value_or(m) == m && by_halves.value_or(0) == 0)
      add(winograd_schedules(p, target, lanes, m, fixed, count));
}

/// Products of pairs are no Winograd's convolution: that has one of single values.
Result<std::shared_ptr<Product>> single_values(const Request& request,
                                               const std::shared_ptr<Product>& product) {
  const Problem& p = product->problem;
  if (!p.parts || !winograd_terms(*request.graph, p, request.target, 2)) return product;
  return std::shared_ptr<Product>(HEDDLE_TRY(make_product(request, Form::single)));
}

/// Best first; the tuning may name one kind.
Result<std::vector<Choice>> choices(const Request& request, const Tuning& fixed,
                                    std::size_t count) {
  const std::shared_ptr<Product> product = HEDDLE_TRY(make_product(request));
  std::vector<Choice> out;
  const Problem& p = product->problem;
  const bool windows = has_padded_columns(*request.graph, p);
  if (!windows) add_choices(product, Form::joined, fixed, count, out);
  // By halves all rows are one axis, as they are copied.
  if (!windows && product->row && !product->a_across && request.target.strassen &&
      rows_stand_alone(p) && !product->sums())
    if (auto made = make_product(request, Form::flat))
      add_choices(*std::move(made), Form::flat, fixed, count, out);
  if (p.count(Role::m) == 1 && request.graph->constant_of(p.a))
    if (auto made = make_product(request, Form::column))
      add_choices(*std::move(made), Form::column, fixed, count, out);
  if (!windows)
    add_choices(HEDDLE_TRY(single_values(request, product)), Form::single, fixed, count, out);
  if (request.target.tiles)
    for (const Form form : {Form::copied, Form::boxed})
      if (auto made = make_product(request, form))
        add_choices(*std::move(made), form, fixed, count, out);
  std::stable_sort(out.begin(), out.end(), [](const Choice& a, const Choice& b) {
    return a.schedule.cycles < b.schedule.cycles;
  });
  return out;
}

}  // namespace

Roles roles_of(const prim::Graph& g, NodeId contract) {
  const prim::Node& node = g[contract];
  const auto& c = std::get<prim::Contract>(node.op);
  const auto depends = [](const prim::Access& a, ir::Var v) {
    for (const ir::Expr& e : a.index)
      if (ir::depends_on(e, v)) return true;
    return false;
  };
  Roles roles;
  for (std::size_t i = 0; i < node.type.shape.size(); ++i) {
    const ir::Var v{static_cast<std::int32_t>(i)};
    const bool lhs = depends(c.lhs, v), rhs = depends(c.rhs, v);
    (lhs && rhs ? roles.batch : rhs ? roles.n : roles.m).push_back(static_cast<int>(i));
  }
  for (std::size_t j = 0; j < c.reduced.size(); ++j) roles.k.push_back(static_cast<int>(j));
  return roles;
}

std::vector<Algorithm> algorithms(const prim::Graph& g, NodeId contract, const Target& target) {
  std::vector<Algorithm> out{{}};
  if (target.is_gpu()) return out;
  const Problem p = analyse(g, contract);
  for (const Algorithm& a : winograd_algorithms(g, p, target)) out.push_back(a);
  if (target.strassen)
    if (const auto a = strassen_algorithm(g, p, target)) out.push_back(*a);
  if (const auto a = dots_algorithm(g, analyse(g, contract, true), target)) out.push_back(*a);
  if (const auto a = pieces_algorithm(g, p, target)) out.push_back(*a);
  if (const auto a = groups_algorithm(g, p, target)) out.push_back(*a);
  return out;
}

bool worth_main_loop(const prim::Graph& g, NodeId contract, bool gpu) {
  const Problem p = analyse(g, contract);
  for (const Axis& axis : p.axes)
    if (axis.extent == 0) return false;
  const std::int64_t m = p.count(Role::m), n = p.count(Role::n), k = p.count(Role::k);
  // One row against many batches is a reduction (depthwise convolution): stitching does it better.
  if (std::min(m, n) == 1 && p.count(Role::batch) > 1) return false;
  if (has_padded_columns(g, p)) return !gpu && dots_everywhere(g, contract);
  // Few columns leave most lanes idle, which still beats a reduction when there is much to do.
  if (n < 4 && (n < 2 || m * k < 4096)) return false;
  return k >= 2 && p.count(Role::batch) * m * n * k >= 512;
}

bool supports(const prim::Graph& g, const Cluster& c, const Target& target) {
  std::optional<NodeId> contract;
  for (NodeId id : c.nodes) {
    const bool is_contract = std::holds_alternative<prim::Contract>(g[id].op);
    if (is_contract && contract) return false;
    if (is_contract) contract = id;
    if (!is_contract && !elementwise(g[id])) return false;
    if (std::holds_alternative<prim::Gather>(g[id].op) &&
        (std::binary_search(c.nodes.begin(), c.nodes.end(), g[id].args[0]) ||
         inlined_constant(g, g[id].args[0])))
      return false;
  }
  if (!contract || !worth_main_loop(g, *contract, target.is_gpu())) return false;
  Problem problem = analyse(g, *contract);
  if (!target.is_gpu()) choose_sides(g, problem);
  const auto all = images(g, c, problem);
  if (!all) return false;
  const auto is_image = [&](NodeId id) {
    return std::any_of(all->begin(), all->end(), [&](const Image& x) { return x.node == id; });
  };
  // Reductions are of all rows or all columns, and nothing else in the kernel reads them.
  for (NodeId id : c.nodes) {
    if (std::holds_alternative<prim::Reduce>(g[id].op) &&
        !std::binary_search(c.outputs.begin(), c.outputs.end(), id))
      return false;
    for (NodeId arg : g[id].args)
      if (std::binary_search(c.nodes.begin(), c.nodes.end(), arg) &&
          std::holds_alternative<prim::Reduce>(g[arg].op))
        return false;
  }
  return std::any_of(c.outputs.begin(), c.outputs.end(), is_image) &&
         std::all_of(c.outputs.begin(), c.outputs.end(), [&](NodeId output) {
           if (is_image(output)) return true;
           const auto sum = epilogue_sum(g, *all, problem, output);
           return sum && has_sum(g, problem, *sum, target);
         });
}

Result<Lowered> lower(const Request& request) {
  if (!contract::supports(*request.graph, request.cluster, request.target))
    return unsupported("contraction: the cluster is not one main loop with an epilogue");
  if (request.target.is_gpu()) return gpu::lower(*HEDDLE_TRY(make_product(request)));
  if (request.tuning.empty())
    if (auto groups = lower_groups(request)) return groups;
  const auto all = HEDDLE_TRY(choices(request, request.tuning, 1));
  if (all.empty()) return unsupported("contraction: no such schedule");
  const auto& [product, schedule] = all.front();
  return Emitter(*product, prepared(*product, schedule, request.tuning)).run();
}

Result<Lowered> lower_rows(const Request& request, std::int64_t rows) {
  constexpr std::int32_t kRows = 2;
  const auto product = HEDDLE_TRY(make_product(request, Form::rows));
  const Product& p = *product;
  const bool fits = p.row && p.row->var == ir::Var{kRows} && p.n && !p.sums() &&
                    p.base.b == BSource::constant &&
                    std::ranges::all_of(p.outer, [](const Axis& a) { return a.var == ir::Var{0}; });
  if (!fits) return unsupported("contraction: no rows of an image with a constant filter");
  const Target& target = request.target;
  const Tuning fixed{{"rows", rows}, {"panels", p.extents.n}};
  const auto all = schedules(p.extents, target, target.lanes(p.problem.type), p.base, fixed, 1);
  if (all.empty()) return unsupported("contraction: no schedule of whole rows");
  return Emitter(*product, prepared(p, all.front(), fixed)).run();
}

std::vector<Tuning> tuning_space(const Request& request) {
  std::vector<Tuning> out;
  if (!contract::supports(*request.graph, request.cluster, request.target)) return out;
  if (request.target.is_gpu()) {
    auto product = make_product(request);
    return product ? gpu::tuning_space(**product) : out;
  }
  auto all = choices(request, {}, kSchedulesWorthMeasuring);
  if (!all) return out;
  // Few of each kind: the model compares schedules better than algorithms.
  const auto kind_of = [](const Schedule& s) {
    return std::tuple(s.winograd, s.strassen, s.dots, s.pieces);
  };
  std::map<std::tuple<std::int64_t, bool, bool, bool>, std::size_t> kinds;
  for (const Choice& c : *all) ++kinds[kind_of(c.schedule)];
  const std::size_t most = kinds.size() > 1 ? kSchedulesOfAKind : kSchedulesWorthMeasuring;
  kinds.clear();
  for (const auto& [product, s] : *all)
    if (kinds[kind_of(s)]++ < most)
      out.push_back(
          {{"winograd", s.winograd},
           {"strassen", s.strassen},
           {"dots", s.dots},
           {"pieces", s.pieces},
           {"depth", s.depth},
           {"slices", s.slices},
           {"beside", s.beside},
           {"direct", s.pieces && s.a != ASource::matrix},
           {"mr", s.mr},
           {"nv", s.nv},
           {product->row ? "rows" : "tiles", product->row ? s.rows_per_task : s.tiles_per_task},
           {"columns", s.column_blocks},
           {"panels", s.panels_per_task}});
  return out;
}

}  // namespace heddle::lower::contract

#include "lower/contract/dots.h"

#include "kernel/halves.h"
#include "kernel/traverse.h"
#include "lower/contract/direct.h"
#include "support/math.h"

namespace heddle::lower::contract {
namespace {

using ir::Expr;
using kernel::Value;

/// Cycles of the sum of a vector's lanes: four shuffles and additions.
constexpr double kSumCycles = 4;

/// The elements of the rows' operand that follow each other in memory, where that is known: words,
/// where it is read by parts.
std::optional<std::int64_t> line_in_place(const Product& p) {
  const auto parts = kernel::parts_of(p.a);
  const auto apart = kernel::distance_of_parts(parts);
  if (!parts.empty() && (!apart || apart->constant() != 1)) return std::nullopt;
  const kernel::Load* load = kernel::load_under_cast(parts.empty() ? p.a : parts[0]);
  const auto terms = merged_reductions(p, expressions_of(p.a));
  const auto unit = std::max<std::int64_t>(1, std::ssize(parts));
  if (!load || terms.empty() || ir::coefficient_of(load->offset, terms.back().var) != unit)
    return std::nullopt;
  return terms.back().extent;
}

/// The terms, where each element of the rows' operand is computed from others side by side, and
/// read once: nothing is gained by a copy.
std::optional<std::int64_t> line_computed(const Product& p) {
  const std::vector<Axis> terms = p.problem.of(Role::k);
  if (terms.size() != 1 || p.problem.parts) return std::nullopt;
  bool affine = true, along = false;
  kernel::for_each_value(p.a, [&](const Value& v) {
    const auto* load = std::get_if<kernel::Load>(&v->op);
    affine &= !std::holds_alternative<kernel::Guard>(v->op);
    if (!load) return;
    const auto step = ir::coefficient_of(load->offset, terms[0].var);
    affine &= load->dynamic.empty() && (step == 0 || step == 1) &&
              ir::coefficient_of(load->offset, p.tile->var);
    along |= step == 1;
  });
  return affine && along ? std::optional(terms[0].extent) : std::nullopt;
}

std::optional<std::int64_t> line_of(const Product& p) {
  if (p.base.a == ASource::in_place) return line_in_place(p);
  if (p.base.a == ASource::matrix) return line_computed(p);
  if (p.base.a != ASource::box || p.k.empty()) return std::nullopt;
  const Box::Dim& inner = p.box->dims[static_cast<std::size_t>(p.box->order.back())];
  const Axis& channels = p.k.back().axes.back();
  if (inner.local != Expr(channels.var)) return std::nullopt;
  return channels.extent * (is_whole(inner, channels.extent) ? line_in_box(p).taps : 1);
}

/// Of a vector's lanes those that count.
double share_of_lanes(std::int64_t line, int lanes) {
  return static_cast<double>(line) / static_cast<double>(ceil_div(line, lanes) * lanes);
}

}  // namespace

std::optional<Dots> dots_of(const Product& p, int lanes) {
  if (p.base.b != BSource::constant || p.extents.n > kFewColumns || !p.tile || p.sums())
    return std::nullopt;
  for (const Axis& axis : p.outer)
    if (axis.role != Role::m) return std::nullopt;
  const auto line = line_of(p);
  if (!line || *line < lanes) return std::nullopt;
  return Dots{p.extents.k / *line, ceil_div(*line, lanes)};
}

namespace {

/// Elements of a word, where an instruction multiplies words.
std::int64_t parts_of_word(const prim::Graph& g, const Problem& p, const Target& target) {
  const DType type = g[p.a].type.dtype;
  if (p.type == DType::i32) return target.quads && size_of(type) == 1 ? 4 : 1;
  return target.bf16_pairs && type == DType::bf16 ? 2 : 1;
}

/// Terms that follow each other: of a matrix those of a row; an image lies channels-last, if it is
/// no input, and has the taps of a row of the window before them.
std::int64_t likely_line(const prim::Graph& g, const Problem& p) {
  const auto& index = p.a_access.index;
  const bool given = std::holds_alternative<prim::Input>(g[p.a].op);
  std::int64_t channels = 0, taps = 1;
  for (const Axis& axis : p.of(Role::k)) {
    const auto own = std::ranges::find(index, Expr(axis.var));
    if (own != index.end() && (!given || own + 1 == index.end()))
      channels = axis.extent;
    else if (ir::coefficient_of(index.back(), axis.var) == 1)
      taps = axis.extent;
  }
  return channels * taps;
}

}  // namespace

std::optional<Algorithm> dots_algorithm(const prim::Graph& g, const Problem& p,
                                        const Target& target) {
  constexpr std::int64_t kLeastWork = 4096;
  if (!g.constant_of(p.b) || p.count(Role::n) > kFewColumns || p.count(Role::batch) > 1 ||
      p.count(Role::m) == 1 || p.count(Role::m) * p.count(Role::k) < kLeastWork)
    return std::nullopt;
  const int lanes = target.lanes(p.type);
  const std::int64_t parts = parts_of_word(g, p, target), line = likely_line(g, p) / parts;
  if (line < lanes) return std::nullopt;
  const double written = static_cast<double>(p.count(Role::k) / parts) / target.fma_rate;
  const double dots = static_cast<double>(p.count(Role::n)) *
                      (written / lanes / share_of_lanes(line, lanes) + kSumCycles);
  if (dots > 0.95 * written) return std::nullopt;
  return Algorithm{dots / written};
}

bool dots_everywhere(const prim::Graph& g, NodeId contract) {
  const Problem p = analyse(g, contract, true);
  Target narrow, wide;
  wide.vector_bytes = 64;
  wide.quads = wide.bf16_pairs = true;
  return dots_algorithm(g, p, narrow) && dots_algorithm(g, p, wide);
}

std::vector<Schedule> dots_schedules(const Product& p, const Target& target, int lanes,
                                     const Tuning& fixed, std::size_t count) {
  const auto shape = dots_of(p, lanes);
  if (!shape) return {};
  Extents e = p.extents;
  e.k = shape->lines * shape->vectors;
  e.n = p.extents.n * lanes;
  e.epilogue = kSumCycles + e.epilogue / lanes;
  Tuning all = fixed;
  std::erase_if(all, [](const auto& entry) { return entry.first == "nv"; });
  all.emplace_back("nv", p.extents.n);
  Schedule base = p.base;
  if (base.a == ASource::matrix) base.a = ASource::in_place;
  std::vector<Schedule> out = schedules(e, target, lanes, base, all, count);
  for (Schedule& s : out) s.dots = true;
  return out;
}

}  // namespace heddle::lower::contract

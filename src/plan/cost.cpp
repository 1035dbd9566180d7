#include "plan/cost.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <optional>

#include "plan/channelwise.h"
#include "plan/moves.h"

namespace heddle::plan {
namespace {

/// Extra time of the shorter of memory and compute, which do not overlap perfectly.
constexpr double kOverlapLoss = 0.15;
/// Share of the vector peak that maps reach, a scalar loop of a small contraction, a convolution of
/// each channel alone in a kernel of its own, the same of bytes, and one among others.
constexpr double kMapEfficiency = 0.5, kScalarContract = 0.1, kDepthwise = 0.5,
                 kDepthwiseOfBytes = 0.9, kChannelwise = 0.05;
/// Of an element of a main loop's result that is stored far from its neighbours.
constexpr double kScatteredNs = 2.5;
/// What bytes cost that are computed where they are multiplied, four to a word.
constexpr double kWords = 4;
/// What widening an element for each tap costs a convolution of each channel alone, of which a tile
/// of columns does it for 10 of 24 (17 where it moves by two): measured, a third of such a kernel.
constexpr double kWidened = 0.5;
/// Nanoseconds of an element of an operand that is gathered first: into the matrix of the product
/// (concatenations), or into a box that the windows then overlap in (mirrored, resized images).
constexpr double kMatrixNs = 5, kBoxNs = 1.5;
/// Products of integers against those of f32: four or two to an instruction, or one that is slow.
constexpr double kQuadRate = 3.2, kPairRate = 1.6, kIntegerRate = 0.5;
/// A barrier of all blocks of a GPU (an estimate, not measured).
constexpr double kBarrierUs = 1;
/// Vector operations of an element of a table of 256 bytes.
constexpr double kLookupOps = 6;
constexpr double kSortNs = 4, kScatterNs = 2, kScanNs = 0.7, kRandomFlops = 40;

}  // namespace

struct CostModel::State : Moves {
  // Scratch of one evaluation.
  double vector_ops = 0, loop_us = 0, flops = 0;
  double longest = 0;  // terms of all results of a reduction
  int barriers = 0;    // of the grid, inside the kernel
  bool main_loop = false, depthwise = false, tiles = false;
  std::optional<NodeId> joined;  // the kernel's only output, whose parts are stored in place

  using Moves::Moves;

  bool is_local(NodeId id) const { return local[static_cast<std::size_t>(id.value)] >= 0; }

  double rate_factor(NodeId id) const {
    const double size = static_cast<double>(size_of(compute_type(f[id].type.dtype)));
    return std::max(1.0, size / 4);
  }

  /// Whether a task's scratch memory holds what is between the loops that all uses share
  /// (lower/stitch/save.cpp); phases of the grid without such loops have none in common.
  bool is_kept(const std::vector<Use>& all) const {
    constexpr double kLanes = 16, kOneTask = 8192;
    if (m.gpu) return true;
    std::uint64_t shared = ~std::uint64_t{0};
    double most = 0;
    for (const Use& use : all) {
      shared &= use.mask();
      most = std::max(most, product(use.mask()));
    }
    if (product(shared) <= 1) return most <= kOneTask;
    const bool laned =
        std::ranges::all_of(all, [&](const Use& u) { return shared & bit(u.innermost); });
    return most / product(shared) * (laned ? kLanes : 1) * 4 <= static_cast<double>(m.l2_bytes) / 2;
  }

  void visit_map(NodeId id, const prim::Map& map, std::vector<Use>& all) {
    const ir::ScalarFnInfo& info = ir::info(map.fn);
    if (info.expensive && all.size() > 1 && is_kept(all)) {
      // Computed once and kept in a tile for the other loops.
      std::sort(all.begin(), all.end(), [&](const Use& a, const Use& b) {
        return a.scale * product(a.mask()) > b.scale * product(b.mask());
      });
      vector_ops += 2 * product(all[0].mask()) * static_cast<double>(all.size() - 1);
      all.resize(1);
    }
    for (const Use& use : all) {
      const double n = use.scale * product(use.mask());
      vector_ops += n * info.flops * rate_factor(id);
      flops += n;
      for (NodeId arg : f[id].args) add_use(arg, use);
    }
  }

  /// A view that no order of a main loop's own loops can walk: several pieces, or a quotient or
  /// bound of a coordinate that windows overlap in (a resized or mirrored image).
  bool irregular(NodeId id, const Use& use) const {
    const auto& accesses = f.accesses[static_cast<std::size_t>(id.value)];
    if (accesses.size() > 1) return true;
    const Shape& shape = f[id].type.shape;
    for (const IndexFacts& index : accesses[0]) {
      for (std::size_t v = 0; index.folds && v < shape.size(); ++v) {
        const bool used = index.variables & bit(static_cast<int>(std::min<std::size_t>(v, 63)));
        if (used && product(use.dims[v].loops) > 1.01 * static_cast<double>(shape[v])) return true;
      }
    }
    return false;
  }

  void visit_view(NodeId id, const prim::View& view, const std::vector<Use>& all) {
    const auto& accesses = f.accesses[static_cast<std::size_t>(id.value)];
    if (joined == id) return visit_parts(id, all[0]);
    for (const Use& use : all) {
      // Gathered element by element before the main loop can start.
      const bool gathered = use.operand > 0 && irregular(id, use);
      if (gathered)
        scalar_ns += accesses.size() > 1 ? kMatrixNs * use.operand : kBoxNs * f.elements_of(id);
      for (std::size_t p = 0; p < view.pieces.size(); ++p) {
        Use in = through(accesses[p], use.dims, use);
        if (gathered) in.operand = 0;
        if (view.pieces.size() > 1)
          in.scale *= std::min(1.0, f.elements_of(f[id].args[p]) / f.elements_of(id));
        add_use(f[id].args[p], std::move(in));
      }
      if (view.pieces.size() > 1) {  // choosing the piece
        vector_ops += use.scale * product(use.mask()) * static_cast<double>(view.pieces.size() - 1);
      }
    }
  }

  /// The kernel makes those that no other one has made, each by itself.
  void visit_parts(NodeId id, const Use& whole) {
    const auto& accesses = f.accesses[static_cast<std::size_t>(id.value)];
    for (std::size_t p = 0; p < accesses.size(); ++p) {
      const NodeId part = f[id].args[p];
      if (!is_local(part)) continue;
      Use in = through(accesses[p], whole.dims, whole);
      in.scale *= f.elements_of(part) / f.elements_of(id);
      add_use(part, std::move(in));
    }
  }

  void visit_reduce(NodeId id, const prim::Reduce& reduce, const std::vector<Use>& all, int depth) {
    const NodeId arg = f[id].args[0];
    const Shape& in_shape = f[arg].type.shape;
    if (main_loop && is_local(arg)) {
      // A sum in the epilogue adds up what passes by; a GPU's blocks meet to add their parts.
      if (m.gpu) barriers = 1;
      vector_ops += f.elements_of(arg);
      flops += f.elements_of(arg);
      return;
    }
    Shape over;
    for (int axis : reduce.axes) over.push_back(in_shape[static_cast<std::size_t>(axis)]);
    std::vector<std::uint64_t> done;
    for (const Use& use : all) {
      if (std::find(done.begin(), done.end(), use.mask()) != done.end()) continue;
      done.push_back(use.mask());
      double scale = use.scale;
      // Distinct results, however the reader's index divides its loops.
      const double all_iterations = product(use.mask());
      if (all_iterations > f.elements_of(id)) scale *= f.elements_of(id) / all_iterations;
      const std::uint64_t outer = hoist(use.mask(), scale);
      const std::vector<int> loops = loops_for(outer, over, depth);
      Use in;
      in.scale = scale;
      in.innermost = use.innermost;
      in.instead = use.instead;
      std::size_t next_kept = 0, next_loop = 0;
      for (std::size_t d = 0; d < in_shape.size(); ++d) {
        const bool reduced = std::find(reduce.axes.begin(), reduce.axes.end(),
                                       static_cast<int>(d)) != reduce.axes.end();
        if (reduced) {
          const int l = loops[next_loop++];
          in.dims.push_back({bit(l), bit(l)});
          if (d + 1 == in_shape.size()) {
            in.innermost = l;
            in.instead = use.innermost;
          }
        } else {
          in.dims.push_back(use.dims[next_kept++]);
        }
      }
      const double n = in.scale * product(in.mask());
      longest = std::max(longest, n);
      vector_ops += n * rate_factor(arg) * (in.innermost == use.innermost ? 1 : 1.2);
      flops += n;
      add_use(arg, std::move(in));
    }
  }

  /// Outside a main loop: a scalar reduction per output element.
  void visit_contract(NodeId id, const prim::Contract& contract, const std::vector<Use>& all,
                      int depth) {
    const auto& accesses = f.accesses[static_cast<std::size_t>(id.value)];
    const bool main = f.is_main_loop(id);
    double total = 0;
    for (const Use& reader : all) {
      const Use use = main ? use_of_main_loop(id, reader) : reader;
      const std::vector<int> loops = loops_for(use.mask(), contract.reduced, main ? -1 : depth);
      std::vector<Dim> vars = use.dims;
      for (int l : loops) vars.push_back({bit(l), bit(l)});
      std::uint64_t mask = use.mask();
      for (int l : loops) mask |= bit(l);
      const double n = use.scale * product(mask);
      total += n;
      for (std::size_t side = 0; side < 2; ++side) {
        Use in = through(accesses[side], vars, use);
        if (!loops.empty()) in.innermost = loops.back();
        const NodeId arg = f[id].args[side];
        const bool widened = is_local(arg) && size_of(f[arg].type.dtype) > 1;
        if (depthwise && widened) in.scale *= kWidened;
        if (main) {
          in.operand = product(in.mask());
          in.scale *= operand_repeats(id, side, in);
        }
        // Any order of loops will do for these: strided is what no loop walks through.
        if ((main || depthwise) && !in.dims.empty() && in.dims.back().unit)
          in.innermost = std::countr_zero(in.dims.back().unit);
        add_use(f[id].args[side], std::move(in));
      }
    }
    // A main loop makes its whole result, whatever parts of it are stored where.
    if (main) {
      total =
          std::max(total, f.elements_of(id) * static_cast<double>(element_count(contract.reduced)));
    }
    if (!main) {
      flops += 2 * total;
      const bool words = depthwise && m.quads && f[id].type.dtype == DType::i32;
      const double share = words                                ? kDepthwiseOfBytes
                           : depthwise                          ? kDepthwise
                           : !m.gpu && image_of_channels(f, id) ? kChannelwise
                                                                : kScalarContract;
      vector_ops += 2 * total * rate_factor(id) * kMapEfficiency / share / 2;
      return;
    }
    add_main_loop(id, total);
  }

  /// A main loop has loops of its own, where the epilogue's are in another order (the phases of a
  /// transposed convolution as positions of its result).
  Use use_of_main_loop(NodeId id, const Use& reader) {
    const Shape& shape = f[id].type.shape;
    bool walks = true;
    for (std::size_t d = 0; d < shape.size(); ++d)
      walks = walks && (shape[d] == 1 || reader.dims[d].unit != 0);
    std::vector<std::pair<Shape, Use>> own;
    return walks ? reader : root_use(id, own);
  }

  /// How often an operand's element is evaluated per iteration counted by its own loops: a window's
  /// overlap is packed once per block of output channels.
  double operand_repeats(NodeId id, std::size_t side, const Use& in) const {
    const NodeId arg = f[id].args[side];
    const MatmulShape s = matmul_shape(f, id);
    const double blocks = std::ceil((side == 0 ? s.n : s.m) / 256);
    const double iterations = product(in.mask());
    const double once = std::min(1.0, 1.3 * f.elements_of(arg) / std::max(1.0, iterations));
    // Each of four bytes of a word is computed by itself, from every fourth element.
    const bool words = !m.gpu && m.quads && size_of(f[arg].type.dtype) == 1 && is_local(arg);
    return once * blocks * (words ? kWords : 1);
  }

  /// Tiles of about 6×32 results (64×64 on a GPU) are the units that threads share. On a GPU few
  /// rows are streamed by all multiprocessors, and blocks share long reductions, so that few tiles
  /// keep it busy too (lower/contract/gpu/tiles.h).
  double main_loop_units(const MatmulShape& s) const {
    constexpr double kFewRows = 8, kRowsOfABlock = 4, kTermsOfASplit = 256, kSplits = 32;
    if (!m.gpu) return std::max(1.0, s.batch * std::ceil(s.m * s.n / 192));
    if (std::min(s.m, s.n) <= kFewRows)
      return std::max(1.0, s.batch * std::max(s.m, s.n) / kRowsOfABlock);
    const double tiles = std::max(1.0, s.batch * std::ceil(s.m * s.n / 4096));
    const double splits = std::clamp(std::floor(s.k / kTermsOfASplit), 1.0, kSplits);
    return std::max(tiles, std::min(tiles * splits, static_cast<double>(m.threads)));
  }

  /// Whether a byte and 16 bits are multiplied: in words of two, as which bytes are packed.
  bool in_halves(const prim::Node& n) const {
    const DType a = f[n.args[0]].type.dtype, b = f[n.args[1]].type.dtype;
    return !m.gpu && n.type.dtype == DType::i32 && size_of(a) + size_of(b) == 3;
  }

  double integer_rate(const prim::Node& n) const {
    const DType a = f[n.args[0]].type.dtype, b = f[n.args[1]].type.dtype;
    if (a == DType::i16 || b == DType::i16) return kPairRate;
    const bool bytes = size_of(a) == 1 && size_of(b) == 1 && a != b;
    return bytes && m.quads ? kQuadRate : kIntegerRate;
  }

  void add_main_loop(NodeId id, double multiplications) {
    const MatmulShape s = matmul_shape(f, id);
    double constant = 0, others = 0;  // bytes
    for (NodeId arg : f[id].args) {
      if (!f.as<prim::Constant>(arg)) continue;
      constant = f.bytes_of(arg);
      others = between(arg);
    }
    const bool packed = constant > 0;
    MatmulShape sides = s;  // the constant's are the columns
    if (f.as<prim::Constant>(f[id].args[0])) std::swap(sides.m, sides.n);
    if (in_halves(f[id]) && sides.m > lower::kRowsOfBytes) constant *= 2;
    double rate = 1e3 * main_loop_rate(m, sides, f[id].type.dtype, packed);
    if (!m.gpu && f[id].type.dtype == DType::i32) rate *= integer_rate(f[id]);
    if (!m.gpu && m.bf16_pairs && f[f[id].args[0]].type.dtype == DType::bf16 &&
        f[f[id].args[1]].type.dtype == DType::bf16)
      rate *= kBf16Rate;
    if (m.gpu && size_of(f[id].type.dtype) <= 2 &&
        !(runs_along_terms(id, 0) && runs_along_terms(id, 1)))
      rate *= m.scattered_share;
    const double units = main_loop_units(s);
    if (!packed && !m.gpu)
      loop_us += move_us(f.bytes_of(f[id].args[1]), 2 * f.bytes_of(f[id].args[1]));
    // Operands that are evaluated for the loop pass through a packed tile.
    for (NodeId arg : f[id].args) {
      if (is_local(arg) && !is_plain_view(arg)) {
        loop_us += 2 * f.bytes_of(arg) / (m.l2_gbs * 1e3 * parallel(units));
      }
    }
    tasks = std::max(tasks, units);
    const double written_us = 2 * multiplications / rate / parallel(units);
    const double constant_us = move_us(others, constant, is_cold(others));
    const auto& all = f.algorithms[static_cast<std::size_t>(id.value)];
    const NodeId image = f[id].args[f.as<prim::Constant>(f[id].args[0]) ? 1 : 0];
    const auto local_here = [&](NodeId n) { return is_local(n); };
    const bool stored = std::ranges::any_of(all, &lower::contract::Algorithm::stored) &&
                        is_stored(f, local_here, image);
    const lower::contract::Algorithm best = best_algorithm(all, written_us, constant_us, stored);
    loop_us += best.work * written_us;
    flops += best.flops * 2 * multiplications;
    tiles = tiles || best.tiles;
    memory_us += (best.constant_bytes - 1) * constant_us;
  }
  /// True if neighbours in memory of an operand are neighbours in the sum; constants are packed so.
  bool runs_along_terms(NodeId id, std::size_t side) const {
    if (f.as<prim::Constant>(f[id].args[side])) return true;
    const AccessFacts& access = f.accesses[static_cast<std::size_t>(id.value)][side];
    const std::size_t rank = f[id].type.shape.size();
    return !access.empty() && rank < 64 && (access.back().unit >> rank) != 0;
  }
  bool is_plain_view(NodeId id) const { return f.as<prim::View>(id) && !is_local(f[id].args[0]); }

  /// A lookup by permutations of registers (codegen/cpu, load_table).
  bool is_byte_table(NodeId id) const {
    const Tensor* table = f.graph->constant_of(f[id].args[0]);
    return m.byte_tables && table != nullptr && table->count() == 256 &&
           size_of(table->dtype()) == 1 && f[id].args.size() == 2 &&
           f[f[id].args[1]].type.dtype == DType::u8;
  }

  void visit_gather(NodeId id, const std::vector<Use>& all) {
    const auto& accesses = f.accesses[static_cast<std::size_t>(id.value)];
    const bool table = is_byte_table(id);  // in registers, read once for all
    for (const Use& use : all) {
      const double n = use.scale * product(use.mask());
      if (table) {
        vector_ops += kLookupOps * n;
      } else {
        scalar_ns += 0.5 * kStridedNs * n;
        add_use(f[id].args[0], through(accesses[0], use.dims, use));
      }
      for (std::size_t a = 1; a < f[id].args.size(); ++a) add_use(f[id].args[a], use);
    }
  }

  /// Sort, scan, scatter: their arguments are walked by loops of their own.
  void visit_opaque(NodeId id, double ns_per_element) {
    for (NodeId arg : f[id].args) {
      std::vector<std::pair<Shape, Use>> own;
      if (!f.is_inlined(arg)) add_use(arg, root_use(arg, own));
    }
    const double n = std::max(f.elements_of(id), f.elements_of(f[id].args[0]));
    scalar_ns += ns_per_element * n;
    flops += n;
  }

  void visit(NodeId id, std::vector<Use>& all, int depth) {
    const prim::Op& op = f[id].op;
    if (const auto* map = std::get_if<prim::Map>(&op)) return visit_map(id, *map, all);
    if (const auto* view = std::get_if<prim::View>(&op)) return visit_view(id, *view, all);
    if (const auto* r = std::get_if<prim::Reduce>(&op)) return visit_reduce(id, *r, all, depth);
    if (const auto* c = std::get_if<prim::Contract>(&op)) return visit_contract(id, *c, all, depth);
    if (std::holds_alternative<prim::Gather>(op)) return visit_gather(id, all);
    if (std::holds_alternative<prim::Sort>(op)) {
      const double n = std::max(2.0, f.elements_of(f[id].args[0]));
      return visit_opaque(id, kSortNs * std::log2(n));
    }
    if (std::holds_alternative<prim::Scatter>(op)) return visit_opaque(id, kScatterNs);
    if (std::holds_alternative<prim::Scan>(op)) return visit_opaque(id, kScanNs);
    for (const Use& use : all) {
      const double n = use.scale * product(use.mask());
      vector_ops += n * (std::holds_alternative<prim::Random>(op) ? kRandomFlops : 1.0);
    }
  }

  void reset(const Cluster& c) {
    enter(c.nodes);
    depthwise = !m.gpu && is_depthwise(f, c);
    joined.reset();
    if (f.is_join(c)) joined = c.outputs[0];
    vector_ops = scalar_ns = loop_us = bytes = memory_us = flops = update_us = 0;
    tasks = longest = 0;
    barriers = 0;
    tiles = false;
    main_loop =
        std::any_of(c.nodes.begin(), c.nodes.end(), [&](NodeId id) { return f.is_main_loop(id); });
  }

  /// Number of reductions on the longest way down from each node to the inputs.
  std::vector<int> reduce_depths(const Cluster& c) const {
    std::vector<int> depth(c.nodes.size());
    for (std::size_t i = 0; i < c.nodes.size(); ++i) {
      int below = 0;
      for (NodeId arg : f[c.nodes[i]].args) {
        const int a = local[static_cast<std::size_t>(arg.value)];
        if (a >= 0) below = std::max(below, depth[static_cast<std::size_t>(a)]);
      }
      const prim::Op& op = f[c.nodes[i]].op;
      const bool reduces =
          std::holds_alternative<prim::Reduce>(op) || std::holds_alternative<prim::Contract>(op);
      depth[i] = below + (reduces ? 1 : 0);
    }
    return depth;
  }

  void walk(const Cluster& c) {
    const std::vector<int> depth = reduce_depths(c);
    std::vector<std::pair<Shape, Use>> roots;
    double root_elements = 0;
    for (std::size_t i = c.nodes.size(); i-- > 0;) {
      const NodeId id = c.nodes[i];
      if (uses[i].empty()) {
        uses[i].push_back(root_use(id, roots));
        root_elements = std::max(root_elements, f.elements_of(id));
      }
      std::vector<Use> all = std::move(uses[i]);
      visit(id, all, depth[i]);
    }
    if (tasks == 0) {
      const double hoisted =
          hoists.empty() ? root_elements : product(outermost() & first_loops(roots));
      tasks = hoists.empty() ? std::max(1.0, root_elements / 1024) : hoisted;
    }
    if (m.gpu) share_reductions(root_elements);
  }
  /// Blocks share long reductions of few results and meet where these are added, and again where
  /// something larger reads them (lower/stitch/split.cpp).
  void share_reductions(double root_elements) {
    constexpr double kBusy = 4096;  // terms for a multiprocessor
    const double shared = std::min<double>(m.threads, longest / kBusy);
    if (hoists.empty() || shared <= tasks) return;
    barriers = root_elements > tasks ? 2 : 1;
    tasks = shared;
  }
  Cost finish(const Cluster& c) {
    is_update = main_loop && !m.gpu &&
                std::any_of(c.outputs.begin(), c.outputs.end(),
                            [&](NodeId o) { return is_cold_output(o); });
    kernel_bytes = bytes_of_kernel(c);
    for (const Read& r : reads) add_read(r);
    std::vector<NodeId> made = c.outputs;
    if (joined) {
      made.clear();
      std::ranges::copy_if(f[*joined].args, std::back_inserter(made),
                           [&](NodeId part) { return is_local(part); });
    }
    for (NodeId o : made) {
      bytes += f.bytes_of(o);
      move(kernel_bytes, f.bytes_of(o), is_cold_output(o), true);
      if (loop_us > 0 && f.scattered[static_cast<std::size_t>(o.value)])
        scalar_ns += kScatteredNs * f.elements_of(o);
    }
    Cost cost;
    const double t = parallel(std::max(1.0, tasks));
    const double lanes_rate = m.peak_gflops / 2 * 1e3 * kMapEfficiency;
    cost.compute_us = (vector_ops / lanes_rate + scalar_ns * 1e-3) / t + loop_us;
    cost.memory_us = memory_us;
    cost.launch_us = m.launch_us + barriers * kBarrierUs;
    cost.bytes = bytes;
    cost.flops = flops;
    cost.tiles = tiles;
    if (made.empty()) cost.launch_us = 0;  // there is no such kernel then
    const double scale = scale_of(kind_of_kernel(f, c), m);
    cost.compute_us *= scale;
    cost.memory_us *= scale;
    update_us *= scale;
    cost.us = cost.launch_us + std::max(cost.compute_us, cost.memory_us) +
              kOverlapLoss * std::min(cost.compute_us, cost.memory_us) + update_us;
    cost.memory_us += update_us;
    // Reductions nested in reductions multiply what is computed again, past all numbers.
    constexpr double kLongest = 1e15;
    if (!(cost.us < kLongest)) cost.us = kLongest;
    leave(c.nodes);
    return cost;
  }
};

CostModel::CostModel(const Facts& facts, const MachineModel& machine)
    : state_(std::make_unique<State>(facts, machine)) {}
CostModel::~CostModel() = default;

Cost CostModel::operator()(const Cluster& cluster) {
  if (const auto cost = band_cost(state_->f, state_->m, cluster)) return *cost;
  if (state_->f.is_chain(cluster)) return chain_cost(state_->f, state_->m, cluster);
  state_->reset(cluster);
  state_->walk(cluster);
  return state_->finish(cluster);
}

}  // namespace heddle::plan

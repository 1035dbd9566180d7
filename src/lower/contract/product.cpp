#include "lower/contract/product.h"

#include <algorithm>
#include <cstdlib>

#include "kernel/bounds.h"
#include "kernel/halves.h"
#include "kernel/traverse.h"
#include "lower/contract/box.h"
#include "lower/contract/pieces.h"
#include "lower/contract/winograd.h"
#include "support/math.h"

namespace heddle::lower::contract {
namespace {

using ir::Expr;
using ir::Var;
using kernel::Load;
using kernel::Value;

/// True unless the value is several integers that do not lie side by side.
bool in_one_load(const Value& v) {
  const auto parts = kernel::parts_of(v);
  if (parts.empty()) return true;
  const auto distance = kernel::distance_of_parts(parts);
  return distance && distance->constant() == 1;
}

/// A plain load (or a cast of one, or parts of several) whose offset is affine in `axes`.
bool plain_load(const Value& v, const std::vector<Axis>& axes) {
  if (const auto parts = kernel::parts_of(v); !parts.empty()) {
    const auto distance = kernel::distance_of_parts(parts);
    return distance && distance->constant() && plain_load(parts[0], axes);
  }
  const Load* load = kernel::load_under_cast(v);
  if (!load || !load->dynamic.empty()) return false;
  for (const Axis& axis : axes)
    if (!ir::coefficient_of(load->offset, axis.var)) return false;
  return true;
}

class Maker {
 public:
  Maker(const Request& r, Problem p, Form form)
      : out_(std::make_unique<Product>(r, std::move(p))),
        p_(out_->problem),
        form_(form),
        g_(*r.graph) {}

  Result<std::unique_ptr<Product>> run() {
    out_->a = operand(p_.a, p_.a_access, p_.a_parts());
    out_->b = operand(p_.b, p_.b_access, p_.b_parts());
    HEDDLE_TRY(outputs());
    rows();
    columns();
    if (out_->sums() && !request().target.is_gpu() && out_->n_axes.size() != p_.of(Role::n).size())
      return unsupported("contraction: columns of a sum that are no single axis");
    choose_b();
    choose_a();
    if (form_ != Form::rows) join_taps();
    reductions();
    measure(*out_);
    return std::move(out_);
  }

 private:
  const Request& request() const { return out_->request; }

  Value operand(NodeId node, const prim::Access& access, std::optional<PartsOf> parts) {
    return cast_to(out_->values.at(node, access, parts), p_.element());
  }

  kernel::BufferId stand_in(DType type) {
    kernel::Buffer buffer{"element", type, 1, kernel::Scope::lane, -1, false, 1};
    return out_->kernel.add_buffer(buffer);
  }

  /// Dimensions by the innermost axis they follow: rows outside, vectors inside.
  Layout natural_layout(const Image& image) const {
    const Shape& shape = g_[image.node].type.shape;
    std::vector<std::pair<std::int64_t, int>> keys;
    for (std::size_t d = 0; d < shape.size(); ++d) {
      std::int64_t key = -1;
      for (const Axis& axis : p_.axes)
        if (ir::depends_on(image.index[d], axis.var))
          key = std::max<std::int64_t>(key, axis.var.index + (axis.role == Role::n ? 1000 : 0));
      keys.emplace_back(key, static_cast<int>(d));
    }
    std::stable_sort(keys.begin(), keys.end(),
                     [](const auto& x, const auto& y) { return x.first < y.first; });
    std::vector<int> order;
    for (const auto& [key, d] : keys) order.push_back(d);
    return ordered(shape, order);
  }

  Status outputs() {
    const Cluster& cluster = request().cluster;
    auto all = images(g_, cluster, p_);
    if (!all) return unsupported("contraction: a value of the epilogue is no rearrangement of it");
    out_->result = stand_in(p_.type);
    bool moved = false;
    out_->values.bind(p_.contract, [this, &moved](const std::vector<Expr>& index) {
      moved |= index != p_.out;
      return kernel::load(out_->result, 0, p_.type);
    });
    for (const Image& image : *all) {
      for (std::size_t i = 0; i < cluster.outputs.size(); ++i)
        if (cluster.outputs[i] == image.node) output(image, i);
    }
    for (std::size_t i = 0; i < cluster.outputs.size(); ++i)
      if (auto sum = epilogue_sum(g_, *all, p_, cluster.outputs[i])) {
        output({sum->node, sum->index}, i, out_->values.at(sum->arg, sum->arg_index));
        out_->outputs.back().sum = std::move(sum);
      }
    if (out_->outputs.size() != cluster.outputs.size())
      return unsupported("contraction: an output does not depend on it");
    if (moved) return unsupported("contraction: the epilogue reads it at another position");
    return Ok{};
  }

  void output(const Image& image, std::size_t position, Value value = nullptr) {
    Output o;
    o.position = position;
    o.node = image.node;
    std::optional<Layout> required;
    if (request().required_layout) required = request().required_layout(image.node);
    o.layout = required ? *required : natural_layout(image);
    for (std::size_t d = 0; d < image.index.size(); ++d)
      o.offset = o.offset + image.index[d] * Expr(o.layout.strides[d]);
    o.offset = ir::simplify(o.offset, p_.ranges());
    o.value = value ? std::move(value) : out_->values.at(image.node, image.index);
    kernel::Buffer buffer;
    buffer.name = fmt::format("v{}", image.node.value);
    buffer.dtype = g_[image.node].type.dtype;
    buffer.size = o.layout.size;
    buffer.written = true;
    o.buffer = out_->kernel.add_buffer(std::move(buffer));
    // Later outputs that use this one read what was just computed.
    o.stand_in = stand_in(o.value->dtype);
    if (image.node != p_.contract) {
      Value again = kernel::load(o.stand_in, 0, o.value->dtype);
      out_->values.bind(image.node, [again](const std::vector<Expr>&) { return again; });
    }
    out_->outputs.push_back(std::move(o));
  }

  /// Replaces merged axes everywhere: the inner one runs over both extents.
  void merge(std::vector<Axis>& axes, std::vector<Expr> exprs) {
    for (std::size_t i = 0; i + 1 < axes.size();) {
      if (!chained(exprs, axes[i], axes[i + 1])) {
        ++i;
        continue;
      }
      const Var gone = axes[i].var;
      const auto zero = [&](Var v) {
        return v == gone ? std::optional<Expr>(Expr(0)) : std::nullopt;
      };
      for (Expr& e : exprs) e = ir::substitute(e, zero);
      for (Output& o : out_->outputs) {
        o.offset = ir::substitute(o.offset, zero);
        o.value = kernel::substitute(o.value, zero);
      }
      merged_rows_ |= axes[i].role == Role::m;
      axes[i + 1].extent *= axes[i].extent;
      if (axes[i + 1].role == Role::m) out_->a = kernel::substitute(out_->a, zero);
      axes.erase(axes.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }

  std::vector<Expr> epilogue_expressions() const {
    std::vector<Expr> exprs;
    for (const Output& o : out_->outputs) {
      exprs.push_back(o.offset);
      for (const Expr& e : expressions_of(o.value)) exprs.push_back(e);
    }
    return exprs;
  }

  void rows() {
    out_->outer = p_.of(Role::batch);
    std::vector<Axis> axes = p_.of(Role::m);
    std::vector<Expr> exprs = epilogue_expressions();
    const std::vector<Expr> a = expressions_of(out_->a);
    exprs.insert(exprs.end(), a.begin(), a.end());
    if (form_ != Form::rows) merge(axes, exprs);
    if (form_ == Form::copied) join_rows(axes);
    if (form_ == Form::flat)
      while (axes.size() > 1) {
        const Axis inner = axes.back();
        axes.pop_back();
        axes.back() = counted(axes.back(), inner);
      }
    if (!axes.empty()) {
      out_->tile = axes.back();
      axes.pop_back();
    }
    if (!axes.empty()) {
      out_->row = axes.back();
      axes.pop_back();
    }
    out_->outer.insert(out_->outer.end(), axes.begin(), axes.end());
  }

  /// Rows that chain in the results become one axis, whatever they are in the operand; but the axis
  /// along which its memory runs stays by itself, as the last.
  void join_rows(std::vector<Axis>& axes) {
    const Load* load = first_load(out_->a);
    const auto along = std::find_if(axes.begin(), axes.end(),
                                    [&](const Axis& axis) { return runs_across(load, axis.var); });
    std::optional<Axis> last;
    if (along != axes.end()) {
      last = *along;
      axes.erase(along);
    }
    for (std::size_t i = 0; i + 1 < axes.size();) {
      if (!chained(epilogue_expressions(), axes[i], axes[i + 1])) {
        ++i;
        continue;
      }
      axes[i] = joined(axes[i], axes[i + 1]);
      axes.erase(axes.begin() + static_cast<std::ptrdiff_t>(i) + 1);
    }
    if (last) axes.push_back(*last);
  }

  /// One axis in place of two that chain in the results.
  Axis joined(const Axis& outer, const Axis& inner) {
    const Axis both{out_->kernel.new_var(), outer.extent * inner.extent, inner.role};
    const auto chain = [&](Var v) -> std::optional<Expr> {
      if (v == outer.var) return Expr(0);
      return v == inner.var ? std::optional(Expr(both.var)) : std::nullopt;
    };
    for (Output& o : out_->outputs) {
      o.offset = ir::substitute(o.offset, chain);
      o.value = kernel::substitute(o.value, chain);
    }
    out_->a = kernel::substitute(out_->a, [&](Var v) { return apart(v, outer, inner, both); });
    return both;
  }

  /// One axis in place of two that nothing chains.
  Axis counted(const Axis& outer, const Axis& inner) {
    const Axis both{out_->kernel.new_var(), outer.extent * inner.extent, Role::m};
    const auto two = [&](Var v) { return apart(v, outer, inner, both); };
    for (Output& o : out_->outputs) {
      o.offset = ir::substitute(o.offset, two);
      o.value = kernel::substitute(o.value, two);
    }
    out_->a = kernel::substitute(out_->a, two);
    return both;
  }

  static std::optional<Expr> apart(Var v, const Axis& outer, const Axis& inner, const Axis& both) {
    if (v == outer.var) return ir::floor_div(Expr(both.var), inner.extent);
    if (v == inner.var) return ir::floor_mod(Expr(both.var), inner.extent);
    return std::nullopt;
  }

  /// The innermost n axis carries the vectors; those that do not merge with it become tasks. These
  /// stay apart from each other: b is read by each of them.
  void columns() {
    std::vector<Axis> axes = p_.of(Role::n);
    out_->n_axes = axes;
    if (axes.empty()) return;
    std::vector<Axis> inner;
    while (!axes.empty() && inner.size() < 2) {
      inner.insert(inner.begin(), axes.back());
      axes.pop_back();
      merge(inner, epilogue_expressions());
    }
    if (inner.size() == 2) axes.push_back(inner.front());
    out_->n = inner.back();
    // An n axis that became tasks is a batch axis in which only b moves.
    for (const Axis& axis : axes) {
      out_->outer.push_back(axis);
      std::erase_if(out_->n_axes, [&](const Axis& x) { return x.var == axis.var; });
    }
  }

  void choose_b() {
    const Load* load = first_load(out_->b);
    std::vector<Axis> axes = out_->n_axes;
    for (const Axis& axis : p_.of(Role::k)) axes.push_back(axis);
    const bool plain = plain_load(out_->b, axes);
    Schedule& s = out_->base;
    s.b = BSource::task;
    if (!load) return;
    const Tensor* constant = nullptr;
    for (const Values::Input& in : out_->values.inputs())
      if (in.buffer == load->buffer && in.layout == row_major(g_[in.node].type.shape))
        constant = g_.constant_of(in.node);
    if (plain && constant) {
      s.b = BSource::constant;
      return;
    }
    const int lanes = request().target.lanes(p_.type);
    const bool unit =
        out_->n && !p_.parts && stride_of(load, out_->n->var) == 1 && out_->n_axes.size() == 1;
    // Many rows of a long operand would each walk its scattered lines again: those are packed.
    const bool long_walk = p_.count(Role::k) > 256 && p_.count(Role::m) > 32;
    if (plain && unit && out_->n->extent % lanes == 0 && !long_walk) s.b = BSource::in_place;
  }

  void choose_a() {
    std::vector<Axis> axes = p_.of(Role::k);
    if (out_->tile) axes.push_back(*out_->tile);
    if (out_->row) axes.push_back(*out_->row);
    Schedule& s = out_->base;
    const Load* load = first_load(out_->a);
    out_->a_across = across(load);
    const bool vectors = out_->a_across && !p_.parts && stride_of(load, out_->tile->var) == 1;
    s.a = vectors ? ASource::tiles : ASource::matrix;
    // What is stored in 16 bits is converted once, by a copy, and not again for every panel.
    const std::int64_t bytes = load ? size_of(out_->kernel.buffers[load->buffer].dtype) : 0;
    const bool fits = p_.parts ? bytes * p_.parts->count == 4 : bytes != 2;
    const bool direct = load && fits && in_one_load(out_->a);
    if (form_ == Form::copied || form_ == Form::flat) return;
    // Tile registers take from memory only what it has in their type.
    const bool converted = load && form_ == Form::boxed &&
                           out_->kernel.buffers[load->buffer].dtype != g_[p_.a].type.dtype;
    if (plain_load(out_->a, axes) && direct && !out_->a_across && !converted) {
      s.a = ASource::in_place;
      // Winograd's convolution copies its box all the same: it reads beyond the image.
      if (const auto terms = p_.of(Role::k).size(); !merged_rows_ && (terms == 3 || terms == 4))
        make_box(axes);
      return;
    }
    if (!merged_rows_) make_box(axes);
    if (out_->box) s.a = ASource::box;
    if (s.a == ASource::matrix) planes_alone();
  }

  /// Planes that a window slides over (a line of taps along time) are independent products where
  /// the copy of one leaves the second-level cache: their tasks are then parts of it.
  void planes_alone() {
    if (!out_->row || form_ != Form::joined || out_->sums() || request().target.is_gpu()) return;
    constexpr std::int64_t kFewRows = 64;  // would read all columns for little
    const std::int64_t rows = out_->tile->extent, terms = rows * p_.count(Role::k);
    if (rows < kFewRows || terms * size_of(p_.type) <= request().target.l2_bytes / 2) return;
    out_->outer.push_back(*out_->row);
    out_->row.reset();
  }

  /// True if memory runs along the rows while reductions jump: each step of a tile would touch
  /// another line, another page even.
  bool across(const Load* load) const { return out_->tile && runs_across(load, out_->tile->var); }

  bool runs_across(const Load* load, Var row) const {
    constexpr std::int64_t kFarApart = 16, kMany = 16;
    if (!load || p_.count(Role::k) < kMany) return false;
    std::int64_t nearest = INT64_MAX;
    for (const Axis& axis : p_.of(Role::k)) nearest = std::min(nearest, stride_of(load, axis.var));
    const std::int64_t along = stride_of(load, row);
    return along > 0 && along < nearest && nearest >= kFarApart;
  }

  /// A box exists if every coordinate is a function of one affine form of the loops of a task.
  void make_box(const std::vector<Axis>& inner) {
    auto box = box_of(p_, inner, out_->kernel);
    if (!box) return;
    const ir::Ranges ranges = p_.ranges();
    std::int64_t volume = 1, reads = p_.count(Role::k);
    if (out_->tile) reads *= out_->tile->extent;
    if (out_->row) reads *= out_->row->extent;
    for (const Box::Dim& dim : box->dims) {
      const auto span = ir::bounds(dim.local, ranges);
      volume *= span->high + 1;
    }
    if (volume >= reads) return;
    order_box(*box);
    out_->box = std::move(*box);
  }

  /// Two short axes that slide over a box (a filter's taps, a small image) are one: t / width, t %
  /// width are numbers where a register tile has all of them, or whole rows of the image.
  void join_taps() {
    constexpr std::int64_t kOneTile = 12;
    const bool tiles = form_ == Form::boxed;  // whose rows are a register's
    const std::int64_t short_line = tiles ? kernel::TileProduct::kRows : 4,
                       small = tiles ? 256 : 64;
    if (out_->base.a != ASource::box || !out_->row || !out_->tile) return;
    const Axis rows = *out_->row, columns = *out_->tile;
    const std::int64_t all = rows.extent * columns.extent;
    if (all > kOneTile) {
      if (columns.extent > short_line || all > small) return;
      if (!tiles && !winograd_algorithms(g_, p_, request().target).empty()) return;
      out_->extents.tile_step = columns.extent;
    }
    out_->extents.whole = true;
    const Axis both = counted(rows, columns);
    const auto two = [&](Var v) { return apart(v, rows, columns, both); };
    for (Box::Dim& dim : out_->box->dims) {
      dim.low = ir::substitute(dim.low, two);
      dim.local = ir::substitute(dim.local, two);
    }
    out_->row.reset();
    out_->tile = both;
  }

  /// Orders the dimensions as the source holds them, seen through whatever the prologue is.
  void order_box(Box& box) {
    std::vector<Expr> place;
    for (const Box::Dim& dim : box.dims) place.push_back(Expr(dim.u));
    const Load* load = first_load(out_->values.at(p_.a, {place, {}}, p_.a_parts()));
    std::vector<std::pair<std::int64_t, int>> keys;
    for (std::size_t d = 0; d < box.dims.size(); ++d) {
      // A dimension in which a task does not move is outermost.
      const bool still = box.dims[d].local.constant().has_value();
      const std::int64_t stride = stride_of(load, box.dims[d].u);
      keys.emplace_back(still || stride == 0 ? INT64_MIN : -stride, static_cast<int>(d));
    }
    std::stable_sort(keys.begin(), keys.end(),
                     [](const auto& x, const auto& y) { return x.first < y.first; });
    for (const auto& [key, d] : keys) box.order.push_back(d);
  }

  /// Reductions in the order of the rows' operand, merged where both operands step evenly.
  void reductions() {
    std::vector<Axis> axes = p_.of(Role::k);
    const Load* load = first_load(out_->a);
    std::stable_sort(axes.begin(), axes.end(), [&](const Axis& x, const Axis& y) {
      return stride_of(load, x.var) > stride_of(load, y.var);
    });
    if (form_ == Form::boxed && out_->box) channels_last(axes);
    for (const Axis& axis : axes) out_->k.push_back({{axis}, axis.extent});
    if (form_ != Form::copied || !load || p_.parts || axes.size() < 2) return;
    // Taps of few channels: together they are fewer vectors of terms.
    const Axis &taps = axes[axes.size() - 2], &channels = axes.back();
    if (ceil_div(taps.extent * channels.extent, kHalf) <
            taps.extent * ceil_div(channels.extent, kHalf) &&
        chained({load->offset}, taps, channels))
      out_->a = in_units_of(channels, taps, out_->a);
  }

  /// Planes of an image: of few channels a box has those of each place side by side.
  void channels_last(std::vector<Axis>& axes) {
    constexpr std::int64_t kFew = 16;
    std::vector<int>& order = out_->box->order;
    const auto dim = [&](int d) -> const Box::Dim& {
      return out_->box->dims[static_cast<std::size_t>(d)];
    };
    if (dim(order.back()).local == Expr(axes.back().var)) return;
    for (std::size_t at = 0; at + 1 < order.size(); ++at) {
      const auto axis = std::ranges::find_if(axes, [&](const Axis& a) {
        return a.extent <= kFew && dim(order[at]).local == Expr(a.var) &&
               is_whole(dim(order[at]), a.extent);
      });
      if (axis == axes.end()) continue;
      std::rotate(axis, axis + 1, axes.end());
      std::rotate(order.begin() + static_cast<std::ptrdiff_t>(at),
                  order.begin() + static_cast<std::ptrdiff_t>(at) + 1, order.end());
      return;
    }
  }

  std::unique_ptr<Product> out_;
  const Problem& p_;
  const Form form_;
  bool merged_rows_ = false;
  const prim::Graph& g_;
};

std::optional<NodeId> contraction_of(const Request& r) {
  std::optional<NodeId> found;
  for (NodeId id : r.cluster.nodes) {
    if (!std::holds_alternative<prim::Contract>((*r.graph)[id].op)) continue;
    if (found) return std::nullopt;
    found = id;
  }
  return found;
}

}  // namespace

Product::Product(const Request& r, Problem p)
    : request(r), problem(std::move(p)), values(r, kernel, problem.ranges()) {
  for (const Axis& axis : problem.axes)
    kernel.variables = std::max(kernel.variables, axis.var.index + 1);
}

Result<std::unique_ptr<Product>> make_product(const Request& request, Form form) {
  auto contract = contraction_of(request);
  if (!contract) return unsupported("contraction: want exactly one in the cluster");
  Problem problem = analyse(*request.graph, *contract, form == Form::column);
  if (!request.target.is_gpu()) choose_sides(*request.graph, problem);
  if ((form == Form::joined || form == Form::column) && !request.target.is_gpu())
    join_reductions(*request.graph, request.target, problem);
  if (form == Form::copied || form == Form::boxed) join_bytes(*request.graph, problem);
  return make_product(request, std::move(problem), form);
}

Result<std::unique_ptr<Product>> make_product(const Request& request, Problem problem, Form form) {
  return Maker(request, std::move(problem), form).run();
}

}  // namespace heddle::lower::contract

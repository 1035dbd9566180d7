#include <algorithm>
#include <map>

#include "kernel/traverse.h"
#include "lower/bands/bands.h"
#include "lower/contract/depthwise.h"
#include "lower/contract/rows.h"
#include "support/math.h"

namespace heddle::lower::bands {

using ir::Expr;
using ir::Var;
using kernel::Body;
using kernel::BufferId;
using kernel::Value;

namespace {

/// A layer's task, as part of another kernel.
struct Task {
  Body body;
  Var image, row;  ///< its free variables; the row, or the number of a block of rows
};

/// Renames what the body binds, which substitution does not.
Body renumbered(const Body& body, std::int32_t by) {
  Body out;
  for (const kernel::Stmt& s : body) {
    kernel::Mapper m;
    m.body = [&](const Body& b) { return renumbered(b, by); };
    kernel::Stmt mapped = kernel::map_children(s, m);
    if (auto* loop = std::get_if<kernel::For>(&mapped.op)) loop->var.index += by;
    if (auto* let = std::get_if<kernel::Let>(&mapped.op)) let->var.index += by;
    out.push_back(std::move(mapped));
  }
  return out;
}

/// A kernel of one phase, its task split into image and row (of `rows` of each).
Result<Task> task_of(kernel::Kernel& k, std::int64_t images, std::int64_t rows) {
  const auto* phase = k.body.size() == 1 ? std::get_if<kernel::For>(&k.body[0].op) : nullptr;
  if (!phase || phase->begin != 0 || phase->end != images * rows)
    return unsupported("bands: a layer whose tasks are no rows");
  const Var image = k.new_var(), row = k.new_var();
  const Expr task = Expr(image) * Expr(rows) + Expr(row);
  Body body = kernel::substitute(
      *phase->body, [&](Var v) { return v == phase->var ? std::optional(task) : std::nullopt; });
  Body by_row{kernel::loop(row, 0, rows, kernel::Binding::serial, std::move(body))};
  k.body = {kernel::loop(image, 0, images, kernel::Binding::grid, std::move(by_row))};
  k = kernel::simplify(k);
  // Loops of one round are gone, and their variables with them.
  const Body* inner = &k.body;
  for (const Var v : {image, row}) {
    const auto* loop = inner->size() == 1 ? std::get_if<kernel::For>(&(*inner)[0].op) : nullptr;
    if (loop && loop->var == v) inner = loop->body.get();
  }
  return Task{*inner, image, row};
}

/// True if a task's results lie `pitch` elements on for each step of `v`.
bool moves(const Task& task, const kernel::Kernel& k, Var v, std::int64_t pitch) {
  bool all = true;
  kernel::for_each_stmt(task.body, [&](const kernel::Stmt& s) {
    const auto* store = std::get_if<kernel::Store>(&s.op);
    if (store && k.buffers[store->buffer].written)
      all = all && ir::coefficient_of(store->offset, v) == pitch;
  });
  return all;
}

class Lowering {
 public:
  Lowering(const Request& r, std::vector<Layer> layers, Bands bands)
      : request_(r), g_(*r.graph), layers_(std::move(layers)), bands_(std::move(bands)) {
    images_ = g_[layers_.back().root].type.shape[0];
  }

  Result<Lowered> run() {
    const Var task = k_.new_var();
    const Var image = k_.new_var(), band = k_.new_var();
    image_ = images_ > 1 ? Expr(image) : Expr(0);
    band_ = images_ > 1 ? Expr(band) : Expr(task);
    Body body;
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      Lowered layer = HEDDLE_TRY(lower_layer(i));
      schedules_ += (i > 0 ? "; " : "") + layer.schedule;
      kernel::append(body, HEDDLE_TRY(merged(i, std::move(layer))));
    }
    if (images_ > 1) {
      const std::int64_t count = bands_.count;
      body = {kernel::let(band, ir::floor_mod(Expr(task), count), 0, count, std::move(body))};
      body = {kernel::let(image, ir::floor_div(Expr(task), count), 0, images_, std::move(body))};
    }
    k_.body = {
        kernel::loop(task, 0, images_ * bands_.count, kernel::Binding::grid, std::move(body))};
    k_.name = fmt::format("bands_{}", layers_.back().root.value);
    out_.kernel = kernel::simplify(kernel::drop_unused_buffers(k_));
    out_.schedule = fmt::format("bands of {} rows: {}", bands_.parts.back().rows, schedules_);
    return std::move(out_);
  }

 private:
  std::int64_t rows_of(std::size_t i) const { return g_[layers_[i].root].type.shape[kRowDim]; }
  bool is_last(std::size_t i) const { return i + 1 == layers_.size(); }

  bool is_pooling(std::size_t i) const {
    return std::holds_alternative<prim::View>(g_[layers_[i].root].op);
  }
  /// Unless each band is one block of rows, which the layer's kernel then has as a task.
  bool by_row(std::size_t i) const {
    const Bands::Part& part = bands_.parts[i];
    return is_pooling(i) || part.overlaps() || ceil_div(rows_of(i), part.rows) != bands_.count;
  }
  std::int64_t rows_of_task(std::size_t i) const { return by_row(i) ? 1 : bands_.parts[i].rows; }

  Result<Lowered> lower_layer(std::size_t i) const {
    Request r = request_;
    r.cluster = layers_[i].cluster;
    r.target.threads = 1;
    r.tuning = {{"rows", rows_of_task(i)}, {"tasks", images_ * rows_of(i)}};
    r.layout_of = [this](NodeId id) {
      if (const auto found = layouts_.find(id); found != layouts_.end()) return found->second;
      return request_.layout_of ? request_.layout_of(id) : row_major(g_[id].type.shape);
    };
    r.required_layout = [this, i](NodeId id) -> std::optional<Layout> {
      if (!is_last(i)) return ordered(g_[id].type.shape, {0, 2, 3, 1});
      return request_.required_layout ? request_.required_layout(id) : std::nullopt;
    };
    if (is_pooling(i)) return stitch::lower(r);
    if (contract::worth_main_loop(g_, layers_[i].root))
      return contract::lower_rows(r, rows_of_task(i));
    return contract::lower_depthwise(r);
  }

  /// The statements that make a layer's rows of the band.
  Result<Body> merged(std::size_t i, Lowered layer) {
    kernel::Kernel& from = layer.kernel;
    const std::int64_t rows = rows_of_task(i), all = rows_of(i);
    const std::int64_t blocks = ceil_div(all, rows);
    const Task task = HEDDLE_TRY(task_of(from, images_, blocks));
    const Layout& layout = layer.output_layouts[0];
    if ((blocks > 1 && !moves(task, from, task.row, layout.strides[kRowDim] * rows)) ||
        (images_ > 1 && !moves(task, from, task.image, layout.strides[0])))
      return unsupported("bands: a layer whose tasks write no rows");
    const std::vector<BufferId> to = import_buffers(i, layer);
    const std::int32_t shift = k_.variables;
    k_.variables += from.variables;

    const Bands::Part& part = bands_.parts[i];
    const Var step = k_.new_var();
    const Expr row = by_row(i) ? begin_of(i) + Expr(step) : band_;
    Body body = renumbered(task.body, shift);
    body = kernel::substitute(body, [&](Var v) -> std::optional<Expr> {
      if (v == task.image) return image_;
      if (v == task.row) return row;
      return Expr(Var{v.index + shift});
    });
    body = rebased(body, to, i);
    if (!by_row(i)) return body;
    return Body{kernel::loop(step, 0, part.rows, kernel::Binding::serial,
                             {kernel::when({{row, 0, all}}, std::move(body))})};
  }

  /// First row of a layer in the band.
  Expr begin_of(std::size_t i) const {
    const Bands::Part& part = bands_.parts[i];
    return band_ * Expr(part.apart) + Expr(part.begin);
  }

  /// Arguments that layers share are one; what is between layers is a band.
  std::vector<BufferId> import_buffers(std::size_t i, Lowered& layer) {
    std::vector<BufferId> to;
    for (std::int32_t b = 0; b < layer.kernel.buffers.size(); ++b) {
      kernel::Buffer buffer = layer.kernel.buffers[BufferId{b}];
      if (buffer.argument < 0) {
        to.push_back(k_.add_buffer(std::move(buffer)));
        continue;
      }
      Argument& argument = layer.arguments[static_cast<std::size_t>(buffer.argument)];
      if (argument.kind == Argument::Kind::packed) {
        to.push_back(add_argument(std::move(buffer), std::move(argument)));
        continue;
      }
      if (const auto known = values_.find(argument.node); known != values_.end()) {
        to.push_back(known->second);
        continue;
      }
      const NodeId node = argument.node;
      to.push_back(node == layers_[i].output() && !is_last(i)
                       ? add_band(i, std::move(buffer), layer.output_layouts[0])
                       : add_argument(std::move(buffer), std::move(argument)));
      values_[node] = to.back();
    }
    if (is_last(i)) out_.output_layouts = layer.output_layouts;
    return to;
  }
  BufferId add_argument(kernel::Buffer buffer, Argument argument) {
    buffer.argument = static_cast<int>(out_.arguments.size());
    out_.arguments.push_back(std::move(argument));
    return k_.add_buffer(std::move(buffer));
  }
  BufferId add_band(std::size_t i, kernel::Buffer buffer, const Layout& layout) {
    const NodeId node = layers_[i].output();
    layouts_[node] = layout;
    const Expr row(layout.strides[kRowDim]);
    bases_[node] = image_ * Expr(layout.strides[0]) + begin_of(i) * row;
    buffer.argument = -1;
    buffer.written = false;
    buffer.scope = kernel::Scope::block;
    buffer.size = bands_.parts[i].rows * layout.strides[kRowDim];
    return k_.add_buffer(std::move(buffer));
  }

  /// On the kernel's own buffers: what lies in a band, from where that begins. Nothing is fetched
  /// ahead into a band.
  Body rebased(const Body& body, const std::vector<BufferId>& to, std::size_t i) const {
    std::map<BufferId, Expr> base;
    for (std::size_t at = i > 0 ? i - 1 : 0; at <= i; ++at)
      if (const auto found = bases_.find(layers_[at].output()); found != bases_.end())
        base[values_.at(found->first)] = found->second;
    const Body renamed = kernel::rename_buffers(
        body, [&](BufferId b) { return to[static_cast<std::size_t>(b.value)]; });
    return rebased(renamed, base);
  }
  Body rebased(const Body& body, const std::map<BufferId, Expr>& base) const {
    std::unordered_map<const kernel::ValueNode*, Value> known;
    kernel::Mapper m;
    m.value = [&](const Value& v) {
      if (const auto found = known.find(v.get()); found != known.end()) return found->second;
      Value out = kernel::map_children(v, m);
      if (const auto* load = std::get_if<kernel::Load>(&out->op))
        if (const auto at = base.find(load->buffer); at != base.end())
          out = kernel::load(load->buffer, load->offset - at->second, out->dtype);
      return known[v.get()] = out;
    };
    m.body = [&](const Body& b) { return rebased(b, base); };
    Body out;
    for (const kernel::Stmt& s : body) {
      if (const auto* fetch = std::get_if<kernel::Prefetch>(&s.op))
        if (base.contains(fetch->buffer)) continue;
      kernel::Stmt mapped = kernel::map_children(s, m);
      if (auto* store = std::get_if<kernel::Store>(&mapped.op))
        if (const auto at = base.find(store->buffer); at != base.end())
          store->offset = store->offset - at->second;
      out.push_back(std::move(mapped));
    }
    return out;
  }

  const Request& request_;
  const prim::Graph& g_;
  const std::vector<Layer> layers_;
  const Bands bands_;
  std::int64_t images_ = 1;
  Expr image_, band_;
  kernel::Kernel k_;
  Lowered out_;
  std::string schedules_;
  std::map<NodeId, Layout> layouts_;   ///< of what is between layers
  std::map<NodeId, Expr> bases_;       ///< where its band begins in all of it
  std::map<NodeId, BufferId> values_;  ///< of all that layers read and write
};

}  // namespace

Result<Lowered> lower(const Request& request) {
  std::vector<Layer> layers = layers_of(*request.graph, request.cluster);
  if (layers.empty()) return unsupported("bands: the cluster is no chain of layers");
  auto bands = bands_of(*request.graph, layers, request.target.l2_bytes, request.target.threads,
                        request.tuning);
  if (!bands) return unsupported("bands: rows are too long for the cache");
  return Lowering(request, std::move(layers), *std::move(bands)).run();
}

std::vector<Tuning> tuning_space(const Request& request) {
  if (!bands::supports(*request.graph, request.cluster, request.target)) return {};
  const std::vector<Layer> layers = layers_of(*request.graph, request.cluster);
  const auto bands =
      bands_of(*request.graph, layers, request.target.l2_bytes, request.target.threads);
  if (!bands) return {};
  const std::int64_t rows = bands->parts.back().rows;
  std::vector<Tuning> out;
  for (const std::int64_t r : {rows, (rows + 1) / 2, 2 * rows, (rows + 3) / 4})
    if (std::ranges::find(out, Tuning{{"rows", r}}) == out.end()) out.push_back({{"rows", r}});
  return out;
}

}  // namespace heddle::lower::bands

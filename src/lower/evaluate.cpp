#include "lower/evaluate.h"

#include <algorithm>
#include <cstring>

#include "lower/reduction.h"
#include "prim/bytes.h"
#include "support/match.h"

namespace heddle::lower {

using ir::Condition;
using ir::Expr;
using kernel::Value;

namespace {

constexpr std::int64_t kMaxSplat = 256;  // elements looked at to find a repeated one

}  // namespace

std::optional<Value> inlined_constant(const prim::Graph& g, NodeId id) {
  const Tensor* t = g.constant_of(id);
  if (!t || t->count() < 1 || t->count() > kMaxSplat) return std::nullopt;
  const auto size = static_cast<std::size_t>(size_of(t->dtype()));
  for (std::int64_t i = 1; i < t->count(); ++i)
    if (std::memcmp(t->data(), t->data() + static_cast<std::size_t>(i) * size, size) != 0)
      return std::nullopt;
  const DType type = compute_type(t->dtype());
  return is_float(type) ? kernel::imm(type, t->at(0)) : kernel::imm_int(type, t->int_at(0));
}

Value index_value(Expr e) {
  return std::make_shared<const kernel::ValueNode>(
      kernel::ValueNode{kernel::Index{std::move(e)}, DType::i64});
}

Value cast_to(Value v, DType type) {
  if (v->dtype == type) return v;
  return kernel::apply(ir::ScalarFn::cast, {std::move(v)}, type);
}

std::size_t Evaluator::KeyHash::operator()(const Key& k) const {
  std::size_t h = std::hash<NodeId>{}(k.node);
  for (const Expr& e : k.index) h = heddle::combine(h, e.hash());
  for (const Condition& c : k.conditions) h = heddle::combine(h, c.expr.hash());
  return h;
}

void Evaluator::place(NodeId node, kernel::BufferId buffer, Layout layout) {
  places_[node] = {buffer, std::move(layout)};
}

void Evaluator::clear() {
  memo_.clear();
  reduced_.clear();
  loads_.clear();
}

Evaluator Evaluator::blank() const {
  Evaluator out(g_);
  out.ranges_ = ranges_;
  out.places_ = places_;
  out.bound_ = bound_;
  return out;
}

/// The conditions that keep `index` inside the node's shape: those that have a variable in common,
/// directly or through others, with a coordinate that could be outside. At a position inside the
/// shape everything below is defined without conditions.
Evaluator::Conditions Evaluator::needed(NodeId node, const Index& index,
                                        const Conditions& conditions) const {
  if (conditions.empty()) return {};
  const Shape& shape = g_[node].type.shape;
  std::vector<ir::Var> vars;
  for (std::size_t d = 0; d < index.size(); ++d) {
    const auto b = ir::bounds(index[d], ranges_);
    if (!b || b->low < 0 || b->high >= shape[d]) ir::collect_variables(index[d], vars);
  }
  std::vector<bool> kept(conditions.size(), false);
  for (bool more = !vars.empty(); more;) {
    more = false;
    for (std::size_t i = 0; i < conditions.size(); ++i) {
      const auto shares = [&](ir::Var v) { return ir::depends_on(conditions[i].expr, v); };
      if (kept[i] || std::none_of(vars.begin(), vars.end(), shares)) continue;
      kept[i] = more = true;
      ir::collect_variables(conditions[i].expr, vars);
    }
  }
  Conditions out;
  for (std::size_t i = 0; i < conditions.size(); ++i)
    if (kept[i]) out.push_back(conditions[i]);
  return out;
}

Value Evaluator::at(NodeId node, const Index& index) { return at(node, index, {}); }

Value Evaluator::at(NodeId node, const Index& index, const Conditions& conditions) {
  if (const auto literal = inlined_constant(g_, node)) return *literal;
  Key key{node, {}, {}};
  key.index.reserve(index.size());
  for (const Expr& e : index) key.index.push_back(simplified(e));
  key.conditions = needed(node, key.index, conditions);
  const auto memo = [&]() -> Memo& { return is_reduction(g_, node) ? reduced_ : memo_; };
  if (const auto found = memo().find(key); found != memo().end()) return found->second;
  Value out = compute(node, key.index, key.conditions);
  memo().emplace(std::move(key), out);
  return out;
}

/// What is stored as bytes and read again here is read as it was.
std::optional<NodeId> Evaluator::before_bytes(NodeId id) const {
  const auto through = prim::without_bytes(g_, id);
  if (!through) return std::nullopt;
  const auto given = [&](NodeId x) { return placed(x) || bound_.contains(x); };
  if (std::ranges::any_of(through->between, given)) return std::nullopt;
  return through->value;
}

Value Evaluator::compute(NodeId id, const Index& index, const Conditions& under) {
  if (const auto found = bound_.find(id); found != bound_.end())
    return found->second(*this, index, under);
  if (placed(id)) return load(id, index);
  if (lookup_)
    if (Value known = lookup_(id, index)) return known;
  if (const auto value = before_bytes(id)) return at(*value, index, under);
  const prim::Node& node = g_[id];
  const DType type = compute_type(node.type.dtype);
  Value out = match(
      node.op,
      [&](const prim::Map& x) -> Value {
        std::vector<Value> args;
        for (NodeId arg : node.args) args.push_back(at(arg, index, under));
        if (x.fn == ir::ScalarFn::cast) return cast_to(args[0], type);
        return kernel::apply(x.fn, std::move(args), type);
      },
      [&](const prim::View& x) { return view(x, node, index, under); },
      [&](const prim::Iota& x) {
        return cast_to(index_value(index[static_cast<std::size_t>(x.axis)]), type);
      },
      [&](const prim::Gather& x) { return gather(x, node, index, under); },
      [&](const prim::Random& x) {
        const Shape strides = row_major_strides(node.type.shape);
        Expr counter(0);
        for (std::size_t d = 0; d < index.size(); ++d) counter = counter + index[d] * strides[d];
        const kernel::RandomBits bits{x.seed, x.kind == prim::Random::Kind::normal,
                                      simplified(counter)};
        return cast_to(
            std::make_shared<const kernel::ValueNode>(kernel::ValueNode{bits, DType::f32}), type);
      },
      [&](const auto&) -> Value {
        HEDDLE_CHECK(combine_ && is_reduction(g_, id), "%{} is a {}: it has no value at a point",
                     id.value, prim::kind_name(node.op));
        return reduce_node(g_, id, index, under, combine_);
      });
  out = kernel::with_origin(std::move(out), id.value);
  if (observer_ && under.empty()) observer_(id, index, out);
  return out;
}

Value Evaluator::view(const prim::View& v, const prim::Node& node, const Index& index,
                      const Conditions& under) {
  const DType type = compute_type(node.type.dtype);
  struct Piece {
    Conditions conditions;
    Value value;
  };
  std::vector<Piece> pieces;
  Value otherwise = kernel::imm(type, v.fill);
  for (std::size_t k = 0; k < v.pieces.size(); ++k) {
    Conditions inside = v.pieces[k].inside;
    for (Condition& c : inside) c.expr = ir::substitute(c.expr, index);
    const auto conditions = ir::simplify(inside, ranges_);
    if (!conditions) continue;
    Index source;
    for (const Expr& e : v.pieces[k].index) source.push_back(ir::substitute(e, index));
    Conditions all = under;
    all.insert(all.end(), conditions->begin(), conditions->end());
    Value value = at(node.args[k], source, all);
    if (conditions->empty()) {
      otherwise = value;
      break;
    }
    pieces.push_back({*conditions, value});
  }
  for (std::size_t k = pieces.size(); k-- > 0;)
    otherwise = kernel::guard(pieces[k].conditions, pieces[k].value, otherwise);
  return otherwise;
}

Value Evaluator::gather(const prim::Gather& x, const prim::Node& node, const Index& index,
                        const Conditions& under) {
  const NodeId data = node.args[0];
  if (const auto literal = inlined_constant(g_, data)) return *literal;
  HEDDLE_CHECK(placed(data), "gather from %{}, which is not in memory", data.value);
  const Shape& shape = g_[data].type.shape;
  Index base;
  for (const Expr& e : x.base) base.push_back(simplified(ir::substitute(e, index)));
  std::vector<Value> moving(shape.size());
  for (std::size_t j = 0; j < x.axes.size(); ++j) {
    const auto axis = static_cast<std::size_t>(x.axes[j]);
    Value i = cast_to(at(node.args[1 + j], index, under), DType::i64);
    moving[axis] =
        moving[axis] ? kernel::apply(ir::ScalarFn::add, {moving[axis], i}, DType::i64) : i;
  }
  std::vector<kernel::Load::Dynamic> dynamic;
  std::vector<bool> is_dynamic(shape.size(), false);
  const Shape& strides = places_.at(data).layout.strides;
  for (std::size_t d = 0; d < shape.size(); ++d) {
    if (!moving[d]) continue;
    if (!base[d].is_constant(0))
      moving[d] = kernel::apply(ir::ScalarFn::add, {index_value(base[d]), moving[d]}, DType::i64);
    is_dynamic[d] = true;
    dynamic.push_back({moving[d], shape[d], strides[d]});
  }
  return load(data, base, std::move(dynamic), is_dynamic);
}

Value Evaluator::load(NodeId node, const Index& index, std::vector<kernel::Load::Dynamic> dynamic,
                      const std::vector<bool>& dynamic_dimension) {
  const Place& place = places_.at(node);
  Expr offset(0);
  for (std::size_t d = 0; d < index.size(); ++d)
    if (dynamic_dimension.empty() || !dynamic_dimension[d])
      offset = offset + index[d] * place.layout.strides[d];
  offset = simplified(offset);
  const DType type = compute_type(g_[node].type.dtype);
  if (!dynamic.empty())
    return std::make_shared<const kernel::ValueNode>(
        kernel::ValueNode{kernel::Load{place.buffer, offset, std::move(dynamic)}, type});
  Value& known = loads_[{place.buffer, offset}];
  if (!known) known = kernel::load(place.buffer, offset, type);
  return known;
}

kernel::BufferId add_argument(const prim::Graph& g, NodeId node, const Layout& layout, bool written,
                              kernel::Kernel& kernel, Lowered& out) {
  kernel::Buffer b{fmt::format("v{}", node.value),
                   g[node].type.dtype,
                   layout.size,
                   kernel::Scope::grid,
                   static_cast<int>(out.arguments.size()),
                   written,
                   1};
  out.arguments.push_back({Argument::Kind::value, node, {}});
  return kernel.add_buffer(std::move(b));
}

void add_inputs(const Request& request, const Cluster& cluster, kernel::Kernel& kernel,
                Lowered& out, Evaluator& values) {
  const prim::Graph& g = *request.graph;
  for (NodeId node : inputs_of(g, cluster)) {
    const Layout layout =
        request.layout_of ? request.layout_of(node) : row_major(g[node].type.shape);
    values.place(node, add_argument(g, node, layout, false, kernel, out), layout);
  }
}

}  // namespace heddle::lower

#include "lower/contract/values.h"

#include <algorithm>

#include "lower/evaluate.h"

namespace heddle::lower::contract {

using ir::Expr;
using kernel::Value;

bool Values::inside(NodeId node) const {
  const auto& nodes = request_.cluster.nodes;
  return std::binary_search(nodes.begin(), nodes.end(), node);
}

Value Values::at(NodeId node, const std::vector<Expr>& index) {
  std::vector<Expr> simple;
  for (const Expr& e : index) simple.push_back(ir::simplify(e, ranges_));
  const auto key = std::make_pair(node, simple);
  auto found = memo_.find(key);
  if (found != memo_.end()) return found->second;
  Value out = compute(node, simple);
  memo_.emplace(key, out);
  return out;
}

Value Values::at(NodeId node, const prim::Access& access) {
  Value value = at(node, access.index);
  auto conditions = ir::simplify(access.inside, ranges_);
  Value zero = kernel::imm(value->dtype, 0);
  return conditions ? kernel::guard(*conditions, value, zero) : zero;
}

Value Values::compute(NodeId id, const std::vector<Expr>& index) {
  if (auto found = bound_.find(id); found != bound_.end()) return found->second(index);
  const prim::Node& node = g_[id];
  const DType type = compute_type(node.type.dtype);
  if (const auto literal = inlined_constant(g_, id)) return *literal;
  if (!inside(id)) return input(id, index, {}, {});
  if (const auto* x = std::get_if<prim::View>(&node.op)) return view(*x, node, index);
  if (const auto* x = std::get_if<prim::Gather>(&node.op)) return gather(*x, node, index);
  if (const auto* x = std::get_if<prim::Iota>(&node.op)) {
    Value i = std::make_shared<const kernel::ValueNode>(
        kernel::ValueNode{kernel::Index{index[static_cast<std::size_t>(x->axis)]}, DType::i64});
    return type == DType::i64 ? i : kernel::apply(ir::ScalarFn::cast, {i}, type);
  }
  const auto* map = std::get_if<prim::Map>(&node.op);
  HEDDLE_CHECK(map != nullptr, "%{} is a {} inside a contraction's cluster", id.value,
               prim::kind_name(node.op));
  std::vector<Value> args;
  for (NodeId arg : node.args) args.push_back(at(arg, index));
  if (map->fn == ir::ScalarFn::cast && args[0]->dtype == type) return args[0];
  return kernel::apply(map->fn, std::move(args), type);
}

Value Values::view(const prim::View& v, const prim::Node& node, const std::vector<Expr>& index) {
  const DType type = compute_type(node.type.dtype);
  Value out = kernel::imm(type, v.fill);
  for (std::size_t k = v.pieces.size(); k-- > 0;) {
    prim::Access piece = v.pieces[k];
    for (Expr& e : piece.index) e = ir::substitute(e, index);
    for (ir::Condition& c : piece.inside) c.expr = ir::substitute(c.expr, index);
    auto conditions = ir::simplify(piece.inside, ranges_);
    if (conditions) out = kernel::guard(*conditions, at(node.args[k], piece.index), out);
  }
  return out;
}

Value Values::gather(const prim::Gather& x, const prim::Node& node,
                     const std::vector<Expr>& index) {
  std::vector<Expr> base;
  for (const Expr& e : x.base) base.push_back(ir::simplify(ir::substitute(e, index), ranges_));
  std::vector<kernel::Load::Dynamic> dynamic;
  for (std::size_t j = 0; j < x.axes.size(); ++j) {
    Value i = at(node.args[1 + j], index);
    const Expr& start = base[static_cast<std::size_t>(x.axes[j])];
    if (!start.is_constant(0)) {
      Value b = std::make_shared<const kernel::ValueNode>(
          kernel::ValueNode{kernel::Index{start}, DType::i64});
      if (i->dtype != DType::i64) i = kernel::apply(ir::ScalarFn::cast, {i}, DType::i64);
      i = kernel::apply(ir::ScalarFn::add, {i, b}, DType::i64);
    }
    dynamic.push_back({i, 0, 0});
  }
  return input(node.args[0], base, std::move(dynamic), x.axes);
}

Value Values::input(NodeId node, const std::vector<Expr>& index,
                    std::vector<kernel::Load::Dynamic> dynamic,
                    const std::vector<int>& dynamic_axes) {
  const Input& in = input_of(node);
  const Shape& shape = g_[node].type.shape;
  Expr offset(0);
  for (std::size_t k = 0; k < index.size(); ++k) {
    const auto at = std::find(dynamic_axes.begin(), dynamic_axes.end(), static_cast<int>(k));
    if (at == dynamic_axes.end()) {
      offset = offset + index[k] * Expr(in.layout.strides[k]);
    } else {
      auto& d = dynamic[static_cast<std::size_t>(at - dynamic_axes.begin())];
      d.extent = shape[k];
      d.stride = in.layout.strides[k];
    }
  }
  kernel::Load load{in.buffer, ir::simplify(offset, ranges_), std::move(dynamic)};
  return std::make_shared<const kernel::ValueNode>(
      kernel::ValueNode{std::move(load), compute_type(g_[node].type.dtype)});
}

const Values::Input& Values::input_of(NodeId node) {
  for (const Input& in : inputs_)
    if (in.node == node) return in;
  const Layout layout = request_.layout_of ? request_.layout_of(node)
                                           : row_major(g_[node].type.shape);
  kernel::Buffer buffer;
  buffer.name = fmt::format("v{}", node.value);
  buffer.dtype = g_[node].type.dtype;
  buffer.size = layout.size;
  inputs_.push_back({node, kernel_.add_buffer(std::move(buffer)), layout});
  return inputs_.back();
}

}  // namespace heddle::lower::contract

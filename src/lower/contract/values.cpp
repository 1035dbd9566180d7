#include "lower/contract/values.h"

#include "kernel/halves.h"

namespace heddle::lower::contract {

Values::Values(const Request& request, kernel::Kernel& kernel, const ir::Ranges& ranges)
    : g_(*request.graph), evaluator_(g_) {
  evaluator_.ranges() = ranges;
  for (NodeId node : inputs_of(g_, request.cluster)) {
    const TensorType& type = g_[node].type;
    const Layout layout = request.layout_of ? request.layout_of(node) : row_major(type.shape);
    kernel::Buffer buffer;
    buffer.name = fmt::format("v{}", node.value);
    buffer.dtype = type.dtype;
    buffer.size = layout.size;
    inputs_.push_back({node, kernel.add_buffer(std::move(buffer)), layout});
    evaluator_.place(node, inputs_.back().buffer, layout);
  }
}

void Values::bind(NodeId node, Binding f) {
  evaluator_.bind(node, [f = std::move(f)](Evaluator&, const Evaluator::Index& index,
                                           const Evaluator::Conditions&) { return f(index); });
  evaluator_.clear();  // what was built from the definition
}

kernel::Value Values::at(NodeId node, const std::vector<ir::Expr>& index) {
  return evaluator_.at(node, index);
}

kernel::Value Values::guarded(NodeId node, const prim::Access& access,
                              const std::vector<ir::Condition>& around) {
  const DType type = compute_type(g_[node].type.dtype);
  const auto own = ir::simplify(access.inside, evaluator_.ranges());
  if (!own) return kernel::imm(type, 0);
  std::vector<ir::Condition> known = around;
  known.insert(known.end(), own->begin(), own->end());
  return kernel::guard(*own, evaluator_.at(node, access.index, known), kernel::imm(type, 0));
}

bool Values::is_bf16(const kernel::Value& v) const {
  if (const auto* x = std::get_if<kernel::Guard>(&v->op))
    return is_bf16(x->then) && is_bf16(x->otherwise);
  if (const auto* x = std::get_if<kernel::Imm>(&v->op)) return x->real == 0;
  if (const auto* x = std::get_if<kernel::Apply>(&v->op)) return x->fn == ir::ScalarFn::round_bf16;
  const auto* load = std::get_if<kernel::Load>(&v->op);
  for (const Input& in : inputs_)
    if (load && load->buffer == in.buffer) return g_[in.node].type.dtype == DType::bf16;
  return false;
}

kernel::Value Values::part_of_word(kernel::Value v) const {
  if (v->dtype != DType::f32) return kernel::apply(ir::ScalarFn::cast, {v}, DType::i32);
  if (!is_bf16(v)) v = kernel::apply(ir::ScalarFn::round_bf16, {v}, DType::f32);
  return kernel::upper_half(v);
}

kernel::Value Values::at(NodeId node, const prim::Access& access, std::optional<PartsOf> parts) {
  if (!parts) return guarded(node, access, {});
  const auto conditions = ir::simplify(access.inside, evaluator_.ranges());
  if (!conditions) return kernel::imm(DType::i32, 0);
  std::vector<kernel::Value> all;
  for (int i = 0; i < parts->count; ++i) {
    prim::Access part{access.index, {}};
    ir::Expr& e = part.index[static_cast<std::size_t>(parts->dim)];
    e = e * ir::Expr(parts->count) + ir::Expr(i);
    if (parts->inside) part.inside.push_back({e, parts->inside->low, parts->inside->high + 1});
    all.push_back(part_of_word(guarded(node, part, *conditions)));
  }
  return kernel::guard(*conditions, kernel::packed(all), kernel::imm(DType::i32, 0));
}

}  // namespace heddle::lower::contract

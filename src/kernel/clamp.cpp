#include "kernel/bounds.h"
#include "kernel/traverse.h"

namespace heddle::kernel {

Result<Kernel> with_proven_bounds(const Kernel& k) {
  Unproven unproven;
  HEDDLE_TRY(verify(k, &unproven));
  if (unproven.empty()) return k;
  const auto inside = [&](BufferId id, const Expr& offset,
                          const std::vector<Load::Dynamic>& dynamic) {
    if (!unproven.contains({id.value, offset})) return offset;
    std::int64_t low = 0, high = k.buffers[id].size - 1;
    for (const Load::Dynamic& d : dynamic) (d.stride < 0 ? low : high) -= (d.extent - 1) * d.stride;
    return ir::max(ir::min(offset, Expr(high)), Expr(low));
  };
  std::unordered_map<const ValueNode*, Value> memo;
  Mapper m;
  m.value = [&](const Value& v) {
    if (const auto found = memo.find(v.get()); found != memo.end()) return found->second;
    Value out = map_children(v, m);
    if (const Load* x = std::get_if<Load>(&out->op)) {
      const Expr offset = inside(x->buffer, x->offset, x->dynamic);
      if (!(offset == x->offset))
        out = std::make_shared<const ValueNode>(
            ValueNode{Load{x->buffer, offset, x->dynamic}, out->dtype, out->origin});
    }
    memo.emplace(v.get(), out);
    return out;
  };
  m.body = [&](const Body& b) {
    Body out;
    for (const Stmt& s : b) {
      out.push_back(map_children(s, m));
      if (Store* x = std::get_if<Store>(&out.back().op))
        x->offset = inside(x->buffer, x->offset, x->dynamic);
    }
    return out;
  };
  Kernel out = k;
  out.body = m.body(k.body);
  HEDDLE_TRY(verify(out));
  return out;
}

}  // namespace heddle::kernel

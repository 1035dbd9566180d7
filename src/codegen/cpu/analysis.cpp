#include "codegen/cpu/analysis.h"

#include <algorithm>

#include "kernel/traverse.h"
#include "support/match.h"

namespace heddle::codegen::cpu {
namespace {

using namespace kernel;

void insert_sorted(std::vector<std::int32_t>& out, std::int32_t value) {
  const auto at = std::lower_bound(out.begin(), out.end(), value);
  if (at == out.end() || *at != value) out.insert(at, value);
}

void merge(std::vector<std::int32_t>& out, const std::vector<std::int32_t>& in) {
  for (const std::int32_t value : in) insert_sorted(out, value);
}

}  // namespace

const Dependence& Analysis::of(const Value& v) {
  if (const auto found = values_.find(v.get()); found != values_.end()) return found->second;
  Dependence d;
  for_each_expr(*v, [&](const Expr& e) {
    std::vector<Var> used;
    ir::collect_variables(e, used);
    for (const Var x : used) insert_sorted(d.variables, x.index);
  });
  if (const Load* load = std::get_if<Load>(&v->op)) insert_sorted(d.buffers, load->buffer.value);
  if (const LaneReduce* r = std::get_if<LaneReduce>(&v->op)) {
    insert_sorted(d.buffers, r->buffer.value);
  }
  for_each_child(*v, [&](const Value& child) {
    const Dependence& c = of(child);
    merge(d.variables, c.variables);
    merge(d.buffers, c.buffers);
  });
  return values_.emplace(v.get(), std::move(d)).first->second;
}

const std::vector<std::int32_t>& Analysis::writes(const Body& body) {
  if (const auto found = writes_.find(&body); found != writes_.end()) return found->second;
  std::vector<std::int32_t> out;
  for_each_stmt(body, [&](const Stmt& s) {
    if (const Store* store = std::get_if<Store>(&s.op)) insert_sorted(out, store->buffer.value);
    if (const Routine* r = std::get_if<Routine>(&s.op)) {
      for (const BufferId b : r->buffers) insert_sorted(out, b.value);
    }
    if (const TileProduct* x = std::get_if<TileProduct>(&s.op)) insert_sorted(out, x->acc.value);
  });
  return writes_.emplace(&body, std::move(out)).first->second;
}

const NarrowValues& Analysis::narrow(const Kernel& k) {
  if (!narrow_) narrow_ = narrow_values(k);
  return *narrow_;
}

std::vector<std::int32_t> Analysis::reads(const Body& body) {
  std::vector<std::int32_t> out;
  for_each_stmt(body, [&](const Stmt& s) {
    for_each_value_of(s, [&](const Value& root) {
      for_each_value(root, [&](const Value& v) {
        if (const Load* load = std::get_if<Load>(&v->op)) insert_sorted(out, load->buffer.value);
        if (const LaneReduce* r = std::get_if<LaneReduce>(&v->op)) {
          insert_sorted(out, r->buffer.value);
        }
      });
    });
    if (const Routine* r = std::get_if<Routine>(&s.op)) {
      for (const BufferId b : r->buffers) insert_sorted(out, b.value);
    }
    if (const TileProduct* x = std::get_if<TileProduct>(&s.op))
      for (const BufferId b : {x->a.buffer, x->b.buffer, x->acc}) insert_sorted(out, b.value);
  });
  return out;
}

std::vector<std::int32_t> Analysis::touched(const Body& body) {
  std::vector<std::int32_t> out = reads(body);
  for_each_stmt(body, [&](const Stmt& s) {
    if (const Store* store = std::get_if<Store>(&s.op)) insert_sorted(out, store->buffer.value);
    if (const Prefetch* hint = std::get_if<Prefetch>(&s.op)) insert_sorted(out, hint->buffer.value);
    if (const TileProduct* x = std::get_if<TileProduct>(&s.op))
      for (const TileProduct::Fetch& f : x->fetches) insert_sorted(out, f.buffer.value);
  });
  return out;
}

}  // namespace heddle::codegen::cpu

// Where a block's buffers lie in shared memory.
#include <algorithm>
#include <cstdint>

#include "codegen/cuda/emitter.h"

namespace heddle::codegen::cuda {

using namespace kernel;
using BufferScope = kernel::Scope;

namespace {

constexpr std::int64_t kSharedAlign = 16, kTileAlign = 1024;  // bytes

/// True if the statement holds a barrier of the block.
bool waits(const Stmt& s) {
  bool found = false;
  for_each_stmt({s}, [&](const Stmt& x) {
    const Combine* combine = std::get_if<Combine>(&x.op);
    const Barrier* barrier = std::get_if<Barrier>(&x.op);
    found = found || (combine && combine->width * combine->stride > kWarp) ||
            (barrier && barrier->scope == BufferScope::block) ||
            std::holds_alternative<Routine>(x.op);
  });
  return found;
}

}  // namespace

/// Shared memory: buffers of the block, then the room in which teams of several warps combine.
/// Buffers share room if a barrier of the block lies between the last use of one and the first of
/// the other.
void PhaseEmitter::place_shared() {
  struct Span {
    int first = INT32_MAX, last = -1;
  };
  std::map<std::int32_t, Span> uses;
  int interval = 0;
  const std::function<void(const Body&)> visit = [&](const Body& statements) {
    for (const Stmt& s : statements) {
      const For* loop = std::get_if<For>(&s.op);
      const If* branch = std::get_if<If>(&s.op);
      const Let* let = std::get_if<Let>(&s.op);
      if ((loop && loop->binding == Binding::thread) || ((branch || let) && is_collective(s))) {
        visit(loop ? *loop->body : branch ? *branch->body : *let->body);
        continue;
      }
      Mapper mark;
      mark.buffer = [&](BufferId id) {
        const Buffer& b = k_.buffers[id];
        if (b.scope == BufferScope::block) {
          Span& u = uses[id.value];
          u.first = std::min(u.first, interval);
          // What a statement with barriers inside uses after the last one is in the next interval.
          u.last =
              std::max(u.last, interval + (waits(s) && !std::holds_alternative<Combine>(s.op)));
        }
        return id;
      };
      for_each_stmt({s}, [&](const Stmt& x) {
        (void)map_children(x, mark);
        for_each_value_of(x, [&](const Value& root) {
          for_each_value(root, [&](const Value& v) { (void)map_children(v, mark); });
        });
        if (const Combine* c = std::get_if<Combine>(&x.op)) {
          if (c->width * c->stride <= kWarp) return;
          scratch_bytes_ = std::max<std::int64_t>(
              scratch_bytes_, info_.threads * c->count * size_of(k_.buffers[c->buffer].dtype));
        }
      });
      if (const Combine* c = std::get_if<Combine>(&s.op))
        interval += c->width * c->stride > kWarp;
      else if (const Barrier* b = std::get_if<Barrier>(&s.op))
        interval += b->scope == BufferScope::block;
      else if (waits(s))
        ++interval;
    }
  };
  visit(*phase_.body);
  struct Placed {
    std::int64_t begin, end;
    Span use;
  };
  std::vector<Placed> placed;
  std::int64_t total = 0;
  std::map<std::int32_t, std::int64_t> offsets;
  for (const auto& [id, use] : uses) {
    const Buffer& b = k_.buffers[BufferId{id}];
    const std::int64_t bytes =
        (b.size * size_of(b.dtype) + kSharedAlign - 1) / kSharedAlign * kSharedAlign;
    const std::int64_t align = b.use == Use::tiles ? kTileAlign : kSharedAlign;
    std::int64_t at = 0;
    for (bool moved = true; moved;) {
      moved = false;
      for (const Placed& p : placed) {
        const bool together = use.first <= p.use.last && p.use.first <= use.last;
        if (!together || at >= p.end || p.begin >= at + bytes) continue;
        at = (p.end + align - 1) / align * align;
        moved = true;
      }
    }
    placed.push_back({at, at + bytes, use});
    offsets[id] = at;
    total = std::max(total, at + bytes);
  }
  scratch_at_ = total;
  info_.shared_bytes = total + scratch_bytes_;
  if (info_.shared_bytes) line("HD_DYNAMIC_SHARED(shared);");
  for (const auto& [id, at] : offsets)
    line(fmt::format("{0}* const b{1} = reinterpret_cast<{0}*>(shared + {2});  // {3}",
                     k_.buffers[BufferId{id}].use == Use::events
                         ? "hd::Mbarrier"
                         : type_of(k_.buffers[BufferId{id}].dtype),
                     id, at, k_.buffers[BufferId{id}].name));
  const std::vector<bool> used = [&] {
    Kernel one = k_;
    one.body = {Stmt{phase_}};
    if (together_) one.body.insert(one.body.end(), together_->begin(), together_->end());
    return used_buffers(one);
  }();
  for (std::int32_t i = 0; i < k_.buffers.size(); ++i) {
    const Buffer& b = k_.buffers[BufferId{i}];
    if (!used[static_cast<std::size_t>(i)] || b.scope != BufferScope::lane) continue;
    line(fmt::format("{} b{}[{}];  // {}", type_of(b.dtype), i, std::max<std::int64_t>(1, b.size),
                     b.name));
  }
}

}  // namespace heddle::codegen::cuda

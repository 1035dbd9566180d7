// Accesses of memory: what they may touch, races between them, atomics, asynchronous copies.
#include <cstring>

#include "emulation/machine.h"

namespace heddle::emulation {
namespace {

std::uintptr_t number(const void* p) { return reinterpret_cast<std::uintptr_t>(p); }

}  // namespace

unsigned Machine::shared_address(const void* p, const void* pc) {
  const auto* at = static_cast<const unsigned char*>(p);
  const emu::ModuleInfo& info = module_.info;
  if (at >= info.shared_begin && at < info.shared_end)
    return static_cast<unsigned>(at - info.shared_begin);
  const unsigned char* dynamic = thread_->block->dynamic;
  if (at < dynamic || at > dynamic + how_.shared_bytes)
    fail_at("not an address in shared memory", pc);
  const auto statics = static_cast<unsigned>(info.shared_end - info.shared_begin);
  return (statics + 1023) / 1024 * 1024 + static_cast<unsigned>(at - dynamic);
}

std::byte* Machine::shared_pointer(const Block& block, std::uint32_t address) const {
  const auto statics =
      static_cast<std::uint32_t>(module_.info.shared_end - module_.info.shared_begin);
  const std::uint32_t dynamic = (statics + 1023) / 1024 * 1024;
  if (address < statics) return reinterpret_cast<std::byte*>(module_.info.shared_begin) + address;
  if (address < dynamic || address - dynamic >= how_.shared_bytes) return nullptr;
  return reinterpret_cast<std::byte*>(block.dynamic) + (address - dynamic);
}

/// "shared memory, byte 12".
std::string Machine::place_of(const Thread& thread, const void* at) const {
  const auto* p = static_cast<const unsigned char*>(at);
  const Block& block = *thread.block;
  if (p >= block.dynamic && p < block.dynamic + how_.shared_bytes)
    return fmt::format("shared memory (byte {})", p - block.dynamic);
  if (const Allocation* a = find_allocation(at))
    return fmt::format("global memory (byte {} of {})",
                       static_cast<const std::byte*>(at) - a->begin, a->bytes);
  return "shared memory";
}

/// The cells that remember accesses to these bytes, and the offset from the place of the first;
/// null for what is private to the thread or constant.
std::pair<Cell*, std::size_t> Machine::cells_of(Thread& issuer, const std::byte* at,
                                                std::size_t bytes, bool write, const void* pc) {
  const auto outside = [&](const std::string& where) {
    fail_at(fmt::format("{} of {} bytes outside {}", write ? "write" : "read", bytes, where), pc);
  };
  if (at >= issuer.stack && at < reinterpret_cast<std::byte*>(issuer.self + 1)) return {};
  const auto in_block = [&](Block& b) -> std::pair<Cell*, std::size_t> {
    const auto* dynamic = reinterpret_cast<const std::byte*>(b.dynamic);
    const auto* statics = reinterpret_cast<const std::byte*>(b.statics.data());
    if (at >= statics && at < statics + b.statics.size())  // another block of the cluster
      return {b.static_cells.data(), static_cast<std::size_t>(at - statics)};
    if (at < dynamic || at >= dynamic + b.dynamic_cells.size() * 4) return {};
    const auto offset = static_cast<std::size_t>(at - dynamic);
    if (offset + bytes > how_.shared_bytes)
      outside(fmt::format("the block's {} bytes of shared memory (byte {})", how_.shared_bytes,
                          offset));
    return {b.dynamic_cells.data(), offset};
  };
  if (const auto found = in_block(*issuer.block); found.first) return found;
  if (at >= module_.begin && at < module_.end) {
    const auto* statics = reinterpret_cast<const std::byte*>(module_.info.shared_begin);
    if (at < statics || at >= reinterpret_cast<const std::byte*>(module_.info.shared_end))
      return {};
    return {issuer.block->static_cells.data(), static_cast<std::size_t>(at - statics)};
  }
  if (at >= values_.get() && at < values_.get() + values_bytes_) {
    if (write) outside("what a kernel may write: its parameters are constant");
    return {};
  }
  Allocation* a = allocation_;
  if (!a || at < a->begin || at >= a->begin + a->bytes) a = find_allocation(at);
  if (!a) {
    for (Block* b : issuer.block->cluster->blocks) {
      const auto found = in_block(*b);
      if (!found.first) continue;
      if (b->alive == 0) fail_at("access of the shared memory of a block that has ended", pc);
      return found;
    }
    outside("the memory of the kernel");
  }
  allocation_ = a;
  const auto offset = static_cast<std::size_t>(at - a->begin);
  const auto size = static_cast<std::size_t>(a->bytes);
  if (offset + bytes > size)
    outside(fmt::format("an allocation of {} bytes (byte {})", size, offset));
  if (!a->cells) a->cells = std::make_unique<Cell[]>(size / 4 + 1);
  return {a->cells.get(), offset};
}

void Machine::check_access(Thread& issuer, const Access& access, const void* at, std::size_t bytes,
                           bool write) {
  const auto [cells, offset] =
      cells_of(issuer, static_cast<const std::byte*>(at), bytes, write, access.pc);
  if (!cells) return;
  const Access* other = races_->check(cells, offset, bytes, issuer.knowledge, access, write);
  const auto threads = static_cast<unsigned>(issuer.block->threads.size());
  if (!other && !write && access.agent.index >= 2 * threads) {
    // An asynchronous reader sees an ordinary write or a thread's copy only after the thread's
    // fence_async.
    const Access& last = cells[offset / 4].write;
    if (last.tick == 0 || last.agent.block != access.agent.block || last.agent.index >= 2 * threads)
      return;
    const Knowledge& writer = issuer.block->threads[last.agent.index % threads].knowledge;
    if ((last.agent.index < threads ? writer.proxied : writer.proxied_copies) >= last.tick) return;
    fail_at(fmt::format("{}: an asynchronous read", place_of(issuer, at)), access.pc,
            " without fence_async since the write", last.pc);
  }
  if (!other) return;
  const bool asynchronous = other->agent.index >= threads;
  fail_at(fmt::format("race on {}: {}", place_of(issuer, at), write ? "write" : "read"), access.pc,
          fmt::format(", and an access of block {} {}", other->agent.block,
                      asynchronous ? std::string("by an asynchronous operation")
                                   : fmt::format("thread {}", other->agent.index)),
          other->pc);
}

void Machine::access(const void* at, std::size_t bytes, bool write, const void* pc) {
  Thread& t = *thread_;
  const bool one = bytes <= 16 && (bytes & (bytes - 1)) == 0;
  if (one && number(at) % bytes != 0)
    fail_at(fmt::format("misaligned {} of {} bytes", write ? "write" : "read", bytes), pc);
  check_access(t, {t.knowledge.self, t.knowledge.now, pc, false}, at, bytes, write);
}

void Machine::atomic(const void* at, int bytes, int access, int order, const void* pc) {
  Thread& t = *thread_;
  if (number(at) % static_cast<unsigned>(bytes) != 0) fail_at("misaligned atomic", pc);
  const bool load = access != emu::kWrite, store = access != emu::kRead;
  progress_ += store;
  if (!races_) return;
  Knowledge& k = t.knowledge;
  check_access(t, {k.self, k.now, pc, true}, at, static_cast<std::size_t>(bytes), store);
  const auto* p = static_cast<const unsigned char*>(at);
  if (p >= module_.info.shared_begin && p < module_.info.shared_end)  // each block has its own
    at = t.block->statics.data() + (p - module_.info.shared_begin);
  races_->atomic(at, k, load, store, order == emu::kAcquire || order == emu::kAcqRel,
                 order == emu::kRelease || order == emu::kAcqRel);
}

void Machine::spin() { poll({nullptr, 0}); }

void Machine::fence(bool device) {
  if (races_) RaceDetector::fence(thread_->knowledge, device);
}

void Machine::copy_async(const Copy& copy) {
  Thread& t = *thread_;
  const auto mask = static_cast<std::uintptr_t>(copy.bytes - 1);
  if ((number(copy.shared) | (copy.valid ? number(copy.global) : 0)) & mask)
    fail_at("misaligned asynchronous copy", copy.pc);
  (void)shared_address(copy.shared, copy.pc);
  if (races_) {
    const Access access{t.knowledge.copier, t.knowledge.copying, copy.pc, false};
    const auto bytes = static_cast<std::size_t>(copy.bytes);
    if (copy.valid) check_access(t, access, copy.global, bytes, false);
    check_access(t, access, copy.shared, bytes, true);
  }
  t.started.push_back(copy);
}
void Machine::copy_commit() {
  thread_->groups.push_back(std::move(thread_->started));
  thread_->started.clear();
  ++thread_->knowledge.copying;
}
void Machine::copy_wait(int left) {
  auto& groups = thread_->groups;
  for (; groups.size() > static_cast<std::size_t>(left); groups.erase(groups.begin()))
    for (const Copy& c : groups.front()) {
      if (c.valid)
        std::memcpy(c.shared, c.global, static_cast<std::size_t>(c.bytes));
      else
        std::memset(c.shared, 0, static_cast<std::size_t>(c.bytes));
    }
  Knowledge& k = thread_->knowledge;
  k.copied = k.copying - 1 - static_cast<Tick>(groups.size());
}

}  // namespace heddle::emulation

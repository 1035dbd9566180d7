// Barriers in shared memory and the tensor memory accelerator.
#include <cstring>

#include "emulation/machine.h"

namespace heddle::emulation {
namespace {

bool aligned(const void* p, std::size_t to) {
  return reinterpret_cast<std::uintptr_t>(p) % to == 0;
}

}  // namespace

/// The barrier's word counts as an atomic variable.
Mbarrier& Machine::mbarrier_at(void* barrier, bool store, const void* pc) {
  Thread& t = *thread_;
  if (!aligned(barrier, 8)) fail_at("misaligned mbarrier", pc);
  const auto found = t.block->mbarriers.find(shared_address(barrier, pc));
  if (found == t.block->mbarriers.end()) fail_at("an mbarrier that was not initialised", pc);
  if (races_) check_access(t, {t.knowledge.self, t.knowledge.now, pc, true}, barrier, 8, store);
  return found->second;
}

void Machine::mbarrier_init(void* barrier, int count, const void* pc) {
  Thread& t = *thread_;
  if (!aligned(barrier, 8)) fail_at("misaligned mbarrier", pc);
  if (count < 1 || count >= 1 << 20) fail_at(fmt::format("an mbarrier for {} arrivals", count), pc);
  const std::uint32_t address = shared_address(barrier, pc);
  if (races_) check_access(t, {t.knowledge.self, t.knowledge.now, pc, false}, barrier, 8, true);
  Mbarrier& b = t.block->mbarriers[address];
  if (!b.copies.empty()) fail_at("an mbarrier is initialised while copies are in flight", pc);
  b = {};
  b.count = b.pending = count;
  b.copier = {t.block->number, t.block->agents++};
  t.unfenced_barriers.push_back(address);
}

void Machine::mbarrier_fence() {
  for (std::uint32_t address : thread_->unfenced_barriers)
    thread_->block->mbarriers.at(address).fenced = true;
  thread_->unfenced_barriers.clear();
}

void Machine::complete_phase(Mbarrier& b) {
  if (b.pending != 0 || b.bytes != 0) return;
  ++b.phase;
  ++progress_;
  b.pending = b.count;
  b.published = b.gathered;
}

void Machine::mbarrier_arrive(void* barrier, int bytes, const void* pc) {
  Mbarrier& b = mbarrier_at(barrier, true, pc);
  if (b.pending == 0)
    fail_at(fmt::format("more than {} arrivals at an mbarrier in one phase", b.count), pc);
  if (races_) thread_->knowledge.release_to(b.gathered);
  --b.pending;
  b.bytes += bytes;
  ++progress_;
  complete_phase(b);
}

void Machine::mbarrier_wait(void* barrier, int parity, emu::Site site, const void* pc) {
  if (parity != 0 && parity != 1) fail_at(fmt::format("parity {}", parity), pc);
  while (true) {
    Mbarrier& b = mbarrier_at(barrier, false, pc);
    if (b.pending == 0 && !b.copies.empty()) perform(b);
    if (static_cast<int>(b.phase & 1) != parity) {
      if (races_) thread_->knowledge.known.join(b.published);
      return;
    }
    poll(site);
  }
}

void Machine::tma_load(void* shared, const void* map, const int* at, int rank, void* barrier,
                       const void* pc) {
  Mbarrier& b = mbarrier_at(barrier, true, pc);
  TileCopy copy{};
  if (!aligned(map, 64)) fail_at("a tensor map not aligned to 64 bytes", pc);
  std::memcpy(&copy.map, map, sizeof copy.map);
  if (copy.map.magic != kTensorMapMagic) fail_at("this is not a tensor map", pc);
  if (copy.map.rank != rank)
    fail_at(fmt::format("a tensor map of {} dimensions used with {}", copy.map.rank, rank), pc);
  // The swizzle's pattern repeats every 8 lines of its width; 128 bytes are needed in any case.
  if (!aligned(shared, copy.map.swizzle == 0 ? 128 : 8 * std::size_t{copy.map.swizzle}))
    fail_at("misaligned destination of a tile", pc);
  copy.shared = static_cast<std::byte*>(shared);
  copy.bytes = static_cast<std::int64_t>(copy.map.tile_bytes());
  std::memcpy(copy.at, at, sizeof(int) * static_cast<std::size_t>(rank));
  start(b, copy, pc);
}

/// Swizzling stays inside the tile.
void Machine::start(Mbarrier& b, TileCopy copy, const void* pc) {
  if (!b.fenced) fail_at("an mbarrier gets copies before mbarrier_fence", pc);
  const std::uint32_t last =
      shared_address(copy.shared, pc) + static_cast<std::uint32_t>(copy.bytes) - 1;
  if (!shared_pointer(*thread_->block, last)) fail_at("a tile ends outside shared memory", pc);
  copy.tick = ++b.issued;
  if (races_)
    check_access(*thread_, {b.copier, copy.tick, pc, false}, copy.shared,
                 static_cast<std::size_t>(copy.bytes), true);
  b.copies.push_back(copy);
  ++progress_;
}

void Machine::bulk_load(void* shared, const void* global, int bytes, void* barrier,
                        const void* pc) {
  Mbarrier& b = mbarrier_at(barrier, true, pc);
  bulk_prefetch(global, bytes, pc);
  if (!aligned(shared, 16)) fail_at("misaligned destination of a bulk copy", pc);
  TileCopy copy{};
  copy.shared = static_cast<std::byte*>(shared);
  copy.from = static_cast<const std::byte*>(global);
  copy.bytes = bytes;
  start(b, copy, pc);
}

/// Nothing comes of it but that what is asked for has to be there.
void Machine::bulk_prefetch(const void* global, int bytes, const void* pc) {
  if (bytes <= 0 || bytes % 16 != 0)
    fail_at(fmt::format("a bulk copy of {} bytes; multiples of 16 are possible", bytes), pc);
  if (!aligned(global, 16)) fail_at("misaligned source of a bulk copy", pc);
  const Allocation* a = races_ ? find_allocation(global) : nullptr;
  const auto* from = static_cast<const std::byte*>(global);
  if (races_ && (!a || from + bytes > a->begin + a->bytes))
    fail_at(fmt::format("a bulk copy of {} bytes from outside global memory", bytes), pc);
}

namespace {

/// Element i of a tile: where it is in global memory; null outside the tensor.
const std::byte* element_in(const TileCopy& c, std::uint64_t i) {
  const std::byte* from = c.map.base;
  for (int d = 0; d < c.map.rank; ++d) {
    const std::int64_t at = c.at[d] + static_cast<std::int64_t>(i % c.map.box[d]);
    i /= c.map.box[d];
    if (at < 0 || at >= static_cast<std::int64_t>(c.map.extents[d])) return nullptr;
    from += static_cast<std::uint64_t>(at) * (d ? c.map.stride_bytes[d - 1] : c.map.element_bytes);
  }
  return from;
}

}  // namespace

/// Makes the copies that were started, in order.
void Machine::perform(Mbarrier& b) {
  Thread& t = *thread_;
  for (const TileCopy& c : b.copies) {
    const std::uint32_t first = shared_address(c.shared, nullptr);
    const std::uint64_t size = c.map.element_bytes;
    if (c.from && races_)
      check_access(t, {b.copier, c.tick, nullptr, false}, c.from, static_cast<std::size_t>(c.bytes),
                   false);
    if (c.from) std::memcpy(c.shared, c.from, static_cast<std::size_t>(c.bytes));
    for (std::uint64_t i = 0; !c.from && i < static_cast<std::uint64_t>(c.bytes) / size; ++i) {
      const auto place = swizzled(first + static_cast<std::uint32_t>(i * size), c.map.swizzle);
      std::byte* to = c.shared + (static_cast<std::int64_t>(place) - first);
      const std::byte* from = element_in(c, i);
      if (from && races_) check_access(t, {b.copier, c.tick, nullptr, false}, from, size, false);
      if (from)
        std::memcpy(to, from, size);
      else
        std::memset(to, 0, size);
    }
    b.bytes -= c.bytes;
    if (races_) b.gathered.learn(b.copier, c.tick);
    ++progress_;
  }
  b.copies.clear();
  complete_phase(b);
}

void Machine::fence_async() {
  Knowledge& k = thread_->knowledge;
  k.proxied = k.now++;
  k.proxied_copies = k.copied;
}

}  // namespace heddle::emulation

// Tensor-core operations of a warp, and what blocks of a cluster do together.
#include <cstring>

#include "emulation/elements.h"
#include "emulation/machine.h"

namespace heddle::emulation {
namespace {

constexpr unsigned kAllLanes = 0xffffffffu;

/// What a lane brings to a multiplication.
struct Fragments {
  std::uint32_t a[4], b[2];
};

/// Element (row, k) of the first operand, (k, column) of the second, from the lanes that hold them
/// (PTX manual, "Matrix fragments for mma.m16n8k16" and "m16n8k8").
float first(const emu::Meeting& m, int element, int row, int k) {
  const int half = element == emu::kTf32 ? 4 : 8, each = element == emu::kTf32 ? 1 : 2;
  Fragments f;
  std::memcpy(&f, m.lanes[row % 8 * 4 + k % half / each].bytes, sizeof f);
  return element_of(element, f.a[row / 8 + 2 * (k / half)], k % each);
}
float second(const emu::Meeting& m, int element, int k, int column) {
  const int half = element == emu::kTf32 ? 4 : 8, each = element == emu::kTf32 ? 1 : 2;
  Fragments f;
  std::memcpy(&f, m.lanes[column * 4 + k % half / each].bytes, sizeof f);
  return element_of(element, f.b[k / half], k % each);
}

}  // namespace

void Machine::multiply(int element, float* d, const unsigned* a, const unsigned* b,
                       emu::Site site) {
  Fragments mine;
  std::memcpy(mine.a, a, sizeof mine.a);
  std::memcpy(mine.b, b, sizeof mine.b);
  const emu::Meeting& all = *exchange(emu::kMultiply, &mine, sizeof mine, site);
  if (all.present != kAllLanes) fail_at("a matrix product by part of a warp, at " + name_of(site));
  const int depth = element == emu::kTf32 ? 8 : 16, lane = thread_->self->lane;
  for (int i = 0; i < 4; ++i) {
    const int row = lane / 4 + 8 * (i / 2), column = lane % 4 * 2 + i % 2;
    float sum = 0;
    for (int k = 0; k < depth; ++k)
      sum += first(all, element, row, k) * second(all, element, k, column);
    d[i] += sum;
  }
}

void Machine::load_matrix(unsigned* r, int count, const void* row, bool transposed, emu::Site site,
                          const void* pc) {
  Thread& t = *thread_;
  const int lane = t.self->lane;
  if (lane < 8 * count) {
    if (reinterpret_cast<std::uintptr_t>(row) % 16 != 0) fail_at("misaligned row of a matrix", pc);
    (void)shared_address(row, pc);
  }
  const emu::Meeting& all = *exchange(emu::kLoadMatrix, &row, sizeof row, site);
  if (all.present != kAllLanes) fail_at("a matrix load by part of a warp, at " + name_of(site));
  // Who brings a row's address reads it, whoever gets the elements.
  if (races_ && lane < 8 * count)
    check_access(t, {t.knowledge.self, t.knowledge.now, pc, false},
                 static_cast<const std::byte*>(row), 16, false);
  const auto part = [&](int matrix, int i, int byte, std::size_t bytes) {
    const std::byte* at = nullptr;
    std::memcpy(&at, all.lanes[8 * matrix + i].bytes, sizeof at);
    at += byte;
    if (races_) check_access(t, {t.knowledge.self, t.knowledge.now, pc, false}, at, bytes, false);
    return at;
  };
  for (int m = 0; m < count; ++m) {
    auto* to = reinterpret_cast<std::byte*>(r + m);
    if (!transposed) {
      std::memcpy(to, part(m, lane / 4, lane % 4 * 4, 4), 4);
    } else {
      std::memcpy(to, part(m, lane % 4 * 2, lane / 4 * 2, 2), 2);
      std::memcpy(to + 2, part(m, lane % 4 * 2 + 1, lane / 4 * 2, 2), 2);
    }
  }
}

void Machine::open(Cluster& cluster) {
  ++progress_;
  ++cluster.phases;
  cluster.arrived = 0;
  cluster.published = std::exchange(cluster.gathered, {});
  for (Thread* t : std::exchange(cluster.waiting, {})) make_ready(*t);
}

void Machine::cluster_arrive(emu::Site site) {
  Thread& t = *thread_;
  Cluster& c = *t.block->cluster;
  if (t.cluster_arrivals > c.phases)
    fail_at("a second arrival at the cluster's barrier before the wait, at " + name_of(site));
  ++t.cluster_arrivals;
  if (races_) t.knowledge.release_to(c.gathered);
  if (++c.arrived == c.alive) open(c);
}

void Machine::cluster_wait(emu::Site site) {
  Thread& t = *thread_;
  Cluster& c = *t.block->cluster;
  t.site = site;
  if (t.cluster_arrivals == 0)
    fail_at("a wait at the cluster's barrier without arrival, at " + name_of(site));
  if (c.phases < t.cluster_arrivals) {
    t.state = State::at_barrier;
    c.waiting.push_back(&t);
    leave();
  }
  if (races_) t.knowledge.known.join(c.published);
}

void* Machine::cluster_map(void* shared, unsigned rank, const void* pc) {
  const Block& own = *thread_->block;
  const Cluster& c = *own.cluster;
  if (rank >= c.blocks.size())
    fail_at(fmt::format("block {} of a cluster of {}", rank, c.blocks.size()), pc);
  (void)shared_address(shared, pc);
  Block& other = *c.blocks[rank];
  if (&other == &own) return shared;
  auto* p = static_cast<unsigned char*>(shared);
  if (p >= module_.info.shared_begin && p < module_.info.shared_end)
    return other.statics.data() + (p - module_.info.shared_begin);
  return other.dynamic + (p - own.dynamic);
}

}  // namespace heddle::emulation

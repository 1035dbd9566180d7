// Products of warpgroups (wgmma): started by four warps together, made when one of their threads
// waits; until then accumulators are poisoned.
#include <algorithm>
#include <cstring>
#include <limits>

#include "emulation/elements.h"
#include "emulation/machine.h"

namespace heddle::emulation {
namespace {

constexpr unsigned kGroup = 128;  ///< threads of a warpgroup
constexpr int kRowBytes = 32;     ///< of an operand's row in one product

/// An operand in shared memory, contiguous along k (PTX manual, "Matrix descriptor format").
struct Operand {
  std::uint32_t start, leading, stride;
  int swizzle;
  explicit Operand(std::uint64_t d)
      : start(static_cast<std::uint32_t>(d & 0x3fff) << 4),
        leading(static_cast<std::uint32_t>(d >> 16 & 0x3fff) << 4),
        stride(static_cast<std::uint32_t>(d >> 32 & 0x3fff) << 4) {
    constexpr int kSwizzles[] = {0, 128, 64, 32};
    swizzle = kSwizzles[d >> 62];
  }
  /// The shared address of byte `byte` of row `row`.
  std::uint32_t at(int row, int byte) const {
    const auto r = static_cast<std::uint32_t>(row), b = static_cast<std::uint32_t>(byte);
    if (swizzle == 0) return start + r / 8 * stride + b / 16 * leading + r % 8 * 16 + b % 16;
    return swizzled(start + r / 8 * stride + r % 8 * static_cast<std::uint32_t>(swizzle) + b,
                    swizzle);
  }
};

}  // namespace

void Machine::products_fence() { thread_->products_fenced = true; }

/// A warp reads all rows of b and 16 of a.
void Machine::check_operands(const Product& p, const void* pc) {
  Thread& t = *thread_;
  const unsigned warp = t.number / 32;
  const auto threads = static_cast<std::uint32_t>(t.block->threads.size());
  const Access access{{t.block->number, 2 * threads + warp}, t.product_group, pc, false};
  const auto read = [&](const Operand& operand, int row) {
    for (int byte = 0; byte < kRowBytes; byte += 16) {
      const std::byte* at = shared_pointer(*t.block, operand.at(row, byte));
      if (!at) fail_at("an operand outside shared memory", pc);
      if (races_) check_access(t, access, at, 16, false);
    }
  };
  const Operand a(p.a), b(p.b);
  for (int row = 0; row < 16; ++row) read(a, static_cast<int>(warp % 4) * 16 + row);
  for (int row = 0; row < p.n; ++row) read(b, row);
}

void Machine::product(const Product& p, emu::Site site, const void* pc) {
  Thread& t = *thread_;
  if (t.number / kGroup * kGroup + kGroup > t.block->threads.size())
    fail_at("a product by part of a warpgroup, at " + name_of(site));
  if (p.n < 8 || p.n > 256 || p.n % 8 != 0)
    fail_at(fmt::format("a product of {} columns", p.n), pc);
  // The warp starts it together.
  (void)exchange(emu::kMultiply, nullptr, 0, site);
  if (!t.products_fenced)
    fail_at("a product without wgmma_fence since its registers could change", pc);
  if (t.self->lane == 0) check_operands(p, pc);
  const auto [at, fresh] = t.accumulators.try_emplace(p.d);
  const auto count = static_cast<std::size_t>(p.n) / 2;
  if (fresh) {
    at->second.value.assign(p.d, p.d + count);
    std::fill(p.d, p.d + count, std::numeric_limits<float>::quiet_NaN());
  }
  ++at->second.products;
  t.products.push_back(p);
}

void Machine::products_commit() {
  Thread& t = *thread_;
  t.product_groups.push_back(std::move(t.products));
  t.products.clear();
  ++t.product_group;
}

void Machine::products_wait(int left, emu::Site site) {
  Thread& t = *thread_;
  Block& block = *t.block;
  t.products_fenced = false;
  const unsigned first = t.number / kGroup * kGroup;
  if (first + kGroup > block.threads.size())
    fail_at("a wait for products by part of a warpgroup, at " + name_of(site));
  const Tick done =
      t.product_group > static_cast<Tick>(left) ? t.product_group - static_cast<Tick>(left) : 1;
  for (bool all = false; !all;) {
    all = true;
    for (unsigned i = first; i < first + kGroup; ++i)
      all = all && block.threads[i].product_group >= done;
    if (!all) poll(site);
  }
  // Groups before `done`, of all threads: the operands may be overwritten after the first wait.
  for (unsigned i = first; i < first + kGroup; ++i) {
    Thread& other = block.threads[i];
    while (!other.product_groups.empty() &&
           other.product_group - static_cast<Tick>(other.product_groups.size()) < done) {
      for (const Product& p : other.product_groups.front()) perform(other, p);
      other.product_groups.erase(other.product_groups.begin());
      ++progress_;
    }
  }
  std::erase_if(t.accumulators, [](const auto& entry) {
    const auto& [d, accumulator] = entry;
    if (accumulator.products > 0) return false;
    std::memcpy(d, accumulator.value.data(), accumulator.value.size() * sizeof(float));
    return true;
  });
  if (!races_) return;
  const auto threads = static_cast<std::uint32_t>(block.threads.size());
  for (unsigned warp = first / 32; warp < first / 32 + 4; ++warp)
    if (done > 1) t.knowledge.known.learn({block.number, 2 * threads + warp}, done - 1);
}

/// One thread's part: rows r and r + 8 of its warp, two neighbouring columns of each eight.
void Machine::perform(Thread& t, const Product& p) {
  const Operand a(p.a), b(p.b);
  const int size = p.element == emu::kTf32 ? 4 : 2, depth = kRowBytes / size;
  const auto read = [&](const Operand& operand, int row, float* out) {
    for (int k = 0; k < depth; ++k) {
      std::uint32_t word = 0;
      std::memcpy(&word, shared_pointer(*t.block, operand.at(row, k * size)),
                  static_cast<std::size_t>(size));
      out[k] = element_of(p.element, word, 0);
    }
  };
  const int lane = t.self->lane, top = static_cast<int>(t.number / 32 % 4) * 16 + lane / 4;
  float rows[2][16], column[16];
  read(a, top, rows[0]);
  read(a, top + 8, rows[1]);
  Accumulator& accumulator = t.accumulators[p.d];
  for (int j = 0; j < p.n / 8; ++j)
    for (int e = 0; e < 2; ++e) {
      read(b, 8 * j + lane % 4 * 2 + e, column);
      for (int i = 0; i < 2; ++i) {
        float sum = 0;
        for (int k = 0; k < depth; ++k) sum += rows[i][k] * column[k];
        accumulator.value[static_cast<std::size_t>(4 * j + 2 * i + e)] += sum;
      }
    }
  --accumulator.products;
}

}  // namespace heddle::emulation

#include "lower/contract/gpu/lower.h"

#include <algorithm>

#include "lower/contract/gpu/emit.h"

namespace heddle::lower::contract::gpu {
namespace {

constexpr std::size_t kTilesWorthMeasuring = 8;

bool wants_tf32(const Tuning& tuning) {
  return std::any_of(tuning.begin(), tuning.end(),
                     [](const auto& one) { return one.first == "tf32" && one.second != 0; });
}

}  // namespace

Result<Lowered> lower(Product& product) {
  const Request& r = product.request;
  Gemm gemm = make_gemm(product, wants_tf32(r.tuning));
  const auto tiles = choose_tiles(gemm, r.target, r.tuning, 1);
  Lowered lowered = Emitter(gemm, tiles.front()).run();
  // What range analysis cannot show to be sound is not used.
  if (const Status sound = kernel::verify(lowered.kernel); !sound)
    return unsupported("contraction on a GPU: {}", sound.error().message);
  return lowered;
}

std::vector<Tuning> tuning_space(Product& product) {
  const Request& r = product.request;
  const bool tf32 = wants_tf32(r.tuning);
  const Gemm gemm = make_gemm(product, tf32);
  std::vector<Tuning> out;
  for (const Tiles& t : choose_tiles(gemm, r.target, {}, kTilesWorthMeasuring)) {
    if (gemm.unit == Unit::stream)
      out.push_back({{"team", t.team}});
    else
      out.push_back({{"bm", t.bm}, {"bn", t.bn}, {"bk", t.bk}, {"splits", t.splits}});
    if (tf32) out.back().emplace_back("tf32", 1);
  }
  return out;
}

}  // namespace heddle::lower::contract::gpu

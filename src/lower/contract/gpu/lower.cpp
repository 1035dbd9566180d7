#include "lower/contract/gpu/lower.h"

#include <algorithm>
#include <memory>

#include "lower/contract/gpu/emit.h"
#include "lower/contract/gpu/library.h"
#include "lower/contract/gpu/tree.h"

namespace heddle::lower::contract::gpu {
namespace {

constexpr std::size_t kTilesWorthMeasuring = 8;

bool wants_tf32(const Request& r, const Tuning& tuning) {
  return pinned(tuning, "tf32").value_or(r.target.tf32 ? 1 : 0) != 0;
}

struct Choice {
  std::shared_ptr<Gemm> gemm;
  std::vector<Tiles> tiles;  ///< best first
};

/// Every way to multiply that is possible, or the one that "unit" names, the best first.
std::vector<Choice> choices(Product& product, const Tuning& tuning, std::size_t count) {
  const bool tf32 = wants_tf32(product.request, tuning);
  std::vector<Choice> out;
  const auto add = [&](Gemm gemm) {
    auto tiles = choose_tiles(gemm, product.request.target, tuning, count);
    out.push_back({std::make_shared<Gemm>(std::move(gemm)), std::move(tiles)});
  };
  Gemm usual = make_gemm(product, tf32);
  const std::vector<Unit> possible = usual.possible;
  const auto want = pinned(tuning, "unit");
  const auto wanted = [&](Unit unit) { return !want || static_cast<Unit>(*want) == unit; };
  const bool any = std::any_of(possible.begin(), possible.end(), wanted);
  if (!any || wanted(usual.unit)) add(std::move(usual));
  for (std::size_t i = 1; i < possible.size(); ++i)
    if (wanted(possible[i])) add(make_gemm(product, tf32, possible[i]));
  std::stable_sort(out.begin(), out.end(), [](const Choice& a, const Choice& b) {
    return a.tiles.front().us < b.tiles.front().us;
  });
  return out;
}

/// True if the blocks that add up parts can be those that multiplied.
bool may_share_launch(Unit unit) { return unit != Unit::tma && unit != Unit::stream; }

/// What a library does where it is there, or a unit of templates, and a kernel of ours for where it
/// is not; nullopt if the tuning asks for neither or the product is none of theirs.
std::optional<Lowered> by_others(Product& product) {
  const Request& r = product.request;
  const std::int64_t tile = pinned(r.tuning, "cutlass").value_or(0);
  const bool known = tile >= 1 && tile <= std::int64_t{kernel::kTreeTiles.size()};
  if (product.sums() || (!known && pinned(r.tuning, "library").value_or(0) == 0))
    return std::nullopt;
  const bool tf32 = wants_tf32(r, r.tuning);
  Gemm gemm = make_gemm(product, tf32, {}, false);
  auto library = known ? std::nullopt : library_product(gemm, tf32);
  auto tree = known ? tree_product(gemm) : std::nullopt;
  if (!library && !tree) return std::nullopt;
  const Tiles tiles = choose_tiles(gemm, r.target, {}, 1).front();
  Lowered lowered = Emitter(gemm, tiles, r.target).run();
  const auto place = [&](int& buffer) {
    buffer = product.kernel.buffers[kernel::BufferId{buffer}].argument;
  };
  if (library) {
    for (auto* m : {&library->lhs, &library->rhs, &library->out}) place(m->argument);
    if (library->bias >= 0) place(library->bias);
    lowered.library = *library;
    lowered.schedule = "cuBLASLt, without it " + lowered.schedule;
    return lowered;
  }
  for (auto& m : tree->matrices) place(m.argument);
  tree->tile = static_cast<int>(tile);
  const kernel::TreeTile& t = kernel::kTreeTiles[static_cast<std::size_t>(tile - 1)];
  lowered.schedule = fmt::format("cutlass {}x{}x{} {}, without it {}", t.m, t.n, t.k,
                                 t.pingpong ? "pingpong" : "cooperative", lowered.schedule);
  lowered.tree = *std::move(tree);
  return lowered;
}

}  // namespace

Result<Lowered> lower(Product& product) {
  const Request& r = product.request;
  if (auto lowered = by_others(product); lowered && kernel::verify(lowered->kernel))
    return *std::move(lowered);
  std::vector<Choice> all = choices(product, r.tuning, 1);
  Choice& best = all.front();
  Lowered lowered = Emitter(*best.gemm, best.tiles.front(), r.target).run();
  // What range analysis cannot show to be sound is not used.
  if (const Status sound = kernel::verify(lowered.kernel); !sound)
    return unsupported("contraction on a GPU: {}", sound.error().message);
  return lowered;
}

std::vector<Tuning> tuning_space(Product& product) {
  Tuning wish;
  for (const auto& one : product.request.tuning)
    if (one.first == "tf32") wish.push_back(one);
  std::vector<Tuning> out;
  std::size_t count = kTilesWorthMeasuring;
  for (const Choice& choice : choices(product, wish, kTilesWorthMeasuring)) {
    for (std::size_t i = 0; i < std::min(count, choice.tiles.size()); ++i) {
      const Tiles& t = choice.tiles[i];
      Tuning one = wish;
      if (choice.gemm->unit == Unit::stream)
        one.emplace_back("team", t.team);
      else
        one.insert(one.end(), {{"bm", t.bm}, {"bn", t.bn}, {"bk", t.bk}, {"splits", t.splits}});
      if (choice.gemm->possible.size() > 1)
        one.emplace_back("unit", static_cast<std::int64_t>(choice.gemm->unit));
      out.push_back(std::move(one));
      if ((t.splits > 1 || product.sums()) && may_share_launch(choice.gemm->unit) &&
          product.request.target.grid_barriers) {
        out.push_back(out.back());
        out.back().emplace_back("resident", 0);
      }
    }
    count = kTilesWorthMeasuring / 2;  // of the others
  }
  const lower::Target& target = product.request.target;
  if (product.sums() || (!target.library && !target.cutlass)) return out;
  const bool tf32 = wants_tf32(product.request, wish);
  const Gemm plain = make_gemm(product, tf32, {}, false);
  const auto first = [&](const char* name, std::int64_t value) {
    Tuning one = wish;
    one.emplace_back(name, value);
    out.insert(out.begin(), std::move(one));
  };
  if (target.cutlass && tree_product(plain))
    for (std::size_t tile = kernel::kTreeTiles.size(); tile > 0; --tile)
      first("cutlass", static_cast<std::int64_t>(tile));
  if (target.library && library_product(plain, tf32)) first("library", 1);
  return out;
}

}  // namespace heddle::lower::contract::gpu

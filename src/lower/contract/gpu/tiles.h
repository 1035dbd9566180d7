#pragma once
#include "lower/contract/gpu/gemm.h"

namespace heddle::lower::contract::gpu {

/// All choices of a tiled product on a GPU.
struct Tiles {
  int bm = 64, bn = 64, bk = 16;  ///< of a block
  int stages = 2;                 ///< tiles along k in block memory
  int warps_m = 2, warps_n = 2;   ///< mma: warps of a block, each bm/warps_m × bn/warps_n
  int tm = 4, tn = 4;             ///< scalar: results of a thread
  int team = 1, each = 1;         ///< stream: threads of a team, its rows of the longer side
  int splits = 1;                 ///< blocks that share the reductions of one tile
  bool resident = true;           ///< parts are added behind a grid barrier where that can be
  double us = 0;                  ///< the model's estimate
};
constexpr int kCopyThreads = 128;  ///< of Unit::tma, beside those that multiply
/// Results that a warp has in block memory at once (Unit::tma): columns, and their pitch.
inline int results_columns(const Tiles& t) { return t.bn > 128 ? 32 : std::min(t.bn, 64); }
inline int results_pitch(const Tiles& t) { return results_columns(t) + 8; }
std::optional<std::int64_t> pinned(const Tuning& tuning, std::string_view name);
std::string to_string(const Gemm& g, const Tiles& t);
int threads_of(const Gemm& g, const Tiles& t);
/// Block memory in bytes.
std::int64_t shared_bytes(const Gemm& g, const Tiles& t);

/// The best tiles by the model, best first; `fixed` pins "bm", "bn", "bk", "stages", "splits",
/// "team", "resident". At least one.
std::vector<Tiles> choose_tiles(const Gemm& g, const Target& target, const Tuning& fixed,
                                std::size_t count);

/// Blocks that a multiprocessor holds at once.
int blocks_together(const Gemm& g, const Target& target, const Tiles& t);

/// Elements that a thread stores side by side: 16 bytes of the narrowest output.
int store_width(const Gemm& g, const Tiles& t);

/// Row pitch of a side's tile in block memory, elements.
std::int64_t pitch(const Gemm& g, const Side& s, const Tiles& t, bool is_m);
/// Elements of one stage of it.
std::int64_t stage_size(const Gemm& g, const Side& s, const Tiles& t, bool is_m);

}  // namespace heddle::lower::contract::gpu

// Attention of bf16 in tile registers (AMX): tiles of 32 rows by 32 keys or columns. Queries are
// copied with their terms padded, keys and values packed as words of two terms, and weights are
// rounded to bf16 as they are made, where the products of values read them.
#include "lower/attention/emit.h"

namespace heddle::lower::attention {

using kernel::Binding;
using kernel::BufferId;
using kernel::Stmt;
using kernel::Value;
using Tile = kernel::TileProduct;

namespace {

constexpr std::int64_t kSide = 32;              // rows, keys, columns of a product; terms of a step
constexpr std::int64_t kHalf = 16;              // lanes of f32 or of words
constexpr std::int64_t kWords = kHalf * kHalf;  // of a tile: 32 terms of 16 columns
constexpr std::int64_t kStepWords = 2 * kWords;  // of 32 columns

}  // namespace

/// [step of 32 terms][half of the keys][pair][key]: where sixteen keys' pair of a block lies.
ir::Expr Emitter::place_in_tiles(const Expr& block, const Expr& keys, const Expr& pair) const {
  return ir::floor_div(block, 2) * Expr(kStepWords) + ir::floor_mod(block, 2) * Expr(kWords / 2) +
         keys * Expr(kWords) + pair * Expr(lanes_);
}

/// [columns by 32][step of 32 keys][half of the columns][pair of keys][column], two steps of it.
kernel::Body Emitter::value_words(const Expr& base, const Expr& first) {
  const std::int64_t steps = padded_keys_ / kSide, panels = columns_ / kSide;
  return {each(0, 2, Binding::serial, [&](const Expr& i) {
    const Expr step = ir::floor_div(first, kSide) + i;
    Body words{each(0, kSide / 2, Binding::serial, [&](const Expr& pair) {
      return Body{each(0, 2 * panels, Binding::serial, [&](const Expr& half) {
        return Body{each(0, lanes_, Binding::vector, [&](const Expr& l) {
          const auto value = [&](std::int64_t of_pair) {
            const Expr key = step * Expr(kSide) + pair * Expr(2) + Expr(of_pair);
            const Value v = at(value_, {{a_.key, key}, {a_.column, half * Expr(kHalf) + l}});
            return keys_ == padded_keys_ ? v : kernel::guard({{key, 0, keys_}}, v, f32(0));
          };
          const Expr to = base + ir::floor_div(half, 2) * Expr(steps * kStepWords) +
                          step * Expr(kStepWords) + ir::floor_mod(half, 2) * Expr(kWords) +
                          pair * Expr(lanes_) + l;
          return Body{kernel::store(packed_values_, to, word(value(0), value(1)))};
        })};
      })};
    })};
    return Body{kernel::when({{step, 0, steps}}, std::move(words))};
  })};
}

/// All rows of a tile with 32 keys; rows that are not there have no results that anyone reads.
Stmt Emitter::tile_of_scores(const Expr& slot, const Expr& keys_from) const {
  Tile x;
  x.acc = tile_;
  x.a = {queries_, slot * Expr(padded_depth_), kSide, Tile::kRows * padded_depth_};
  x.a_row = padded_depth_;
  x.b = {packed_keys_, keys_from, kStepWords, kWords};
  x.rows = x.columns = static_cast<int>(kSide);
  x.depth = padded_depth_;
  x.terms = {{0, 0}};
  return {std::move(x)};
}

Stmt Emitter::tile_of_values(const Expr& slot, const Expr& first_key, std::int64_t keys,
                             const Expr& values_from, const Expr& to, bool add) const {
  Tile x;
  x.acc = sums_;
  x.to = to;
  x.add = add;
  x.a = {weights_, slot * Expr(weight_pitch_) + first_key, kSide, Tile::kRows * weight_pitch_};
  x.a_row = weight_pitch_;
  x.b = {packed_values_, values_from, kStepWords, kWords};
  x.rows = x.columns = static_cast<int>(kSide);
  x.depth = keys;
  x.terms = {{0, 0}};
  return {std::move(x)};
}

/// key_block() of tile registers: the sums of a tile and a panel lie together.
kernel::Body Emitter::key_block_by_tiles(const Expr& batch, const Expr& first, std::int64_t keys) {
  const std::int64_t count = columns_ / kSide;
  const bool all = keys == padded_keys_;
  return {each(0, count, Binding::serial, [&](const Expr& panel) {
    const Expr from = (batch * Expr(count) + panel) * Expr(padded_keys_ / kSide * kStepWords) +
                      ir::floor_div(first, kSide) * Expr(kStepWords);
    return each_tile([&](const Height& h, const Expr& slot) {
      const Expr to = place_of_sums(slot, panel);
      Body out{tile_of_values(slot, first, keys, from, to, !all)};
      if (all)
        for (Stmt& s : store_tile(h, slot, panel)) out.push_back(std::move(s));
      return out;
    });
  })};
}

ir::Expr Emitter::place_of_sums(const Expr& slot, const Expr& panel) const {
  return slot * Expr(columns_) + panel * Expr(kSide * kSide);
}

kernel::Body Emitter::store_tile(const Height& h, const Expr& slot, const Expr& panel) {
  const Panels all{2, 0, columns_ / kSide, 0, false};
  return store_results(h, slot, all, panel, [&](const Expr& r, const Expr& c) {
    return load(sums_, place_of_sums(slot, panel) + r * Expr(kSide) + c);
  });
}

}  // namespace heddle::lower::attention

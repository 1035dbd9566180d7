// Attention of bf16: words of two terms, and queries copied with their terms padded, as tile
// registers have them, too; and what one instruction multiplies and adds up of such words
// (AVX512-BF16). Weights are rounded to bf16 as they are made, where the products of values read
// them.
#include "kernel/halves.h"
#include "lower/attention/emit.h"
#include "support/math.h"

namespace heddle::lower::attention {

using ir::ScalarFn;
using kernel::Binding;
using kernel::BufferId;
using kernel::Value;

Value Emitter::word(const Value& first, const Value& second) {
  const auto bits = [](const Value& v) {
    return kernel::upper_half(apply(ScalarFn::round_bf16, {v}));
  };
  return kernel::packed(std::vector{bits(first), bits(second)});
}

/// Two neighbours of a buffer of bf16.
Value Emitter::word_at(BufferId b, const Expr& at) const {
  return kernel::packed(
      std::vector{kernel::upper_half(load(b, at)), kernel::upper_half(load(b, at + Expr(1)))});
}

/// The task's rows, terms beyond the last zeros.
kernel::Body Emitter::copy_queries() {
  return each_tile([&](const Height& h, const Expr& slot) {
    return Body{each(0, h.rows, Binding::serial, [&](const Expr& r) {
      return Body{each(0, padded_depth_ / lanes_, Binding::serial, [&](const Expr& c) {
        return Body{each(0, lanes_, Binding::vector, [&](const Expr& l) {
          const Expr term = c * Expr(lanes_) + l;
          Value v = at(q_, {{a_.row, h.first + r}, {a_.depth, term}});
          if (padded_depth_ > depth_) v = kernel::guard({{term, 0, depth_}}, v, f32(0));
          return Body{kernel::store(queries_, (slot + r) * Expr(padded_depth_) + term, v)};
        })};
      })};
    })};
  });
}

/// [pair of terms][nv·lanes], or as tile registers have them, zeros beyond the last of both; as
/// many keys' terms as there are lanes are transposed in registers.
kernel::Body Emitter::key_words(const Expr& base, const Expr& first, const Panels& p) {
  const BufferId kept =
      buffer("terms", lanes_ * lanes_, kernel::Scope::lane, static_cast<int>(lanes_));
  const std::int64_t width = p.nv * lanes_, whole = depth_ / lanes_;
  const auto block_of = [&](const Expr& block, const Expr& c, bool partial) {
    Body out{each(0, lanes_, Binding::unroll, [&](const Expr& u) {
      return Body{each(0, lanes_, Binding::vector, [&](const Expr& l) {
        const Expr key = first + c * Expr(lanes_) + l, term = block * Expr(lanes_) + u;
        std::vector<ir::Condition> inside;
        if (p.partial) inside.push_back({key, 0, keys_});
        if (partial) inside.push_back({term, 0, depth_});
        Value v = at(key_, {{a_.key, key}, {a_.depth, term}});
        if (!inside.empty()) v = kernel::guard(inside, v, f32(0));
        return Body{kernel::store(kept, u * Expr(lanes_) + l, v)};
      })};
    })};
    out.push_back(each(0, lanes_ / 2, Binding::unroll, [&](const Expr& pair) {
      const Expr to = base + (b_.in_tiles() ? place_in_tiles(block, c, pair)
                                            : (block * Expr(lanes_ / 2) + pair) * Expr(width) +
                                                  c * Expr(lanes_));
      return Body{each(0, lanes_, Binding::vector, [&](const Expr& l) {
        const Expr from = pair * Expr(2 * lanes_) + l;
        return Body{kernel::store(packed_keys_, to + l,
                                  word(load(kept, from), load(kept, from + Expr(lanes_))))};
      })};
    }));
    return out;
  };
  const auto blocks = [&](std::int64_t begin, std::int64_t end, bool partial) {
    return each(begin, end, Binding::serial, [&](const Expr& block) {
      return Body{each(0, p.nv, Binding::serial,
                       [&](const Expr& c) { return block_of(block, c, partial); })};
    });
  };
  Body out;
  const std::int64_t all = padded_depth_ / lanes_;
  if (whole > 0) out.push_back(blocks(0, whole, false));
  if (whole < all) out.push_back(blocks(whole, all, true));
  return out;
}

}  // namespace heddle::lower::attention

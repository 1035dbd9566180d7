#pragma once
#include <optional>

#include "ops/util.h"

/// What the spellings of attention share.
namespace heddle::ops {

/// [B, S, heads·d] → [B, heads, S, d]; rank 4 stays.
Result<NodeId> split_heads(const Call& call, Builder& b, NodeId x, std::int64_t heads);
/// And back.
NodeId join_heads(Builder& b, NodeId x);

struct Scores {
  NodeId q, k, v;  ///< [B, heads, S, d], [B, kv, T, d], [B, kv, T, dv]
  double scale = 1;
  std::int64_t causal_offset = -1;  ///< query s sees keys up to s + offset; -1: all
  double softcap = 0;
  std::optional<NodeId> bias;  ///< added to the scores, broadcasts to [B, heads, S, T]
  DType softmax_type = DType::f32;
};
struct Attended {
  NodeId y, raw, biased, capped, weights;
};
Result<Attended> attend(const Call& call, Builder& b, Scores a);
/// 0 where a boolean mask holds, -inf elsewhere; other masks are added as they are.
NodeId additive(Builder& b, NodeId mask, DType type, double hidden);
/// Rotates pairs of x [B, heads, S, d]: (x0, x1) → (x0 c - x1 s, x0 s + x1 c), c and s [B|1, 1, S,
/// d'/2]; pairs are neighbours when interleaved, else d'/2 apart.
NodeId rotate(Builder& b, NodeId x, NodeId c, NodeId s, bool interleaved);

}  // namespace heddle::ops

#pragma once
#include "ops/util.h"

/// What the families of quantised operators share.
namespace heddle::ops {

/// The scale and zero point that map a tensor's range, with 0 in it, to u8: f32[] both. A range
/// that is only 0 has scale 1, as in ONNX Runtime: 0 would make NaN of whatever divides by it.
struct DynamicScale {
  NodeId scale, zero;
};
DynamicScale dynamic_scale(Builder& b, NodeId x);

/// Numbers of 2, 4 or 8 bits in bytes, as i32: the last dimension is 8/bits times as long, from the
/// low end of each byte.
NodeId unpacked(Builder& b, NodeId bytes, std::int64_t bits);

}  // namespace heddle::ops

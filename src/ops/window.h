#pragma once
#include "ops/util.h"

/// Geometry of windows over [N, C, spatial…], shared by convolution and pooling.
namespace heddle::ops {

/// Most that a kernel extent, stride or dilation may be; products of two stay far below overflow.
constexpr std::int64_t kMaxStep = 1 << 20;

struct Window {
  Shape kernel, out;  ///< extents per spatial dimension
  Builder::Conv conv;
};

/// Windows of `kernel` over extents `in`, by strides, dilations, pads, auto_pad; with `ceil` a last
/// window may hang over the end, but must start inside.
Result<Window> window_of(const Call& call, const Shape& in, Shape kernel, bool ceil);
/// Output extents of a transposed convolution, and the pads that give them.
Result<Window> transposed_window(const Call& call, const Shape& in, const Shape& kernel);
/// Checks x [N, C, spatial…] against w [O, C/groups, kernel…]; the geometry that joins them.
Result<Builder::Conv> conv_geometry(const Call& call, const Shape& x, const Shape& w);

inline Shape spatial_of(const Shape& shape) { return {shape.begin() + 2, shape.end()}; }
/// first, first+1, …, rank-1.
std::vector<int> axes_from(int first, int rank);
/// A vector [C] as [1, C, 1, …], to broadcast against a value of the rank.
NodeId per_channel(Builder& b, NodeId v, int rank);
/// [N, spatial…, C] as [N, C, spatial…], and back.
NodeId channels_first(Builder& b, NodeId x);
NodeId channels_last(Builder& b, NodeId x);
Status want_channels(const Call& call, Builder& b, int i, std::int64_t channels);
/// Fails unless input i has the element type of input 0.
Status want_like(const Call& call, Builder& b, int i);
/// (Σ |x|^p)^(1/p)
NodeId lp_norm(Builder& b, NodeId x, std::vector<int> axes, double p, bool keep);

}  // namespace heddle::ops

#include "ops/families.h"
#include "ops/window.h"

/// Convolution and transposed convolution of any rank.
namespace heddle::ops {
namespace {

/// y plus the optional bias [O] of input 2.
Result<NodeId> with_bias(const Call& call, Builder& b, NodeId y) {
  if (!call.has(2)) return y;
  HEDDLE_TRY(want_channels(call, b, 2, at(b.shape(y), 1)));
  HEDDLE_TRY(want_like(call, b, 2));
  return b.add(y, per_channel(b, call.in(2), b.rank(y)));
}

Result<Values> conv(const Call& call, Builder& b) {
  HEDDLE_TRY(want_number(call, b, 0));
  HEDDLE_TRY(want_like(call, b, 1));
  const Builder::Conv geometry =
      HEDDLE_TRY(conv_geometry(call, b.shape(call.in(0)), b.shape(call.in(1))));
  const NodeId y = b.conv(call.in(0), call.in(1), geometry);
  return Values{HEDDLE_TRY(with_bias(call, b, y))};
}

Result<Values> conv_transpose(const Call& call, Builder& b) {
  HEDDLE_TRY(want_float(call, b, 0));
  HEDDLE_TRY(want_like(call, b, 1));
  HEDDLE_TRY(want_rank(call, b, 0, 3, 8));
  const Shape x = b.shape(call.in(0)), w = b.shape(call.in(1));
  const std::int64_t groups = call.attribute_int("group", 1);
  if (w.size() != x.size() || groups < 1 || groups > x[1] || x[1] != w[0] || w[0] % groups != 0)
    return call.error("input has shape {}, weights {}, which do not fit in {} groups", to_string(x),
                      to_string(w), groups);
  Window window = HEDDLE_TRY(transposed_window(call, spatial_of(x), spatial_of(w)));
  window.conv.groups = groups;
  const auto channels = checked_product({w[1], groups}, 0, 2);
  if (!channels) return call.error("{} groups of {} channels", groups, w[1]);
  Shape out{x[0], *channels};
  out.insert(out.end(), window.out.begin(), window.out.end());
  HEDDLE_TRY(checked(call, out, b.dtype(call.in(0))));
  const NodeId y = b.conv_transpose(call.in(0), call.in(1), window.conv, window.out);
  return Values{HEDDLE_TRY(with_bias(call, b, y))};
}

constexpr OpDef kConvOps[] = {
    {"Conv", 1, 2, 3, conv},
    {"ConvTranspose", 1, 2, 3, conv_transpose},
};

}  // namespace

std::span<const OpDef> conv_ops() { return kConvOps; }

}  // namespace heddle::ops

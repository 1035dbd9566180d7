// Sums of products: matrix multiplication and convolution in all their forms are one Contract.
#include <algorithm>
#include <numeric>

#include "prim/access.h"
#include "prim/builder.h"

namespace heddle::prim {

using ir::Expr;
using ir::Var;

namespace {

/// An access that is never inside keeps a condition that says so.
Access simplified_or_never(const Access& a, const Shape& variables) {
  if (auto s = simplified(a, variables)) return *std::move(s);
  Access never;
  never.index.assign(a.index.size(), Expr(0));
  never.inside.push_back({Expr(0), 1, 2});
  return never;
}

}  // namespace

NodeId Builder::contract(NodeId lhs, NodeId rhs, Shape out, Shape reduced, Access lhs_access,
                         Access rhs_access, DType result) {
  HEDDLE_CHECK(
      lhs_access.index.size() == shape(lhs).size() && rhs_access.index.size() == shape(rhs).size(),
      "contraction of {} and {}: {} and {} coordinates", to_string(type(lhs)), to_string(type(rhs)),
      lhs_access.index.size(), rhs_access.index.size());
  Shape variables = out;
  variables.insert(variables.end(), reduced.begin(), reduced.end());
  Contract c{std::move(reduced), simplified_or_never(lhs_access, variables),
             simplified_or_never(rhs_access, variables)};
  return graph_.add(std::move(c), {lhs, rhs}, {result, std::move(out)});
}

NodeId Builder::matmul(NodeId a, NodeId b) {
  const Shape &sa = shape(a), &sb = shape(b);
  HEDDLE_CHECK(!sa.empty() && !sb.empty() && dtype(a) == dtype(b), "matmul of {} and {}",
               to_string(type(a)), to_string(type(b)));
  const bool row = sa.size() > 1, column = sb.size() > 1;
  const std::int64_t k = sa.back(), kb = column ? sb[sb.size() - 2] : sb[0];
  HEDDLE_CHECK(k == kb, "matmul of {} and {}", to_string(type(a)), to_string(type(b)));
  const std::size_t batch_a = row ? sa.size() - 2 : 0, batch_b = column ? sb.size() - 2 : 0;
  const std::size_t batch = std::max(batch_a, batch_b);
  Shape out(batch, 1);
  const auto merge = [&](const Shape& s, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
      std::int64_t& extent = out[batch - count + i];
      HEDDLE_CHECK(extent == 1 || s[i] == 1 || extent == s[i], "matmul of {} and {}",
                   to_string(type(a)), to_string(type(b)));
      if (s[i] != 1) extent = s[i];
    }
  };
  merge(sa, batch_a);
  merge(sb, batch_b);
  if (row) out.push_back(sa[sa.size() - 2]);
  if (column) out.push_back(sb.back());
  const Expr m = var(batch), n = var(batch + (row ? 1 : 0)), r = var(out.size());
  Access la, ra;
  for (std::size_t i = 0; i < batch_a; ++i)
    la.index.push_back(sa[i] == 1 ? Expr(0) : var(batch - batch_a + i));
  if (row) la.index.push_back(m);
  la.index.push_back(r);
  for (std::size_t i = 0; i < batch_b; ++i)
    ra.index.push_back(sb[i] == 1 ? Expr(0) : var(batch - batch_b + i));
  ra.index.push_back(r);
  if (column) ra.index.push_back(n);
  const DType t = dtype(a);
  return contract(a, b, std::move(out), {k}, std::move(la), std::move(ra), t);
}

NodeId Builder::conv(NodeId x, NodeId w, const Conv& conv) {
  const Shape &sx = shape(x), &sw = shape(w);
  HEDDLE_CHECK(sx.size() >= 2 && sw.size() == sx.size(), "conv of {} with {}", to_string(type(x)),
               to_string(type(w)));
  const std::size_t spatial = sx.size() - 2;
  const std::int64_t g = conv.groups, per_group_in = sw[1];
  HEDDLE_CHECK(g >= 1 && sx[1] == per_group_in * g && sw[0] % g == 0 &&
                   conv.strides.size() == spatial && conv.dilations.size() == spatial &&
                   conv.pads_begin.size() == spatial && conv.pads_end.size() == spatial,
               "conv of {} with {} in {} groups", to_string(type(x)), to_string(type(w)), g);
  const std::int64_t per_group_out = std::max<std::int64_t>(sw[0] / g, 1);
  Shape out = {sx[0], sw[0]}, reduced = {per_group_in};
  for (std::size_t s = 0; s < spatial; ++s) {
    const std::int64_t window = conv.dilations[s] * (sw[2 + s] - 1) + 1;
    const std::int64_t padded = sx[2 + s] + conv.pads_begin[s] + conv.pads_end[s];
    HEDDLE_CHECK(padded >= window, "conv of {} with {}: window larger than the padded input",
                 to_string(type(x)), to_string(type(w)));
    out.push_back((padded - window) / conv.strides[s] + 1);
    reduced.push_back(sw[2 + s]);
  }
  const std::size_t first = out.size();
  Access xa, wa;
  xa.index = {var(0), ir::floor_div(var(1), per_group_out) * per_group_in + var(first)};
  if (g == 1) xa.index[1] = var(first);
  wa.index = {var(1), var(first)};
  for (std::size_t s = 0; s < spatial; ++s) {
    const Expr k = var(first + 1 + s);
    const Expr at = var(2 + s) * conv.strides[s] + k * conv.dilations[s] - conv.pads_begin[s];
    xa.index.push_back(at);
    xa.inside.push_back({at, 0, sx[2 + s]});
    wa.index.push_back(k);
  }
  const DType t = dtype(x);
  return contract(x, w, std::move(out), std::move(reduced), std::move(xa), std::move(wa), t);
}

namespace {

/// A transposed convolution of stride s computes s^d phases: output position y meets only the taps
/// k ≡ y + pad (mod s). So it is a plain convolution with s^d times the channels and 1/s^d of the
/// taps, and a view that deals the channels out (sub-pixel convolution, Shi et al., CVPR'16). It
/// fills vectors where one phase has few channels. `conv` has no dilation.
NodeId phases_as_channels(Builder& b, NodeId x, NodeId w, const Builder::Conv& conv,
                          const Shape& out_spatial) {
  const Shape sx = b.shape(x), sw = b.shape(w);
  const std::size_t spatial = out_spatial.size();
  const std::int64_t g = conv.groups, group_in = sx[1] / g, group_out = sw[1];
  std::int64_t phases = 1;
  for (const std::int64_t stride : conv.strides) phases *= stride;
  Shape filters = {group_out * g * phases, group_in}, out = {sx[0], group_out * g};
  Builder::Conv plain{Shape(spatial, 1), Shape(spatial, 1), {}, {}, g};
  const Expr channel = ir::floor_div(var(0), phases);
  Access wa, ya;
  wa.index = {ir::floor_div(channel, group_out) * group_in + var(1),
              ir::floor_mod(channel, group_out)};
  ya.index = {var(0), var(1) * phases};
  std::int64_t rest = phases;
  for (std::size_t s = 0; s < spatial; ++s) {
    const std::int64_t stride = conv.strides[s], pad = conv.pads_begin[s];
    const std::int64_t taps = (sw[2 + s] + stride - 1) / stride, first = pad / stride;
    const std::int64_t extent = (out_spatial[s] - 1 + pad) / stride - first + 1;
    rest /= stride;
    const Expr phase = ir::floor_mod(ir::floor_div(var(0), rest), stride);
    const Expr k = phase + (Expr(taps - 1) - var(2 + s)) * stride;
    wa.index.push_back(k);
    wa.inside.push_back({k, 0, sw[2 + s]});
    filters.push_back(taps);
    plain.pads_begin.push_back(taps - 1 - first);
    plain.pads_end.push_back(extent - 1 + first - (sx[2 + s] - 1));
    const Expr y = var(2 + s) + pad;
    ya.index[1] = ya.index[1] + ir::floor_mod(y, stride) * rest;
    ya.index.push_back(ir::floor_div(y, stride) - first);
    out.push_back(out_spatial[s]);
  }
  return b.view(b.conv(x, b.view(w, filters, wa), plain), out, ya);
}

/// e with 0 <= e < m and e·a ≡ 1 (mod m), for a and m without common factor.
std::int64_t inverse_modulo(std::int64_t a, std::int64_t m) {
  for (std::int64_t e = 1; e < m; ++e)
    if (e * (a % m) % m == 1) return e;
  return 0;
}

/// The phases as a batch of convolutions over exactly their own positions: y = s·q + p meets the
/// taps k = φ + s·j with φ·dilation ≡ p + pad (mod s), at x[q + (p + pad - φ·dilation)/s -
/// j·dilation]. Strides and dilations have no common factor.
NodeId phases_apart(Builder& b, NodeId x, NodeId w, const Builder::Conv& conv,
                    const Shape& out_spatial) {
  const Shape sx = b.shape(x), sw = b.shape(w);
  const std::size_t spatial = out_spatial.size(), first = 2 + 2 * spatial;
  const std::int64_t g = conv.groups, group_in = sx[1] / g, group_out = sw[1];
  // The product is [N, phases…, O, q…], the filters [phases…, O, channels, taps…].
  Shape out = {sx[0]}, filters = conv.strides, reduced = {group_in};
  out.insert(out.end(), conv.strides.begin(), conv.strides.end());
  out.push_back(group_out * g);
  filters.insert(filters.end(), {group_out * g, group_in});
  const Expr group = ir::floor_div(var(1 + spatial), group_out);
  Access xa{{var(0), g == 1 ? var(first) : group * group_in + var(first)}, {}}, fa, wa, ya;
  for (std::size_t s = 0; s <= spatial; ++s) fa.index.push_back(var(1 + s));
  fa.index.push_back(var(first));
  wa.index = {ir::floor_div(var(spatial), group_out) * group_in + var(spatial + 1),
              ir::floor_mod(var(spatial), group_out)};
  ya.index = {var(0)};
  for (std::size_t s = 0; s < spatial; ++s)
    ya.index.push_back(ir::floor_mod(var(2 + s), conv.strides[s]));
  ya.index.push_back(var(1));
  for (std::size_t s = 0; s < spatial; ++s) {
    const std::int64_t stride = conv.strides[s], dilation = conv.dilations[s];
    const std::int64_t taps = (sw[2 + s] + stride - 1) / stride, pad = conv.pads_begin[s];
    const auto phi = [&](const Expr& p) {
      return ir::floor_mod((p + pad) * inverse_modulo(dilation, stride), stride);
    };
    const Expr p = var(1 + s), t = var(first + 1 + s);
    const Expr at = var(2 + spatial + s) + ir::floor_div(p + pad - phi(p) * dilation, stride) +
                    (t - (taps - 1)) * dilation;
    xa.index.push_back(at);
    xa.inside.push_back({at, 0, sx[2 + s]});
    fa.index.push_back(t);
    const Expr k = phi(var(s)) + (Expr(taps - 1) - var(spatial + 2 + s)) * stride;
    wa.index.push_back(k);
    wa.inside.push_back({k, 0, sw[2 + s]});
    ya.index.push_back(ir::floor_div(var(2 + s), stride));
    out.push_back((out_spatial[s] + stride - 1) / stride);
    filters.push_back(taps);
    reduced.push_back(taps);
  }
  Shape dealt = {sx[0], group_out * g};
  dealt.insert(dealt.end(), out_spatial.begin(), out_spatial.end());
  const NodeId z = b.contract(x, b.view(w, filters, wa), std::move(out), std::move(reduced),
                              std::move(xa), std::move(fa), b.dtype(x));
  return b.view(z, dealt, ya);
}

}  // namespace

NodeId Builder::conv_transpose(NodeId x, NodeId w, const Conv& conv, Shape out_spatial) {
  const Shape &sx = shape(x), &sw = shape(w);
  const std::size_t spatial = sx.size() - 2;
  const std::int64_t g = conv.groups;
  HEDDLE_CHECK(
      sx.size() >= 2 && sw.size() == sx.size() && g >= 1 && sx[1] == sw[0] && sx[1] % g == 0 &&
          conv.strides.size() == spatial && conv.dilations.size() == spatial &&
          conv.pads_begin.size() == spatial && out_spatial.size() == spatial,
      "transposed conv of {} with {} in {} groups", to_string(type(x)), to_string(type(w)), g);
  bool strided = false, phases = element_count(sx) * element_count(sw) != 0, plain = true;
  for (std::size_t s = 0; s < spatial; ++s) {
    strided |= conv.strides[s] > 1;
    // A stride above the kernel's extent, or one that divides steps, has phases without taps.
    phases &= std::gcd(conv.dilations[s], conv.strides[s]) == 1 && conv.strides[s] <= sw[2 + s] &&
              out_spatial[s] > 0;
    plain &= conv.dilations[s] == 1 && conv.pads_begin[s] >= 0;
  }
  constexpr std::int64_t kVector = 16;
  if (strided && phases && sw[1] >= kVector) return phases_apart(*this, x, w, conv, out_spatial);
  if (strided && phases && plain) return phases_as_channels(*this, x, w, conv, out_spatial);
  const std::int64_t group_out = sw[1], group_in = sx[1] / g;
  Shape out = {sx[0], group_out * g}, reduced = {group_in};
  out.insert(out.end(), out_spatial.begin(), out_spatial.end());
  reduced.insert(reduced.end(), sw.begin() + 2, sw.end());
  const std::size_t first = out.size();
  const std::int64_t divisor = std::max<std::int64_t>(group_out, 1);
  const Expr channel = g == 1 ? var(first) : ir::floor_div(var(1), divisor) * group_in + var(first);
  Access xa, wa;
  xa.index = {var(0), channel};
  wa.index = {channel, g == 1 ? var(1) : ir::floor_mod(var(1), divisor)};
  for (std::size_t s = 0; s < spatial; ++s) {
    // Output position y gets x[i]·w[k] where y + pad = i·stride + k·dilation.
    const Expr k = var(first + 1 + s);
    const Expr reach = var(2 + s) + conv.pads_begin[s] - k * conv.dilations[s];
    const Expr at = ir::floor_div(reach, conv.strides[s]);
    xa.index.push_back(at);
    xa.inside.push_back({ir::floor_mod(reach, conv.strides[s]), 0, 1});
    xa.inside.push_back({at, 0, sx[2 + s]});
    wa.index.push_back(k);
  }
  const DType t = dtype(x);
  return contract(x, w, std::move(out), std::move(reduced), std::move(xa), std::move(wa), t);
}

NodeId Builder::windows(NodeId x, Shape kernel, const Conv& conv, Shape out_spatial, double fill) {
  const Shape& sx = shape(x);
  const std::size_t spatial = kernel.size();
  HEDDLE_CHECK(sx.size() == spatial + 2 && out_spatial.size() == spatial &&
                   conv.strides.size() == spatial && conv.dilations.size() == spatial &&
                   conv.pads_begin.size() == spatial,
               "windows {} of {}", to_string(kernel), to_string(type(x)));
  Access a;
  a.index = {var(0), var(1)};
  for (std::size_t s = 0; s < spatial; ++s) {
    const Expr at = var(2 + s) * conv.strides[s] + var(2 + spatial + s) * conv.dilations[s] -
                    conv.pads_begin[s];
    a.index.push_back(at);
    a.inside.push_back({at, 0, sx[2 + s]});
  }
  Shape out = {sx[0], sx[1]};
  out.insert(out.end(), out_spatial.begin(), out_spatial.end());
  out.insert(out.end(), kernel.begin(), kernel.end());
  return view(x, std::move(out), std::move(a), fill);
}

}  // namespace heddle::prim

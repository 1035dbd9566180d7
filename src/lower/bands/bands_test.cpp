// Chains of convolutions as one kernel agree with the primitives, in the kernel interpreter.
#include "lower/bands/bands.h"

#include <algorithm>

#include "lower/contract/test_util.h"

namespace heddle::lower {
namespace {

NodeId convolved(Case& c, NodeId x, std::int64_t channels, std::int64_t taps, std::int64_t stride,
                 std::int64_t pad, bool depthwise = false, std::int64_t dilation = 1) {
  const std::int64_t in = c.g[x].type.shape[1];
  const NodeId filter = c.constant({channels, depthwise ? 1 : in, taps, taps});
  const NodeId bias = c.constant({1, channels, 1, 1});
  const NodeId y = c.b.conv(x, filter, conv(2, stride, pad, dilation, depthwise ? in : 1));
  return c.b.add(y, bias);
}
/// An input that lies channels-last.
NodeId image(Case& c, const Shape& shape) {
  const NodeId x = c.input(shape);
  c.layouts[x] = ordered(shape, {0, 2, 3, 1});
  return x;
}
NodeId pooled(Case& c, NodeId x, ir::Monoid fn, std::int64_t taps, std::int64_t stride,
              std::int64_t pad) {
  const Shape& in = c.g[x].type.shape;
  const auto out = [&](std::size_t d) { return (in[d] + 2 * pad - taps) / stride + 1; };
  const double fill = fn == ir::Monoid::max ? -std::numeric_limits<double>::infinity() : 0;
  const NodeId windows = c.b.windows(x, {taps, taps}, conv(2, stride, pad), {out(2), out(3)}, fill);
  return c.b.reduce(fn, windows, {4, 5}, false);
}
NodeId silu(Case& c, NodeId x) { return c.b.mul(x, c.b.sigmoid(x)); }

struct Chain {
  const char* name;
  std::size_t layers;
  void (*build)(Case&);
};
const Chain kChains[] = {
    {"inverted bottleneck", 3,
     [](Case& c) {
       const NodeId x = image(c, {1, 6, 21, 19});
       const NodeId wide = c.b.relu(convolved(c, x, 24, 1, 1, 0));
       const NodeId deep = c.b.relu(convolved(c, wide, 24, 3, 1, 1, true));
       c.output(c.b.add(convolved(c, deep, 6, 1, 1, 0), x));
     }},
    {"stride of two, two images", 3,
     [](Case& c) {
       const NodeId x = c.input({2, 5, 23, 17});
       const NodeId wide = silu(c, convolved(c, x, 20, 1, 1, 0));
       const NodeId deep = silu(c, convolved(c, wide, 20, 3, 2, 1, true));
       c.output(convolved(c, deep, 9, 1, 1, 0));
     }},
    {"stem", 3,
     [](Case& c) {
       const NodeId x = c.input({1, 3, 41, 37});
       const NodeId stem = c.b.relu(convolved(c, x, 16, 3, 2, 1));
       const NodeId deep = c.b.relu(convolved(c, stem, 16, 3, 1, 1, true));
       c.output(c.b.relu(convolved(c, deep, 10, 1, 1, 0)));
     }},
    {"wide windows, no padding", 3,
     [](Case& c) {
       const NodeId x = image(c, {1, 8, 30, 16});
       const NodeId wide = convolved(c, x, 32, 1, 1, 0);
       const NodeId deep = c.b.relu(convolved(c, wide, 32, 5, 1, 0, true));
       c.output(convolved(c, deep, 18, 1, 1, 0));
     }},
    {"dilated, ends in the window", 2,
     [](Case& c) {
       const NodeId x = c.input({2, 4, 19, 22});
       const NodeId wide = c.b.relu(convolved(c, x, 17, 1, 1, 0));
       c.output(c.b.relu(convolved(c, wide, 17, 3, 1, 2, true, 2)));
     }},
    {"pooled", 2,
     [](Case& c) {
       const NodeId x = c.input({1, 3, 43, 29});
       const NodeId y = c.b.relu(convolved(c, x, 20, 3, 1, 1));
       c.output(pooled(c, y, ir::Monoid::max, 3, 2, 1));
     }},
    {"averaged between, two images", 3,
     [](Case& c) {
       const NodeId x = image(c, {2, 18, 24, 20});
       const NodeId wide = silu(c, convolved(c, x, 34, 1, 1, 0));
       const NodeId half = c.b.mul(pooled(c, wide, ir::Monoid::sum, 2, 1, 0), 0.25);
       c.output(convolved(c, half, 20, 1, 1, 0));
     }},
    {"more bands than blocks of the first layer", 2,
     [](Case& c) {
       const NodeId x = image(c, {1, 16, 16, 64});
       const NodeId wide = c.b.relu(convolved(c, x, 16, 1, 1, 0));
       Builder::Conv below = conv(2, 2, 0, 1, 16);
       below.pads_end = {4, 0};
       c.output(c.b.relu(c.b.conv(wide, c.constant({16, 1, 2, 2}), below)));
     }},
    {"two windows", 3,
     [](Case& c) {
       const NodeId x = image(c, {1, 16, 40, 20});
       const NodeId first = c.b.relu(convolved(c, x, 16, 3, 1, 1));
       const NodeId second = c.b.relu(convolved(c, first, 24, 3, 2, 1));
       c.output(convolved(c, second, 20, 1, 1, 0));
     }},
};

TEST(Bands, AgreeWithThePrimitives) {
  for (const Chain& chain : kChains)
    for (const int bytes : {16, 64})
      for (const std::int64_t rows : {0, 3, 64}) {
        Case c;
        c.target.l2_bytes = 40 << 10;
        c.target.vector_bytes = bytes;
        c.target.vector_registers = bytes == 64 ? 32 : 16;
        if (rows > 0) c.tuning = {{"rows", rows}};
        chain.build(c);
        const auto found = bands::clusters(c.g, c.target);
        const Request request = request_of(c);
        ASSERT_EQ(std::count(found.begin(), found.end(), request.cluster), 1) << chain.name;
        EXPECT_EQ(bands::layers_of(c.g, request.cluster).size(), chain.layers) << chain.name;
        const auto lowered = bands::lower(request);
        ASSERT_TRUE(lowered.ok()) << chain.name << ": " << lowered.error().message;
        const Status sound = kernel::verify(lowered->kernel);
        ASSERT_TRUE(sound.ok()) << chain.name << " " << lowered->schedule << ": "
                                << sound.error().message << kernel::to_string(lowered->kernel);
        EXPECT_EQ(run(c, *lowered), "") << chain.name << " " << lowered->schedule;
      }
}

/// What comes before the first layer would be computed again for each of its taps.
TEST(Bands, BeginWithALayer) {
  Case c;
  c.target.l2_bytes = 40 << 10;
  const NodeId x = c.b.relu(image(c, {1, 32, 30, 26}));
  const NodeId deep = c.b.relu(convolved(c, x, 32, 3, 1, 1, true));
  c.output(convolved(c, deep, 18, 1, 1, 0));
  Request all = request_of(c);
  EXPECT_FALSE(bands::supports(c.g, all.cluster, c.target));
  std::erase(all.cluster.nodes, x);
  EXPECT_TRUE(bands::supports(c.g, all.cluster, c.target));
}

/// A layer of random kind, where the image is large enough for it.
NodeId random_layer(Case& c, NodeId x, bool first, std::mt19937& random) {
  const auto any = [&](int low, int high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random);
  };
  const Shape shape = c.g[x].type.shape;  // nodes added move it
  const std::int64_t room = std::min(shape[2], shape[3]);
  const std::int64_t taps = room > 12 ? 2 * any(0, 2) + 1 : 1, stride = room > 12 ? any(1, 2) : 1;
  const std::int64_t dilation = taps == 3 && room > 12 ? any(1, 2) : 1;
  const std::int64_t pad = any(0, taps / 2 * dilation);
  NodeId y;
  switch (first ? 2 : any(taps > 1 ? 0 : 1, 3)) {
    case 0:
      y = pooled(c, x, any(0, 1) == 0 ? ir::Monoid::max : ir::Monoid::sum, taps, stride,
                 std::min(pad, taps / 2));
      break;
    case 1:
      y = convolved(c, x, shape[1], taps, stride, pad, true, dilation);
      break;
    default:
      y = convolved(c, x, any(16, 40), taps, stride, pad, false, dilation);
  }
  const std::int64_t after = any(0, 2);
  return after == 0 ? y : after == 1 ? c.b.relu(y) : silu(c, y);
}

/// Random chains; some are none (little between layers, few channels).
TEST(Bands, OfRandomLayersAgree) {
  int checked = 0;
  for (unsigned seed = 0; seed < 100; ++seed) {
    std::mt19937 random(seed);
    const auto any = [&](int low, int high) {
      return std::uniform_int_distribution<std::int64_t>(low, high)(random);
    };
    Case c;
    c.target.l2_bytes = any(24, 64) << 10;
    c.target.vector_bytes = 16 << any(0, 2);
    c.target.vector_registers = c.target.vector_bytes == 64 ? 32 : 16;
    c.target.threads = static_cast<int>(any(1, 3));
    c.tolerance = 1e-4;  // sums of hundreds of terms
    NodeId x = image(c, {any(1, 2), any(10, 24), any(9, 34), any(9, 30)});
    const std::int64_t layers = any(2, 3);
    for (std::int64_t i = 0; i < layers; ++i) x = random_layer(c, x, i == 0, random);
    c.output(x);
    const Request request = request_of(c);
    if (!bands::supports(c.g, request.cluster, c.target)) continue;
    const auto lowered = bands::lower(request);
    ASSERT_TRUE(lowered.ok()) << seed << ": " << lowered.error().message;
    const Status sound = kernel::verify(lowered->kernel);
    ASSERT_TRUE(sound.ok()) << seed << " " << lowered->schedule << ": " << sound.error().message;
    ASSERT_EQ(run(c, *lowered), "") << seed << " " << lowered->schedule;
    ++checked;
  }
  EXPECT_GE(checked, 30);
}

}  // namespace
}  // namespace heddle::lower

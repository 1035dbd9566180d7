#include <chrono>

#include "lower/stitch/test_util.h"

namespace heddle::lower {
namespace {

using ir::Monoid;
using ir::ScalarFn;
using prim::Builder;

/// Random graphs of maps, views, reductions and gathers over small, odd shapes.
class Generator {
 public:
  Generator(prim::Graph& g, std::mt19937& rng) : g_(g), b_(g), rng_(rng) {}

  void run() {
    const DType types[] = {DType::f32, DType::f32, DType::f32, DType::f16, DType::f64};
    type_ = types[pick(5)];
    Shape shape;
    for (int i = pick(4); i >= 0; --i) shape.push_back(extent());
    pool_ = {input(shape), input(shape)};
    const int steps = 2 + pick(7);
    for (int i = 0; i < steps; ++i) pool_.push_back(step());
    outputs();
  }

 private:
  int pick(int n) { return static_cast<int>(rng_() % static_cast<unsigned>(n)); }
  std::int64_t extent() {
    const std::int64_t list[] = {1, 2, 3, 5, 7, 8, 9, 16, 17, 33};
    return list[pick(10)];
  }
  NodeId input(Shape shape) {
    return g_.add_input(fmt::format("x{}", g_.inputs.size()), {type_, std::move(shape)});
  }
  NodeId any() { return pool_[static_cast<std::size_t>(pick(static_cast<int>(pool_.size())))]; }
  NodeId recent() { return pick(3) ? pool_.back() : any(); }
  bool fits(const Shape& s) { return element_count(s) <= 20000; }
  std::vector<int> some_axes(int rank) {
    std::vector<int> axes;
    for (int d = 0; d < rank; ++d)
      if (pick(2)) axes.push_back(d);
    if (axes.empty()) axes.push_back(pick(rank));
    return axes;
  }

  NodeId step() {
    const NodeId x = recent();
    const Shape shape = b_.shape(x);
    const int rank = static_cast<int>(shape.size());
    if (rank == 0) return b_.exp(b_.tanh(x));
    switch (pick(14)) {
      case 0:
        return b_.exp(b_.mul(b_.tanh(x), 0.5));
      case 1:
        return b_.relu(x);
      case 2:
        return b_.add(x, partner(shape));
      case 3:
        return b_.mul(b_.tanh(x), b_.tanh(partner(shape)));
      case 4: {
        const auto axes = some_axes(rank);
        const NodeId m = b_.mean(x, axes);
        return pick(2) ? b_.sub(x, m) : m;
      }
      case 5:
        return b_.reduce(pick(2) ? Monoid::max : Monoid::min, x, some_axes(rank),
                         pick(2) || rank == 1);
      case 6:
        return b_.softmax(x, {pick(rank)});
      case 7:
        return b_.normalize(x, some_axes(rank), 0.1);
      case 8: {
        std::vector<int> order(shape.size());
        std::iota(order.begin(), order.end(), 0);
        std::shuffle(order.begin(), order.end(), rng_);
        return b_.transpose(x, order);
      }
      case 9:
        return reshaped(x);
      case 10: {
        Shape before, after;
        for (int d = 0; d < rank; ++d) {
          before.push_back(pick(2));
          after.push_back(pick(3));
        }
        return b_.pad(x, before, after, 0.25);
      }
      case 11: {
        const int axis = pick(rank);
        Shape other = shape;
        other[static_cast<std::size_t>(axis)] = extent();
        return b_.concat({x, input(other)}, axis);
      }
      case 12: {
        const int axis = pick(rank);
        const std::int64_t size = 1 + pick(static_cast<int>(shape[static_cast<std::size_t>(axis)]));
        const auto from = pick(static_cast<int>(shape[static_cast<std::size_t>(axis)] - size + 1));
        return b_.flip(b_.slice_axis(x, axis, from, size), {axis});
      }
      default: {
        const NodeId at = g_.add_input(fmt::format("x{}", g_.inputs.size()), {DType::i64, {3}});
        return b_.take(input(shape), at, pick(rank));
      }
    }
  }

  NodeId reshaped(NodeId x) {
    const std::int64_t n = element_count(b_.shape(x));
    std::vector<std::int64_t> divisors;
    for (std::int64_t d = 1; d <= n; ++d)
      if (n % d == 0) divisors.push_back(d);
    const std::int64_t d =
        divisors[static_cast<std::size_t>(pick(static_cast<int>(divisors.size())))];
    return b_.reshape(x, pick(2) ? Shape{d, n / d} : Shape{1, d, n / d});
  }

  NodeId partner(const Shape& shape) {
    for (NodeId id : pool_)
      if (pick(2) && b_.shape(id) == shape) return id;
    Shape small = shape;
    for (auto& e : small)
      if (pick(2)) e = 1;
    return input(small);
  }

  void outputs() {
    g_.outputs.push_back({"y0", pool_.back()});
    for (std::size_t i = 2; i + 1 < pool_.size(); ++i)
      if (pick(5) == 0 && !g_[pool_[i]].args.empty())
        g_.outputs.push_back({fmt::format("y{}", g_.outputs.size()), pool_[i]});
    const int rank = b_.rank(pool_.back());
    if (rank > 0 && pick(8) == 0) {
      g_.outputs.push_back(
          {fmt::format("y{}", g_.outputs.size()),
           b_.reduce(pick(2) ? Monoid::argmax : Monoid::argmin, pool_.back(), {pick(rank)}, true)});
    }
  }

  prim::Graph& g_;
  Builder b_;
  std::mt19937& rng_;
  DType type_ = DType::f32;
  std::vector<NodeId> pool_;
};

bool small(const prim::Graph& g) {
  for (NodeId id : prim::live_nodes(g)) {
    const Shape& s = g[id].type.shape;
    if (element_count(s) > 20000 || s.size() > 5) return false;
  }
  return true;
}

void random_clusters(bool on_gpu) {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::seconds(4);
  int checked = 0, unsupported = 0;
  const unsigned first = 1;
  for (unsigned seed = first; Clock::now() < end || checked < 50; ++seed) {
    std::mt19937 rng(seed);
    prim::Graph g;
    Generator(g, rng).run();
    if (!small(g) || g[g.outputs[0].node].args.empty()) continue;
    CheckOptions options;
    options.random_layouts = rng() % 2;
    options.free_outputs = rng() % 2;
    options.target.threads = 1 + static_cast<int>(rng() % 4);
    options.target.vector_bytes = rng() % 2 ? 32 : 64;
    if (on_gpu) options.target = gpu_target(1 << rng() % 8);
    const std::string problem = check(g, rng, options);
    if (problem == "not supported") {
      ++unsupported;
      continue;
    }
    ASSERT_EQ(problem, "") << "seed " << seed;
    ++checked;
  }
  // Reductions under changing positions are not supported, most of the rest must be.
  EXPECT_GT(checked, unsupported);
  testing::Test::RecordProperty("checked", checked);
  testing::Test::RecordProperty("unsupported", unsupported);
}

TEST(StitchFuzz, RandomClusters) { random_clusters(false); }
TEST(StitchFuzz, RandomClustersOnGpu) { random_clusters(true); }

}  // namespace
}  // namespace heddle::lower

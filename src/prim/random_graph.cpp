#include "prim/random_graph.h"

#include <algorithm>
#include <numeric>

namespace heddle::prim {
namespace {

using ir::ScalarFn;

class Maker {
 public:
  Maker(Graph& g, std::mt19937& rng) : g_(g), b_(g), rng_(rng) {}

  void make(int steps) {
    for (int i = 0; i < 2; ++i)
      values_.push_back(g_.add_input("x" + std::to_string(i),
                                     {DType::f32, i == 0 ? random_shape() : Shape{4, 6}}));
    for (int i = 0; i < steps; ++i) values_.push_back(step(pick_value()));
    const std::size_t outputs = 1 + rng_() % 2;
    for (std::size_t i = 0; i < outputs; ++i)
      g_.outputs.push_back({"y" + std::to_string(i), values_[values_.size() - 1 - i]});
  }

 private:
  std::int64_t pick(std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(rng_() % static_cast<unsigned>(high - low + 1));
  }
  /// Mostly the newest values, so that chains get long.
  NodeId pick_value() {
    const std::size_t back = rng_() % 3 ? 0 : rng_() % values_.size();
    return values_[values_.size() - 1 - back];
  }
  Shape random_shape() {
    static const Shape kShapes[] = {{4, 6}, {2, 3, 4}, {1, 4, 6}, {2, 4, 4, 3}, {12}, {1, 4, 5, 5}};
    return kShapes[rng_() % 6];
  }
  NodeId constant(Shape shape) {
    Tensor t({DType::f32, std::move(shape)});
    const bool equal = rng_() % 5 == 0;
    for (std::int64_t i = 0; i < t.count(); ++i)
      t.set(i, equal ? 0.5 : static_cast<double>(pick(-6, 6)) / 4 + 0.125);
    return b_.constant(t);
  }
  double number() {
    static constexpr double kNumbers[] = {0, 1, 2, 0.5, -1, 0.3, 4, -0.25};
    return kNumbers[rng_() % 8];
  }
  /// Broadcastable to `shape`: a number, a constant along one axis, or another value of that shape.
  NodeId partner(const Shape& shape) {
    if (rng_() % 4 == 0) return b_.scalar(DType::f32, number());
    if (rng_() % 3 == 0)
      for (std::size_t i = values_.size(); i-- > 0;)
        if (b_.shape(values_[i]) == shape && rng_() % 2) return values_[i];
    Shape small(shape.size(), 1);
    if (!shape.empty()) {
      const std::size_t axis = rng_() % shape.size();
      small[axis] = shape[axis];
    }
    return constant(small);
  }
  int axis(NodeId x) { return static_cast<int>(pick(0, b_.rank(x) - 1)); }

  NodeId elementwise(NodeId x) {
    const Shape shape = b_.shape(x);
    switch (rng_() % 14) {
      case 0:
      case 1:
        return b_.add(x, partner(shape));
      case 2:
        return b_.sub(x, partner(shape));
      case 3:
        return b_.sub(partner(shape), x);
      case 4:
      case 5:
        return b_.mul(x, partner(shape));
      case 6:
        return b_.max(x, partner(shape));
      case 7:
        return b_.neg(x);
      case 8:
        return b_.tanh(x);
      case 9:
        return b_.div(x, b_.add(b_.map(ScalarFn::abs, {partner(shape)}), 1.0));
      case 10:
        return b_.map(ScalarFn::pow, {b_.tanh(x), b_.scalar(DType::f32, double(pick(1, 3)))});
      case 11:
        return b_.sqrt(b_.add(b_.map(ScalarFn::abs, {x}), 0.5));
      case 12:
        return b_.relu(x);
      default:
        return b_.cast(b_.cast(x, DType::f64), DType::f32);
    }
  }
  NodeId movement(NodeId x) {
    const Shape shape = b_.shape(x);
    const int rank = b_.rank(x);
    if (rank == 0) return b_.broadcast(x, {3});
    std::vector<int> order(static_cast<std::size_t>(rank));
    std::iota(order.begin(), order.end(), 0);
    switch (rng_() % 9) {
      case 0:
      case 1: {
        std::shuffle(order.begin(), order.end(), rng_);
        return b_.transpose(x, order);
      }
      case 2: {
        // Merges two neighbours, or splits one by two.
        Shape out = shape;
        const std::size_t k = rng_() % shape.size();
        if (k + 1 < out.size() && rng_() % 2) {
          out[k] *= out[k + 1];
          out.erase(out.begin() + static_cast<std::ptrdiff_t>(k) + 1);
        } else if (out[k] % 2 == 0 && rank < 5) {
          out[k] /= 2;
          out.insert(out.begin() + static_cast<std::ptrdiff_t>(k), 2);
        }
        return b_.reshape(x, out);
      }
      case 3: {
        const int a = axis(x);
        const std::int64_t extent = shape[static_cast<std::size_t>(a)];
        const std::int64_t start = pick(0, extent - 1);
        return b_.slice_axis(x, a, start, pick(1, extent - start));
      }
      case 4: {
        Shape before(shape.size(), 0), after(shape.size(), 0);
        before[rng_() % shape.size()] = pick(0, 2);
        after[rng_() % shape.size()] = pick(0, 2);
        return b_.pad(x, before, after, rng_() % 2 ? 0 : number());
      }
      case 5:
        return b_.flip(x, {axis(x)});
      case 6: {
        const int a = axis(x);
        const NodeId other = rng_() % 2 ? b_.neg(x) : b_.flip(x, {a});
        return element_count(shape) < 300 ? b_.concat({x, other}, a) : x;
      }
      case 7: {
        if (rank >= 5 || element_count(shape) > 200) return b_.squeeze(x, {});
        const int a = static_cast<int>(pick(0, rank));
        Shape out = shape;
        out.insert(out.begin() + a, 3);
        return b_.broadcast(b_.unsqueeze(x, {a}), out);
      }
      default: {
        const int a = axis(x);
        const NodeId index =
            b_.scalar_int(DType::u8, pick(0, shape[static_cast<std::size_t>(a)] - 1));
        return b_.take(x, index, a);
      }
    }
  }
  NodeId reduction(NodeId x) {
    if (b_.rank(x) == 0) return x;
    std::vector<int> axes = {axis(x)};
    if (rng_() % 3 == 0) axes.push_back(axis(x));
    const bool keep = rng_() % 2;
    switch (rng_() % 5) {
      case 0:
        return b_.reduce_max(x, axes, keep);
      case 1:
        return b_.mean(x, axes, keep);
      case 2:
        return b_.normalize(x, axes, 0.25);
      case 3:
        return b_.softmax(x, axes);
      default:
        return b_.tanh(b_.reduce_sum(x, axes, keep));
    }
  }
  NodeId contraction(NodeId x) {
    const Shape shape = b_.shape(x);
    if (shape.size() == 4 && rng_() % 2) {
      const std::int64_t k = std::min<std::int64_t>({pick(1, 3), shape[2], shape[3]});
      const std::int64_t pad = k == 3 ? 1 : 0;
      const NodeId w = constant({4, shape[1], k, k});
      return b_.tanh(maybe_bias(b_.conv(x, w, {{1, 1}, {1, 1}, {pad, pad}, {pad, pad}, 1}), 1));
    }
    if (shape.empty()) return x;
    if (shape.size() >= 2 && rng_() % 3 == 0) {
      std::vector<int> order(shape.size());
      std::iota(order.begin(), order.end(), 0);
      std::swap(order[order.size() - 1], order[order.size() - 2]);
      return b_.tanh(b_.matmul(x, b_.transpose(x, order)));
    }
    const NodeId y = b_.matmul(x, constant({shape.back(), pick(2, 4)}));
    return b_.tanh(maybe_bias(y, b_.rank(y) - 1));
  }
  NodeId maybe_bias(NodeId y, int channel) {
    Shape small(b_.shape(y).size(), 1);
    small[static_cast<std::size_t>(channel)] = b_.shape(y)[static_cast<std::size_t>(channel)];
    if (rng_() % 2) y = b_.add(y, constant(small));
    if (rng_() % 2) y = b_.mul(y, constant(small));
    if (rng_() % 2) y = b_.add(y, constant(small));
    return y;
  }
  NodeId step(NodeId x) {
    if (element_count(b_.shape(x)) > 600) return b_.mean(x, {axis(x)}, false);
    const auto kind = rng_() % 10;
    if (kind < 4) return elementwise(x);
    if (kind < 7) return movement(x);
    if (kind < 8) return reduction(x);
    return contraction(x);
  }

  Graph& g_;
  Builder b_;
  std::mt19937& rng_;
  std::vector<NodeId> values_;
};

}  // namespace

Graph random_graph(std::mt19937& rng, int steps) {
  Graph g;
  Maker(g, rng).make(steps);
  return g;
}

}  // namespace heddle::prim

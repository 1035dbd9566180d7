#pragma once
#include <algorithm>
#include <numeric>
#include <string>

#include "plan/plan.h"

namespace heddle::plan::test {

using ir::Expr;
using ir::ScalarFn;
using ir::Var;

/// A few lines to write primitive graphs with; everything is f32, weights are inputs.
struct Mini {
  prim::Graph g;

  NodeId input(Shape shape) {
    return g.add_input("x" + std::to_string(g.inputs.size()), {DType::f32, std::move(shape)});
  }
  const Shape& shape(NodeId id) const { return g[id].type.shape; }
  static Expr d(int i) { return Expr(Var{i}); }

  NodeId view(NodeId x, Shape out, std::vector<Expr> index,
              std::vector<ir::Condition> inside = {}) {
    return g.add(prim::View{{{std::move(index), std::move(inside)}}, 0}, {x},
                 {DType::f32, std::move(out)});
  }
  /// Dimension k of x is dimension kept[k] of the result.
  NodeId broadcast(NodeId x, Shape out, const std::vector<int>& kept) {
    std::vector<Expr> index;
    for (int k : kept) index.push_back(d(k));
    return view(x, std::move(out), std::move(index));
  }
  NodeId transpose(NodeId x, const std::vector<int>& order) {
    Shape out;
    std::vector<Expr> index(order.size());
    for (std::size_t i = 0; i < order.size(); ++i) {
      out.push_back(shape(x)[static_cast<std::size_t>(order[i])]);
      index[static_cast<std::size_t>(order[i])] = d(static_cast<int>(i));
    }
    return view(x, std::move(out), std::move(index));
  }
  NodeId scalar(double value, Shape out) {
    Tensor t(TensorType{DType::f32, {}});
    t.set(0, value);
    return broadcast(g.add_constant(t), std::move(out), {});
  }
  NodeId map(ScalarFn fn, std::vector<NodeId> args) {
    Shape s = shape(args[0]);
    return g.add(prim::Map{fn}, std::move(args), {DType::f32, std::move(s)});
  }
  NodeId add(NodeId a, NodeId b) { return map(ScalarFn::add, {a, b}); }
  NodeId sub(NodeId a, NodeId b) { return map(ScalarFn::sub, {a, b}); }
  NodeId mul(NodeId a, NodeId b) { return map(ScalarFn::mul, {a, b}); }
  NodeId div(NodeId a, NodeId b) { return map(ScalarFn::div, {a, b}); }
  NodeId relu(NodeId a) { return map(ScalarFn::max, {a, scalar(0, shape(a))}); }

  NodeId reduce(ir::Monoid fn, NodeId x, std::vector<int> axes) {
    Shape out;
    for (std::size_t i = 0; i < shape(x).size(); ++i) {
      if (std::find(axes.begin(), axes.end(), static_cast<int>(i)) == axes.end()) {
        out.push_back(shape(x)[i]);
      }
    }
    return g.add(prim::Reduce{fn, std::move(axes)}, {x}, {DType::f32, std::move(out)});
  }
  NodeId sum(NodeId x, std::vector<int> axes) {
    return reduce(ir::Monoid::sum, x, std::move(axes));
  }
  /// A reduced value spread over the shape it came from.
  NodeId spread(NodeId x, const Shape& out, const std::vector<int>& axes) {
    std::vector<int> kept;
    for (int i = 0; i < static_cast<int>(out.size()); ++i) {
      if (std::find(axes.begin(), axes.end(), i) == axes.end()) kept.push_back(i);
    }
    return broadcast(x, out, kept);
  }
  NodeId mean(NodeId x, const std::vector<int>& axes) {
    NodeId s = sum(x, axes);
    const double n =
        static_cast<double>(element_count(shape(x))) / static_cast<double>(element_count(shape(s)));
    return mul(s, scalar(1 / n, shape(s)));
  }
  /// (x - mean) / sqrt(var + eps) · scale + bias, with scale and bias over dimension `channel`.
  NodeId normalize(NodeId x, const std::vector<int>& axes, int channel, NodeId scale, NodeId bias) {
    const Shape s = shape(x);
    NodeId centred = sub(x, spread(mean(x, axes), s, axes));
    NodeId variance = mean(mul(centred, centred), axes);
    NodeId deviation = map(ScalarFn::sqrt, {add(variance, scalar(1e-5, shape(variance)))});
    NodeId y = div(centred, spread(deviation, s, axes));
    return add(mul(y, broadcast(scale, s, {channel})), broadcast(bias, s, {channel}));
  }
  NodeId softmax(NodeId x, int axis) {
    const Shape s = shape(x);
    NodeId top = reduce(ir::Monoid::max, x, {axis});
    NodeId e = map(ScalarFn::exp, {sub(x, spread(top, s, {axis}))});
    return div(e, spread(sum(e, {axis}), s, {axis}));
  }
  /// a [batch…, m, k] · b [batch…, k, n], or b [k, n].
  NodeId matmul(NodeId a, NodeId b) {
    Shape out = shape(a);
    const int r = static_cast<int>(out.size());
    const std::int64_t k = out.back();
    out.back() = shape(b).back();
    std::vector<Expr> lhs, rhs;
    for (int i = 0; i + 1 < r; ++i) lhs.push_back(d(i));
    lhs.push_back(d(r));
    if (static_cast<int>(shape(b).size()) == r) {
      for (int i = 0; i + 2 < r; ++i) rhs.push_back(d(i));
    }
    rhs.push_back(d(r));
    rhs.push_back(d(r - 1));
    return g.add(prim::Contract{{k}, {lhs, {}}, {rhs, {}}}, {a, b}, {DType::f32, out});
  }
  NodeId linear(NodeId x, std::int64_t out) {
    NodeId y = matmul(x, input({shape(x).back(), out}));
    const int last = static_cast<int>(shape(y).size()) - 1;
    return add(y, broadcast(input({out}), shape(y), {last}));
  }
  /// x [1, C, H, W], kernel k×k, padding k/2; bias included.
  NodeId conv(NodeId x, std::int64_t channels, int k, int stride = 1) {
    const Shape in = shape(x);
    NodeId w = input({channels, in[1], k, k});
    const Shape out = {1, channels, in[2] / stride, in[3] / stride};
    const Expr h = d(2) * stride + d(5) - k / 2, v = d(3) * stride + d(6) - k / 2;
    prim::Access lhs{{d(0), d(4), h, v}, {{h, 0, in[2]}, {v, 0, in[3]}}};
    prim::Access rhs{{d(1), d(4), d(5), d(6)}, {}};
    NodeId y = g.add(prim::Contract{{in[1], k, k}, lhs, rhs}, {x, w}, {DType::f32, out});
    return add(y, broadcast(input({channels}), out, {1}));
  }
  NodeId pad(NodeId x, std::int64_t by) {
    Shape out = shape(x);
    std::vector<Expr> index;
    std::vector<ir::Condition> inside;
    for (std::size_t i = 0; i < out.size(); ++i) {
      Expr e = d(static_cast<int>(i));
      if (i + 2 >= out.size()) {
        e = e - Expr(by);
        inside.push_back({e, 0, out[i]});
        out[i] += 2 * by;
      }
      index.push_back(e);
    }
    return view(x, out, index, inside);
  }
  void output(NodeId id) { g.outputs.push_back({"y" + std::to_string(g.outputs.size()), id}); }
};

/// A post-norm transformer layer on x [tokens, width].
inline NodeId transformer_layer(Mini& m, NodeId x, std::int64_t heads, std::int64_t hidden,
                                NodeId mask) {
  const std::int64_t t = m.shape(x)[0], w = m.shape(x)[1], h = w / heads;
  auto split = [&](NodeId y) {  // [t, w] → [heads, t, h]
    return m.view(y, {heads, t, h}, {Mini::d(1), Mini::d(0) * h + Mini::d(2)});
  };
  NodeId q = split(m.linear(x, w)), k = split(m.linear(x, w)), v = split(m.linear(x, w));
  NodeId scores = m.matmul(q, m.transpose(k, {0, 2, 1}));
  scores = m.mul(scores, m.scalar(0.125, m.shape(scores)));
  scores = m.add(scores, m.broadcast(mask, m.shape(scores), {2}));
  NodeId heads_out = m.matmul(m.softmax(scores, 2), v);
  NodeId joined = m.view(heads_out, {t, w},
                         {ir::floor_div(Mini::d(1), h), Mini::d(0), ir::floor_mod(Mini::d(1), h)});
  NodeId a = m.add(m.linear(joined, w), x);
  a = m.normalize(a, {1}, 1, m.input({w}), m.input({w}));
  NodeId u = m.linear(a, hidden);
  NodeId gelu = m.mul(m.mul(u, m.scalar(0.5, m.shape(u))),
                      m.add(m.map(ScalarFn::erf, {m.mul(u, m.scalar(0.7071, m.shape(u)))}),
                            m.scalar(1, m.shape(u))));
  NodeId b = m.add(m.linear(gelu, w), a);
  return m.normalize(b, {1}, 1, m.input({w}), m.input({w}));
}

/// A bottleneck block: 1×1, 3×3, 1×1 convolutions with a residual sum.
inline NodeId bottleneck(Mini& m, NodeId x, std::int64_t narrow) {
  NodeId y = m.relu(m.conv(x, narrow, 1));
  y = m.relu(m.conv(y, narrow, 3));
  y = m.conv(y, m.shape(x)[1], 1);
  return m.relu(m.add(y, x));
}

/// A plan that has been verified.
inline Result<Plan> planned(const prim::Graph& g, Strategy strategy) {
  Options options;
  options.strategy = strategy;
  Plan plan = HEDDLE_TRY(orchestrate(g, options));
  HEDDLE_TRY(verify(g, plan));
  return plan;
}

}  // namespace heddle::plan::test

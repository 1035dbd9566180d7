#include "prim/builder.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "prim/rewrite.h"
#include "prim/test_util.h"
#include "prim/text.h"

namespace heddle::prim {
namespace {

/// Builds, verifies and runs a graph of one output over float inputs of these shapes.
struct Bench {
  Graph g;
  Builder b{g};
  std::vector<NodeId> in;
  std::vector<Tensor> values;
  explicit Bench(std::vector<Shape> shapes) {
    std::mt19937 rng(3);
    for (std::size_t i = 0; i < shapes.size(); ++i) {
      in.push_back(g.add_input("x" + std::to_string(i), {DType::f32, shapes[i]}));
      values.push_back(random_tensor({DType::f32, shapes[i]}, rng));
    }
  }
  Tensor run(NodeId out) {
    g.outputs = {{"y", out}};
    const Status ok = verify(g);
    EXPECT_TRUE(ok) << ok.error().message;
    auto result = interpret(g, values);
    EXPECT_TRUE(result) << result.error().message;
    return (*result)[0];
  }
};

void expect_near(const Tensor& found, const Shape& shape,
                 const std::function<double(const std::vector<std::int64_t>&)>& want) {
  ASSERT_EQ(found.shape(), shape);
  std::vector<std::int64_t> at(shape.size(), 0);
  for (std::int64_t p = 0; p < found.count(); ++p) {
    std::int64_t rest = p;
    for (std::size_t k = shape.size(); k-- > 0; rest /= shape[k]) at[k] = rest % shape[k];
    ASSERT_NEAR(found.at(p), want(at), 1e-4) << "element " << p;
  }
}
double element(const Tensor& t, const std::vector<std::int64_t>& at) {
  std::int64_t flat = 0;
  for (std::size_t k = 0; k < at.size(); ++k) flat = flat * t.shape()[k] + at[k];
  return t.at(flat);
}

TEST(Graph, EqualNodesAreOneNode) {
  Graph g;
  Builder b(g);
  const NodeId x = g.add_input("x", {DType::f32, {4}});
  EXPECT_EQ(b.add(x, 1.0), b.add(x, 1.0));
  EXPECT_NE(b.add(x, 1.0), b.add(x, 2.0));
  EXPECT_EQ(g.add_constant(floats({2}, {1, 2})), g.add_constant(floats({2}, {1, 2})));
  EXPECT_NE(g.add_constant(floats({2}, {1, 2})), g.add_constant(floats({1, 2}, {1, 2})));
  EXPECT_THROW(g.add(Map{ir::ScalarFn::neg}, {NodeId{99}}, {DType::f32, {4}}), InternalError);
}

TEST(Graph, RebuildDropsTheDeadAndKeepsOrigins) {
  Graph g;
  Builder b(g);
  const NodeId x = g.add_input("x", {DType::f32, {4}});
  g.set_origin(Origin{"Relu", "r"});
  const NodeId y = b.relu(x);
  g.set_origin(Origin{"Exp", "e"});
  b.exp(x);
  g.outputs = {{"y", y}};
  const Graph copy =
      rebuild(g, [](Graph& out, const Node& n, NodeId) { return out.add(n.op, n.args, n.type); });
  EXPECT_EQ(copy.size(), g.size() - 1);
  const NodeId relu = copy.outputs[0].node;
  EXPECT_EQ(copy.origin(copy.origin_id(relu)).name, "r");
  EXPECT_EQ(copy, rebuild(copy, [](Graph& out, const Node& n, NodeId) {
              return out.add(n.op, n.args, n.type);
            }));
}

TEST(Graph, RewritingKeepsTheOriginsOfWhatItAbsorbs) {
  Graph g;
  Builder b(g);
  const NodeId x = g.add_input("x", {DType::f32, {2, 4}});
  Tensor w({DType::f32, {4, 3}}), q({DType::f32, {3}});
  for (std::int64_t i = 0; i < w.count(); ++i) w.set(i, static_cast<double>(i) - 4.5);
  for (std::int64_t i = 0; i < q.count(); ++i) q.set(i, static_cast<double>(i) + 0.5);
  const NodeId weight = b.constant(w), factor = b.constant(q);
  g.set_origin(Origin{"Transpose", "into"});
  const NodeId turned = b.transpose(b.transpose(x, {1, 0}), {1, 0});
  g.set_origin(Origin{"MatMul", "product"});
  const NodeId y = b.matmul(turned, weight);
  g.set_origin(Origin{"Mul", "scale"});
  const NodeId scaled = b.mul(y, factor);
  g.set_origin(Origin{"Dead", "nobody"});
  b.exp(y);
  g.outputs = {{"y", scaled}};
  const Graph after = canonicalize(g);
  std::vector<std::string> names;
  for (const OriginId o : after.origins_of(after.outputs[0].node))
    names.push_back(after.origin(o).name);
  EXPECT_EQ(names, (std::vector<std::string>{"into", "product", "scale"})) << print(after);
}

struct MatmulCase {
  Shape a, b, out;
};
TEST(Builder, MatmulFollowsNumPy) {
  const MatmulCase cases[] = {{{3, 4}, {4, 5}, {3, 5}},
                              {{4}, {4}, {}},
                              {{4}, {4, 5}, {5}},
                              {{3, 4}, {4}, {3}},
                              {{2, 3, 4}, {4, 5}, {2, 3, 5}},
                              {{2, 1, 3, 4}, {5, 4, 2}, {2, 5, 3, 2}},
                              {{2, 3, 4}, {4}, {2, 3}}};
  for (const MatmulCase& c : cases) {
    Bench t({c.a, c.b});
    const Tensor y = t.run(t.b.matmul(t.in[0], t.in[1]));
    const bool row = c.a.size() > 1, column = c.b.size() > 1;
    expect_near(y, c.out, [&](const auto& at) {
      double sum = 0;
      const std::size_t batch = c.out.size() - row - column;
      for (std::int64_t k = 0; k < c.a.back(); ++k) {
        std::vector<std::int64_t> ia, ib;
        const std::size_t na = row ? c.a.size() - 2 : 0, nb = column ? c.b.size() - 2 : 0;
        for (std::size_t i = 0; i < na; ++i) ia.push_back(c.a[i] == 1 ? 0 : at[batch - na + i]);
        for (std::size_t i = 0; i < nb; ++i) ib.push_back(c.b[i] == 1 ? 0 : at[batch - nb + i]);
        if (row) ia.push_back(at[batch]);
        ia.push_back(k);
        ib.push_back(k);
        if (column) ib.push_back(at[batch + row]);
        sum += element(t.values[0], ia) * element(t.values[1], ib);
      }
      return sum;
    });
  }
}

struct ConvCase {
  Shape x, w;
  Builder::Conv conv;
};
TEST(Builder, ConvolutionsOfEveryKind) {
  const ConvCase cases[] = {
      {{1, 3, 8, 8}, {4, 3, 3, 3}, {{1, 1}, {1, 1}, {1, 1}, {1, 1}, 1}},
      {{2, 4, 7, 6}, {6, 2, 3, 2}, {{2, 1}, {1, 2}, {1, 0}, {0, 1}, 2}},
      {{1, 4, 6, 6}, {4, 1, 3, 3}, {{1, 1}, {1, 1}, {1, 1}, {1, 1}, 4}},
      {{1, 4, 6, 6}, {8, 1, 3, 3}, {{2, 2}, {1, 1}, {0, 0}, {0, 0}, 4}},
      {{1, 2, 9, 1}, {2, 2, 1, 1}, {{2, 1}, {1, 1}, {0, 0}, {0, 0}, 1}},
  };
  for (const ConvCase& c : cases) {
    Bench t({c.x, c.w});
    const Tensor y = t.run(t.b.conv(t.in[0], t.in[1], c.conv));
    const std::int64_t per_out = c.w[0] / c.conv.groups;
    expect_near(y, y.shape(), [&](const auto& at) {
      double sum = 0;
      for (std::int64_t ch = 0; ch < c.w[1]; ++ch)
        for (std::int64_t i = 0; i < c.w[2]; ++i)
          for (std::int64_t j = 0; j < c.w[3]; ++j) {
            const std::int64_t h =
                at[2] * c.conv.strides[0] + i * c.conv.dilations[0] - c.conv.pads_begin[0];
            const std::int64_t w =
                at[3] * c.conv.strides[1] + j * c.conv.dilations[1] - c.conv.pads_begin[1];
            if (h < 0 || w < 0 || h >= c.x[2] || w >= c.x[3]) continue;
            sum += element(t.values[0], {at[0], at[1] / per_out * c.w[1] + ch, h, w}) *
                   element(t.values[1], {at[1], ch, i, j});
          }
      return sum;
    });
  }
}

TEST(Builder, TransposedConvolutionScattersItsInput) {
  // x, w [C, O/groups, kernel], and the output extent that fits.
  struct Case {
    Shape x, w;
    Builder::Conv conv;
    Shape out;
  };
  const Case cases[] = {
      {{1, 3, 4, 4}, {3, 2, 3, 3}, {{2, 2}, {1, 1}, {1, 1}, {1, 1}, 1}, {7, 7}},
      {{2, 4, 3, 5}, {4, 3, 2, 3}, {{1, 3}, {2, 1}, {0, 1}, {0, 1}, 2}, {5, 13}},
      {{1, 1, 3, 3}, {1, 1, 2, 2}, {{2, 2}, {1, 1}, {0, 0}, {0, 0}, 1}, {7, 6}},
      {{2, 6, 4, 3}, {6, 2, 5, 4}, {{3, 2}, {1, 1}, {4, 1}, {1, 1}, 3}, {9, 6}},
      {{1, 2, 3, 4}, {2, 3, 4, 3}, {{2, 3}, {1, 1}, {1, 0}, {1, 0}, 1}, {6, 12}},
      {{1, 2, 3, 4}, {2, 17, 4, 3}, {{2, 3}, {1, 1}, {1, 2}, {1, 0}, 1}, {6, 11}},
      {{2, 4, 3, 2}, {4, 16, 5, 4}, {{3, 2}, {2, 3}, {4, 0}, {1, 1}, 2}, {10, 13}},
      {{1, 2, 1, 3}, {2, 16, 3, 2}, {{3, 2}, {4, 1}, {-1, -2}, {0, 0}, 1}, {13, 9}},
  };
  for (const Case& c : cases) {
    Bench t({c.x, c.w});
    const Tensor y = t.run(t.b.conv_transpose(t.in[0], t.in[1], c.conv, c.out));
    const std::int64_t group_out = c.w[1], group_in = c.x[1] / c.conv.groups;
    const Shape shape = {c.x[0], group_out * c.conv.groups, c.out[0], c.out[1]};
    Tensor want({DType::f64, shape});
    const auto add = [&](const std::vector<std::int64_t>& at, double v) {
      const std::int64_t flat = ((at[0] * shape[1] + at[1]) * shape[2] + at[2]) * shape[3] + at[3];
      want.set(flat, want.at(flat) + v);
    };
    for (std::int64_t n = 0; n < c.x[0]; ++n)
      for (std::int64_t ch = 0; ch < c.x[1]; ++ch)
        for (std::int64_t o = 0; o < group_out; ++o)
          for (std::int64_t h = 0; h < c.x[2]; ++h)
            for (std::int64_t w = 0; w < c.x[3]; ++w)
              for (std::int64_t i = 0; i < c.w[2]; ++i)
                for (std::int64_t j = 0; j < c.w[3]; ++j) {
                  const std::int64_t p =
                      h * c.conv.strides[0] + i * c.conv.dilations[0] - c.conv.pads_begin[0];
                  const std::int64_t q =
                      w * c.conv.strides[1] + j * c.conv.dilations[1] - c.conv.pads_begin[1];
                  if (p < 0 || q < 0 || p >= shape[2] || q >= shape[3]) continue;
                  add({n, ch / group_in * group_out + o, p, q},
                      element(t.values[0], {n, ch, h, w}) * element(t.values[1], {ch, o, i, j}));
                }
    expect_near(y, shape, [&](const auto& at) { return element(want, at); });
  }
}

TEST(Builder, ViewsMoveData) {
  Bench t({{2, 3, 4}});
  const NodeId x = t.in[0];
  const Tensor& v = t.values[0];
  EXPECT_EQ(t.b.reshape(x, {2, 3, 4}), x);
  EXPECT_EQ(t.b.transpose(x, {0, 1, 2}), x);
  EXPECT_EQ(t.b.pad(x, {0, 0, 0}, {0, 0, 0}, 1), x);
  expect_near(t.run(t.b.transpose(x, {2, 0, 1})), {4, 2, 3}, [&](const auto& at) {
    return element(v, {at[1], at[2], at[0]});
  });
  expect_near(t.run(t.b.reshape(x, {4, 6})), {4, 6},
              [&](const auto& at) { return v.at(at[0] * 6 + at[1]); });
  expect_near(t.run(t.b.slice(x, {0, 2, 3}, {2, 2, 2}, {1, -1, -2})), {2, 2, 2},
              [&](const auto& at) {
                return element(v, {at[0], 2 - at[1], 3 - 2 * at[2]});
              });
  expect_near(t.run(t.b.pad(x, {0, 1, 0}, {1, 0, 2}, 9)), {3, 4, 6}, [&](const auto& at) {
    return at[0] < 2 && at[1] >= 1 && at[2] < 4 ? element(v, {at[0], at[1] - 1, at[2]}) : 9.0;
  });
  expect_near(t.run(t.b.concat({x, t.b.flip(x, {1})}, 1)), {2, 6, 4}, [&](const auto& at) {
    return element(v, {at[0], at[1] < 3 ? at[1] : 5 - at[1], at[2]});
  });
  expect_near(t.run(t.b.stack({x, x}, 1)), {2, 2, 3, 4}, [&](const auto& at) {
    return element(v, {at[0], at[2], at[3]});
  });
  expect_near(t.run(t.b.unsqueeze(x, {1, 3})), {2, 1, 3, 1, 4}, [&](const auto& at) {
    return element(v, {at[0], at[2], at[4]});
  });
}

TEST(Builder, WindowsRepeatTheirInput) {
  Bench t({{1, 2, 5, 5}});
  const NodeId w = t.b.windows(t.in[0], {3, 3}, {{2, 2}, {1, 1}, {1, 1}, {1, 1}, 1}, {3, 3}, -1);
  expect_near(t.run(w), {1, 2, 3, 3, 3, 3}, [&](const auto& at) {
    const std::int64_t h = at[2] * 2 + at[4] - 1, x = at[3] * 2 + at[5] - 1;
    return h < 0 || x < 0 || h > 4 || x > 4 ? -1.0 : element(t.values[0], {0, at[1], h, x});
  });
}

TEST(Builder, SoftmaxAndNormalize) {
  Bench t({{3, 8}});
  const Tensor& v = t.values[0];
  expect_near(t.run(t.b.softmax(t.in[0], {1})), {3, 8}, [&](const auto& at) {
    double sum = 0;
    for (std::int64_t k = 0; k < 8; ++k) sum += std::exp(element(v, {at[0], k}));
    return std::exp(element(v, at)) / sum;
  });
  expect_near(t.run(t.b.normalize(t.in[0], {1}, 1e-5)), {3, 8}, [&](const auto& at) {
    double mean = 0, var = 0;
    for (std::int64_t k = 0; k < 8; ++k) mean += element(v, {at[0], k}) / 8;
    for (std::int64_t k = 0; k < 8; ++k) var += std::pow(element(v, {at[0], k}) - mean, 2) / 8;
    return (element(v, at) - mean) / std::sqrt(var + 1e-5);
  });
}

TEST(Builder, DataDependentNodes) {
  Bench t({{4, 3}});
  const Tensor& v = t.values[0];
  const NodeId index = t.g.add_constant(ints({2, 2}, {3, -1, 0, -4}));
  expect_near(t.run(t.b.take(t.in[0], index, 0)), {2, 2, 3}, [&](const auto& at) {
    static constexpr std::int64_t kRows[] = {3, 3, 0, 0};
    return element(v, {kRows[at[0] * 2 + at[1]], at[2]});
  });
  const NodeId along = t.g.add_constant(ints({4, 1}, {2, 0, -1, 1}));
  expect_near(t.run(t.b.take_along(t.in[0], along, 1)), {4, 1}, [&](const auto& at) {
    static constexpr std::int64_t kColumns[] = {2, 0, 2, 1};
    return element(v, {at[0], kColumns[at[0]]});
  });
  const NodeId order = t.b.sort_indices(t.in[0], 0, true, 2);
  const Tensor sorted = t.run(t.b.take_along(t.in[0], order, 0));
  for (std::int64_t c = 0; c < 3; ++c) EXPECT_GE(sorted.at(c), sorted.at(3 + c));
  expect_near(t.run(t.b.scan(ir::Monoid::sum, t.in[0], 0, true, true)), {4, 3},
              [&](const auto& at) {
                double sum = 0;
                for (std::int64_t r = at[0] + 1; r < 4; ++r) sum += element(v, {r, at[1]});
                return sum;
              });
  const NodeId rows = t.g.add_constant(ints({2, 3}, {1, 1, 1, 7, 7, 7}));
  const NodeId updates = t.g.add_constant(floats({2, 3}, {10, 20, 30, 1, 1, 1}));
  const Scatter s{{0}, {ir::Expr(0), ir::Var{1}}, Scatter::Combine::add};
  expect_near(t.run(t.b.scatter(t.in[0], updates, {rows}, s)), {4, 3}, [&](const auto& at) {
    return element(v, at) + (at[0] == 1 ? 10.0 * static_cast<double>(at[1] + 1) : 0.0);
  });
}

TEST(Builder, RandomIsTheSameForAllSchedules) {
  Graph g;
  Builder b(g);
  g.outputs = {{"u", b.random({DType::f32, {4096}}, Random::Kind::uniform, 5)},
               {"n", b.random({DType::f32, {4096}}, Random::Kind::normal, 5)}};
  const auto y = *interpret(g, {});
  double mean = 0, normal_mean = 0, normal_square = 0;
  for (std::int64_t i = 0; i < 4096; ++i) {
    EXPECT_GE(y[0].at(i), 0);
    EXPECT_LT(y[0].at(i), 1);
    mean += y[0].at(i) / 4096;
    normal_mean += y[1].at(i) / 4096;
    normal_square += y[1].at(i) * y[1].at(i) / 4096;
  }
  EXPECT_NEAR(mean, 0.5, 0.02);
  EXPECT_NEAR(normal_mean, 0, 0.06);
  EXPECT_NEAR(normal_square, 1, 0.06);
}

TEST(Builder, MisfitsAreInternalErrors) {
  Bench t({{2, 3}, {4, 5}});
  EXPECT_THROW(t.b.add(t.in[0], t.in[1]), InternalError);
  EXPECT_THROW(t.b.matmul(t.in[0], t.in[1]), InternalError);
  EXPECT_THROW(t.b.reshape(t.in[0], {7}), InternalError);
  EXPECT_THROW(t.b.concat({t.in[0], t.in[1]}, 0), InternalError);
  EXPECT_THROW(t.b.slice(t.in[0], {0, 2}, {2, 2}, {1, 1}), InternalError);
  EXPECT_THROW(t.b.map(ir::ScalarFn::logical_and, {t.in[0], t.in[0]}), InternalError);
}

TEST(Verify, NamesNodeFoundAndWanted) {
  struct Case {
    std::function<NodeId(Graph&, NodeId)> make;
    const char* message;
  };
  const ir::Expr d0 = ir::Var{0};
  const Case cases[] = {
      {[](Graph& g, NodeId x) {
         return g.add(Map{ir::ScalarFn::exp}, {x}, {DType::f32, {5}});
       },
       "%1 map: argument 0 is f32[4], want shape [5]"},
      {[](Graph& g, NodeId x) {
         return g.add(Map{ir::ScalarFn::less}, {x, x}, {DType::f32, {4}});
       },
       "%1 map: type is f32[4], want b1[4]"},
      {[&](Graph& g, NodeId x) {
         return g.add(View{{{{d0 + 1}, {}}}, 0}, {x}, {DType::f32, {4}});
       },
       "%1 view: piece 0 is not shown to stay inside f32[4]"},
      {[&](Graph& g, NodeId x) {
         return g.add(View{{{{ir::Expr(ir::Var{3})}, {}}}, 0}, {x}, {DType::f32, {4}});
       },
       "%1 view: 'd3' uses a variable that is not one of 1"},
      {[](Graph& g, NodeId x) {
         return g.add(Reduce{{}, {1}}, {x}, {DType::f32, {4}});
       },
       "%1 reduce: axis 1 is outside [4]"},
      {[](Graph& g, NodeId) {
         return g.add(Iota{0}, {}, {DType::f32, {std::int64_t{1} << 50}});
       },
       "%1 iota: type f32[1125899906842624] is too large or has a negative extent"},
  };
  for (const Case& c : cases) {
    Graph g;
    const NodeId x = g.add_input("x", {DType::f32, {4}});
    g.outputs = {{"y", c.make(g, x)}};
    const Status status = verify(g);
    ASSERT_FALSE(status) << c.message;
    EXPECT_EQ(status.error().message, c.message);
  }
  // In bounds only where the condition holds.
  Graph g;
  const NodeId x = g.add_input("x", {DType::f32, {4}});
  g.outputs = {{"y", g.add(View{{{{d0 + 1}, {{d0 + 1, 0, 4}}}}, 0}, {x}, {DType::f32, {9}})}};
  EXPECT_TRUE(verify(g));
}

TEST(Interpret, KeepsDoubleAndRoundsAtCasts) {
  Graph g;
  Builder b(g);
  const NodeId x = g.add_input("x", {DType::f32, {1}});
  const NodeId tiny = b.sub(b.add(x, 1e-12), x);  // lost in f32
  const NodeId rounded = b.cast(b.add(x, 1e-3), DType::f16);
  g.outputs = {{"a", tiny}, {"b", rounded}, {"c", b.cast(b.mul(x, -3.9), DType::i32)}};
  const auto y = *interpret(g, {floats({1}, {1})});
  EXPECT_NEAR(y[0].at(0), 1e-12, 1e-14);
  EXPECT_EQ(y[1].at(0), 1.0009765625);
  EXPECT_EQ(y[2].int_at(0), -3);
  EXPECT_FALSE(interpret(g, {}));
  EXPECT_FALSE(interpret(g, {floats({2}, {1, 2})}));
}

}  // namespace
}  // namespace heddle::prim

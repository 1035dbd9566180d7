// Every rule, and random graphs, against differences.
#include "grad/differences.h"
#include "prim/random_graph.h"
#include "prim/types.h"

namespace heddle::grad {
namespace {

using ir::Monoid;
using ir::ScalarFn;
using prim::Builder;

NodeId in(Graph& g, Shape shape, DType type = DType::f32) {
  return g.add_input(fmt::format("x{}", g.inputs.size()), {type, std::move(shape)});
}
struct Case {
  const char* name;
  NodeId (*build)(Graph& g, Builder& b);
};
std::string name_of(const testing::TestParamInfo<Case>& info) { return info.param.name; }

NodeId conv(Graph& g, Builder& b, std::int64_t stride, std::int64_t dilation, std::int64_t groups) {
  const NodeId x = in(g, {2, 4, 7, 6}), w = in(g, {6, 4 / groups, 3, 2});
  return b.conv(x, w, {{stride, 1}, {dilation, 1}, {1, 0}, {2, 1}, groups});
}

const Case kCases[] = {
    {"matmul",
     [](Graph& g, Builder& b) {
       return b.matmul(in(g, {2, 3, 4}), in(g, {4, 5}));
     }},
    {"vector", [](Graph& g, Builder& b) { return b.matmul(in(g, {4}), in(g, {4})); }},
    {"conv", [](Graph& g, Builder& b) { return conv(g, b, 1, 1, 1); }},
    {"conv_strided", [](Graph& g, Builder& b) { return conv(g, b, 2, 1, 1); }},
    {"conv_dilated", [](Graph& g, Builder& b) { return conv(g, b, 2, 2, 1); }},
    {"conv_grouped", [](Graph& g, Builder& b) { return conv(g, b, 1, 1, 2); }},
    {"conv_depthwise", [](Graph& g, Builder& b) { return conv(g, b, 2, 1, 2); }},
    {"conv_transposed",
     [](Graph& g, Builder& b) {
       return b.conv_transpose(in(g, {1, 4, 5}), in(g, {4, 3, 3}), {{2}, {1}, {1}, {1}, 2}, {10});
     }},
    {"softmax",
     [](Graph& g, Builder& b) {
       return b.softmax(in(g, {3, 5}), {1});
     }},
    {"log_softmax",
     [](Graph& g, Builder& b) {
       const NodeId x = in(g, {3, 5});
       const NodeId s = b.sub(x, b.reduce_max(x, {1}));
       return b.sub(s, b.log(b.reduce_sum(b.exp(s), {1})));
     }},
    {"log_sum_exp",
     [](Graph& g, Builder& b) {
       const NodeId x = in(g, {3, 5}), m = b.reduce_max(x, {1});
       return b.add(m, b.log(b.reduce_sum(b.exp(b.sub(x, m)), {1})));
     }},
    {"quotient_by_the_sum",
     [](Graph& g, Builder& b) {
       const NodeId e = b.exp(in(g, {3, 4, 5}));
       return b.add(b.div(e, b.reduce_sum(e, {0, 2})), b.mul(e, 0.25));
     }},
    // No softmax: the sum divides, is of another row or of squares.
    {"sum_over_exp",
     [](Graph& g, Builder& b) {
       const NodeId e = b.exp(in(g, {3, 5}));
       return b.div(b.reduce_sum(e, {1}), e);
     }},
    {"product_with_other_rows",
     [](Graph& g, Builder& b) {
       const NodeId e = b.exp(in(g, {4, 4}));
       return b.mul(e, b.map(ScalarFn::recip, {b.reduce_sum(e, {1}, false)}));
     }},
    {"quotient_by_squares",
     [](Graph& g, Builder& b) {
       const NodeId e = b.exp(in(g, {3, 5}));
       return b.div(e, b.reduce_sum(b.mul(e, e), {1}));
     }},
    // No softmax: the maximum is of other axes, or of another row.
    {"shifted_along_other_axes",
     [](Graph& g, Builder& b) {
       const NodeId x = in(g, {3, 5}), e = b.exp(b.sub(x, b.reduce_max(x, {0})));
       return b.div(e, b.reduce_sum(e, {1}));
     }},
    {"shifted_by_the_sum_of_all",
     [](Graph& g, Builder& b) {
       const NodeId x = in(g, {3, 5}), s = b.sub(x, b.reduce_max(x, {1}));
       return b.sub(s, b.log(b.reduce_sum(b.exp(s), {0, 1})));
     }},
    {"shifted_by_other_rows",
     [](Graph& g, Builder& b) {
       const NodeId x = in(g, {4, 4}), e = b.exp(b.sub(x, b.reduce_max(x, {1}, false)));
       return b.div(e, b.reduce_sum(e, {1}, false));
     }},
    {"layer_norm",
     [](Graph& g, Builder& b) {
       return b.add(b.mul(b.normalize(in(g, {4, 6}), {1}, 1e-5), in(g, {6})), in(g, {6}));
     }},
    {"gelu",
     [](Graph& g, Builder& b) {
       const NodeId x = in(g, {9});
       return b.mul(b.mul(x, 0.5), b.add(b.erf(b.mul(x, 0.7071)), 1));
     }},
    {"relu",
     [](Graph& g, Builder& b) {
       return b.relu(in(g, {3, 7}));
     }},
    {"maximum",
     [](Graph& g, Builder& b) {
       return b.max(in(g, {3, 7}), in(g, {7}));
     }},
    {"max_pool",
     [](Graph& g, Builder& b) {
       const NodeId w = b.windows(in(g, {1, 2, 6, 6}), {3, 3}, {{2, 2}, {1, 1}, {1, 1}, {1, 1}, 1},
                                  {3, 3}, -INFINITY);
       return b.reduce_max(w, {4, 5}, false);
     }},
    {"product",
     [](Graph& g, Builder& b) {
       return b.reduce(Monoid::prod, in(g, {2, 3, 2}), {0, 2}, false);
     }},
    {"concat",
     [](Graph& g, Builder& b) {
       return b.concat({in(g, {2, 3}), in(g, {2, 1}), in(g, {2, 4})}, 1);
     }},
    {"overlapping_pieces",
     [](Graph& g, Builder& b) {
       const NodeId x = in(g, {4}), y = in(g, {6});
       const ir::Expr i = ir::Var{0};
       return g.add(prim::View{{{{i - 1}, {{i - 1, 0, 3}}}, {{i}, {{i, 0, 5}}}}, 0.5}, {x, y},
                    {DType::f32, {6}});
       (void)b;
     }},
    {"clamped_view",
     [](Graph& g, Builder& b) {
       return b.view(in(g, {5}), {9}, {{ir::min(ir::max(ir::Expr(ir::Var{0}) - 2, 0), 4)}, {}});
     }},
    {"reshape",
     [](Graph& g, Builder& b) {
       return b.reshape(in(g, {6, 4}), {8, 3});
     }},
    {"take",
     [](Graph& g, Builder& b) {
       return b.take(in(g, {5, 3}), b.constant(prim::ints({4}, {1, 1, -1, 3})), 0);
     }},
    {"gather_clamped",
     [](Graph& g, Builder& b) {
       return b.gather(in(g, {4}), {b.constant(prim::ints({3}, {-2, 9, 1}))}, {{0}, {0}}, {3});
     }},
    {"scatter_assign",
     [](Graph& g, Builder& b) {
       return b.scatter(in(g, {4}), in(g, {5}), {b.constant(prim::ints({5}, {1, 1, 9, -1, 3}))},
                        {{0}, {0}, prim::Scatter::Combine::assign});
     }},
    {"scatter_add",
     [](Graph& g, Builder& b) {
       return b.scatter(in(g, {4}), in(g, {5}), {b.constant(prim::ints({5}, {1, 1, 9, -1, 3}))},
                        {{0}, {0}, prim::Scatter::Combine::add});
     }},
    {"cumsum",
     [](Graph& g, Builder& b) {
       return b.scan(Monoid::sum, in(g, {2, 5}), 1, true, true);
     }},
    {"sorted",
     [](Graph& g, Builder& b) {
       const NodeId x = in(g, {3, 7});
       return b.take_along(x, b.sort_indices(x, 1, true, 4), 1);
     }},
    {"used_twice",
     [](Graph& g, Builder& b) {
       const NodeId x = in(g, {5});
       return b.mul(b.exp(x), b.add(x, b.tanh(x)));
     }},
    {"half",
     [](Graph& g, Builder& b) {
       return b.cast(b.mul(b.cast(in(g, {4}), DType::f64), 3), DType::f32);
     }},
};
class Gradient : public testing::TestWithParam<Case> {};
TEST_P(Gradient, AgreesWithDifferences) {
  std::mt19937 rng(3);
  for (int round = 0; round < 5; ++round) {
    Graph g;
    Builder b(g);
    g.outputs = {{"y", GetParam().build(g, b)}};
    ASSERT_EQ(check(g, rng), "") << GetParam().name;
  }
}
INSTANTIATE_TEST_SUITE_P(Cases, Gradient, testing::ValuesIn(kCases), name_of);

/// Inputs on which each function is smooth and defined.
TEST(GradientOfMaps, AgreesWithDifferences) {
  std::mt19937 rng(4);
  for (int i = 0; i < ir::kScalarFnCount; ++i) {
    const auto fn = static_cast<ScalarFn>(i);
    const ir::ScalarFnInfo& info = ir::info(fn);
    const DType f = DType::f64;
    const bool rounds = fn == ScalarFn::round_f16 || fn == ScalarFn::round_bf16;
    if (info.gives_bool || rounds || fn == ScalarFn::cast || fn == ScalarFn::select ||
        info.arity > 2)
      continue;
    const std::vector<DType> types(static_cast<std::size_t>(info.arity), f);
    if (!prim::result_type(fn, types)) continue;
    Graph g;
    Builder b(g);
    std::vector<NodeId> args;
    for (int k = 0; k < info.arity; ++k) args.push_back(in(g, {8}, f));
    g.outputs = {{"y", b.map(fn, args)}};
    std::vector<Tensor> inputs = prim::random_inputs(g, rng);
    const bool inside = fn == ScalarFn::asin || fn == ScalarFn::acos || fn == ScalarFn::atanh;
    const bool positive = fn == ScalarFn::log || fn == ScalarFn::sqrt || fn == ScalarFn::rsqrt ||
                          fn == ScalarFn::pow || fn == ScalarFn::acosh;
    for (Tensor& t : inputs)
      for (std::int64_t e = 0; e < t.count(); ++e) {
        double v = t.at(e);
        if (inside) v /= 4;
        if (positive) v = std::fabs(v) + (fn == ScalarFn::acosh ? 1 : 0);
        if (std::fabs(v - std::round(v)) < 0.01) v += 0.03125;  // no steps
        t.set(e, v);
      }
    EXPECT_EQ(check(g, rng, inputs), "") << info.name;
  }
}

TEST(GradientOfGraphs, AgreesWithDifferences) {
  std::mt19937 rng(6);
  int smooth = 0;
  for (int i = 0; i < 400; ++i) {
    const Graph g = prim::random_graph(rng, 10);
    bool floating = false;
    for (const auto& o : g.outputs) floating |= is_float(g[o.node].type.dtype);
    if (!floating) continue;
    const std::string wrong = check(g, rng);
    if (wrong == "not smooth here") continue;
    ASSERT_EQ(wrong, "") << "graph " << i << "\n" << prim::print(g);
    ++smooth;
  }
  EXPECT_GT(smooth, 200);
}

TEST(GradientOfGraphs, DifferencesCatchAWrongDerivative) {
  // Steps of 1/4096 look like a slope of 1 to differences between multiples of 1/512, and are flat
  // for the rule.
  std::mt19937 rng(7);
  Graph g;
  Builder b(g);
  const NodeId x = in(g, {5});
  const NodeId steps = b.mul(b.map(ScalarFn::floor, {b.mul(x, 4096)}), 1.0 / 4096);
  g.outputs = {{"y", b.add(b.tanh(x), steps)}};
  EXPECT_EQ(check(g, rng).substr(0, 10), "derivative");
}

TEST(Gradients, OfTies) {
  Graph g;
  Builder b(g);
  const NodeId x = in(g, {3}), y = in(g, {3});
  const NodeId top = b.reduce_max(x, {0}, false), both = b.max(x, y), relu = b.relu(x);
  const auto d = [&](NodeId of, NodeId wrt) {
    const auto r =
        gradients(g, std::vector<Seed>{{of, b.full(g[of].type, 1)}}, std::vector<NodeId>{wrt});
    EXPECT_TRUE(r);
    Graph one = g;
    one.outputs = {{"d", (*r)[0]}};
    const auto out =
        prim::interpret(one, {prim::floats({3}, {0, 2, 2}), prim::floats({3}, {0, 1, 3})});
    EXPECT_TRUE(out);
    return std::vector<double>{(*out)[0].at(0), (*out)[0].at(1), (*out)[0].at(2)};
  };
  EXPECT_EQ(d(top, x), (std::vector<double>{0, 0.5, 0.5}));
  EXPECT_EQ(d(both, x), (std::vector<double>{0.5, 1, 0}));
  EXPECT_EQ(d(both, y), (std::vector<double>{0.5, 0, 1}));
  EXPECT_EQ(d(relu, x), (std::vector<double>{0, 1, 1}));
}

/// e^-x is infinite where a sigmoid is 0: its derivative is 0 there, not 0·inf.
TEST(Gradients, OfASaturatedSigmoidIsZero) {
  Graph g;
  Builder b(g);
  const NodeId x = in(g, {3}, DType::f64), y = b.sigmoid(x);
  const auto dx = gradients(g, std::array{Seed{y, b.full(g[y].type, 1)}}, std::array{x});
  ASSERT_TRUE(dx);
  g.outputs = {{"dx", (*dx)[0]}};
  Tensor at({DType::f64, {3}});
  for (const auto& [i, value] : {std::pair{0, -800.0}, {1, 0.0}, {2, 800.0}}) at.set(i, value);
  const Tensor got = (*prim::interpret(g, {at}))[0];
  EXPECT_EQ(got.at(0), 0);
  EXPECT_DOUBLE_EQ(got.at(1), 0.25);
  EXPECT_EQ(got.at(2), 0);
}

/// x/|x| of a row of zeros, whatever it is replaced by there: PyTorch's norms have no slope at 0.
TEST(Gradients, OfANormOfZeroAreZero) {
  Graph g;
  Builder b(g);
  const NodeId x = in(g, {2, 2}, DType::f64);
  const NodeId norm = b.sqrt(b.reduce_sum(b.mul(x, x), {1}));
  const auto dx = gradients(g, std::array{Seed{norm, b.full(g[norm].type, 1)}}, std::array{x});
  ASSERT_TRUE(dx);
  g.outputs = {{"dx", (*dx)[0]}};
  Tensor at({DType::f64, {2, 2}});
  for (const auto& [i, value] : {std::pair{0, 0.0}, {1, 0.0}, {2, 3.0}, {3, -4.0}})
    at.set(i, value);
  const Tensor got = (*prim::interpret(g, {at}))[0];
  for (const auto& [i, value] : {std::pair{0, 0.0}, {1, 0.0}, {2, 0.6}, {3, -0.8}})
    EXPECT_DOUBLE_EQ(got.at(i), value);
}

TEST(Gradients, OfConvolutionsAreContractions) {
  Graph g;
  Builder b(g);
  const NodeId y = conv(g, b, 2, 1, 2);
  const auto d = gradients(g, std::vector<Seed>{{y, b.full(g[y].type, 1)}},
                           std::vector<NodeId>{NodeId{0}, NodeId{1}});
  ASSERT_TRUE(d);
  for (NodeId id : *d) EXPECT_EQ(prim::kind_name(g[id].op), "contract");
}

TEST(Gradients, SoftmaxDoesNotDifferentiateItsMaximum) {
  Graph g;
  Builder b(g);
  const NodeId x = in(g, {3, 5}), y = b.softmax(x, {1});
  const auto d = gradients(g, std::vector<Seed>{{y, b.full(g[y].type, 1)}}, std::vector<NodeId>{x});
  ASSERT_TRUE(d);
  g.outputs = {{"d", (*d)[0]}};
  int comparisons = 0;
  for (NodeId id : prim::live_nodes(g))
    if (const auto* m = std::get_if<prim::Map>(&g[id].op)) comparisons += m->fn == ScalarFn::equal;
  EXPECT_EQ(comparisons, 0);
}

/// The gradient reads the result: what it was made of need not be kept.
TEST(Gradients, OfSoftmaxReadsItsResultAlone) {
  Graph g;
  Builder b(g);
  const NodeId x = in(g, {3, 5}), y = b.softmax(x, {1}), d = in(g, {3, 5});
  const NodeId written{static_cast<std::int32_t>(g.size())};
  const auto found = gradients(g, std::vector<Seed>{{y, d}}, std::vector<NodeId>{x});
  ASSERT_TRUE(found);
  g.outputs = {{"d", (*found)[0]}};
  for (NodeId id : prim::live_nodes(g)) {
    if (id.value < written.value) continue;
    for (NodeId arg : g[id].args) EXPECT_TRUE(arg == y || arg == d || arg.value >= written.value);
  }
}

/// What rules pass by has its gradient where that is asked for.
TEST(Gradients, OfValuesInBetween) {
  const auto built = [](bool between) {
    Graph g;
    Builder b(g);
    const NodeId x = in(g, {3, 5}), d = in(g, {3, 5}), e = between ? b.exp(x) : x;
    const NodeId y = b.add(b.mul(e, b.map(ScalarFn::recip, {b.reduce_sum(e, {1})})),
                           b.map(ScalarFn::recip, {b.add(e, 1)}));
    const auto found = gradients(g, std::vector<Seed>{{y, d}}, std::vector<NodeId>{e});
    EXPECT_TRUE(found);
    g.outputs = {{"d", (*found)[0]}};
    return g;
  };
  std::mt19937 rng(9);
  const TensorType type = built(true)[NodeId{0}].type;
  Tensor x = prim::random_tensor(type, rng), e(type);
  const Tensor d = prim::random_tensor(type, rng);
  for (std::int64_t i = 0; i < x.count(); ++i) e.set(i, std::exp(x.at(i)));
  const auto got = prim::interpret(built(true), {x, d}),
             want = prim::interpret(built(false), {e, d});
  ASSERT_TRUE(got && want);
  for (std::int64_t i = 0; i < x.count(); ++i)
    EXPECT_NEAR((*got)[0].at(i), (*want)[0].at(i), 1e-5 * (1 + std::abs((*want)[0].at(i))));
}

TEST(Gradients, OfALargeTableSumsOnlyRowsThatAreRead) {
  constexpr std::int64_t kRows = 45000, kWidth = 3;
  const std::vector<std::int64_t> numbers = {7, 44999, 7, -3, 0, 60000};
  const auto count = static_cast<std::int64_t>(numbers.size());
  Graph g;
  Builder b(g);
  const NodeId table = in(g, {kRows, kWidth}, DType::f64),
               weight = in(g, {2, 3, kWidth}, DType::f64);
  const NodeId rows = b.constant(prim::ints({2, 3}, numbers));
  const ir::Var i{0}, j{1}, k{2};
  const NodeId index = b.view(rows, {2, 3, kWidth}, {{i, j}, {}});
  const NodeId y = b.gather(table, {index}, {{0}, {0, k}}, {2, 3, kWidth});
  const auto d = gradients(g, std::vector<Seed>{{y, weight}}, std::vector<NodeId>{table});
  ASSERT_TRUE(d);
  g.outputs = {{"d", (*d)[0]}};
  for (NodeId id : prim::live_nodes(g))
    if (std::holds_alternative<prim::Scatter>(g[id].op)) {
      EXPECT_LT(element_count(g[id].type.shape), kRows * kWidth);
    }
  std::mt19937 rng(5);
  std::vector<Tensor> inputs;
  for (const auto& input : g.inputs) inputs.push_back(prim::random_tensor(input.type, rng));
  const auto got = prim::interpret(g, inputs);
  ASSERT_TRUE(got) << got.error().message;
  std::vector<double> want(kRows * kWidth);
  for (std::int64_t n = 0; n < count; ++n)
    for (std::int64_t w = 0; w < kWidth; ++w)
      want[static_cast<std::size_t>(
          std::clamp<std::int64_t>(numbers[static_cast<std::size_t>(n)], 0, kRows - 1) * kWidth +
          w)] += inputs[1].at(n * kWidth + w);
  for (std::size_t e = 0; e < want.size(); ++e)
    ASSERT_DOUBLE_EQ((*got)[0].at(static_cast<std::int64_t>(e)), want[e]) << e;
}

TEST(Gradients, ErrorsNameOperatorAndReason) {
  Graph g;
  Builder b(g);
  const NodeId x = in(g, {3}), i = in(g, {3}, DType::i64);
  g.set_origin(prim::Origin{"CumProd", "running"});
  const NodeId y = b.scan(Monoid::prod, x, 0, false, false);
  const NodeId one = b.full(g[y].type, 1);
  const auto running = gradients(g, std::vector<Seed>{{y, one}}, std::vector<NodeId>{x});
  ASSERT_FALSE(running);
  EXPECT_NE(running.error().message.find("CumProd 'running'"), std::string::npos)
      << running.error().message;
  EXPECT_EQ(running.error().code, ErrorCode::unsupported);
  EXPECT_FALSE(gradients(g, std::vector<Seed>{{y, one}}, std::vector<NodeId>{i}));
  EXPECT_FALSE(gradients(g, std::vector<Seed>{{i, one}}, std::vector<NodeId>{x}));
}

}  // namespace
}  // namespace heddle::grad

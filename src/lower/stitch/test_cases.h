#pragma once
// Small graphs that are one stitched kernel each, on odd shapes.
#include "lower/stitch/test_util.h"

namespace heddle::lower::cases {

using ir::Monoid;
using ir::ScalarFn;
using prim::Builder;

struct StitchCase {
  std::string_view name;
  void (*build)(prim::Graph& g, Builder& b);
};

inline void out(prim::Graph& g, NodeId id) {
  g.outputs.push_back({fmt::format("y{}", g.outputs.size()), id});
}
inline NodeId in(prim::Graph& g, Shape shape, DType type = DType::f32) {
  return g.add_input(fmt::format("x{}", g.inputs.size()), {type, std::move(shape)});
}
inline NodeId gelu(Builder& b, NodeId x) {
  return b.mul(b.mul(x, 0.5), b.add(b.erf(b.mul(x, 0.70710678)), 1));
}

inline NodeId log_sum_exp_of_columns(Builder& b, NodeId x) {
  const NodeId peak = b.reduce_max(x, {0}, false);
  const NodeId zero = b.full({b.dtype(x), b.shape(peak)}, 0);
  const NodeId m = b.select(b.map(ScalarFn::isinf, {peak}), zero, peak);
  return b.add(b.log(b.reduce_sum(b.exp(b.sub(x, m)), {0}, false)), m);
}

inline const StitchCase kCases[] = {
    {"softmax last",
     [](auto& g, auto& b) {
       out(g, b.softmax(in(g, {5, 37}), {1}));
     }},
    {"softmax middle",
     [](auto& g, auto& b) {
       out(g, b.softmax(in(g, {2, 5, 3, 19}), {1}));
     }},
    {"softmax two axes",
     [](auto& g, auto& b) {
       out(g, b.softmax(in(g, {3, 4, 11}), {1, 2}));
     }},
    {"softmax all",
     [](auto& g, auto& b) {
       out(g, b.softmax(in(g, {7, 13}), {0, 1}));
     }},
    {"masked softmax",
     [](auto& g, auto& b) {
       const NodeId x = in(g, {2, 3, 9, 17}), mask = in(g, {2, 1, 1, 17}, DType::b1);
       const NodeId s = b.mul(x, 0.125);
       out(g, b.softmax(b.select(mask, s, b.scalar(DType::f32, -1e9)), {3}));
     }},
    {"layer norm",
     [](auto& g, auto& b) {
       const NodeId n = b.normalize(in(g, {6, 41}), {1}, 1e-5);
       out(g, b.add(b.mul(n, in(g, {41})), in(g, {41})));
     }},
    {"skip bias norm, sum kept",
     [](auto& g, auto& b) {
       const NodeId h = b.add(b.add(in(g, {6, 32}), in(g, {6, 32})), in(g, {32}));
       out(g, h);
       out(g, b.mul(b.normalize(h, {1}, 1e-5), in(g, {32})));
     }},
    {"norm with statistics",
     [](auto& g, auto& b) {
       const NodeId x = in(g, {6, 40});
       const NodeId mean = b.mean(x, {1});
       out(g, mean);
       out(g, b.sub(x, mean));
     }},
    {"instance norm",
     [](auto& g, auto& b) {
       out(g, b.normalize(in(g, {2, 3, 5, 7}), {2, 3}, 1e-5));
     }},
    {"group norm",
     [](auto& g, auto& b) {
       const NodeId x = b.reshape(in(g, {2, 6, 5, 3}), {2, 2, 45});
       out(g, b.reshape(b.normalize(x, {2}, 1e-5), {2, 6, 5, 3}));
     }},
    {"batch norm",
     [](auto& g, auto& b) {
       const NodeId x = in(g, {2, 5, 3, 4}), s = b.unsqueeze(in(g, {5}), {1, 2});
       out(g, b.relu(b.add(b.mul(x, s), b.unsqueeze(in(g, {5}), {1, 2}))));
     }},
    {"batch statistics",
     [](auto& g, auto& b) {
       out(g, b.normalize(in(g, {4, 10, 3, 3}), {0, 2, 3}, 1e-5));
     }},
    {"gelu",
     [](auto& g, auto& b) {
       out(g, gelu(b, in(g, {3, 333})));
     }},
    {"residual",
     [](auto& g, auto& b) {
       out(g, b.relu(b.add(in(g, {2, 9, 11}), in(g, {2, 9, 11}))));
     }},
    {"pad",
     [](auto& g, auto& b) {
       out(g, b.relu(b.pad(in(g, {2, 3, 5, 7}), {0, 0, 1, 2}, {0, 0, 3, 1}, 0.5)));
     }},
    {"concat channels",
     [](auto& g, auto& b) {
       out(g, b.relu(b.concat({in(g, {2, 3, 4, 5}), in(g, {2, 7, 4, 5}), in(g, {2, 1, 4, 5})}, 1)));
     }},
    {"concat last",
     [](auto& g, auto& b) {
       out(g, b.concat({in(g, {4, 9}), in(g, {4, 3}), in(g, {4, 20})}, 1));
     }},
    {"softmax of concat",
     [](auto& g, auto& b) {
       out(g, b.softmax(b.concat({in(g, {4, 9}), in(g, {4, 13})}, 1), {1}));
     }},
    {"slice flip",
     [](auto& g, auto& b) {
       out(g, b.flip(b.slice(in(g, {9, 20}), {1, 2}, {4, 8}, {2, 2}), {0, 1}));
     }},
    {"transpose",
     [](auto& g, auto& b) {
       out(g, b.transpose(in(g, {32, 48}), {1, 0}));
     }},
    {"transpose heads",
     [](auto& g, auto& b) {
       out(g, b.transpose(b.reshape(in(g, {2, 7, 12}), {2, 7, 3, 4}), {0, 2, 1, 3}));
     }},
    {"merge heads",
     [](auto& g, auto& b) {
       out(g, b.reshape(b.transpose(in(g, {2, 3, 7, 16}), {0, 2, 1, 3}), {2, 7, 48}));
     }},
    {"reshape odd",
     [](auto& g, auto& b) {
       out(g, b.reshape(b.relu(in(g, {6, 35})), {15, 14}));
     }},
    {"reduce first",
     [](auto& g, auto& b) {
       out(g, b.reduce_sum(in(g, {29, 45}), {0}));
     }},
    {"reduce middle",
     [](auto& g, auto& b) {
       out(g, b.reduce_max(in(g, {3, 40, 11}), {1}, false));
     }},
    {"reduce all",
     [](auto& g, auto& b) {
       out(g, b.reduce_sum(in(g, {9, 50}), {0, 1}, false));
     }},
    {"reduce outer and inner",
     [](auto& g, auto& b) {
       out(g, b.mean(in(g, {5, 6, 7}), {0, 2}));
     }},
    {"long sum",
     [](auto& g, auto& b) {
       out(g, b.reduce_sum(b.mul(in(g, {300, 301}), 0.01), {0, 1}, false));
     }},
    {"long norm",
     [](auto& g, auto& b) {
       out(g, b.normalize(in(g, {2, 40000}), {1}, 1e-5));
     }},
    {"long columns",
     [](auto& g, auto& b) {
       out(g, b.reduce_max(in(g, {3000, 24}), {0}));
     }},
    {"many long columns",
     [](auto& g, auto& b) {
       out(g, b.reduce_sum(b.mul(in(g, {600, 500}), 0.1), {0}));
     }},
    {"prod and any",
     [](auto& g, auto& b) {
       const NodeId x = in(g, {3, 70});
       out(g, b.reduce(Monoid::prod, b.add(b.mul(x, 0.1), 1), {1}));
       out(g, b.reduce(Monoid::any, b.map(ScalarFn::greater, {x, b.scalar(DType::f32, 1.9)}), {1}));
     }},
    {"argmax",
     [](auto& g, auto& b) {
       out(g, b.reduce(Monoid::argmax, in(g, {6, 50}), {1}, false));
     }},
    {"argmin first axis",
     [](auto& g, auto& b) {
       out(g, b.reduce(Monoid::argmin, in(g, {40, 13}), {0}));
     }},
    {"argmax of sums",
     [](auto& g, auto& b) {
       out(g, b.reduce(Monoid::argmax, b.softmax(in(g, {6, 50}), {1}), {1}, false));
       out(g, b.reduce(Monoid::argmin, b.mean(in(g, {6, 3, 50}), {2}), {0}));
     }},
    {"softmax over and across",
     [](auto& g, auto& b) {
       out(g, b.softmax(b.softmax(in(g, {9, 33}), {1}), {0}));
     }},
    {"argmax bytes",
     [](auto& g, auto& b) {
       out(g, b.reduce(Monoid::argmax, in(g, {4, 90}, DType::i8), {1}));
     }},
    {"max pool",
     [](auto& g, auto& b) {
       const Builder::Conv c{{2, 2}, {1, 1}, {1, 1}, {1, 1}, 1};
       const NodeId w = b.windows(in(g, {1, 3, 11, 13}), {3, 3}, c, {6, 7}, -1e30);
       out(g, b.reduce_max(w, {4, 5}, false));
     }},
    {"depthwise",
     [](auto& g, auto& b) {
       const Builder::Conv c{{1, 1}, {1, 1}, {1, 1}, {1, 1}, 12};
       out(g, b.relu(b.conv(in(g, {1, 12, 6, 7}), in(g, {12, 1, 3, 3}), c)));
     }},
    {"depthwise constant weights",
     [](auto& g, auto& b) {
       const Builder::Conv c{{1, 1}, {1, 1}, {1, 1}, {1, 1}, 24};
       std::mt19937 rng(3);
       const NodeId w = b.constant(random_values({DType::f32, {24, 1, 3, 3}}, rng));
       out(g, b.relu(b.conv(in(g, {1, 24, 6, 7}), w, c)));
     }},
    {"depthwise 7x7",
     [](auto& g, auto& b) {
       const Builder::Conv c{{1, 1}, {1, 1}, {3, 3}, {3, 3}, 9};
       out(g, b.conv(in(g, {1, 9, 9, 8}), in(g, {9, 1, 7, 7}), c));
     }},
    {"matmul as a sum",
     [](auto& g, auto& b) {
       out(g, b.matmul(in(g, {5, 40}), in(g, {40, 11})));
     }},
    {"global pool",
     [](auto& g, auto& b) {
       out(g, b.mean(b.relu(in(g, {2, 20, 7, 7})), {2, 3}));
     }},
    {"squeeze and excite",
     [](auto& g, auto& b) {
       const NodeId x = in(g, {1, 24, 5, 5});
       out(g, b.mul(x, b.sigmoid(b.mean(x, {2, 3}))));
     }},
    {"cumsum",
     [](auto& g, auto& b) {
       out(g, b.scan(Monoid::sum, b.mul(in(g, {5, 17}), 2), 1, false, false));
     }},
    {"cumsum reverse exclusive outer",
     [](auto& g, auto& b) {
       out(g, b.scan(Monoid::sum, in(g, {7, 3, 13}), 0, true, true));
     }},
    {"gather rows",
     [](auto& g, auto& b) {
       out(g, b.take(in(g, {10, 33}), in(g, {4, 3}, DType::i64), 0));
     }},
    {"embedding norm",
     [](auto& g, auto& b) {
       const NodeId e = b.take(in(g, {10, 32}), in(g, {6}, DType::i64), 0);
       out(g, b.normalize(b.add(e, in(g, {6, 32})), {1}, 1e-5));
     }},
    {"gather elements",
     [](auto& g, auto& b) {
       out(g, b.take_along(in(g, {6, 9}), in(g, {4, 9}, DType::i64), 0));
     }},
    {"iota",
     [](auto& g, auto& b) {
       out(g, b.add(in(g, {5, 21}), b.iota({DType::f32, {5, 21}}, 1)));
     }},
    {"half",
     [](auto& g, auto& b) {
       out(g, b.softmax(in(g, {4, 35}, DType::f16), {1}));
     }},
    {"bf16 norm",
     [](auto& g, auto& b) {
       out(g, b.normalize(in(g, {3, 64}, DType::bf16), {1}, 1e-3));
     }},
    {"rounded to 16 bits",
     [](auto& g, auto& b) {
       const NodeId x = in(g, {3, 77});
       const NodeId half = b.map(ScalarFn::round_f16, {b.mul(x, 0x1p-20)});
       out(g, b.add(b.mul(half, 0x1p20), b.map(ScalarFn::round_bf16, {x})));
     }},
    {"bytes",
     [](auto& g, auto& b) {
       out(g, b.add(in(g, {3, 77}, DType::i8), in(g, {77}, DType::i8)));
     }},
    {"i64 sum",
     [](auto& g, auto& b) {
       out(g, b.reduce_sum(in(g, {3, 77}, DType::i64), {1}));
     }},
    {"f64",
     [](auto& g, auto& b) {
       out(g, b.softmax(in(g, {3, 19}, DType::f64), {1}));
     }},
    {"bool logic",
     [](auto& g, auto& b) {
       out(g, b.map(ScalarFn::logical_and, {in(g, {5, 33}, DType::b1), in(g, {5, 33}, DType::b1)}));
     }},
    {"cast",
     [](auto& g, auto& b) {
       out(g, b.cast(b.mul(in(g, {3, 31}), 10), DType::i8));
     }},
    {"two shapes",
     [](auto& g, auto& b) {
       out(g, b.relu(in(g, {3, 31})));
       out(g, b.exp(in(g, {50})));
     }},
    {"output read by another",
     [](auto& g, auto& b) {
       const NodeId y = b.exp(in(g, {6, 8}));
       out(g, y);
       out(g, b.transpose(b.add(y, 1), {1, 0}));
     }},
    {"padded softmax",
     [](auto& g, auto& b) { out(g, b.pad(b.softmax(in(g, {4, 33}), {1}), {1, 2}, {1, 1}, 0)); }},
    {"softmax of softmax",
     [](auto& g, auto& b) { out(g, b.softmax(b.softmax(in(g, {6, 34}), {1}), {1})); }},
    {"log of a sum of exponentials",
     [](auto& g, auto& b) { out(g, log_sum_exp_of_columns(b, in(g, {256, 64}))); }},
    {"added to rows",
     [](auto& g, auto& b) {
       const NodeId rows = b.broadcast(b.reshape(in(g, {11}, DType::i64), {11, 1}), {11, 33});
       out(g, b.scatter(in(g, {7, 33}), b.mul(in(g, {11, 33}), 2), {rows},
                        {{0}, {ir::Expr(0), ir::Expr(ir::Var{1})}, prim::Scatter::Combine::add}));
     }},
    {"assigned along an axis",
     [](auto& g, auto& b) {
       out(g, b.scatter(in(g, {3, 5, 4}), in(g, {3, 6, 2}), {in(g, {3, 6, 2}, DType::i64)},
                        {{1},
                         {ir::Expr(ir::Var{0}), ir::Expr(0), ir::Expr(ir::Var{2}) + ir::Expr(1)},
                         prim::Scatter::Combine::assign}));
     }},
    {"one number moved",
     [](auto& g, auto& b) {
       out(g, b.scatter(in(g, {5}), in(g, {}), {in(g, {}, DType::i64)},
                        {{0}, {ir::Expr(0)}, prim::Scatter::Combine::add}));
     }},
    {"transposed, no whole vectors",
     [](auto& g, auto& b) { out(g, b.transpose(in(g, {67, 101}), {1, 0})); }},
    {"transposed, far columns",
     [](auto& g, auto& b) {
       out(g, b.mul(b.transpose(in(g, {1024, 37}), {1, 0}), in(g, {37, 1})));
     }},
    {"transposed in a batch, with a pad",
     [](auto& g, auto& b) {
       out(g, b.pad(b.transpose(in(g, {3, 256, 40}), {0, 2, 1}), {0, 1, 0}, {0, 2, 0}, 0));
     }},
    {"gates of channels",
     [](auto& g, auto& b) {
       const NodeId x = in(g, {2, 7, 11, 37}), gate = in(g, {2, 1, 1, 37});
       out(g, b.mul(x, b.broadcast(b.sigmoid(b.add(gate, in(g, {37}))), {2, 7, 11, 37})));
     }},
    {"gates of what is joined",
     [](auto& g, auto& b) {
       const NodeId gate = b.broadcast(b.sigmoid(in(g, {1, 33})), {90, 33});
       out(g, b.mul(b.concat({in(g, {90, 16}), in(g, {90, 17})}, 1), gate));
     }},
    {"gates at two places",
     [](auto& g, auto& b) {
       const NodeId gate = b.tanh(in(g, {64})), x = in(g, {40, 64});
       const prim::Access turned{{ir::Expr(63) - ir::Expr(ir::Var{1})}, {}};
       out(g, b.mul(b.mul(x, b.broadcast(gate, {40, 64})), b.view(gate, {40, 64}, turned)));
     }},
    {"gates of sums",
     [](auto& g, auto& b) {
       const NodeId x = in(g, {48, 40});
       const NodeId sums = b.reduce_sum(in(g, {3, 40}), {0}, true);
       out(g, b.mul(x, b.broadcast(b.sigmoid(sums), {48, 40})));
     }},
    {"scalar", [](auto& g, auto& b) { out(g, b.exp(in(g, {}))); }},
    {"empty", [](auto& g, auto& b) { out(g, b.exp(in(g, {3, 0}))); }},
    {"sum of nothing", [](auto& g, auto& b) { out(g, b.reduce_sum(in(g, {3, 0}), {1})); }},
};

}  // namespace heddle::lower::cases

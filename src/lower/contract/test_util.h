#pragma once
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <random>

#include "kernel/footprint_check.h"
#include "lower/lower.h"
#include "prim/builder.h"
#include "prim/interpret.h"

namespace heddle::lower {

using ir::ScalarFn;
using prim::Builder;
using prim::Graph;

/// A graph under construction with random inputs; every node that computes is the cluster.
struct Case {
  Graph g;
  Builder b{g};
  std::vector<Tensor> inputs;
  std::mt19937 random{7};
  Target target;
  Tuning tuning;
  bool row_major_outputs = false;
  double tolerance = 0;  ///< at least; else by type
  std::map<NodeId, Layout> layouts;
  std::string schedule;

  Tensor random_tensor(TensorType type) {
    Tensor t(type);
    std::uniform_real_distribution<double> real(-1, 1);
    std::uniform_int_distribution<int> integer(is_unsigned_int(type.dtype) ? 0 : -5, 5);
    for (std::int64_t i = 0; i < t.count(); ++i) {
      if (is_float(type.dtype))
        t.set(i, real(random));
      else
        t.set_int(i, integer(random));
    }
    return t;
  }
  NodeId input(Shape shape, DType type = DType::f32) {
    inputs.push_back(random_tensor({type, shape}));
    return g.add_input(fmt::format("x{}", inputs.size()), {type, shape});
  }
  NodeId constant(Shape shape, DType type = DType::f32) {
    return b.constant(random_tensor({type, shape}));
  }
  /// Tile registers that multiply bytes and bf16.
  void on_tiles() {
    target.tiles = true;
    target.vector_bytes = 64;
    target.vector_registers = 32;
  }
  void output(NodeId id) { g.outputs.push_back({fmt::format("y{}", g.outputs.size()), id}); }
};

inline NodeId gelu(Builder& b, NodeId x) {
  return b.mul(b.mul(x, 0.5), b.add(b.erf(b.mul(x, 0.7071067811865476)), 1.0));
}

inline Layout layout_of(const Case& c, NodeId id) {
  auto found = c.layouts.find(id);
  return found != c.layouts.end() ? found->second : row_major(c.g[id].type.shape);
}

/// The bytes of a row-major tensor laid out by strides.
inline std::vector<std::byte> laid_out(const Tensor& t, const Layout& layout) {
  Tensor out({t.dtype(), {layout.size}});
  const Shape unit = row_major_strides(t.shape());
  for (std::int64_t i = 0; i < t.count(); ++i) {
    std::int64_t offset = 0;
    for (std::size_t d = 0; d < unit.size(); ++d)
      offset += i / unit[d] % t.shape()[d] * layout.strides[d];
    is_float(t.dtype()) ? out.set(offset, t.at(i)) : out.set_int(offset, t.int_at(i));
  }
  return {out.data(), out.data() + out.bytes()};
}

inline Request request_of(const Case& c) {
  Request r;
  r.graph = &c.g;
  for (NodeId id : prim::live_nodes(c.g)) {
    const auto& op = c.g[id].op;
    if (std::holds_alternative<prim::Input>(op) || std::holds_alternative<prim::Constant>(op))
      continue;
    r.cluster.nodes.push_back(id);
  }
  for (const auto& out : c.g.outputs) r.cluster.outputs.push_back(out.node);
  r.target = c.target;
  r.tuning = c.tuning;
  r.layout_of = [&c](NodeId id) { return layout_of(c, id); };
  r.required_layout = [&c](NodeId id) {
    return c.row_major_outputs ? std::optional(row_major(c.g[id].type.shape)) : std::nullopt;
  };
  return r;
}

/// Runs a kernel on its arguments' bytes.
using Execute = std::function<Status(std::vector<std::vector<std::byte>>&)>;

/// Runs the kernel with `execute`; "" if the outputs are those of the primitives.
inline std::string run(const Case& c, const Lowered& lowered, const Execute& execute) {
  const auto want = prim::interpret(c.g, c.inputs);
  if (!want.ok()) return want.error().message;
  const Request r = request_of(c);
  std::vector<std::vector<std::byte>> memory;
  for (const Argument& a : lowered.arguments) {
    if (a.kind == Argument::Kind::packed) {
      memory.emplace_back(a.packed.data(), a.packed.data() + a.packed.bytes());
      continue;
    }
    Tensor value;
    if (const auto* in = std::get_if<prim::Input>(&c.g[a.node].op))
      value = c.inputs[static_cast<std::size_t>(in->slot)];
    if (const Tensor* t = c.g.constant_of(a.node)) value = *t;
    std::size_t position = r.cluster.outputs.size();
    for (std::size_t i = 0; i < r.cluster.outputs.size(); ++i)
      if (r.cluster.outputs[i] == a.node) position = i;
    if (position < r.cluster.outputs.size())
      memory.emplace_back(static_cast<std::size_t>(lowered.output_layouts[position].size *
                                                   size_of(c.g[a.node].type.dtype)));
    else
      memory.push_back(laid_out(value, layout_of(c, a.node)));
  }
  const Status ran = execute(memory);
  if (!ran.ok()) return ran.error().message;

  for (std::size_t i = 0; i < want->size(); ++i) {
    std::size_t at = 0;
    while (lowered.arguments[at].node != r.cluster.outputs[i] ||
           lowered.arguments[at].kind != Argument::Kind::value)
      ++at;
    const std::vector<std::byte> expected = laid_out((*want)[i], lowered.output_layouts[i]);
    const DType type = (*want)[i].dtype();
    const std::int64_t count = lowered.output_layouts[i].size;
    Tensor got({type, {count}}), ref({type, {count}});
    std::memcpy(got.mutable_data(), memory[at].data(), memory[at].size());
    std::memcpy(ref.mutable_data(), expected.data(), expected.size());
    double tolerance = type == DType::f16 ? 2e-3 : type == DType::bf16 ? 2e-2 : 1e-5;
    tolerance = is_int(type) ? 0 : std::max(tolerance, c.tolerance);
    for (std::int64_t j = 0; j < count; ++j)
      if (!(std::abs(got.at(j) - ref.at(j)) <= tolerance * (1 + std::abs(ref.at(j)))))
        return fmt::format("output {} element {} is {}, not {}", i, j, got.at(j), ref.at(j));
  }
  return "";
}

/// The same in the kernel interpreter.
inline std::string run(const Case& c, const Lowered& lowered) {
  return run(c, lowered, [&](std::vector<std::vector<std::byte>>& memory) -> Status {
    std::vector<std::vector<std::byte>> again = memory;
    HEDDLE_TRY(kernel::check_touches(lowered.kernel, {again.begin(), again.end()}, 3));
    return kernel::interpret(lowered.kernel, {memory.begin(), memory.end()});
  });
}

/// What the kernel interpreter makes of the case's only output, whatever that is.
inline Tensor output_of(const Case& c) {
  const auto lowered = contract::lower(request_of(c));
  HEDDLE_CHECK(lowered.ok(), "{}", lowered.error().message);
  Tensor got(c.g[c.g.outputs[0].node].type);
  run(c, *lowered, [&](std::vector<std::vector<std::byte>>& memory) -> Status {
    HEDDLE_TRY(kernel::interpret(lowered->kernel, {memory.begin(), memory.end()}));
    for (std::size_t i = 0; i < memory.size(); ++i)
      if (lowered->arguments[i].node == c.g.outputs[0].node)
        std::memcpy(got.mutable_data(), memory[i].data(), memory[i].size());
    return Ok{};
  });
  return got;
}

/// Lowers the whole case as one contraction and compares the kernel with the primitives.
inline void check(Case& c) {
  const auto lowered = contract::lower(request_of(c));
  ASSERT_TRUE(lowered.ok()) << lowered.error().message;
  c.schedule = lowered->schedule;
  const auto status = kernel::verify(lowered->kernel);
  ASSERT_TRUE(status.ok()) << status.error().message << "\n" << kernel::to_string(lowered->kernel);
  ASSERT_EQ(run(c, *lowered), "") << lowered->schedule << "\n"
                                  << kernel::to_string(lowered->kernel).substr(0, 20000);
}

inline Builder::Conv conv(std::size_t rank, std::int64_t stride, std::int64_t pad,
                          std::int64_t dilation = 1, std::int64_t groups = 1) {
  Builder::Conv c;
  c.strides.assign(rank, stride);
  c.dilations.assign(rank, dilation);
  c.pads_begin.assign(rank, pad);
  c.pads_end.assign(rank, pad);
  c.groups = groups;
  return c;
}

/// The shapes of a convolution whose filter's gradient is wanted.
struct FilterGradient {
  std::int64_t images, in, out, height, width, taps, stride, pad;
};

/// Σ over images and positions of x under the taps and of dy: the gradient of a filter.
inline NodeId filter_gradient(Case& c, const FilterGradient& row, bool swapped = false) {
  const auto steps = [&](std::int64_t extent) {
    return (extent + 2 * row.pad - row.taps) / row.stride + 1;
  };
  const std::int64_t rows = steps(row.height), columns = steps(row.width);
  const NodeId x = c.input({row.images, row.in, row.height, row.width});
  const NodeId dy = c.input({row.images, row.out, rows, columns});
  const auto at = [&](int tap, int position) {
    return ir::Expr(ir::Var{tap}) + ir::Expr(ir::Var{position}) * ir::Expr(row.stride) -
           ir::Expr(row.pad);
  };
  const ir::Expr y = at(2, 5), z = at(3, 6);
  const prim::Access image{{ir::Var{4}, ir::Var{1}, y, z}, {{y, 0, row.height}, {z, 0, row.width}}},
      result{{ir::Var{4}, ir::Var{0}, ir::Var{5}, ir::Var{6}}, {}};
  return c.b.contract(swapped ? dy : x, swapped ? x : dy, {row.out, row.in, row.taps, row.taps},
                      {row.images, rows, columns}, swapped ? result : image,
                      swapped ? image : result, DType::f32);
}

}  // namespace heddle::lower

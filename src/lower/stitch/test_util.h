#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "kernel/footprint_check.h"
#include "lower/lower.h"
#include "prim/builder.h"
#include "prim/interpret.h"

namespace heddle::lower {

/// All nodes that outputs need except inputs and constants.
inline Cluster whole(const prim::Graph& g) {
  Cluster c;
  for (NodeId id : prim::live_nodes(g)) {
    const prim::Op& op = g[id].op;
    if (!std::holds_alternative<prim::Input>(op) && !std::holds_alternative<prim::Constant>(op))
      c.nodes.push_back(id);
  }
  for (const auto& o : g.outputs)
    if (std::find(c.outputs.begin(), c.outputs.end(), o.node) == c.outputs.end())
      c.outputs.push_back(o.node);
  return c;
}

inline Tensor random_values(const TensorType& type, std::mt19937& rng) {
  Tensor t(type);
  for (std::int64_t i = 0; i < t.count(); ++i) {
    if (is_float(type.dtype))
      t.set(i, static_cast<double>(rng() % 4096) / 1024 - 2);
    else
      t.set_int(i, type.dtype == DType::b1 ? rng() % 2 : rng() % 5);
  }
  return t;
}

/// Row-major bytes to the layout's places and back; other places hold rubbish.
inline std::vector<std::byte> stored(const Tensor& t, const Layout& layout) {
  const auto size = static_cast<std::size_t>(size_of(t.dtype()));
  std::vector<std::byte> out(static_cast<std::size_t>(layout.size) * size, std::byte{0x7b});
  const Shape strides = row_major_strides(t.shape());
  for (std::int64_t i = 0; i < t.count(); ++i) {
    std::int64_t at = 0;
    for (std::size_t d = 0; d < strides.size(); ++d)
      at += i / strides[d] % t.shape()[d] * layout.strides[d];
    std::memcpy(out.data() + static_cast<std::size_t>(at) * size,
                t.data() + static_cast<std::size_t>(i) * size, size);
  }
  return out;
}
inline Tensor loaded(const TensorType& type, const std::vector<std::byte>& bytes,
                     const Layout& layout) {
  Tensor t(type);
  const auto size = static_cast<std::size_t>(size_of(type.dtype));
  const Shape strides = row_major_strides(type.shape);
  for (std::int64_t i = 0; i < t.count(); ++i) {
    std::int64_t at = 0;
    for (std::size_t d = 0; d < strides.size(); ++d)
      at += i / strides[d] % type.shape[d] * layout.strides[d];
    std::memcpy(t.mutable_data() + static_cast<std::size_t>(i) * size,
                bytes.data() + static_cast<std::size_t>(at) * size, size);
  }
  return t;
}

inline double tolerance(DType type) {
  return type == DType::f16 ? 4e-3 : type == DType::bf16 ? 3e-2 : 2e-5;
}

/// "" or where two tensors differ.
inline std::string difference(const Tensor& got, const Tensor& want) {
  for (std::int64_t i = 0; i < want.count(); ++i) {
    if (!is_float(want.dtype())) {
      if (got.int_at(i) != want.int_at(i))
        return fmt::format("element {}: {} instead of {}", i, got.int_at(i), want.int_at(i));
      continue;
    }
    const double a = got.at(i), b = want.at(i);
    if (std::isnan(a) && std::isnan(b)) continue;
    if (a == b) continue;
    const double bound = tolerance(want.dtype()) * std::max(1.0, std::abs(b));
    if (!(std::abs(a - b) <= bound)) return fmt::format("element {}: {} instead of {}", i, a, b);
  }
  return "";
}

/// The argmin or argmax that a node is, its axis kept or not.
inline NodeId without_keeping(const prim::Graph& g, NodeId node) {
  return std::holds_alternative<prim::View>(g[node].op) ? g[node].args[0] : node;
}

/// The operand of an argmin or argmax over computed values, which may be rounded differently than
/// the reference's: where they are nearly equal, either position is right.
inline std::optional<NodeId> compared_values(const prim::Graph& g, NodeId output) {
  const NodeId node = without_keeping(g, output);
  const auto* reduce = std::get_if<prim::Reduce>(&g[node].op);
  if (!reduce || (reduce->fn != ir::Monoid::argmax && reduce->fn != ir::Monoid::argmin))
    return std::nullopt;
  const NodeId arg = g[node].args[0];
  if (g[arg].args.empty()) return std::nullopt;
  return arg;
}

/// `got` with the positions that are as good as those of `want` put right.
inline Tensor forgiving(const prim::Graph& g, NodeId output, Tensor got, const Tensor& want,
                        const Tensor& values) {
  const auto& reduce = std::get<prim::Reduce>(g[without_keeping(g, output)].op);
  const auto axis = static_cast<std::size_t>(reduce.axes[0]);
  const Shape& shape = values.shape();
  const std::int64_t length = shape[axis], inner = row_major_strides(shape)[axis];
  for (std::int64_t i = 0; i < got.count(); ++i) {
    const std::int64_t start = i / inner * inner * length + i % inner, at = got.int_at(i);
    if (at < 0 || at >= length) continue;
    const double mine = values.at(start + at * inner);
    const double best = values.at(start + want.int_at(i) * inner);
    if (std::abs(mine - best) <= tolerance(values.dtype()) * std::max(1.0, std::abs(best)))
      got.set_int(i, want.int_at(i));
  }
  return got;
}

inline Layout random_layout(const Shape& shape, std::mt19937& rng) {
  std::vector<int> order(shape.size());
  std::iota(order.begin(), order.end(), 0);
  if (rng() % 2) std::shuffle(order.begin(), order.end(), rng);
  return ordered(shape, order);
}

struct CheckOptions {
  bool random_layouts = true;
  bool free_outputs = true;  ///< the lowering chooses the layouts of outputs
  Target target;
};

/// A graph lowered as one kernel, with random inputs and what the primitives' reference makes of
/// them.
struct Prepared {
  Cluster cluster;
  Lowered lowered;
  std::vector<Tensor> want;                   ///< by output of the graph
  std::map<std::size_t, Tensor> compared;     ///< by output: operands of extremes' positions
  std::vector<std::vector<std::byte>> bytes;  ///< by argument of the kernel
  std::string text() const {
    return "\n" + lowered.schedule + "\n" + kernel::to_string(lowered.kernel);
  }
};

inline Result<Prepared> prepare(const prim::Graph& g, std::mt19937& rng,
                                const CheckOptions& options = {}) {
  Prepared p;
  p.cluster = whole(g);
  if (!stitch::supports(g, p.cluster)) return fail("not supported");
  std::map<NodeId, Layout> layouts;
  for (NodeId id : inputs_of(g, p.cluster))
    layouts[id] =
        options.random_layouts ? random_layout(g[id].type.shape, rng) : row_major(g[id].type.shape);
  Request request{&g, p.cluster, options.target, [&](NodeId id) { return layouts.at(id); }, {}, {}};
  if (!options.free_outputs)
    request.required_layout = [&](NodeId id) { return row_major(g[id].type.shape); };
  auto lowered = stitch::lower(request);
  if (!lowered) return lowered.error();
  p.lowered = *std::move(lowered);
  if (auto ok = kernel::verify(p.lowered.kernel); !ok)
    return fail("{}{}", ok.error().message, p.text());

  std::vector<Tensor> inputs;
  for (const auto& in : g.inputs) inputs.push_back(random_values(in.type, rng));
  prim::Graph reference = g;
  std::vector<std::size_t> compared;  // by further output, the output that it is for
  for (std::size_t o = 0; o < g.outputs.size(); ++o)
    if (const auto values = compared_values(g, g.outputs[o].node)) {
      reference.outputs.push_back({fmt::format("compared{}", o), *values});
      compared.push_back(o);
    }
  p.want = HEDDLE_TRY(prim::interpret(reference, inputs));
  for (std::size_t i = 0; i < compared.size(); ++i)
    p.compared[compared[i]] = p.want[g.outputs.size() + i];
  for (const Argument& a : p.lowered.arguments) {
    const auto output = std::find(p.cluster.outputs.begin(), p.cluster.outputs.end(), a.node);
    if (output != p.cluster.outputs.end()) {
      const auto& layout =
          p.lowered.output_layouts[static_cast<std::size_t>(output - p.cluster.outputs.begin())];
      p.bytes.emplace_back(static_cast<std::size_t>(layout.size * size_of(g[a.node].type.dtype)),
                           std::byte{0x55});
    } else if (a.kind == Argument::Kind::packed) {
      p.bytes.emplace_back(a.packed.data(), a.packed.data() + a.packed.bytes());
    } else if (const auto* in = std::get_if<prim::Input>(&g[a.node].op)) {
      p.bytes.push_back(stored(inputs[static_cast<std::size_t>(in->slot)], layouts.at(a.node)));
    } else {
      p.bytes.push_back(stored(*g.constant_of(a.node), layouts.at(a.node)));
    }
  }
  return p;
}

/// "" or where the results in `bytes`, by argument of the kernel, are wrong.
inline std::string wrong_output(const prim::Graph& g, const Prepared& p,
                                const std::vector<std::vector<std::byte>>& bytes) {
  for (std::size_t o = 0; o < g.outputs.size(); ++o) {
    const NodeId node = g.outputs[o].node;
    const auto position = static_cast<std::size_t>(
        std::find(p.cluster.outputs.begin(), p.cluster.outputs.end(), node) -
        p.cluster.outputs.begin());
    for (std::size_t a = 0; a < bytes.size(); ++a) {
      if (p.lowered.arguments[a].node != node) continue;
      Tensor got = loaded(g[node].type, bytes[a], p.lowered.output_layouts[position]);
      if (const auto values = p.compared.find(o); values != p.compared.end())
        got = forgiving(g, node, std::move(got), p.want[o], values->second);
      if (const std::string bad = difference(got, p.want[o]); !bad.empty())
        return fmt::format("output {} {}: {}", o, to_string(g[node].type), bad);
    }
  }
  return "";
}

/// Lowers the graph as one kernel and runs it in the kernel interpreter; "" if it verifies and
/// agrees with the primitives' reference.
inline std::string check(const prim::Graph& g, std::mt19937& rng, const CheckOptions& options = {},
                         std::string* schedule = nullptr) {
  auto p = prepare(g, rng, options);
  if (!p) return p.error().message;
  if (schedule) *schedule = p->lowered.schedule;
  std::vector<std::span<std::byte>> spans(p->bytes.begin(), p->bytes.end());
  std::vector<std::vector<std::byte>> again = p->bytes;
  if (auto ok = kernel::interpret(p->lowered.kernel, spans); !ok)
    return ok.error().message + p->text();
  if (auto ok = kernel::check_touches(p->lowered.kernel, {again.begin(), again.end()}, 3); !ok)
    return ok.error().message + p->text();
  const std::string bad = wrong_output(g, *p, p->bytes);
  return bad.empty() ? "" : bad + p->text();
}

}  // namespace heddle::lower

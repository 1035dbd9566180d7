// Gradients of ResNet-18's filters (images of 32², batch 16) on channels-last memory, with the
// update of the weights in the epilogue or without: GFLOP/s of the schedules worth measuring.
// usage: gradient_bench [threads] [seconds per schedule] [layer, -1: all] [update: 0, 1] [dump]
#include <cstdio>

#include "kernel_runner.h"

namespace {

using namespace heddle;
using namespace heddle::bench;
using prim::NodeId;

/// Channels in and out, positions in a row of the result.
struct Layer {
  std::int64_t in, out, width;
};
constexpr Layer kLayers[] = {{64, 64, 32}, {128, 128, 16}, {256, 256, 8}, {512, 512, 4}};
constexpr std::int64_t kImages = 16, kTaps = 3;

NodeId gradient(prim::Graph& g, prim::Builder& b, const Layer& l, bool update) {
  const auto v = [](int i) { return ir::Expr(ir::Var{i}); };
  const NodeId x = g.add_input("x", {DType::f32, {kImages, l.in, l.width, l.width}}),
               dy = g.add_input("dy", {DType::f32, {kImages, l.out, l.width, l.width}});
  const ir::Expr row = v(2) + v(5) - 1, column = v(3) + v(6) - 1;
  const prim::Access image{{v(4), v(1), row, column}, {{row, 0, l.width}, {column, 0, l.width}}};
  const Shape shape{l.out, l.in, kTaps, kTaps};
  const NodeId dw = b.contract(x, dy, shape, {kImages, l.width, l.width}, image,
                               {{v(4), v(0), v(5), v(6)}, {}}, DType::f32);
  if (!update) return dw;
  const NodeId m = b.add(b.mul(g.add_input("m", {DType::f32, shape}), 0.9), dw);
  g.outputs.push_back({"m", m});
  return b.sub(g.add_input("w", {DType::f32, shape}), b.mul(m, 0.01));
}

void measure(const Layer& l, const codegen::cpu::Machine& machine, ThreadPool& pool, double seconds,
             bool update, bool dump) {
  prim::Graph g;
  prim::Builder b(g);
  const NodeId y = gradient(g, b, l, update);
  g.outputs.push_back({"y", y});
  lower::Request request = request_of(g, target_of(machine, pool.threads()));
  request.target.winograd = 4;
  request.layout_of = [&](NodeId id) {
    const Shape& shape = g[id].type.shape;
    const bool image = shape.size() == 4 && shape[2] == l.width && id.value < 2;
    return image ? lower::ordered(shape, {0, 2, 3, 1}) : lower::row_major(shape);
  };
  request.required_layout = [&](NodeId id) {
    return update ? std::optional(lower::row_major(g[id].type.shape)) : std::nullopt;
  };
  const double gflop =
      2e-9 * static_cast<double>(l.in * l.out * kTaps * kTaps * kImages * l.width * l.width);
  for (const lower::Tuning& tuning : lower::contract::tuning_space(request)) {
    request.tuning = tuning;
    auto lowered = lower::contract::lower(request);
    HEDDLE_CHECK(lowered.ok(), "{}", lowered.error().message);
    if (dump) print_code(lowered->kernel, machine);
    KernelRunner runner(request, *lowered, machine, pool);
    const double time = interleaved({[&] { runner.run(); }}, seconds, 4)[0];
    std::printf("%3ld x %3ld @%2ld %8.3f ms %7.1f  %s\n", l.in, l.out, l.width, time * 1e3,
                gflop / time, runner.schedule().c_str());
    if (dump) return;
  }
}

}  // namespace

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 2;
  const double seconds = argc > 2 ? std::atof(argv[2]) : 0.1;
  const int only = argc > 3 ? std::atoi(argv[3]) : -1;
  const auto machine = codegen::cpu::host_machine();
  ThreadPool pool(threads);
  for (int i = 0; i < static_cast<int>(std::size(kLayers)); ++i)
    if (only < 0 || only == i)
      measure(kLayers[i], machine, pool, seconds, argc > 4 && std::atoi(argv[4]) != 0, argc > 5);
  return 0;
}

// ResNet-50's convolutions, batch 1, bias and ReLU fused: our contraction kernels on channels-last
// memory against oneDNN choosing its own layouts, interleaved in one run. GFLOP/s; ratio to oneDNN.
// usage: conv_bench [threads] [seconds per contender] [--tune|--dump|--cold|--] [layer number, -1:
// all] [largest Winograd tile: 0, 2, 4]
#include <cmath>
#include <cstdio>
#include <dnnl.hpp>

#include "kernel_runner.h"

extern "C" void omp_set_num_threads(int);

namespace {

using namespace heddle;
using namespace heddle::bench;
using prim::NodeId;

/// channels in and out, kernel, stride, input height and width, and how often ResNet-50 has it.
struct Layer {
  std::int64_t ic, oc, k, s, h;
  int count;
  std::int64_t pad() const { return k / 2; }
  std::int64_t out() const { return (h + 2 * pad() - k) / s + 1; }
  double gflop() const { return 2e-9 * static_cast<double>(out() * out() * oc * ic * k * k); }
};
constexpr Layer kLayers[] = {
    {3, 64, 7, 2, 224, 1},    {64, 64, 1, 1, 56, 1},    {64, 64, 3, 1, 56, 3},
    {64, 256, 1, 1, 56, 4},   {256, 64, 1, 1, 56, 2},   {256, 128, 1, 1, 56, 1},
    {128, 128, 3, 2, 56, 1},  {128, 512, 1, 1, 28, 4},  {256, 512, 1, 2, 56, 1},
    {512, 128, 1, 1, 28, 3},  {128, 128, 3, 1, 28, 3},  {512, 256, 1, 1, 28, 1},
    {256, 256, 3, 2, 28, 1},  {256, 1024, 1, 1, 14, 6}, {512, 1024, 1, 2, 28, 1},
    {1024, 256, 1, 1, 14, 5}, {256, 256, 3, 1, 14, 5},  {1024, 512, 1, 1, 14, 1},
    {512, 512, 3, 2, 14, 1},  {512, 2048, 1, 1, 7, 3},  {1024, 2048, 1, 2, 14, 1},
    {2048, 512, 1, 1, 7, 2},  {512, 512, 3, 1, 7, 2}};

bool dump = false;  ///< print kernels and their assembly
bool cold = false;  ///< empty the caches before every run
int winograd = 4;   ///< lower::Target::winograd

struct Dnnl {
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  dnnl::convolution_forward primitive;
  std::unordered_map<int, dnnl::memory> args;
  dnnl::memory out;

  /// x and y in NHWC, w in OIHW.
  Dnnl(const Layer& l, float* x, float* w, float* bias) {
    using md = dnnl::memory::desc;
    using tag = dnnl::memory::format_tag;
    const auto f32 = dnnl::memory::data_type::f32;
    const std::int64_t o = l.out();
    dnnl::primitive_attr attr;
    dnnl::post_ops ops;
    ops.append_eltwise(1.F, dnnl::algorithm::eltwise_relu, 0, 0);
    attr.set_post_ops(ops);
    dnnl::convolution_forward::desc desc(
        dnnl::prop_kind::forward_inference, dnnl::algorithm::convolution_direct,
        md({1, l.ic, l.h, l.h}, f32, tag::any), md({l.oc, l.ic, l.k, l.k}, f32, tag::any),
        md({l.oc}, f32, tag::x), md({1, l.oc, o, o}, f32, tag::any), {l.s, l.s}, {l.pad(), l.pad()},
        {l.pad(), l.pad()});
    dnnl::convolution_forward::primitive_desc pd(desc, attr, engine);
    primitive = dnnl::convolution_forward(pd);
    dnnl::memory mx({{1, l.ic, l.h, l.h}, f32, tag::nhwc}, engine, x),
        mw({{l.oc, l.ic, l.k, l.k}, f32, tag::oihw}, engine, w);
    dnnl::memory px(pd.src_desc(), engine), pw(pd.weights_desc(), engine);
    out = dnnl::memory(pd.dst_desc(), engine);
    dnnl::reorder(mx, px).execute(stream, mx, px);
    dnnl::reorder(mw, pw).execute(stream, mw, pw);
    stream.wait();
    args = {{DNNL_ARG_SRC, px},
            {DNNL_ARG_WEIGHTS, pw},
            {DNNL_ARG_BIAS, dnnl::memory({{l.oc}, f32, tag::x}, engine, bias)},
            {DNNL_ARG_DST, out}};
  }
  void run() {
    primitive.execute(stream, args);
    stream.wait();
  }
  void read(const Layer& l, float* y) {
    dnnl::memory plain(
        {{1, l.oc, l.out(), l.out()}, dnnl::memory::data_type::f32, dnnl::memory::format_tag::nhwc},
        engine, y);
    dnnl::reorder(out, plain).execute(stream, out, plain);
    stream.wait();
  }
};

struct Ours {
  prim::Graph g;
  NodeId x, y;
  std::unique_ptr<KernelRunner> runner;

  Ours(const Layer& l, const float* w, const float* bias, const codegen::cpu::Machine& machine,
       ThreadPool& pool, bool tune) {
    prim::Builder b(g);
    x = g.add_input("x", {DType::f32, {1, l.ic, l.h, l.h}});
    const auto count = static_cast<std::size_t>(l.oc * l.ic * l.k * l.k);
    const NodeId weights =
        b.constant(Tensor::from<float>(DType::f32, {l.oc, l.ic, l.k, l.k}, {w, count}));
    const NodeId c = b.constant(
        Tensor::from<float>(DType::f32, {1, l.oc, 1, 1}, {bias, static_cast<std::size_t>(l.oc)}));
    prim::Builder::Conv conv{{l.s, l.s}, {1, 1}, {l.pad(), l.pad()}, {l.pad(), l.pad()}, 1};
    y = b.conv(x, weights, conv);
    y = b.relu(b.add(y, b.broadcast(c, b.shape(y))));
    g.outputs.push_back({"y", y});
    lower::Request request = request_of(g, target_of(machine, pool.threads()));
    const bool first = l.ic == 3;  // the graph's input is NCHW
    request.target.winograd = winograd;
    request.layout_of = [this, first](NodeId id) {
      const Shape& shape = g[id].type.shape;
      if (id == x && !first) return lower::ordered(shape, {0, 2, 3, 1});
      return lower::row_major(shape);
    };
    request.required_layout = [](NodeId) { return std::optional<lower::Layout>(); };
    std::vector<lower::Tuning> space{{}};
    if (tune) space = lower::contract::tuning_space(request);
    double best = 1e9;
    for (const lower::Tuning& tuning : space) {
      request.tuning = tuning;
      auto lowered = lower::contract::lower(request);
      HEDDLE_CHECK(lowered.ok(), "{}", lowered.error().message);
      if (dump) print_code(lowered->kernel, machine);
      auto made = std::make_unique<KernelRunner>(request, *lowered, machine, pool);
      const double seconds = space.size() > 1 ? interleaved({[&] { made->run(); }}, 0.05, 1)[0] : 0;
      if (tune) std::printf("    %7.1f  %s\n", l.gflop() / seconds, made->schedule().c_str());
      if (seconds < best) {
        best = seconds;
        runner = std::move(made);
      }
    }
  }
};

/// Times of ours and oneDNN's, in seconds.
std::pair<double, double> compare(const Layer& l, const codegen::cpu::Machine& machine,
                                  ThreadPool& pool, double seconds, bool tune) {
  const std::int64_t o = l.out();
  Floats x(l.ic * l.h * l.h, 1), w(l.oc * l.ic * l.k * l.k, 2), bias(l.oc, 3), y(l.oc * o * o);
  Ours ours(l, w.data(), bias.data(), machine, pool, tune);
  float* in = ours.runner->memory_of(ours.x);
  for (std::int64_t c = 0; c < l.ic; ++c)
    for (std::int64_t p = 0; p < l.h * l.h; ++p)
      in[l.ic == 3 ? c * l.h * l.h + p : p * l.ic + c] = x.data()[p * l.ic + c];
  Dnnl dnnl(l, x.data(), w.data(), bias.data());
  const auto times =
      interleaved({[&] { ours.runner->run(); }, [&] { dnnl.run(); }}, seconds, 4, cold);
  dnnl.read(l, y.data());
  double error = 0, scale = 0;
  for (std::int64_t i = 0; i < l.oc * o * o; ++i) {
    error = std::max(error, std::abs(1.0 * y.data()[i] - ours.runner->memory_of(ours.y)[i]));
    scale = std::max(scale, std::abs(1.0 * y.data()[i]));
  }
  std::printf(
      "%4ld->%4ld %ldx%ld s%ld @%3ld x%d %7.1f %7.1f %6.1f%% err %.1e compile %.0f ms | %s\n", l.ic,
      l.oc, l.k, l.k, l.s, l.h, l.count, l.gflop() / times[0], l.gflop() / times[1],
      100 * times[1] / times[0], error / scale, ours.runner->compile_ms(),
      ours.runner->schedule().c_str());
  std::fflush(stdout);
  return {times[0], times[1]};
}

}  // namespace

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 2;
  const double seconds = argc > 2 ? std::atof(argv[2]) : 0.2;
  const bool tune = argc > 3 && std::strcmp(argv[3], "--tune") == 0;
  dump = argc > 3 && std::strcmp(argv[3], "--dump") == 0;
  cold = argc > 3 && std::strcmp(argv[3], "--cold") == 0;
  const int only = argc > 4 ? std::atoi(argv[4]) : -1;
  if (argc > 5) winograd = std::atoi(argv[5]);
  omp_set_num_threads(threads);
  const auto machine = codegen::cpu::host_machine();
  ThreadPool pool(threads);
  std::printf("%s, %d threads; GFLOP/s: ours, oneDNN, ratio\n", machine.cpu.c_str(), threads);
  double ours = 0, peer = 0;
  for (int i = 0; i < static_cast<int>(std::size(kLayers)); ++i) {
    if (only >= 0 && only != i) continue;
    const auto [a, b] = compare(kLayers[i], machine, pool, seconds, tune);
    ours += a * kLayers[i].count;
    peer += b * kLayers[i].count;
  }
  std::printf("all layers: ours %.2f ms, oneDNN %.2f ms, ratio %.1f%%\n", ours * 1e3, peer * 1e3,
              100 * peer / ours);
  return 0;
}

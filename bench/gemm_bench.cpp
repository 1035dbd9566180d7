// Matrix products of transformer and square shapes: our contraction kernels against oneDNN with
// packed weights and OpenBLAS, interleaved in one run. GFLOP/s; ratio to oneDNN.
// usage: gemm_bench [threads] [seconds per contender] [--tune|--dump|--cold]
#include <dlfcn.h>

#include <cmath>
#include <cstdio>
#include <dnnl.hpp>

#include "kernel_runner.h"

extern "C" void omp_set_num_threads(int);

namespace {

using namespace heddle;
using namespace heddle::bench;
using prim::NodeId;

struct Shape3 {
  std::int64_t m, n, k;
};
constexpr Shape3 kShapes[] = {{512, 512, 512}, {768, 768, 768},  {1024, 1024, 1024},
                              {128, 768, 768}, {128, 3072, 768}, {128, 768, 3072},
                              {197, 768, 768}, {16, 4096, 4096}, {1, 4096, 4096}};

using Sgemm = void (*)(int, int, int, int, int, int, float, const float*, int, const float*, int,
                       float, float*, int);

struct BlasLibrary {
  Sgemm sgemm = nullptr;
  explicit BlasLibrary(int threads) {
    void* handle = dlopen("libopenblas.so.0", RTLD_NOW | RTLD_LOCAL);
    if (!handle) return;
    sgemm = reinterpret_cast<Sgemm>(dlsym(handle, "cblas_sgemm"));
    if (auto set = reinterpret_cast<void (*)(int)>(dlsym(handle, "openblas_set_num_threads")))
      set(threads);
  }
};

/// oneDNN's matmul with its own weight layout, optionally bias and GELU.
bool dump = false;  ///< print kernels and their assembly
bool cold = false;  ///< empty the caches before every run

struct Dnnl {
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  dnnl::matmul primitive;
  std::unordered_map<int, dnnl::memory> args;

  Dnnl(const Shape3& s, float* a, float* b, float* c, float* bias) {
    using md = dnnl::memory::desc;
    using tag = dnnl::memory::format_tag;
    const auto f32 = dnnl::memory::data_type::f32;
    md ma({s.m, s.k}, f32, tag::ab), mb({s.k, s.n}, f32, tag::any), mc({s.m, s.n}, f32, tag::ab);
    md mbias({1, s.n}, f32, tag::ab);
    dnnl::primitive_attr attr;
    if (bias) {
      dnnl::post_ops ops;
      ops.append_eltwise(1.F, dnnl::algorithm::eltwise_gelu_erf, 0, 0);
      attr.set_post_ops(ops);
    }
    const auto desc = bias ? dnnl::matmul::desc(ma, mb, mbias, mc) : dnnl::matmul::desc(ma, mb, mc);
    dnnl::matmul::primitive_desc pd(desc, attr, engine);
    primitive = dnnl::matmul(pd);
    dnnl::memory plain({{s.k, s.n}, f32, tag::ab}, engine, b), packed(pd.weights_desc(), engine);
    dnnl::reorder(plain, packed).execute(stream, plain, packed);
    stream.wait();
    args = {{DNNL_ARG_SRC, dnnl::memory(ma, engine, a)},
            {DNNL_ARG_WEIGHTS, packed},
            {DNNL_ARG_DST, dnnl::memory(mc, engine, c)}};
    if (bias) args[DNNL_ARG_BIAS] = dnnl::memory(mbias, engine, bias);
  }
  void run() {
    primitive.execute(stream, args);
    stream.wait();
  }
};

NodeId gelu(prim::Builder& b, NodeId x) {
  return b.mul(b.mul(x, 0.5), b.add(b.erf(b.mul(x, 0.70710678118654752)), 1.0));
}

struct Ours {
  prim::Graph g;
  NodeId x, y;
  std::unique_ptr<KernelRunner> runner;

  Ours(const Shape3& s, const float* w, const float* bias, const codegen::cpu::Machine& machine,
       ThreadPool& pool, bool tune) {
    prim::Builder b(g);
    x = g.add_input("x", {DType::f32, {s.m, s.k}});
    const auto n = static_cast<std::size_t>(s.n), k = static_cast<std::size_t>(s.k);
    y = b.matmul(x, b.constant(Tensor::from<float>(DType::f32, {s.k, s.n}, {w, n * k})));
    if (bias) {
      const NodeId c = b.constant(Tensor::from<float>(DType::f32, {s.n}, {bias, n}));
      y = gelu(b, b.add(y, b.broadcast(c, {s.m, s.n})));
    }
    g.outputs.push_back({"y", y});
    lower::Request request = request_of(g, target_of(machine, pool.threads()));
    request.layout_of = [this](NodeId id) { return lower::row_major(g[id].type.shape); };
    request.required_layout = [this](NodeId id) {
      return std::optional(lower::row_major(g[id].type.shape));
    };
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
      if (tune)
        std::printf("    %7.1f  %s\n", 2e-9 * static_cast<double>(s.m * s.n * s.k) / seconds,
                    made->schedule().c_str());
      if (seconds < best) {
        best = seconds;
        runner = std::move(made);
      }
    }
  }
};

void compare(const Shape3& s, const codegen::cpu::Machine& machine, ThreadPool& pool,
             const BlasLibrary& blas, double seconds, bool tune) {
  Floats a(s.m * s.k, 1), b(s.k * s.n, 2), bias(s.n, 3), c(s.m * s.n), d(s.m * s.n);
  Ours plain(s, b.data(), nullptr, machine, pool, tune),
      fused(s, b.data(), bias.data(), machine, pool, tune);
  std::memcpy(plain.runner->memory_of(plain.x), a.data(), static_cast<std::size_t>(s.m * s.k) * 4);
  std::memcpy(fused.runner->memory_of(fused.x), a.data(), static_cast<std::size_t>(s.m * s.k) * 4);
  Dnnl dnnl_plain(s, a.data(), b.data(), c.data(), nullptr);
  Dnnl dnnl_fused(s, a.data(), b.data(), d.data(), bias.data());
  const auto times = interleaved(
      {[&] { plain.runner->run(); }, [&] { dnnl_plain.run(); }, [&] { fused.runner->run(); },
       [&] { dnnl_fused.run(); },
       [&] {
         if (blas.sgemm)
           blas.sgemm(101, 111, 111, static_cast<int>(s.m), static_cast<int>(s.n),
                      static_cast<int>(s.k), 1.F, a.data(), static_cast<int>(s.k), b.data(),
                      static_cast<int>(s.n), 0.F, c.data(), static_cast<int>(s.n));
       }},
      seconds, 4, cold);
  double error = 0;
  dnnl_plain.run();
  for (std::int64_t i = 0; i < s.m * s.n; ++i) {
    error = std::max(error, std::abs(1.0 * c.data()[i] - plain.runner->memory_of(plain.y)[i]));
    error = std::max(error, std::abs(1.0 * d.data()[i] - fused.runner->memory_of(fused.y)[i]));
  }
  const double work = 2e-9 * static_cast<double>(s.m * s.n * s.k);
  std::printf(
      "%4ldx%4ldx%4ld %7.1f %7.1f %5.1f%% | gelu %7.1f %7.1f %5.1f%% | blas %7.1f | err %.0e "
      "compile %.0f ms | %s\n",
      s.m, s.n, s.k, work / times[0], work / times[1], 100 * times[1] / times[0], work / times[2],
      work / times[3], 100 * times[3] / times[2], work / times[4], error,
      plain.runner->compile_ms(), plain.runner->schedule().c_str());
  std::fflush(stdout);
}

/// Attention's products on [sequence, heads·width] memory: q·kᵀ scaled, and p·v.
void compare_attention(std::int64_t heads, std::int64_t seq, std::int64_t width, bool scores,
                       const codegen::cpu::Machine& machine, ThreadPool& pool, double seconds) {
  prim::Graph g;
  prim::Builder b(g);
  const Shape memory{seq, heads * width};
  const auto split = [&](NodeId x, std::vector<int> order) {
    return b.transpose(b.reshape(x, {seq, heads, width}), std::move(order));
  };
  NodeId x, y, out;
  if (scores) {
    x = g.add_input("q", {DType::f32, memory});
    y = g.add_input("k", {DType::f32, memory});
    out = b.mul(b.matmul(split(x, {1, 0, 2}), split(y, {1, 2, 0})), 0.125);
  } else {
    x = g.add_input("p", {DType::f32, {heads, seq, seq}});
    y = g.add_input("v", {DType::f32, memory});
    out = b.reshape(b.transpose(b.matmul(x, split(y, {1, 0, 2})), {1, 0, 2}), memory);
  }
  g.outputs.push_back({"y", out});
  lower::Request request = request_of(g, target_of(machine, pool.threads()));
  request.layout_of = [&](NodeId id) { return lower::row_major(g[id].type.shape); };
  request.required_layout = [](NodeId) { return std::optional<lower::Layout>(); };
  auto lowered = lower::contract::lower(request);
  HEDDLE_CHECK(lowered.ok(), "{}", lowered.error().message);
  if (dump) print_code(lowered->kernel, machine);
  KernelRunner ours(request, *lowered, machine, pool);

  using md = dnnl::memory::desc;
  const auto f32 = dnnl::memory::data_type::f32;
  const std::int64_t n = scores ? seq : width, k = scores ? width : seq, row = heads * width;
  const md ma = scores ? md({heads, seq, k}, f32, {width, row, 1})
                       : md({heads, seq, k}, f32, {seq * seq, seq, 1});
  const md mb =
      scores ? md({heads, k, n}, f32, {width, 1, row}) : md({heads, k, n}, f32, {width, row, 1});
  const md mc = scores ? md({heads, seq, n}, f32, {seq * n, n, 1})
                       : md({heads, seq, n}, f32, {width, row, 1});
  dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  dnnl::stream stream(engine);
  dnnl::matmul::primitive_desc pd(dnnl::matmul::desc(ma, mb, mc), engine);
  dnnl::matmul peer(pd);
  Floats c(heads * seq * std::max(n, width));
  std::unordered_map<int, dnnl::memory> args{
      {DNNL_ARG_SRC, dnnl::memory(ma, engine, ours.memory_of(x))},
      {DNNL_ARG_WEIGHTS, dnnl::memory(mb, engine, ours.memory_of(y))},
      {DNNL_ARG_DST, dnnl::memory(mc, engine, c.data())}};
  const auto times = interleaved({[&] { ours.run(); },
                                  [&] {
                                    peer.execute(stream, args);
                                    stream.wait();
                                  }},
                                 seconds, 4, cold);
  const double work = 2e-9 * static_cast<double>(heads * seq * n * k);
  std::printf("attention %s heads %ld seq %ld width %ld %7.1f %7.1f %5.1f%% | %s\n",
              scores ? "q.kT" : "p.v ", heads, seq, width, work / times[0], work / times[1],
              100 * times[1] / times[0], ours.schedule().c_str());
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 2;
  const double seconds = argc > 2 ? std::atof(argv[2]) : 0.3;
  const bool tune = argc > 3 && std::strcmp(argv[3], "--tune") == 0;
  dump = argc > 3 && std::strcmp(argv[3], "--dump") == 0;
  cold = argc > 3 && std::strcmp(argv[3], "--cold") == 0;
  const int only = argc > 4 ? std::atoi(argv[4]) : -1;
  omp_set_num_threads(threads);
  const auto machine = codegen::cpu::host_machine();
  ThreadPool pool(threads);
  BlasLibrary blas(threads);
  std::printf("%s, %d threads; GFLOP/s: ours, oneDNN packed, ratio; with bias and GELU; OpenBLAS\n",
              machine.cpu.c_str(), threads);
  for (int i = 0; i < static_cast<int>(std::size(kShapes)); ++i)
    if (only < 0 || only == i) compare(kShapes[i], machine, pool, blas, seconds, tune);
  for (const std::int64_t seq : {128, 197, 512})
    for (const bool scores : {true, false})
      if (only < 0) compare_attention(12, seq, 64, scores, machine, pool, seconds);
  return 0;
}

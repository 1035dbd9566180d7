// Products of matrices by halves (Strassen) against products as written, in turn in one run:
//   halves_bench [threads] [seconds] [--tune|--model] [M K N [--gelu]]
// Constants come from memory (cold) as in a network whose weights are larger than the caches.
#include <cstdio>

#include "kernel_runner.h"

namespace heddle::bench {
namespace {

using prim::NodeId;

/// Choices of the schedule by halves: --pin mr nv tiles panels (0: the model's).
std::vector<std::pair<std::string, std::int64_t>> pins;

struct Sizes {
  std::int64_t m, k, n;
};

/// The best schedule of one kind, by the model or by measuring all that are worth it.
std::unique_ptr<KernelRunner> best_of(const prim::Graph& g, std::int64_t halves,
                                      const codegen::cpu::Machine& machine, ThreadPool& pool,
                                      bool tune) {
  lower::Request request = request_of(g, target_of(machine, pool.threads()));
  request.layout_of = [&g](NodeId id) { return lower::row_major(g[id].type.shape); };
  request.required_layout = [&g](NodeId id) {
    return std::optional(lower::row_major(g[id].type.shape));
  };
  std::vector<lower::Tuning> space{{{"strassen", halves}, {"winograd", 0}}};
  if (halves)
    for (const auto& [name, value] : pins)
      if (value > 0) space[0].emplace_back(name, value);
  if (tune) {
    space.clear();
    request.target.strassen = halves != 0;
    for (lower::Tuning& t : lower::contract::tuning_space(request))
      for (const auto& [key, value] : t)
        if (key == "strassen" && value == halves) {
          space.push_back(t);
          break;
        }
  }
  std::unique_ptr<KernelRunner> best;
  double least = 1e9;
  for (const lower::Tuning& tuning : space) {
    request.tuning = tuning;
    auto lowered = lower::contract::lower(request);
    if (!lowered.ok()) continue;
    auto made = std::make_unique<KernelRunner>(request, *lowered, machine, pool);
    const double seconds = space.size() > 1 ? interleaved({[&] { made->run(); }}, 0.05, 1)[0] : 0;
    if (seconds >= least) continue;
    least = seconds;
    best = std::move(made);
  }
  return best;
}

void compare(const Sizes& s, const codegen::cpu::Machine& machine, ThreadPool& pool, double seconds,
             bool tune, bool gelu) {
  Floats w(s.k * s.n, 2), x(s.m * s.k, 3);
  prim::Graph g;
  prim::Builder b(g);
  const NodeId in = g.add_input("x", {DType::f32, {s.m, s.k}});
  const auto count = static_cast<std::size_t>(s.k * s.n);
  NodeId out =
      b.matmul(in, b.constant(Tensor::from<float>(DType::f32, {s.k, s.n}, {w.data(), count})));
  if (gelu) out = b.mul(b.mul(out, 0.5), b.add(b.erf(b.mul(out, 0.70710678118654752)), 1.0));
  g.outputs.push_back({"y", out});
  auto written = best_of(g, 0, machine, pool, tune), halves = best_of(g, 1, machine, pool, tune);
  if (!written || !halves) return;
  for (KernelRunner* r : {written.get(), halves.get()})
    std::memcpy(r->memory_of(in), x.data(), static_cast<std::size_t>(s.m * s.k) * 4);
  for (const bool cold : {false, true}) {
    const auto t = interleaved({[&] { written->run(); }, [&] { halves->run(); }}, seconds, 4, cold);
    const double flops = 2e-9 * static_cast<double>(s.m * s.n * s.k);
    double error = 0, scale = 0;
    for (std::int64_t i = 0; i < s.m * s.n; ++i) {
      const double want = written->memory_of(out)[i], got = halves->memory_of(out)[i];
      error = std::max(error, std::abs(want - got)), scale = std::max(scale, std::abs(want));
    }
    std::printf(
        "%5ldx%5ldx%5ld %s written %7.1f halves %7.1f GFLOP/s %5.1f%% differ %.0e | %s | %s\n", s.m,
        s.k, s.n, cold ? "cold" : "hot ", flops / t[0], flops / t[1], 100 * t[0] / t[1],
        error / scale, written->schedule().c_str(), halves->schedule().c_str());
  }
}

void run(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 2;
  const double seconds = argc > 2 ? std::atof(argv[2]) : 0.3;
  const bool tune = argc > 3 && std::strcmp(argv[3], "--tune") == 0;
  for (int i = 1; i + 4 < argc; ++i)
    if (std::strcmp(argv[i], "--pin") == 0)
      pins = {{"mr", std::atol(argv[i + 1])},
              {"nv", std::atol(argv[i + 2])},
              {"tiles", std::atol(argv[i + 3])},
              {"panels", std::atol(argv[i + 4])}};
  const auto machine = codegen::cpu::host_machine();
  ThreadPool pool(threads);
  std::printf("%s, %d threads\n", machine.cpu.c_str(), threads);
  if (argc > 6)
    return compare({std::atol(argv[4]), std::atol(argv[5]), std::atol(argv[6])}, machine, pool,
                   seconds, tune, argc > 7 && std::strcmp(argv[7], "--gelu") == 0);
  for (const Sizes& s : {Sizes{128, 384, 384},
                         {128, 384, 1536},
                         {128, 1536, 384},
                         {128, 768, 768},
                         {128, 768, 3072},
                         {128, 3072, 768},
                         {197, 768, 3072},
                         {3136, 64, 256},
                         {3136, 256, 64},
                         {784, 512, 128},
                         {784, 128, 512},
                         {196, 1024, 256},
                         {196, 256, 1024},
                         {49, 2048, 512},
                         {49, 512, 2048},
                         {1024, 1024, 1024}})
    compare(s, machine, pool, seconds, tune, false);
}

}  // namespace
}  // namespace heddle::bench

int main(int argc, char** argv) { heddle::bench::run(argc, argv); }

#pragma once
// Compiles one cluster of a primitive graph and runs it on a thread pool: what the micro-benchmarks
// of generated kernels are made of.
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <random>

#include "codegen/cpu/cpu.h"
#include "lower/lower.h"
#include "prim/builder.h"
#include "support/thread_pool.h"

namespace heddle::bench {

using Clock = std::chrono::steady_clock;
inline double now() {
  return std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
}

/// Floats in memory such as sessions use, filled with small random numbers.
class Floats {
 public:
  explicit Floats(std::int64_t count, unsigned seed = 1)
      : memory_({DType::f32, {count + 1024}}),
        data_(reinterpret_cast<float*>(memory_.mutable_data())) {
    std::mt19937 random(seed);
    std::uniform_real_distribution<float> real(-1, 1);
    for (std::int64_t i = 0; i < count; ++i) data_[i] = real(random);
  }
  float* data() const { return data_; }
  std::int64_t count() const { return memory_.count() - 1024; }

 private:
  Tensor memory_;
  float* data_;
};

inline lower::Target target_of(const codegen::cpu::Machine& m, int threads) {
  lower::Target t;
  t.vector_bytes = m.vector_bytes;
  t.vector_registers = m.vector_registers;
  t.fma_rate = m.fma_rate;
  t.tiles = m.tiles;
  if (const long size = sysconf(_SC_LEVEL1_DCACHE_SIZE); size > 0) t.l1_bytes = size;
  if (const long size = sysconf(_SC_LEVEL2_CACHE_SIZE); size > 0) t.l2_bytes = size;
  t.threads = threads;
  return t;
}

/// Every computing node of a graph as one cluster.
inline lower::Request request_of(const prim::Graph& g, const lower::Target& target) {
  lower::Request r;
  r.graph = &g;
  for (prim::NodeId id : prim::live_nodes(g)) {
    const auto& op = g[id].op;
    if (std::holds_alternative<prim::Input>(op) || std::holds_alternative<prim::Constant>(op))
      continue;
    r.cluster.nodes.push_back(id);
  }
  for (const auto& out : g.outputs) r.cluster.outputs.push_back(out.node);
  r.target = target;
  return r;
}

/// Kernel text and assembly, for a look at what is slow.
inline void print_code(const kernel::Kernel& k, const codegen::cpu::Machine& machine) {
  std::puts(kernel::to_string(k).c_str());
  auto text = codegen::cpu::to_assembly_text(k, machine);
  std::puts(text ? text->c_str() : text.error().message.c_str());
}

/// A compiled kernel with its arguments.
class KernelRunner {
 public:
  KernelRunner(const lower::Request& request, lower::Lowered lowered,
               const codegen::cpu::Machine& machine, ThreadPool& pool)
      : lowered_(std::move(lowered)), pool_(pool) {
    const auto start = now();
    auto object = codegen::cpu::compile({&lowered_.kernel, 1}, machine, "k");
    HEDDLE_CHECK(object.ok(), "{}", object.error().message);
    compile_ms_ = (now() - start) * 1e3;
    auto module = codegen::cpu::load({&object->bytes, 1});
    HEDDLE_CHECK(module.ok(), "{}", module.error().message);
    module_ = *module;
    const codegen::cpu::KernelInfo& info = object->kernels[0];
    for (const auto& phase : info.phases)
      phases_.push_back({module_->find(phase.symbol), phase.tasks});
    for (int t = 0; t < pool.threads(); ++t) scratch_.emplace_back(info.scratch_bytes / 4 + 64);
    for (const lower::Argument& a : lowered_.arguments) {
      const kernel::Buffer* buffer = nullptr;
      for (const kernel::Buffer& b : lowered_.kernel.buffers)
        if (b.argument == static_cast<int>(args_.size())) buffer = &b;
      memory_.emplace_back(buffer->size * size_of(buffer->dtype) / 4 + 1);
      if (a.kind == lower::Argument::Kind::packed)
        std::memcpy(memory_.back().data(), a.packed.data(),
                    static_cast<std::size_t>(a.packed.bytes()));
      else if (const Tensor* t = request.graph->constant_of(a.node))
        std::memcpy(memory_.back().data(), t->data(), static_cast<std::size_t>(t->bytes()));
      args_.push_back(memory_.back().data());
    }
    for (std::int64_t bytes : info.local_bytes) {
      memory_.emplace_back(bytes / 4 + 1);
      args_.push_back(memory_.back().data());
    }
  }

  void run() {
    for (const auto& [f, tasks] : phases_) {
      pool_.run([&, f = f, tasks = tasks](int t) {
        const std::int64_t n = pool_.threads();
        f(args_.data(), tasks * t / n, tasks * (t + 1) / n,
          scratch_[static_cast<std::size_t>(t)].data());
      });
    }
  }
  /// The memory of a value.
  float* memory_of(prim::NodeId node) {
    for (std::size_t i = 0; i < lowered_.arguments.size(); ++i)
      if (lowered_.arguments[i].kind == lower::Argument::Kind::value &&
          lowered_.arguments[i].node == node)
        return memory_[i].data();
    return nullptr;
  }
  const std::string& schedule() const { return lowered_.schedule; }
  const lower::Lowered& lowered() const { return lowered_; }
  double compile_ms() const { return compile_ms_; }

 private:
  lower::Lowered lowered_;
  ThreadPool& pool_;
  std::shared_ptr<codegen::cpu::Module> module_;
  std::vector<std::pair<codegen::cpu::TaskFn, std::int64_t>> phases_;
  std::vector<Floats> memory_, scratch_;
  std::vector<void*> args_;
  double compile_ms_ = 0;
};

/// Empties the caches of weights, as the other layers of a network do.
inline void flush_caches() {
  static Floats other(24 << 20);
  volatile float sum = 0;
  for (std::int64_t i = 0; i < other.count(); i += 16) sum = sum + other.data()[i];
}

/// Seconds of the quickest run, each contender in turn so that all see the same machine; `cold`
/// empties the caches before every run.
inline std::vector<double> interleaved(const std::vector<std::function<void()>>& contenders,
                                       double seconds_each, int rounds, bool cold = false) {
  std::vector<double> best(contenders.size(), 1e9);
  for (int round = 0; round < rounds; ++round)
    for (std::size_t i = 0; i < contenders.size(); ++i) {
      contenders[i]();
      const double begin = now();
      for (int runs = 0; runs < 3 || now() - begin < seconds_each / rounds; ++runs) {
        if (cold) flush_caches();
        const double start = now();
        contenders[i]();
        best[i] = std::min(best[i], now() - start);
      }
    }
  return best;
}

/// Two contenders in turn, run by run: the median seconds of each, and the median of second /
/// first, for machines whose speed changes from one moment to the next.
struct Paired {
  double first, second, ratio;
};
inline Paired paired(const std::function<void()>& first, const std::function<void()>& second,
                     double seconds) {
  std::vector<double> a, b, ratios;
  const auto timed = [](const std::function<void()>& run) {
    const double start = now();
    run();
    return now() - start;
  };
  first();
  second();
  for (const double begin = now(); a.size() < 5 || now() - begin < seconds;) {
    a.push_back(timed(first));
    b.push_back(timed(second));
    ratios.push_back(b.back() / a.back());
  }
  const auto median = [](std::vector<double>& v) {
    std::nth_element(v.begin(), v.begin() + static_cast<std::ptrdiff_t>(v.size() / 2), v.end());
    return v[v.size() / 2];
  };
  return {median(a), median(b), median(ratios)};
}

}  // namespace heddle::bench

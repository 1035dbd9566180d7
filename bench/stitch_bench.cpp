// Stitched kernels against the copy bandwidth of the machine in the same run.
//   stitch_bench [threads [name [code]]]: only that case; its kernel and assembly.
#include <cstdio>

#include "kernel_runner.h"

namespace {

using namespace heddle;
using prim::Builder;
using prim::NodeId;

struct Case {
  const char* name;
  void (*build)(prim::Graph& g, Builder& b);
  bool channels_last = false;
};
NodeId in(prim::Graph& g, Shape shape) { return g.add_input("x", {DType::f32, std::move(shape)}); }
void out(prim::Graph& g, NodeId id) { g.outputs.push_back({"y", id}); }
NodeId gelu(Builder& b, NodeId x) {
  return b.mul(b.mul(x, 0.5), b.add(b.erf(b.mul(x, 0.70710678)), 1));
}
const Builder::Conv kPool{{2, 2}, {1, 1}, {1, 1}, {1, 1}, 1};

const Case kCases[] = {
    {"softmax 1536x128",
     [](auto& g, auto& b) {
       out(g, b.softmax(in(g, {1536, 128}), {1}));
     }},
    {"softmax 2364x197",
     [](auto& g, auto& b) {
       out(g, b.softmax(in(g, {2364, 197}), {1}));
     }},
    {"softmax axis 1 [8,64,56,56]",
     [](auto& g, auto& b) {
       out(g, b.softmax(in(g, {8, 64, 56, 56}), {1}));
     }},
    {"skip+bias+layer norm 128x768",
     [](auto& g, auto& b) {
       const NodeId h = b.add(b.add(in(g, {128, 768}), in(g, {128, 768})), in(g, {768}));
       out(g, b.add(b.mul(b.normalize(h, {1}, 1e-5), in(g, {768})), in(g, {768})));
     }},
    {"layer norm 8192x1024",
     [](auto& g, auto& b) {
       out(g, b.normalize(in(g, {8192, 1024}), {1}, 1e-5));
     }},
    {"gelu 128x3072",
     [](auto& g, auto& b) {
       out(g, gelu(b, in(g, {128, 3072})));
     }},
    {"add+relu 16M",
     [](auto& g, auto& b) {
       out(g, b.relu(b.add(in(g, {16, 1024, 1024}), in(g, {16, 1024, 1024}))));
     }},
    {"gelu 16M",
     [](auto& g, auto& b) {
       out(g, gelu(b, in(g, {16, 1024, 1024})));
     }},
    {"instance norm+relu+pad [1,32,224,224]",
     [](auto& g, auto& b) {
       out(g, b.pad(b.relu(b.normalize(in(g, {1, 32, 224, 224}), {2, 3}, 1e-5)), {0, 0, 1, 1},
                    {0, 0, 1, 1}, 0));
     }},
    {"sum of all 16M",
     [](auto& g, auto& b) {
       out(g, b.reduce_sum(in(g, {4096, 4096}), {0, 1}));
     }},
    {"column sum 16384x768",
     [](auto& g, auto& b) {
       out(g, b.reduce_sum(in(g, {16384, 768}), {0}));
     }},
    {"transpose 4096x4096",
     [](auto& g, auto& b) {
       out(g, b.transpose(in(g, {4096, 4096}), {1, 0}));
     }},
    {"softmax 16384x1024",
     [](auto& g, auto& b) {
       out(g, b.softmax(in(g, {16384, 1024}), {1}));
     }},
    {"residual+layer norm 16384x768",
     [](auto& g, auto& b) {
       const NodeId h = b.add(in(g, {16384, 768}), in(g, {16384, 768}));
       out(g, h);
       out(g, b.mul(b.normalize(h, {1}, 1e-5), in(g, {768})));
     }},
    {"instance norm+relu+pad [8,64,160,160]",
     [](auto& g, auto& b) {
       out(g, b.pad(b.relu(b.normalize(in(g, {8, 64, 160, 160}), {2, 3}, 1e-5)), {0, 0, 1, 1},
                    {0, 0, 1, 1}, 0));
     }},
    {"column sum 65536x768",
     [](auto& g, auto& b) {
       out(g, b.reduce_sum(in(g, {65536, 768}), {0}));
     }},
    {"transpose heads [32,512,12,64]",
     [](auto& g, auto& b) {
       out(g, b.transpose(in(g, {32, 512, 12, 64}), {0, 2, 1, 3}));
     }},
    {"NHWC to NCHW [32,112,112,64]",
     [](auto& g, auto& b) {
       out(g, b.transpose(in(g, {32, 112, 112, 64}), {0, 3, 1, 2}));
     }},
    {"concat channels [32,64+128,56,56]",
     [](auto& g, auto& b) {
       out(g, b.concat({in(g, {32, 64, 56, 56}), in(g, {32, 128, 56, 56})}, 1));
     }},
    {"max pool 3x3s2 [32,64,112,112]",
     [](auto& g, auto& b) {
       out(g, b.reduce_max(b.windows(in(g, {32, 64, 112, 112}), {3, 3}, kPool, {56, 56}, -1e30),
                           {4, 5}, false));
     }},
    {"slice halves, gated [16384,2048]",
     [](auto& g, auto& b) {
       const NodeId x = in(g, {16384, 2048});
       out(g, b.mul(b.slice_axis(x, 1, 0, 1024), b.sigmoid(b.slice_axis(x, 1, 1024, 1024))));
     }},
    {"transpose heads [1,128,12,64]",
     [](auto& g, auto& b) {
       out(g, b.transpose(in(g, {1, 128, 12, 64}), {0, 2, 1, 3}));
     }},
    {"NHWC to NCHW [8,56,56,64]",
     [](auto& g, auto& b) {
       out(g, b.transpose(in(g, {8, 56, 56, 64}), {0, 3, 1, 2}));
     }},
    {"concat channels [8,64+128,56,56]",
     [](auto& g, auto& b) {
       out(g, b.concat({in(g, {8, 64, 56, 56}), in(g, {8, 128, 56, 56})}, 1));
     }},
    {"max pool 3x3s2 [1,64,112,112]",
     [](auto& g, auto& b) {
       out(g, b.reduce_max(b.windows(in(g, {1, 64, 112, 112}), {3, 3}, kPool, {56, 56}, -1e30),
                           {4, 5}, false));
     }},
    {"max pool 3x3s2 channels last",
     [](auto& g, auto& b) {
       out(g, b.reduce_max(b.windows(in(g, {1, 64, 112, 112}), {3, 3}, kPool, {56, 56}, -1e30),
                           {4, 5}, false));
     },
     true},
    {"depthwise 3x3 [1,96,56,56]",
     [](auto& g, auto& b) {
       out(g, b.conv(in(g, {1, 96, 56, 56}), in(g, {96, 1, 3, 3}),
                     {{1, 1}, {1, 1}, {1, 1}, {1, 1}, 96}));
     }},
    {"depthwise 3x3 channels last",
     [](auto& g, auto& b) {
       Tensor w({DType::f32, {96, 1, 3, 3}});
       for (std::int64_t i = 0; i < w.count(); ++i) w.set(i, static_cast<double>(i % 7));
       out(g, b.conv(in(g, {1, 96, 56, 56}), b.constant(w), {{1, 1}, {1, 1}, {1, 1}, {1, 1}, 96}));
     },
     true},
    {"global average pool [1,2048,7,7]",
     [](auto& g, auto& b) {
       out(g, b.mean(in(g, {1, 2048, 7, 7}), {2, 3}));
     }},
};

double bytes_of(const prim::Graph& g, const lower::Request& r) {
  double total = 0;
  const auto add = [&](NodeId id) {
    total += static_cast<double>(element_count(g[id].type.shape) * size_of(g[id].type.dtype));
  };
  for (NodeId id : lower::inputs_of(g, r.cluster)) add(id);
  for (NodeId id : r.cluster.outputs) add(id);
  return total;
}

/// A copy that moves as many bytes (read and written), on all threads.
std::function<void()> copy_of(double bytes, bench::Floats& from, bench::Floats& to,
                              ThreadPool& pool) {
  const auto each = static_cast<std::size_t>(bytes / 2 / pool.threads()) / 64 * 64;
  return [&, each] {
    pool.run([&](int t) {
      const std::size_t at = each / 4 * static_cast<std::size_t>(t);
      std::memcpy(to.data() + at, from.data() + at, each);
    });
  };
}

void measure(const Case& c, const codegen::cpu::Machine& machine, ThreadPool& pool, bool code) {
  prim::Graph g;
  Builder b(g);
  c.build(g, b);
  lower::Request request = bench::request_of(g, bench::target_of(machine, pool.threads()));
  request.layout_of = [&](NodeId id) {
    const Shape& s = g[id].type.shape;
    return c.channels_last && s.size() == 4 && !g.constant_of(id) ? lower::ordered(s, {0, 2, 3, 1})
                                                                  : lower::row_major(s);
  };
  request.required_layout = request.layout_of;
  const double start = bench::now();
  auto lowered = lower::stitch::lower(request);
  HEDDLE_CHECK(lowered.ok(), "{}", lowered.error().message);
  const double lowering = (bench::now() - start) * 1e3;
  if (code) bench::print_code(lowered->kernel, machine);
  bench::KernelRunner kernel(request, *lowered, machine, pool);
  const double bytes = bytes_of(g, request);
  const auto half = static_cast<std::int64_t>(bytes / 8) + 64;
  bench::Floats from(half), to(half);
  const auto [time, copy, ratio] =
      bench::paired([&] { kernel.run(); }, copy_of(bytes, from, to, pool), 0.6);
  std::printf(
      "%-40s %9.1f us %6.1f GB/s  copy %6.1f GB/s  %5.0f %%  lower %5.1f ms compile %5.1f ms  %s\n",
      c.name, time * 1e6, bytes / time * 1e-9, bytes / copy * 1e-9, ratio * 100, lowering,
      kernel.compile_ms(), kernel.schedule().c_str());
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 2;
  const std::string only = argc > 2 ? argv[2] : "";
  const auto machine = codegen::cpu::host_machine();
  ThreadPool pool(std::max(threads, 1));
  for (const Case& c : kCases)
    if (only.empty() || only == c.name) measure(c, machine, pool, argc > 3);
}

// One product as a kernel of its own, through the stand-in for the driver.
#pragma once
#include <dlfcn.h>
#include <gtest/gtest.h>

#include "driver/assemble.h"
#include "driver/cuda_code.h"
#include "driver/measure.h"
#include "lower/stitch/test_util.h"
#include "runtime/artefact.h"

namespace heddle::driver {

using lower::NodeId;

inline int calls(const char* name) {
  static const auto count = reinterpret_cast<int (*)(const char*)>(
      ::dlsym(::dlopen(FAKE_CUDA, RTLD_NOW | RTLD_LOCAL), "heddle_fake_calls"));
  return count(name);
}

struct Model {
  prim::Graph g;
  prim::Builder b{g};
  NodeId in(Shape shape, DType type) {
    return g.add_input(fmt::format("x{}", g.inputs.size()), {type, std::move(shape)});
  }
};

inline lower::Request request_of(const Model& m, const Platform& platform, lower::Tuning tuning) {
  lower::Request r;
  r.graph = &m.g;
  r.cluster = lower::whole(m.g);
  r.target = platform.target();
  r.layout_of = [&m](NodeId id) { return lower::row_major(m.g[id].type.shape); };
  r.required_layout = [&m](NodeId id) { return lower::row_major(m.g[id].type.shape); };
  r.tuning = std::move(tuning);
  return r;
}

/// The cluster as one kernel that is made by `tuning`.
struct Alone {
  CompiledKernel kernel;
  SingleKernel single;
};
inline Result<Alone> compile_alone(const Model& m, const CompileOptions& options,
                                   lower::Tuning tuning) {
  const Platform platform = HEDDLE_TRY(platform_for(options));
  Alone out;
  const lower::Request request = request_of(m, platform, std::move(tuning));
  out.kernel.planned.cluster = request.cluster;
  out.kernel.lowered = HEDDLE_TRY(lower::lower(request));
  for (const lower::Argument& a : out.kernel.lowered.arguments)
    out.kernel.input_layouts.push_back(lower::row_major(m.g[a.node].type.shape));
  std::vector<KernelCode> codes = {HEDDLE_TRY(cuda_text(out.kernel.lowered.kernel, platform))};
  ThreadPool pool(1);
  auto objects = HEDDLE_TRY(compile_cuda(codes, platform, options.options, pool, {}));
  out.kernel.code = std::move(codes[0]);
  add_units({&out.kernel, 1}, objects, platform, options);
  out.single = single_kernel(m.g, out.kernel, std::move(objects), platform.name());
  return out;
}

/// Its outputs, in the order of the cluster's; run three times: the last is a captured graph.
inline Result<std::vector<Tensor>> run_alone(const Model& m, const Alone& alone,
                                             const CompileOptions& options,
                                             const std::vector<Tensor>& inputs,
                                             bool through_file = false) {
  const SingleKernel& single = alone.single;
  runtime::Program program = single.program;
  if (through_file) {
    const std::string path = ::testing::TempDir() + "/product.heddle";
    HEDDLE_TRY(runtime::write_artefact(program, path));
    program = HEDDLE_TRY(runtime::read_artefact(path));
  }
  const auto session =
      HEDDLE_TRY(load(std::make_shared<runtime::Program>(std::move(program)), options));
  std::vector<Tensor> flat, out;
  for (const lower::Argument& a : single.inputs) {
    const Tensor& value =
        inputs[static_cast<std::size_t>(std::get<prim::Input>(m.g[a.node].op).slot)];
    flat.push_back(to_storage(value, lower::row_major(value.shape())));
  }
  for (int run = 0; run < 3; ++run) out = HEDDLE_TRY(session->run(flat));
  for (std::size_t i = 0; i < out.size(); ++i)
    out[i] = from_storage(out[i], m.g[single.outputs[i].node].type, single.output_layouts[i]);
  return out;
}

}  // namespace heddle::driver

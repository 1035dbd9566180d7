#pragma once
// The texts' device where there is a GPU: NVRTC compiles, the driver launches.
#include <gtest/gtest.h>

#include <cstdlib>

#include "codegen/cuda/nvrtc.h"
#include "cuda_emulation/device.h"
#include "runtime/cuda/device.h"
#include "runtime/cuda/gpu.h"

namespace heddle {

class GpuDevice : public TextDevice {
 public:
  /// Of the libraries that HEDDLE_CUDA_DRIVER and HEDDLE_NVRTC name, as the command's.
  static Result<std::unique_ptr<GpuDevice>> open() {
    const auto setting = [](const char* name) {
      const char* value = std::getenv(name);
      return std::string(value ? value : "");
    };
    const std::string driver = setting("HEDDLE_CUDA_DRIVER");
    auto out = std::unique_ptr<GpuDevice>(new GpuDevice);
    out->arch_ = HEDDLE_TRY(runtime::cuda::devices(driver)).front().arch();
    out->nvrtc_ = setting("HEDDLE_NVRTC");
    out->gpu_ = HEDDLE_TRY(runtime::cuda::Gpu::open(driver, 0));
    return out;
  }
  Status run(const std::string& text, const std::string& symbol, const emulation::Launch& how,
             const std::vector<Argument>& arguments) override {
    const runtime::cuda::Current current(*gpu_);
    runtime::cuda::Handle function = nullptr;
    HEDDLE_TRY(
        check(driver().ModuleGetFunction(&function, HEDDLE_TRY(module_of(text)), symbol.c_str()),
              "cuModuleGetFunction " + symbol));
    Arguments placed;
    for (const Argument& a : arguments) HEDDLE_TRY(place(a, placed));
    HEDDLE_TRY(launch(symbol, function, how, placed));
    for (const auto& [buffer, memory] : placed.memory)
      HEDDLE_TRY(check(driver().MemcpyDtoHAsync(buffer->bytes.data(), memory.get(),
                                                buffer->bytes.size(), stream_.get()),
                       "cuMemcpyDtoHAsync"));
    return check(driver().StreamSynchronize(stream_.get()), "kernel '" + symbol + "'");
  }

 private:
  /// Parameters in memory that stays where it is until the launch.
  struct Arguments {
    std::vector<std::pair<Buffer*, runtime::cuda::Memory>> memory;
    std::vector<std::unique_ptr<runtime::cuda::EncodedMap>> values;  ///< large enough for each kind
  };
  GpuDevice() = default;
  const runtime::cuda::Driver& driver() const { return gpu_->driver(); }
  Status check(int code, const std::string& what) const { return gpu_->check(code, what); }

  Result<runtime::cuda::Handle> module_of(const std::string& text) {
    if (const auto found = modules_.find(text); found != modules_.end()) return found->second.get();
    codegen::cuda::CompileOptions options;
    options.arch = arch_;
    options.library = nvrtc_;
    const codegen::cuda::Cubin cubin = HEDDLE_TRY(codegen::cuda::compile(text, options));
    auto module = HEDDLE_TRY(runtime::cuda::Owned<runtime::cuda::Handle>::make(
        gpu_, "cuModuleLoadData", driver().ModuleUnload,
        [&](runtime::cuda::Handle* m) { return driver().ModuleLoadData(m, cubin.bytes.data()); }));
    if (!stream_.get())
      stream_ = HEDDLE_TRY(runtime::cuda::Owned<runtime::cuda::Handle>::make(
          gpu_, "cuStreamCreate", driver().StreamDestroy,
          [&](runtime::cuda::Handle* s) { return driver().StreamCreate(s, 1); }));
    return modules_.emplace(text, std::move(module)).first->second.get();
  }

  Result<runtime::cuda::DevicePtr> memory_of(Buffer* b, Arguments& placed) {
    for (const auto& [known, memory] : placed.memory)
      if (known == b) return memory.get();
    auto memory = HEDDLE_TRY(runtime::cuda::allocate(
        gpu_, static_cast<std::int64_t>(b->bytes.size()), "a test's buffer"));
    const runtime::cuda::DevicePtr at = memory.get();
    placed.memory.emplace_back(b, std::move(memory));
    HEDDLE_TRY(check(driver().MemcpyHtoD(at, b->bytes.data(), b->bytes.size()), "cuMemcpyHtoD"));
    return at;
  }

  Status place(const Argument& argument, Arguments& placed) {
    auto value = std::make_unique<runtime::cuda::EncodedMap>();
    if (Buffer* const* b = std::get_if<Buffer*>(&argument)) {
      const runtime::cuda::DevicePtr at = HEDDLE_TRY(memory_of(*b, placed));
      value->opaque[0] = at;
    } else if (const Tiles* tiles = std::get_if<Tiles>(&argument)) {
      runtime::TensorMap map;
      map.dtype = tiles->map.element_bytes == 2 ? DType::bf16 : DType::f32;
      map.extents.assign(tiles->map.extents.begin(), tiles->map.extents.end());
      map.strides.assign(tiles->map.stride_bytes.begin(), tiles->map.stride_bytes.end());
      map.box.assign(tiles->map.box.begin(), tiles->map.box.end());
      map.swizzle_bytes = tiles->map.swizzle;
      *value = HEDDLE_TRY(
          runtime::cuda::encode(*gpu_, map, HEDDLE_TRY(memory_of(tiles->buffer, placed))));
    } else {
      const void* from = std::visit([](const auto& v) -> const void* { return &v; }, argument);
      std::memcpy(value->opaque, from, sizeof(int));  // or a float
    }
    placed.values.push_back(std::move(value));
    return Ok{};
  }

  Status launch(const std::string& symbol, runtime::cuda::Handle function,
                const emulation::Launch& how, const Arguments& placed) {
    constexpr int kMaxDynamicShared = 8;
    using runtime::cuda::LaunchAttribute;
    if (how.shared_bytes > 0)
      HEDDLE_TRY(check(driver().FuncSetAttribute(function, kMaxDynamicShared,
                                                 static_cast<int>(how.shared_bytes)),
                       "shared memory of '" + symbol + "'"));
    std::vector<LaunchAttribute> attributes;
    if (how.cooperative) attributes.push_back({LaunchAttribute::cooperative, 0, {1}});
    if (how.cluster.count() > 1)
      attributes.push_back(
          {LaunchAttribute::cluster, 0, {how.cluster.x, how.cluster.y, how.cluster.z}});
    const runtime::cuda::LaunchConfig config{{how.grid.x, how.grid.y, how.grid.z},
                                             {how.block.x, how.block.y, how.block.z},
                                             static_cast<unsigned>(how.shared_bytes),
                                             stream_.get(),
                                             attributes.data(),
                                             static_cast<unsigned>(attributes.size())};
    std::vector<void*> parameters;
    for (const auto& value : placed.values) parameters.push_back(value.get());
    return check(driver().LaunchKernelEx(&config, function, parameters.data(), nullptr),
                 "launch of '" + symbol + "'");
  }

  std::shared_ptr<runtime::cuda::Gpu> gpu_;
  std::string arch_, nvrtc_;
  runtime::cuda::Owned<runtime::cuda::Handle> stream_;
  std::map<std::string, runtime::cuda::Owned<runtime::cuda::Handle>> modules_;
};

/// The GPU where HEDDLE_TEXT_DEVICE is cuda, else the emulation.
inline std::unique_ptr<TextDevice> text_device(const emulation::CompileOptions& options) {
  const char* wanted = std::getenv("HEDDLE_TEXT_DEVICE");
  if (!wanted || std::string(wanted) != "cuda") return std::make_unique<EmulatedDevice>(options);
  auto device = GpuDevice::open();
  EXPECT_TRUE(device.ok()) << device.error().message;
  if (!device.ok()) std::abort();
  return *std::move(device);
}

}  // namespace heddle

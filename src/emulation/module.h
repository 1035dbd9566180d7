#pragma once
#include <filesystem>

#include "codegen/cuda/nvrtc.h"
#include "emulation/emulation.h"
#include "emulation/kernel/runtime.h"

namespace heddle::emulation {

struct ModuleState {
  std::filesystem::path path;
  void* handle = nullptr;
  bool races = false;  ///< built with checks of accesses
  emu::ModuleInfo info{};
  const std::byte *begin = nullptr, *end = nullptr;  ///< where it is loaded
  std::vector<Kernel> kernels;
  ModuleState() = default;
  ModuleState(const ModuleState&) = delete;
  ~ModuleState();
};

/// The headers of kernel/, which emulated text includes besides the prelude.
std::span<const codegen::cuda::Header> language();

/// "kernel.cu:12 (memory.cuh:17)": the kernel's line of a return address, and the helper's inside
/// it.
std::string source_of(const ModuleState& module, const void* pc);

}  // namespace heddle::emulation

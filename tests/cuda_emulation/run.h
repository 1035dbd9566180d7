#pragma once
// Runs generated kernels under the emulation.
#include <cstring>
#include <optional>
#include <span>
#include <thread>
#include <utility>

#include "codegen/cuda/cuda.h"
#include "emulation/emulation.h"
#include "emulation/tensor_map.h"

namespace heddle {

/// Global memory of a test, released at its end.
class DeviceBytes {
 public:
  explicit DeviceBytes(std::span<const std::byte> bytes)
      : size_(bytes.size()), at_(emulation::allocate(static_cast<std::int64_t>(bytes.size()))) {
    if (size_) std::memcpy(at_, bytes.data(), size_);
  }
  explicit DeviceBytes(std::int64_t size)
      : size_(static_cast<std::size_t>(size)), at_(emulation::allocate(size)) {}
  DeviceBytes(DeviceBytes&& other) noexcept
      : size_(other.size_), at_(std::exchange(other.at_, nullptr)) {}
  ~DeviceBytes() { emulation::release(at_); }
  std::byte* data() const { return at_; }
  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(at_);
  }
  std::vector<std::byte> bytes() const { return {at_, at_ + size_}; }

 private:
  std::size_t size_;
  std::byte* at_;
};

/// The tensor map of a phase for the tensor at `base`.
inline Result<emulation::TensorMap> map_of(const codegen::cuda::TileMap& map,
                                           const std::byte* base) {
  emulation::TensorMapRequest request;
  request.base = base;
  request.element_bytes = static_cast<int>(size_of(map.dtype));
  request.extents.assign(map.extents.begin(), map.extents.end());
  for (std::size_t d = 1; d < map.strides.size(); ++d)
    request.stride_bytes.push_back(static_cast<std::uint64_t>(map.strides[d] * size_of(map.dtype)));
  request.box.assign(map.box.begin(), map.box.end());
  request.swizzle = 128;
  return emulation::encode(request);
}

/// Runs the phases of a kernel on copies of its arguments, which it gives back. Resident blocks are
/// few, so that they take several tasks.
inline Result<std::vector<std::vector<std::byte>>> emulate(
    const emulation::Module& module, const codegen::cuda::KernelText& text,
    const std::vector<std::vector<std::byte>>& bytes, emulation::Order order, unsigned seed = 1) {
  std::vector<DeviceBytes> memory;
  for (const auto& one : bytes) memory.emplace_back(std::span<const std::byte>(one));
  for (std::int64_t local : text.local_bytes) memory.emplace_back(local);
  std::vector<std::byte*> pointers;
  std::vector<void*> arguments;
  for (const DeviceBytes& m : memory) pointers.push_back(m.data());
  for (std::byte*& p : pointers) arguments.push_back(&p);
  for (const codegen::cuda::PhaseInfo& phase : text.phases) {
    if (phase.tasks == 0) continue;
    const emulation::Kernel* kernel = module.find(phase.symbol);
    if (!kernel) return fail("no kernel '{}'", phase.symbol);
    emulation::Launch how;
    constexpr std::int64_t kResident = 3;
    how.cooperative = phase.cooperative;
    how.grid.x =
        static_cast<unsigned>(phase.resident ? std::min(phase.tasks, kResident) : phase.tasks);
    how.block.x = static_cast<unsigned>(phase.threads);
    how.cluster.x = static_cast<unsigned>(phase.cluster);
    how.shared_bytes = static_cast<std::size_t>(phase.shared_bytes);
    how.order = order;
    how.seed = seed;
    std::vector<emulation::TensorMap> maps;
    for (const codegen::cuda::TileMap& map : phase.maps)
      maps.push_back(HEDDLE_TRY(map_of(map, pointers[static_cast<std::size_t>(map.parameter)])));
    std::vector<void*> all = arguments;
    for (emulation::TensorMap& map : maps) all.push_back(&map);
    const DeviceBytes counter(std::vector<std::byte>(sizeof(unsigned)));
    std::byte* const counter_at = counter.data();
    if (phase.cooperative) all.push_back(const_cast<std::byte**>(&counter_at));
    HEDDLE_TRY(emulation::launch(module, *kernel, how, all.data()));
  }
  std::vector<std::vector<std::byte>> out;
  for (std::size_t i = 0; i < bytes.size(); ++i) out.push_back(memory[i].bytes());
  return out;
}

/// Compiles texts at the same time; "" or what the compiler says.
inline std::string compile_all(const std::vector<std::string>& texts,
                               const emulation::CompileOptions& options,
                               std::vector<emulation::Module>& out) {
  std::vector<std::optional<emulation::Module>> modules(texts.size());
  std::vector<std::string> messages(texts.size());
  std::vector<std::thread> compilers;
  for (std::size_t i = 0; i < texts.size(); ++i)
    compilers.emplace_back([&, i] {
      auto module = emulation::compile(texts[i], options);
      if (module)
        modules[i] = *module;
      else
        messages[i] = module.error().message;
    });
  for (std::thread& t : compilers) t.join();
  for (std::size_t i = 0; i < texts.size(); ++i) {
    if (!modules[i]) return messages[i];
    out.push_back(*modules[i]);
  }
  return "";
}

}  // namespace heddle

#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "support/result.h"

/// Runs CUDA text on the CPU, to test it where there is no GPU. The text that NVRTC gets is
/// compiled by the C++ compiler; each CUDA thread is a fiber. What a GPU may do late is done as
/// late as allowed, memory is poisoned, and misuse is an error that names a source line.
namespace heddle::emulation {

struct CompileOptions {
  /// Accesses are checked: races, bounds of shared and global memory, alignment. Global memory must
  /// then come from allocate().
  bool races = false;
  bool undefined = false;      ///< undefined behaviour (array bounds, shifts, overflow) is an error
  std::string compiler = {};   ///< a g++; empty: the one that built Heddle
  std::string cache_dir = {};  ///< keeps what was compiled; empty: this process only
};

/// A `__global__` function of the text.
struct Kernel {
  std::string symbol;
  std::vector<std::size_t> parameter_bytes;
  int max_threads = 0;  ///< of `__launch_bounds__`; 0: none given
  void (*call)(void** arguments) = nullptr;
};

struct ModuleState;
/// Compiled text; cheap to copy.
class Module {
 public:
  explicit Module(std::shared_ptr<ModuleState> state) : state_(std::move(state)) {}
  /// Null if there is none.
  const Kernel* find(const std::string& symbol) const;
  std::span<const Kernel> kernels() const;
  std::size_t static_shared_bytes() const;  ///< of all `__shared__` variables
  ModuleState& state() const { return *state_; }

 private:
  std::shared_ptr<ModuleState> state_;
};

/// Compiles CUDA text that includes "heddle.cuh"; kernels are `extern "C"`, written out (not made
/// by macros), at global scope or in namespace hd. Equal text and options give the same module.
/// Errors: missing (no C++ compiler), failed (with the compiler's messages; the text is
/// "kernel.cu"). Thread-safe.
Result<Module> compile(const std::string& text, const CompileOptions& options = {});

struct Dim {
  unsigned x = 1, y = 1, z = 1;
  std::int64_t count() const { return std::int64_t{x} * y * z; }
};
/// In which order what may run at the same time does.
enum class Order { forward, reverse, random };

struct Launch {
  Dim grid = {}, block = {}, cluster = {};
  std::size_t shared_bytes = 0;  ///< dynamic
  /// All blocks are resident, as grid_barrier needs; otherwise only those of one cluster.
  bool cooperative = false;
  Order order = Order::forward;
  unsigned seed = 1;
};
/// Runs a kernel to its end; `arguments[i]` points to the value of parameter i. Errors: usage (a
/// shape that no GPU takes), failed (deadlock, race, misaligned access, trap, …, with source
/// lines). After an error the kernel's results are undefined. One launch runs at a time in a
/// process.
Status launch(const Module& module, const Kernel& kernel, const Launch& how, void** arguments);

/// Global memory, aligned to 256 bytes, filled with 0xff. Never null; throws std::bad_alloc.
std::byte* allocate(std::int64_t bytes);
void release(std::byte* memory);

}  // namespace heddle::emulation

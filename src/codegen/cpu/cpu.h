#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernel/kernel.h"
#include "support/result.h"

namespace heddle::codegen::cpu {

/// The machine that code is generated for.
struct Machine {
  std::string triple, cpu, features;  ///< LLVM's spelling
  int vector_bytes = 32;
  int vector_registers = 16;
  double fma_rate = 2;       ///< multiply-adds of whole vectors that one core starts in a cycle
  bool quads = false;        ///< sums of products of four bytes are one instruction (VNNI)
  bool byte_tables = false;  ///< bytes are permuted from 128 others by one instruction (VBMI)
  bool bf16_pairs = false;   ///< so are those of two of bf16, and rounding to it (AVX512-BF16)
  /// And these start as often as multiply-adds of f32; else they are a quarter of that, and slower
  /// than f32's (Intel's since Sapphire Rapids, whose tile registers are meant for them).
  bool fast_pairs = false;
  /// Matrices of bf16 are multiplied in tile registers (AMX-BF16), and the system lets this process
  /// use them.
  bool tiles = false;
  /// Functions are as exact as f32 even where bf16 is all that is kept of them.
  bool exact_functions = false;
  /// Outputs of at least this many bytes are written past the caches, where that is possible: they
  /// would not be there when read again. 0: never.
  std::int64_t stream_bytes = 0;
};
Machine host_machine();
/// "19.1.7"
std::string llvm_version();
/// "host", a vector level ("sse", "avx2", "avx512"), or a processor that LLVM knows, with the
/// host's triple; an error for any other name.
Result<Machine> machine_named(const std::string& name);

/// Runs tasks [begin, end) of one phase. args: pointers to the argument buffers, then to the
/// kernel's local grid buffers; scratch: private to the calling thread, at least scratch_bytes,
/// 64-byte aligned.
using TaskFn = void (*)(void* const* args, std::int64_t begin, std::int64_t end, void* scratch);

struct PhaseInfo {
  std::string symbol;
  std::int64_t tasks = 0;  ///< extent of the grid loop
};
struct KernelInfo {
  std::vector<PhaseInfo> phases;
  std::int64_t scratch_bytes = 0;         ///< per thread
  std::vector<std::int64_t> local_bytes;  ///< local grid-scope buffers, after the arguments
};

/// Object code for a set of kernels.
struct Object {
  std::string bytes;                ///< a relocatable ELF object
  std::vector<KernelInfo> kernels;  ///< in the order given
};

/// LLVM IR of one kernel, for dumps.
Result<std::string> to_llvm_text(const kernel::Kernel& k, const Machine& m);
/// Assembly of one kernel, for dumps.
Result<std::string> to_assembly_text(const kernel::Kernel& k, const Machine& m);
/// What the object code of these kernels depends on (but for the prefix): a key for caches.
std::string cache_key(std::span<const kernel::Kernel> kernels, const Machine& m);
/// Compiles kernels to one object; `prefix` makes symbols unique. Thread-safe; callers batch
/// kernels over threads.
Result<Object> compile(std::span<const kernel::Kernel> kernels, const Machine& m,
                       const std::string& prefix);

/// What generated code may call besides itself: libm, memory routines, and kernel::Routine names.
struct Symbol {
  const char* name;
  void* address;
};
std::span<const Symbol> runtime_symbols();

/// Objects linked into this process.
class Module {
 public:
  virtual ~Module() = default;
  virtual TaskFn find(const std::string& symbol) const = 0;
};
Result<std::shared_ptr<Module>> load(std::span<const std::string> objects);

}  // namespace heddle::codegen::cpu

#pragma once
#include <map>
#include <string>

#include "codegen/cpu/cpu.h"
#include "codegen/cuda/units.h"
#include "driver/driver.h"
#include "plan/schedules.h"
#include "runtime/cuda/device.h"
#include "support/hash.h"

namespace heddle::driver {

/// What a program is compiled for: this machine's processor, or a GPU.
struct Platform {
  codegen::cpu::Machine cpu;
  int threads = 1;      ///< of this machine
  bool strict = false;  ///< Options::accuracy: sums in the order written, or at least as exact
  bool cuda = false;
  runtime::cuda::Device gpu;                      ///< found in this machine, or assumed
  bool found = false;                             ///< the GPU is in this machine
  bool library = false;                           ///< and cuBLASLt
  std::optional<codegen::cuda::UnitTools> tools;  ///< and what compiles units of CUTLASS for it
  bool units = false;                             ///< which the budget allows
  bool bands = true;                              ///< lower::Target::bands
  bool joins = true;                              ///< lower::Target::joins
  bool tf32 = false;                              ///< CompileOptions::tf32
  int ordinal = 0;
  /// CompileOptions::mode: what kernels are stages of, if they are not launches of their own.
  struct Persistent {
    int threads = 256;  ///< of a block
    int blocks = 1;     ///< of a multiprocessor
    /// Tasks with loads in flight together, by the text of stages without: group tuning's choice.
    std::map<Hash, int> factors = {};
  };
  std::optional<Persistent> persistent;
  /// Bytes of a constant that a block must read in a stage, to get them through the ring; 0: none.
  std::int64_t ring_least = 0;
  std::shared_ptr<const plan::Schedules> schedules;  ///< tuned, for this processor; null: none
  std::string schedules_note;                        ///< where they are from, or why there are none

  int capability() const { return 10 * gpu.major + gpu.minor; }
  /// runtime::Program::device: "cpu", "cuda sm_90a".
  std::string name() const { return cuda ? "cuda " + gpu.arch() : "cpu"; }
  lower::Target target() const;
  plan::MachineModel model() const;
  /// What the processor does in one instruction, in a model whose rates were measured.
  void add_instructions(plan::MachineModel& model) const;
  /// Under which measurements of it are kept, with units and without.
  std::string machine_name(bool with_units) const;
  std::string machine_name() const { return machine_name(units); }
};

/// From --device and --arch. Without --arch the GPU found is meant; where there is none, an H200 is
/// assumed. Errors: usage (names that mean nothing), missing (a device number that is not there).
Result<Platform> platform_for(const CompileOptions& options);
/// The number in "cuda:N"; 0 for "cuda"; nullopt for other names.
std::optional<int> cuda_ordinal(const std::string& device);

/// The text that a kernel's code is made from: LLVM IR, or CUDA without the prelude.
Result<std::string> source_of(const CompiledKernel& kernel, const Platform& platform);

}  // namespace heddle::driver

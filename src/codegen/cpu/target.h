#pragma once
#include <memory>

#include "codegen/cpu/cpu.h"

namespace llvm {
class Module;
class TargetMachine;
}  // namespace llvm

namespace heddle::codegen::cpu {

/// Registers the native target with LLVM, once per process.
void initialize_llvm();

/// Asks the system, once for this process, to keep tile registers for its threads (Linux:
/// arch_prctl). False where it does not, or the processor has none.
bool tiles_permitted();
/// What code with products in tile registers calls first: it must be permitted to. load() sees to
/// that; native code brings a function of its own.
constexpr const char* kPermitTiles = "heddle_permit_tiles";

/// Names of blocks that follow a loop whose accumulators fill the registers begin so.
constexpr const char* kApart = "apart";
/// Constants in those blocks come from memory where they are used. LLVM would load them all in
/// front of the outermost loop and keep accumulators in memory instead. `broadcasts`: an operand in
/// memory may be one number for all lanes (AVX-512); else memory has it in each.
void keep_constants_apart(llvm::Module& module, bool broadcasts);

}  // namespace heddle::codegen::cpu

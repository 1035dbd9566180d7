#pragma once
#include <memory>

#include "codegen/cpu/cpu.h"

namespace llvm {
class TargetMachine;
}

namespace heddle::codegen::cpu {

/// Registers the native target with LLVM, once per process.
void initialize_llvm();

}  // namespace heddle::codegen::cpu

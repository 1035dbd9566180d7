#pragma once
#include <string>

#include "runtime/program.h"
#include "support/result.h"

namespace heddle::tool {

enum class NativeKind { object, shared, executable };

/// Writes the program as machine code that needs no Heddle to be run: its objects, its constants
/// and a small run-time in C, built by the C compiler `cc`. Beside an object or shared library a
/// header of the same stem is written; its functions start with the stem. An executable times
/// itself. Fails if there is no compiler, or if a kernel calls a routine that only Heddle has.
Status write_native(const runtime::Program& program, NativeKind kind, const std::string& output);

/// The run-time: C11, compiled with the tables that write_native() makes in front of it.
extern const char kNativeRoutines[];
extern const char kNativeRuntime[];
extern const char kNativeMain[];

}  // namespace heddle::tool

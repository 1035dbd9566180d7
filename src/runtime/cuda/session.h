#pragma once
#include <memory>
#include <string>

#include "runtime/session.h"

namespace heddle::runtime::cuda {

/// The kernels of a program on one GPU, in the GPU's primary context; sessions share it.
class Code;
/// Loads a program's cubins. Errors of code missing: no driver, no such GPU, or one for which the
/// program was not made.
Result<std::shared_ptr<Code>> load_code(const std::string& driver, int ordinal,
                                        const Program& program);

struct SessionOptions {
  bool graph = true;  ///< replay a captured graph; false: launch kernel by kernel
  /// cuBLASLt, for launches that name a product; where it cannot be loaded, or has no algorithm,
  /// their own phases run. Empty: none.
  std::string cublaslt = {};
  int blocks = 0;  ///< of a monolith's grid; 0: all that are resident
};
/// Makes a program ready to run with kernels of `code`. Constants are copied to the GPU once; each
/// run in flight has a stream, an arena, and pinned memory for inputs and outputs of its own, kept
/// for later runs. Errors: out of memory, a kernel that `code` does not hold.
Result<std::shared_ptr<Session>> create_session(std::shared_ptr<const Program> program,
                                                std::shared_ptr<Code> code,
                                                const SessionOptions& options = {});

}  // namespace heddle::runtime::cuda

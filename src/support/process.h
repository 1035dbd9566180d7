#pragma once
#include <string>
#include <vector>

#include "support/result.h"

namespace heddle {

struct Ran {
  int status = 0;      ///< 128 where a signal ended it
  std::string output;  ///< what it printed to both streams
};
/// Runs a command, found as the shell finds it, and waits. Errors: missing (it cannot be started).
Result<Ran> run_process(const std::vector<std::string>& command);

/// Bytes of memory that the machine has.
std::int64_t machine_memory();

}  // namespace heddle

#pragma once
#include <memory>
#include <string>
#include <vector>

#include "runtime/communicator.h"

namespace heddle::tool {

/// The processes of mpirun, which share each step of training: `how` is "mpi" or "nccl". Where
/// `device` is "cuda" each takes a GPU of its machine.
Result<std::shared_ptr<runtime::Communicator>> join_processes(const std::string& how,
                                                              std::string& device);
/// The same processes, whose GPUs add up by NCCL (`library`: its path; empty: looked for).
Result<std::shared_ptr<runtime::Communicator>> with_nccl(
    std::shared_ptr<runtime::Communicator> group, const std::string& device,
    const std::string& library);

struct Setting {
  const char* name;
  std::int64_t value;
  bool hash = false;  ///< the value says nothing to a reader
};
/// Error where processes were told different things: they would wait for one another for ever.
Status want_agreement(runtime::Communicator& group, const std::vector<Setting>& settings);

}  // namespace heddle::tool

#pragma once
#include <memory>
#include <string>

#include "runtime/communicator.h"

namespace heddle::runtime::cuda {

/// The processes of `host`, which sum memory of their GPUs by NCCL: each has a GPU of its own,
/// number `ordinal` of the driver at `driver`. The host's memory is summed by `host`. `library`:
/// path of libnccl.so.2 (empty: the system's), loaded now. Errors: missing; what NCCL says.
Result<std::shared_ptr<Communicator>> nccl_communicator(std::shared_ptr<Communicator> host,
                                                        const std::string& driver, int ordinal,
                                                        const std::string& library);

}  // namespace heddle::runtime::cuda

#pragma once
#include <cstdint>
#include <memory>

#include "support/result.h"

namespace heddle::runtime {

/// Processes that run the same program on data of their own.
class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// Starts to replace `count` floats by their sums over all processes, which have to start the
  /// same sums in the same order; nobody may touch them until wait(). Returns at once.
  virtual void start_sum(float* data, std::int64_t count) = 0;
  /// Until all sums are there. Error: what the library said.
  virtual Status wait() = 0;
  /// Seconds that sums took, and that wait() had nothing else to do: the rest was overlapped.
  struct Times {
    double sums = 0, waits = 0;
  };
  virtual Times times() const = 0;
  /// Ends all processes with this exit code: one that leaves alone has the others wait for ever.
  virtual void abort(int code) = 0;
};

/// The processes that mpirun started. Open MPI is loaded now (libmpi.so.40); error: missing.
Result<std::shared_ptr<Communicator>> mpi_communicator();

}  // namespace heddle::runtime

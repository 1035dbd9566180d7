#pragma once
#include <cstdint>
#include <memory>

#include "support/result.h"

namespace heddle::runtime {

/// Sums over processes of memory of this process's GPU, beside what its streams do.
class DeviceSums {
 public:
  virtual ~DeviceSums() = default;
  /// Starts to replace `count` floats at an address of the GPU by their sums, once what is in
  /// `stream` now is done. Processes have to start the same sums in the same order.
  virtual Status start(void* stream, std::uint64_t data, std::int64_t count) = 0;
  /// What is put into `stream` from now on waits for all sums that were started.
  virtual Status join(void* stream) = 0;
};

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
  /// For memory of a GPU; null: the host's is all that can be summed.
  virtual DeviceSums* on_device() { return nullptr; }
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

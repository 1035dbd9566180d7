#pragma once
#include <sys/types.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "support/result.h"

namespace heddle::tool {

/// A peer framework in a worker process (bench/peers/serve.py), one JSON object a line each way.
/// The worker and whatever it started are killed with it.
class Peer {
 public:
  /// Runs `command` (program first). Fails if there is no such program. `quiet`: what it writes to
  /// standard error is dropped.
  static Result<Peer> start(const std::vector<std::string>& command, bool quiet);
  Peer(Peer&& other) noexcept;
  Peer& operator=(Peer&&) = delete;
  ~Peer();
  /// Sends a request and waits `seconds` at most for the reply. A reply with "error", nonsense, the
  /// worker's end and silence are errors of one line; after silence the worker is killed.
  Result<nlohmann::json> ask(const nlohmann::json& request, double seconds);

 private:
  Peer(pid_t pid, int to, int from) : pid_(pid), to_(to), from_(from) {}
  Result<std::string> line(double seconds);
  /// How the worker ended, for an error message.
  std::string ended();

  pid_t pid_;
  int to_, from_;
  std::string read_;  ///< what came after the last line taken
};

}  // namespace heddle::tool

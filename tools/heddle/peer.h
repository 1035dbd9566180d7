#pragma once
#include <sys/types.h>

#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "support/result.h"

namespace heddle::tool {

/// A peer framework in a worker process (bench/peers/serve.py), one JSON object a line each way.
class Peer {
 public:
  /// `python`: the interpreter of the peers' environment; `script`: serve.py.
  static Result<Peer> start(const std::string& name, const std::string& python,
                            const std::string& script);
  Peer(Peer&& other) noexcept;
  Peer& operator=(Peer&&) = delete;
  ~Peer();
  /// Sends a request, waits for the reply; a reply with "error" is an Error.
  Result<nlohmann::json> ask(const nlohmann::json& request);

 private:
  Peer(pid_t pid, FILE* in, FILE* out) : pid_(pid), to_(in), from_(out) {}
  pid_t pid_;
  FILE *to_, *from_;
};

}  // namespace heddle::tool

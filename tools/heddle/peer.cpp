#include "peer.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>

namespace heddle::tool {

Result<Peer> Peer::start(const std::string& name, const std::string& python,
                         const std::string& script) {
  if (::access(python.c_str(), X_OK) != 0)
    return fail(ErrorCode::missing, "peer {}: {} is not there (scripts/venv.sh makes it)", name,
                python);
  int request[2], reply[2];
  if (::pipe2(request, O_CLOEXEC) != 0 || ::pipe2(reply, O_CLOEXEC) != 0)
    return fail("peer {}: no pipe: {}", name, std::strerror(errno));
  ::signal(SIGPIPE, SIG_IGN);  // a dead peer is an error of the next write, not our end
  const pid_t pid = ::fork();
  if (pid < 0) return fail("peer {}: cannot fork: {}", name, std::strerror(errno));
  if (pid == 0) {
    ::dup2(request[0], 0);
    ::dup2(reply[1], 1);
    ::execl(python.c_str(), python.c_str(), script.c_str(), name.c_str(), nullptr);
    ::_exit(127);
  }
  ::close(request[0]);
  ::close(reply[1]);
  return Peer(pid, ::fdopen(request[1], "w"), ::fdopen(reply[0], "r"));
}

Peer::Peer(Peer&& other) noexcept : pid_(other.pid_), to_(other.to_), from_(other.from_) {
  other.pid_ = -1;
}

Peer::~Peer() {
  if (pid_ < 0) return;
  std::fclose(to_);  // end of input: the worker leaves
  std::fclose(from_);
  ::waitpid(pid_, nullptr, 0);
}

Result<nlohmann::json> Peer::ask(const nlohmann::json& request) {
  const std::string line = request.dump() + "\n";
  if (std::fwrite(line.data(), 1, line.size(), to_) != line.size() || std::fflush(to_) != 0)
    return fail("the peer process is gone");
  char* text = nullptr;
  std::size_t capacity = 0;
  const ssize_t length = ::getline(&text, &capacity, from_);
  const std::string reply(
      text != nullptr && length > 0 ? std::string(text, static_cast<std::size_t>(length)) : "");
  std::free(text);
  const nlohmann::json j = nlohmann::json::parse(reply, nullptr, false);
  if (j.is_discarded()) return fail("the peer process gave no answer");
  if (j.contains("error")) return fail("{}", j["error"].dump());
  return j;
}

}  // namespace heddle::tool

#include "peer.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <optional>
#include <thread>

namespace heddle::tool {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kMaxReply = 64 << 20;

/// "error" of a reply as one line.
std::string message_of(const nlohmann::json& error) {
  const std::string text = error.is_string() ? error.get<std::string>() : error.dump();
  return text.substr(0, text.find('\n'));
}

/// How a process ended, which stays to be waited for; none while it runs.
std::optional<siginfo_t> has_ended(pid_t pid) {
  siginfo_t info{};
  const int found = ::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG | WNOWAIT);
  return found == 0 && info.si_pid == pid ? std::optional(info) : std::nullopt;
}

bool write_all(int to, const std::string& text) {
  for (std::size_t done = 0; done < text.size();) {
    const ssize_t n = ::write(to, text.data() + done, text.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    done += static_cast<std::size_t>(n);
  }
  return true;
}

}  // namespace

Result<Peer> Peer::start(const std::vector<std::string>& command, bool quiet) {
  if (::access(command[0].c_str(), X_OK) != 0)
    return fail(ErrorCode::missing, "{} is not there (bench/setup_peers.sh makes it)", command[0]);
  int request[2], reply[2];
  if (::pipe2(request, O_CLOEXEC) != 0 || ::pipe2(reply, O_CLOEXEC) != 0)
    return fail("no pipe: {}", std::strerror(errno));
  ::signal(SIGPIPE, SIG_IGN);  // a dead peer is an error of the next write, not our end
  std::vector<char*> arguments;
  for (const std::string& part : command) arguments.push_back(const_cast<char*>(part.c_str()));
  arguments.push_back(nullptr);
  const pid_t pid = ::fork();
  if (pid < 0) return fail("cannot fork: {}", std::strerror(errno));
  if (pid == 0) {
    ::setpgid(0, 0);                     // its helpers die with it
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // and it with us
    ::signal(SIGPIPE, SIG_DFL);
    ::dup2(request[0], 0);
    ::dup2(reply[1], 1);
    if (const int nowhere = quiet ? ::open("/dev/null", O_WRONLY) : -1; nowhere >= 0)
      ::dup2(nowhere, 2);
    ::execv(arguments[0], arguments.data());
    ::_exit(127);
  }
  ::setpgid(pid, pid);
  ::close(request[0]);
  ::close(reply[1]);
  return Peer(pid, request[1], reply[0]);
}

Peer::Peer(Peer&& other) noexcept
    : pid_(other.pid_), to_(other.to_), from_(other.from_), read_(std::move(other.read_)) {
  other.pid_ = -1;
}

Peer::~Peer() {
  if (pid_ < 0) return;
  ::close(to_);  // end of input: the worker leaves, and cleans up behind it
  ::close(from_);
  for (int i = 0; i < 300 && !has_ended(pid_); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  ::kill(-pid_, SIGKILL);  // itself, if it did not leave, and what it started
  ::waitpid(pid_, nullptr, 0);
}

std::string Peer::ended() {
  for (int i = 0; i < 100; ++i) {
    if (const auto info = has_ended(pid_))
      return fmt::format(
          "{} {}", info->si_code == CLD_EXITED ? "ended with exit code" : "was ended by signal",
          info->si_status);
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return "closed its output";
}

Result<std::string> Peer::line(double seconds) {
  const auto deadline = Clock::now() + std::chrono::duration<double>(seconds);
  std::size_t searched = 0;
  for (;;) {
    if (const std::size_t end = read_.find('\n', searched); end != std::string::npos) {
      std::string text = read_.substr(0, end);
      read_.erase(0, end + 1);
      return text;
    }
    searched = read_.size();
    if (read_.size() > kMaxReply) return fail("the peer's reply does not end");
    const double left = std::chrono::duration<double>(deadline - Clock::now()).count();
    pollfd wait{from_, POLLIN, 0};
    const int ready = left > 0 ? ::poll(&wait, 1, static_cast<int>(left * 1e3) + 1) : 0;
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) {
      ::kill(-pid_, SIGKILL);
      return fail("no answer within {:.0f} s, killed", seconds);
    }
    char part[65536];
    const ssize_t n = ::read(from_, part, sizeof part);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return fail("the peer process {}", ended());
    read_.append(part, static_cast<std::size_t>(n));
  }
}

Result<nlohmann::json> Peer::ask(const nlohmann::json& request, double seconds) {
  // A worker that could not even start has said why, unasked: read that before giving up.
  const bool sent = write_all(to_, request.dump() + "\n");
  Result<std::string> reply = line(sent ? seconds : 1);
  if (!reply) return std::move(reply).error();
  const nlohmann::json j = nlohmann::json::parse(*reply, nullptr, false);
  if (!j.is_object()) return fail("the peer process gave nonsense");
  if (const auto error = j.find("error"); error != j.end()) return fail("{}", message_of(*error));
  return j;
}

}  // namespace heddle::tool

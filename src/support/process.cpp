#include "support/process.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

namespace heddle {

Result<Ran> run_process(const std::vector<std::string>& command) {
  std::vector<char*> arguments;
  for (const std::string& a : command) arguments.push_back(const_cast<char*>(a.c_str()));
  arguments.push_back(nullptr);
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return fail("'{}': no pipe", command[0]);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], 1);
  posix_spawn_file_actions_adddup2(&actions, ends[1], 2);
  pid_t child = 0;
  const int code =
      ::posix_spawnp(&child, arguments[0], &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  ::close(ends[1]);
  std::string out;
  char part[4096];
  for (ssize_t n; code == 0 && (n = ::read(ends[0], part, sizeof part)) > 0;)
    out.append(part, static_cast<std::size_t>(n));
  ::close(ends[0]);
  if (code != 0) return fail(ErrorCode::missing, "cannot run '{}'", command[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  return Ran{WIFEXITED(status) ? WEXITSTATUS(status) : 128, std::move(out)};
}

std::int64_t machine_memory() {
  return std::int64_t{::sysconf(_SC_PHYS_PAGES)} * std::int64_t{::sysconf(_SC_PAGESIZE)};
}

}  // namespace heddle

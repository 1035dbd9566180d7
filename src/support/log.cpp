#include "support/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

namespace heddle {
namespace {

spdlog::logger& logger() {
  static const std::shared_ptr<spdlog::logger> instance = [] {
    auto made = std::make_shared<spdlog::logger>(
        "heddle", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
    made->set_pattern("heddle: %^%l%$: %v");
    made->set_level(spdlog::level::warn);
    return made;
  }();
  return *instance;
}

spdlog::level::level_enum to_spdlog(LogLevel level) {
  switch (level) {
    case LogLevel::trace:
      return spdlog::level::trace;
    case LogLevel::debug:
      return spdlog::level::debug;
    case LogLevel::info:
      return spdlog::level::info;
    case LogLevel::warning:
      return spdlog::level::warn;
    case LogLevel::error:
      return spdlog::level::err;
    case LogLevel::off:
      return spdlog::level::off;
  }
  return spdlog::level::off;
}

}  // namespace

Status set_log_level(const std::string& name) {
  const std::string names[] = {"trace", "debug", "info", "warning", "error", "off"};
  for (int i = 0; i < 6; ++i)
    if (names[i] == name) return logger().set_level(to_spdlog(static_cast<LogLevel>(i))), Ok{};
  return fail(ErrorCode::usage,
              "log level: found '{}', want trace, debug, info, warning, error or off", name);
}

void log_line(LogLevel level, const std::string& text) { logger().log(to_spdlog(level), text); }
bool log_enabled(LogLevel level) { return logger().should_log(to_spdlog(level)); }

}  // namespace heddle

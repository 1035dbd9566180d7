#pragma once
#include <string>

#include "support/result.h"

namespace heddle {

enum class LogLevel { trace, debug, info, warning, error, off };
/// Sets the level by name; log lines go to standard error.
Status set_log_level(const std::string& name);
void log_line(LogLevel level, const std::string& text);
bool log_enabled(LogLevel level);

template <class... Args>
void log(LogLevel level, fmt::format_string<Args...> format, Args&&... args) {
  if (log_enabled(level)) log_line(level, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace heddle

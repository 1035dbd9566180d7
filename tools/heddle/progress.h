#pragma once
#include <functional>
#include <string>

namespace heddle::tool {

/// A line on standard error that follows the compiler's phases (share done, time left), drawn only
/// on a terminal, at most ten times a second, and wiped when the last copy goes. Empty otherwise.
std::function<void(const std::string& phase, double share)> progress_line();

}  // namespace heddle::tool

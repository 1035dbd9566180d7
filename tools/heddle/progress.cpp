#include "progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <mutex>

namespace heddle::tool {
namespace {

constexpr int kWidth = 24;
constexpr double kQuiet = 0.3;  ///< seconds before anything is drawn: short work shows nothing

class Line {
 public:
  ~Line() {
    if (drawn_) std::fputs("\r\033[K", stderr);
  }

  void show(const std::string& phase, double share) {
    const std::lock_guard lock(mutex_);
    const auto now = Clock::now();
    if (share < share_) phase_begin_ = now;  // the next phase, or another round of one
    share_ = share;
    if (seconds(now - begin_) < kQuiet || seconds(now - last_) < 0.1) return;
    last_ = now;
    drawn_ = true;
    const int full = static_cast<int>(std::clamp(share, 0.0, 1.0) * kWidth);
    const double spent = seconds(now - phase_begin_);
    const std::string left =
        share > 0.02 ? fmt::format("{:.0f} s left", spent * (1 - share) / share) : "";
    std::fputs(fmt::format("\r\033[K{} [{}{}] {:3.0f} % {}", phase, std::string(full, '#'),
                           std::string(kWidth - full, '.'), 100 * share, left)
                   .c_str(),
               stderr);
    std::fflush(stderr);
  }

 private:
  using Clock = std::chrono::steady_clock;
  static double seconds(Clock::duration d) { return std::chrono::duration<double>(d).count(); }

  std::mutex mutex_;
  const Clock::time_point begin_ = Clock::now();
  Clock::time_point phase_begin_ = begin_, last_ = begin_;
  double share_ = 0;
  bool drawn_ = false;
};

}  // namespace

std::function<void(const std::string& phase, double share)> progress_line() {
  if (::isatty(STDERR_FILENO) == 0) return {};
  return [line = std::make_shared<Line>()](const std::string& phase, double share) {
    line->show(phase, share);
  };
}

}  // namespace heddle::tool

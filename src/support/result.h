#pragma once
#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <utility>
#include <variant>

namespace heddle {

/// What went wrong, in the classes that the command line turns into exit codes.
enum class ErrorCode {
  failed = 1,         ///< a file, a malformed model, any other failure
  usage = 2,          ///< the caller asked for something that makes no sense
  unsupported = 3,    ///< a well-formed model that needs what Heddle does not have
  mismatch = 4,       ///< numbers differ from what was expected
  out_of_memory = 5,  ///< a size above the limit, or the machine had no more
  missing = 6,        ///< a device or a library is not there
};

struct Error {
  ErrorCode code = ErrorCode::failed;
  std::string message;  ///< lower case: subject, found, wanted
};

template <class... Args>
Error fail(fmt::format_string<Args...> format, Args&&... args) {
  return {ErrorCode::failed, fmt::format(format, std::forward<Args>(args)...)};
}
template <class... Args>
Error fail(ErrorCode code, fmt::format_string<Args...> format, Args&&... args) {
  return {code, fmt::format(format, std::forward<Args>(args)...)};
}
template <class... Args>
Error unsupported(fmt::format_string<Args...> format, Args&&... args) {
  return {ErrorCode::unsupported, fmt::format(format, std::forward<Args>(args)...)};
}

/// A value, or the error that a user, a file or a machine caused. Our own bugs throw instead
/// (HEDDLE_CHECK); "does not apply" is std::optional.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}
  bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }
  T& operator*() & { return std::get<0>(state_); }
  const T& operator*() const& { return std::get<0>(state_); }
  T&& operator*() && { return std::get<0>(std::move(state_)); }
  T* operator->() { return &std::get<0>(state_); }
  const T* operator->() const { return &std::get<0>(state_); }
  const Error& error() const& { return std::get<1>(state_); }
  Error&& error() && { return std::get<1>(std::move(state_)); }

 private:
  std::variant<T, Error> state_;
};

/// The result of something that only succeeds or fails.
struct Ok {};
using Status = Result<Ok>;

/// Unwraps a Result, or returns its error from the enclosing function.
#define HEDDLE_TRY(expression)                                     \
  __extension__({                                                  \
    auto heddle_result_ = (expression);                            \
    if (!heddle_result_) return std::move(heddle_result_).error(); \
    *std::move(heddle_result_);                                    \
  })

/// A bug of ours, caught only at the edges (command line, C, Python).
class InternalError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

[[noreturn]] void check_failed(const char* condition, const char* file, int line,
                               const std::string& message);

/// Throws InternalError unless the condition holds: HEDDLE_CHECK(a == b, "format {}", x).
#define HEDDLE_CHECK(condition, ...)                                \
  do {                                                              \
    if (!(condition)) [[unlikely]]                                  \
      ::heddle::check_failed(#condition, __FILE__, __LINE__,        \
                             ::heddle::check_message(__VA_ARGS__)); \
  } while (false)

inline std::string check_message() { return {}; }
template <class... Args>
std::string check_message(fmt::format_string<Args...> format, Args&&... args) {
  return fmt::format(format, std::forward<Args>(args)...);
}

}  // namespace heddle

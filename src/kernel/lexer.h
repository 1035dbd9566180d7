#pragma once
#include <fmt/format.h>

#include <charconv>
#include <string>
#include <string_view>

namespace heddle::kernel {

/// How the text writes them, in the order of Scope and Binding.
inline constexpr std::string_view kScopeNames[] = {"lane", "warp", "block", "cluster", "grid"};
inline constexpr std::string_view kBindingNames[] = {"grid",   "block",  "thread",
                                                     "vector", "unroll", "serial"};

struct ParseError {
  std::string message;
};

/// Words, numbers and names of a text; what does not fit throws ParseError.
class Lexer {
 public:
  explicit Lexer(std::string_view text) : text_(text) {}

 protected:
  [[noreturn]] void error(const std::string& what) const {
    std::size_t line = 1;
    for (std::size_t i = 0; i < at_ && i < text_.size(); ++i) line += text_[i] == '\n';
    throw ParseError{fmt::format("kernel text line {}: {}", line, what)};
  }
  void skip() {
    while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_]))) ++at_;
  }
  static bool word_char(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }
  bool accept(std::string_view token) {
    skip();
    if (text_.substr(at_, token.size()) != token) return false;
    const std::size_t end = at_ + token.size();
    if (word_char(token.back()) && end < text_.size() && word_char(text_[end])) return false;
    at_ = end;
    return true;
  }
  void expect(std::string_view token) {
    if (!accept(token)) error(fmt::format("found '{}', want '{}'", text_.substr(at_, 12), token));
  }
  std::string word() {
    skip();
    const std::size_t begin = at_;
    while (at_ < text_.size() && word_char(text_[at_])) ++at_;
    if (begin == at_) error("want a word");
    return std::string(text_.substr(begin, at_ - begin));
  }
  std::string quoted() {
    expect("\"");
    const std::size_t end = text_.find('"', at_);
    if (end == std::string_view::npos) error("unterminated name");
    std::string out(text_.substr(at_, end - at_));
    at_ = end + 1;
    return out;
  }
  template <class T>
  T number() {
    skip();
    T value{};
    const auto [end, code] =
        std::from_chars(text_.data() + at_, text_.data() + text_.size(), value);
    if (code != std::errc()) error("want a number");
    at_ = static_cast<std::size_t>(end - text_.data());
    return value;
  }
  std::int64_t integer(std::int64_t low, std::int64_t high) {
    const std::int64_t value = number<std::int64_t>();
    if (value < low || value > high) error(fmt::format("{} is outside {}..{}", value, low, high));
    return value;
  }
  std::int64_t integer() { return number<std::int64_t>(); }
  template <std::size_t N>
  int choice(const std::string_view (&names)[N]) {
    const std::string name = word();
    for (std::size_t i = 0; i < N; ++i)
      if (names[i] == name) return static_cast<int>(i);
    error(fmt::format("unknown word '{}'", name));
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

}  // namespace heddle::kernel

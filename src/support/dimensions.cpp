#include "support/dimensions.h"

#include <algorithm>
#include <cctype>

namespace heddle {
namespace {

constexpr std::size_t kMaxText = 400;
constexpr std::int64_t kMaxNumber = std::int64_t{1} << 40;

bool starts_name(char c) { return std::isalpha(static_cast<unsigned char>(c)) != 0 || c == '_'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

}  // namespace

/// Recursive descent; the length of the text bounds its depth.
class DimensionParser {
 public:
  explicit DimensionParser(std::string_view text) : text_(text) {}
  bool parse() { return sum() && peek() == '\0' && at_ == text_.size(); }
  DimensionExpr take() { return std::move(out_); }

 private:
  char peek() {
    while (at_ < text_.size() && text_[at_] == ' ') ++at_;
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  bool emit(char kind) {
    out_.steps_.push_back({kind, 0, {}});
    return true;
  }
  bool sum() {
    if (!product()) return false;
    while (peek() == '+' || peek() == '-') {
      const char op = text_[at_++];
      if (!product()) return false;
      emit(op);
    }
    return true;
  }
  bool product() {
    if (!factor()) return false;
    while (peek() == '*' || peek() == '/') {
      char op = text_[at_++];
      if (op == '/' && at_ < text_.size() && text_[at_] == '/') {
        ++at_;
        op = '%';
      }
      if (!factor()) return false;
      emit(op);
    }
    return true;
  }
  bool factor() {
    const char c = peek();
    if (c == '-') {
      ++at_;
      return factor() && emit('_');
    }
    if (c == '(') {
      ++at_;
      if (!sum() || peek() != ')') return false;
      ++at_;
      return true;
    }
    return is_digit(c) ? number() : starts_name(c) && name();
  }
  bool number() {
    std::int64_t value = 0;
    for (; at_ < text_.size() && is_digit(text_[at_]); ++at_) {
      value = 10 * value + (text_[at_] - '0');
      if (value > kMaxNumber) return false;
    }
    out_.steps_.push_back({'#', value, {}});
    return at_ == text_.size() || !starts_name(text_[at_]);
  }
  bool name() {
    std::string name;
    for (; at_ < text_.size(); ++at_) {
      const char c = text_[at_];
      if (!starts_name(c) && !is_digit(c) && c != '.') break;
      name += c;
    }
    out_.names_.insert(name);
    out_.steps_.push_back({'x', 0, std::move(name)});
    return true;
  }

  std::string_view text_;
  std::size_t at_ = 0;
  DimensionExpr out_;
};

std::optional<DimensionExpr> DimensionExpr::parse(std::string_view text) {
  if (text.size() > kMaxText) return std::nullopt;
  DimensionParser parser(text);
  if (!parser.parse()) return std::nullopt;
  DimensionExpr out = parser.take();
  out.text_ = text;
  return out;
}

Result<std::int64_t> DimensionExpr::value(const std::map<std::string, std::int64_t>& sizes) const {
  std::vector<std::int64_t> stack;
  std::string where;
  for (const std::string& name : names_) {
    const auto size = sizes.find(name);
    if (size == sizes.end()) return fail(ErrorCode::usage, "{}: '{}' is not given", text_, name);
    where += fmt::format("{}{} = {}", where.empty() ? " at " : ", ", name, size->second);
  }
  const auto wrong = [&](std::string_view what) {
    return fail(ErrorCode::usage, "{}{} {}", text_, where, what);
  };
  for (const Step& step : steps_) {
    if (step.kind == '#' || step.kind == 'x') {
      stack.push_back(step.kind == '#' ? step.number : sizes.at(step.name));
      continue;
    }
    const std::int64_t right = stack.back();
    stack.pop_back();
    if (step.kind == '_') {
      stack.push_back(-right);
      continue;
    }
    std::int64_t& left = stack.back();
    std::int64_t result = 0;
    bool over = false;
    if (step.kind == '+') over = __builtin_add_overflow(left, right, &result);
    if (step.kind == '-') over = __builtin_sub_overflow(left, right, &result);
    if (step.kind == '*') over = __builtin_mul_overflow(left, right, &result);
    if (over || result > kMaxNumber || result < -kMaxNumber) return wrong("is too large");
    if (step.kind == '/' || step.kind == '%') {
      if (right == 0) return wrong("divides by zero");
      const std::int64_t rest = ((left % right) + right) % right;
      if (step.kind == '/' && rest != 0)
        return wrong(
            fmt::format("divides {} by {}, which leaves "
                        "a rest (// rounds down)",
                        left, right));
      result = (left - rest) / right;
    }
    left = result;
  }
  if (stack.back() < 0) return wrong(fmt::format("is {}, want an extent", stack.back()));
  if (stack.back() > kMaxNumber) return wrong("is too large");
  return stack.back();
}

Status check_facts(const DimensionFacts& facts) {
  std::set<std::string> settled;
  for (std::size_t before = facts.size() + 1; settled.size() < facts.size();) {
    if (before == settled.size()) {
      std::string circle;
      for (const auto& [name, expr] : facts)
        if (!settled.contains(name))
          circle += fmt::format("{}'{}' = {}", circle.empty() ? "" : ", ", name, expr.text());
      return fail(ErrorCode::usage, "dimensions follow from each other in a circle: {}", circle);
    }
    before = settled.size();
    for (const auto& [name, expr] : facts)
      if (std::all_of(expr.names().begin(), expr.names().end(), [&](const std::string& other) {
            return settled.contains(other) || !facts.contains(other);
          }))
        settled.insert(name);
  }
  return Ok{};
}

Status derive(const DimensionFacts& facts, std::map<std::string, std::int64_t>& sizes,
              const std::map<std::string, std::string>& described) {
  std::set<std::string> settled;
  for (bool more = true; more;) {
    more = false;
    for (const auto& [name, expr] : facts) {
      const bool known =
          std::all_of(expr.names().begin(), expr.names().end(),
                      [&](const std::string& other) { return sizes.contains(other); });
      if (!known || !settled.insert(name).second) continue;
      more = true;
      const auto says = described.find(name);
      const std::string subject = says == described.end() ? "'" + name + "'" : says->second;
      const auto value = expr.value(sizes);
      if (!value)
        return fail(value.error().code, "dimension {}: {}", subject, value.error().message);
      const auto [at, fresh] = sizes.emplace(name, *value);
      if (fresh || at->second == *value) continue;
      std::string from;
      for (const std::string& other : expr.names())
        from += fmt::format("{}{} = {}", from.empty() ? "" : ", ", other, sizes.at(other));
      return fail(ErrorCode::usage, "dimension {} is {}, want {} = {} for {}", subject, at->second,
                  expr.text(), *value, from.empty() ? "all" : from);
    }
  }
  return Ok{};
}

}  // namespace heddle

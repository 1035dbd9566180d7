#include "ir/text.h"

#include <cctype>
#include <charconv>
#include <cmath>
#include <limits>

namespace heddle::ir {
namespace {

bool starts_name(char c) {
  return std::isalpha(static_cast<unsigned char>(c)) || c == '_' || c == '%' || c == '@';
}
bool digit(char c) { return c >= '0' && c <= '9'; }
bool in_name(char c) { return starts_name(c) || digit(c) || c == '.'; }

// Constants of an index expression stay far below int64, so that arithmetic on them cannot overflow
// whatever a text says.
constexpr std::int64_t kMaxIndexLiteral = std::int64_t{1} << 40;
constexpr int kMaxDepth = 64;

}  // namespace

void Lexer::advance() {
  while (at_ < text_.size()) {
    const char c = text_[at_];
    if (c == '#') {
      while (at_ < text_.size() && text_[at_] != '\n') ++at_;
    } else if (c == '\n') {
      ++line_;
      line_start_ = ++at_;
    } else if (c == ' ' || c == '\t' || c == '\r') {
      ++at_;
    } else {
      break;
    }
  }
  const std::size_t start = at_;
  token_ = {Token::Kind::end, {}, line_, static_cast<int>(start - line_start_) + 1};
  if (at_ >= text_.size()) return;
  const char c = text_[at_];
  const auto at = [&](std::size_t i) { return i < text_.size() ? text_[i] : '\0'; };
  // A remainder "x % 4" is a symbol; a name "%4" starts with the sign.
  const bool percent_symbol = c == '%' && !in_name(at(at_ + 1));
  if (starts_name(c) && !percent_symbol) {
    token_.kind = Token::Kind::name;
    while (at_ < text_.size() && in_name(text_[at_])) ++at_;
  } else if (digit(c)) {
    token_.kind = Token::Kind::integer;
    while (digit(at(at_))) ++at_;
    if (at(at_) == '.' && at(at_ + 1) != '.') {
      token_.kind = Token::Kind::real;
      ++at_;
      while (digit(at(at_))) ++at_;
    }
    const char sign = at(at_ + 1);
    if ((at(at_) == 'e' || at(at_) == 'E') &&
        (digit(sign) || ((sign == '-' || sign == '+') && digit(at(at_ + 2))))) {
      token_.kind = Token::Kind::real;
      at_ += 2;
      while (digit(at(at_))) ++at_;
    }
  } else if (c == '"') {
    token_.kind = Token::Kind::string;
    ++at_;
    while (at_ < text_.size() && text_[at_] != '"' && text_[at_] != '\n')
      at_ += text_[at_] == '\\' && at_ + 1 < text_.size() ? 2 : 1;
    if (at(at_) == '"') ++at_;
  } else {
    token_.kind = Token::Kind::symbol;
    const std::string_view two = text_.substr(at_, 2);
    const bool pair =
        two == "->" || two == "<=" || two == ">=" || two == "==" || two == "!=" || two == "..";
    at_ += pair ? 2 : 1;
  }
  at_ = std::min(at_, text_.size());
  token_.text = text_.substr(start, at_ - start);
}

Token Lexer::next() {
  const Token t = token_;
  advance();
  return t;
}

bool Lexer::accept(std::string_view text) {
  if (token_.text != text || token_.kind == Token::Kind::end || token_.kind == Token::Kind::string)
    return false;
  advance();
  return true;
}

Error Lexer::wanted(std::string_view what) const {
  const std::string found = at_end() ? "the end" : fmt::format("'{}'", token_.text.substr(0, 40));
  return fail("line {}, column {}: found {}, want {}", token_.line, token_.column, found, what);
}

Status Lexer::expect(std::string_view text) {
  if (accept(text)) return Ok{};
  return wanted(fmt::format("'{}'", text));
}

Result<std::string> Lexer::name(std::string_view what) {
  if (token_.kind != Token::Kind::name) return wanted(what);
  return std::string(next().text);
}

Result<std::int64_t> Lexer::integer(std::string_view what) {
  const bool negative = accept("-");
  if (token_.kind != Token::Kind::integer) return wanted(what);
  std::string text = (negative ? "-" : "") + std::string(token_.text);
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size())
    return wanted(fmt::format("{} within 64 bits", what));
  advance();
  return value;
}

Result<double> Lexer::real(std::string_view what) {
  const bool negative = accept("-");
  const double sign = negative ? -1.0 : 1.0;
  if (accept("inf")) return sign * std::numeric_limits<double>::infinity();
  if (accept("nan")) return std::numeric_limits<double>::quiet_NaN();
  if (token_.kind != Token::Kind::integer && token_.kind != Token::Kind::real) return wanted(what);
  double value = 0;
  const std::string text(token_.text);
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return wanted(what);
  advance();
  return sign * value;
}

Result<std::string> Lexer::quoted(std::string_view what) {
  if (token_.kind != Token::Kind::string || token_.text.size() < 2 || token_.text.back() != '"')
    return wanted(what);
  const std::string_view body = token_.text.substr(1, token_.text.size() - 2);
  std::string out;
  for (std::size_t i = 0; i < body.size(); ++i) {
    if (body[i] != '\\') {
      out += body[i];
      continue;
    }
    if (++i == body.size()) return wanted("a closed string");
    if (body[i] == 'n') {
      out += '\n';
    } else if (body[i] == 'x') {
      unsigned value = 0;
      const char* begin = body.data() + i + 1;
      if (i + 2 >= body.size() || std::from_chars(begin, begin + 2, value, 16).ptr != begin + 2)
        return wanted("two hexadecimal digits after \\x");
      out += static_cast<char>(value);
      i += 2;
    } else {
      out += body[i];
    }
  }
  advance();
  return out;
}

namespace {

Result<Expr> parse_sum(Lexer& in, int depth);

Result<Expr> parse_primary(Lexer& in, int depth) {
  if (depth > kMaxDepth) return in.wanted("a less deeply nested expression");
  if (in.accept("(")) {
    Expr e = HEDDLE_TRY(parse_sum(in, depth + 1));
    HEDDLE_TRY(in.expect(")"));
    return e;
  }
  const bool is_min = in.peek().text == "min";
  if (is_min || in.peek().text == "max") {
    in.next();
    HEDDLE_TRY(in.expect("("));
    const Expr a = HEDDLE_TRY(parse_sum(in, depth + 1));
    HEDDLE_TRY(in.expect(","));
    const Expr b = HEDDLE_TRY(parse_sum(in, depth + 1));
    HEDDLE_TRY(in.expect(")"));
    return is_min ? min(a, b) : max(a, b);
  }
  if (in.peek().kind == Token::Kind::name) {
    const std::string_view text = in.peek().text;
    std::int32_t index = 0;
    const char* end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data() + 1, end, index);
    if (text[0] != 'd' || text.size() < 2 || !digit(text[1]) || error != std::errc() ||
        stop != end || index > 1'000'000)
      return in.wanted("a variable d<number>");
    in.next();
    return Expr(Var{index});
  }
  const std::int64_t value = HEDDLE_TRY(in.integer("an index expression"));
  if (value > kMaxIndexLiteral || value < -kMaxIndexLiteral)
    return in.wanted("an integer below 2^40 before this");
  return Expr(value);
}

Result<Expr> parse_product(Lexer& in, int depth) {
  Expr e = HEDDLE_TRY(parse_primary(in, depth));
  while (true) {
    const std::string_view op = in.peek().text;
    if (op != "*" && op != "/" && op != "%") return e;
    in.next();
    const Expr right = HEDDLE_TRY(parse_primary(in, depth));
    if (op == "*") {
      if (!right.constant() && !e.constant()) return in.wanted("a constant factor before this");
      e = e * right;
    } else {
      if (right.constant().value_or(0) <= 0) return in.wanted("a positive divisor before this");
      e = op == "/" ? floor_div(e, *right.constant()) : floor_mod(e, *right.constant());
    }
  }
}

Result<Expr> parse_sum(Lexer& in, int depth) {
  Expr e = HEDDLE_TRY(parse_product(in, depth));
  while (true) {
    if (in.accept("+"))
      e = e + HEDDLE_TRY(parse_product(in, depth));
    else if (in.accept("-"))
      e = e - HEDDLE_TRY(parse_product(in, depth));
    else
      return e;
  }
}

}  // namespace

Result<Expr> parse_expr(Lexer& in) {
  try {
    return parse_sum(in, 0);
  } catch (const InternalError&) {  // a product of huge factors
    return in.wanted("an expression whose constants fit 64 bits before this");
  }
}

Result<Expr> parse_expr(std::string_view text) {
  Lexer in(text);
  Expr e = HEDDLE_TRY(parse_expr(in));
  if (!in.at_end()) return in.wanted("the end");
  return e;
}

Result<Condition> parse_condition(Lexer& in) {
  const std::int64_t low = HEDDLE_TRY(in.integer("a lower bound"));
  HEDDLE_TRY(in.expect("<="));
  Expr e = HEDDLE_TRY(parse_expr(in));
  HEDDLE_TRY(in.expect("<"));
  const std::int64_t high = HEDDLE_TRY(in.integer("an upper bound"));
  return Condition{std::move(e), low, high};
}

std::string quote(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\')
      out += '\\', out += c;
    else if (c == '\n')
      out += "\\n";
    else if (static_cast<unsigned char>(c) < 32 || static_cast<unsigned char>(c) == 127)
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    else
      out += c;
  }
  return out + "\"";
}

std::string real_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  return fmt::format("{}", value);
}

}  // namespace heddle::ir

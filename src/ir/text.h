#pragma once
#include <optional>
#include <string>
#include <string_view>

#include "ir/expr.h"
#include "support/result.h"

namespace heddle::ir {

/// One token of the text forms of all levels.
struct Token {
  enum class Kind : std::uint8_t { end, name, integer, real, string, symbol } kind = Kind::end;
  std::string_view text;  ///< as written; for a string, with its quotes
  int line = 1, column = 1;
};

/// Splits text into names ([A-Za-z_%@][A-Za-z0-9_.%@]*), numbers, quoted strings and symbols
/// ("->", "<=", ">=", "==", "!=", "..", or one character). '#' starts a comment to the line's end.
/// Reading past the end gives `end` tokens, so parsers need no bounds checks.
class Lexer {
 public:
  explicit Lexer(std::string_view text) : text_(text) { advance(); }
  const Token& peek() const { return token_; }
  Token next();
  /// Consumes the token if it is this symbol or name.
  bool accept(std::string_view text);
  Status expect(std::string_view text);
  Result<std::string> name(std::string_view what);
  Result<std::int64_t> integer(std::string_view what);  ///< with an optional minus
  Result<double> real(std::string_view what);           ///< also inf, -inf, nan
  Result<std::string> quoted(std::string_view what);
  bool at_end() const { return token_.kind == Token::Kind::end; }
  /// "line 3, column 5: found 'x', want WHAT".
  Error wanted(std::string_view what) const;

 private:
  void advance();
  std::string_view text_;
  std::size_t at_ = 0;
  int line_ = 1;
  std::size_t line_start_ = 0;
  Token token_;
};

/// The inverse of to_string(Expr): sums, products with constants, '/' and '%' by positive
/// constants, min, max, parentheses; variables are d0, d1, …
Result<Expr> parse_expr(Lexer& in);
Result<Expr> parse_expr(std::string_view text);
Result<Condition> parse_condition(Lexer& in);
/// "…" with \\, \", \n and \xHH escapes.
std::string quote(std::string_view text);
/// Shortest text that reads back as the same double ("inf", "-inf", "nan" included).
std::string real_text(double value);

}  // namespace heddle::ir

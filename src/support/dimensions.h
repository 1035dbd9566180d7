#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "support/result.h"

namespace heddle {

/// A whole number that follows from extents: "past + seq", "2*N", "(H + 31)//32". `//` rounds down,
/// `/` has to come out even; names are of letters, digits, '_' and '.'.
class DimensionExpr {
 public:
  /// Nullopt if the text is anything else, or longer than any exporter writes.
  static std::optional<DimensionExpr> parse(std::string_view text);
  const std::string& text() const { return text_; }
  const std::set<std::string>& names() const { return names_; }
  /// An extent. Error: a name without a value, a division by zero or with a rest, a result that is
  /// negative or above 2^40.
  Result<std::int64_t> value(const std::map<std::string, std::int64_t>& sizes) const;

 private:
  friend class DimensionParser;
  struct Step {  ///< of a stack machine
    char kind;   ///< '#': number, 'x': name, '_': negative, '%': //, or an operator
    std::int64_t number = 0;
    std::string name;
  };
  std::string text_;
  std::vector<Step> steps_;
  std::set<std::string> names_;
};

/// Dimensions that follow from others, by name.
using DimensionFacts = std::map<std::string, DimensionExpr>;

/// Error if a dimension would follow from itself.
Status check_facts(const DimensionFacts& facts);
/// Adds the dimensions that follow from those in `sizes`. Error (usage): one is there, and is
/// another; `described` says which one is meant ("'total' (input 'mask', dimension 1)").
Status derive(const DimensionFacts& facts, std::map<std::string, std::int64_t>& sizes,
              const std::map<std::string, std::string>& described = {});

}  // namespace heddle

#pragma once
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "lower/contract/product.h"

namespace heddle::lower::contract {

/// The image under a filter of bytes, read as words: each has the bytes that four rows of taps meet
/// in one column, so that four products are one instruction (kernel::packed, dot4). The rows of an
/// image are where it is unsigned and its filter signed.
class WindowWords {
 public:
  static constexpr std::int64_t kRows = 4;  ///< of a word
  /// What an expression over the problem's axes is at one position.
  using At = std::function<ir::Expr(const ir::Expr&)>;

  /// A byte at its place in a word.
  static std::int32_t part(std::int64_t byte, std::int64_t place) {
    return static_cast<std::int32_t>(static_cast<std::uint32_t>(byte & 0xff) << (8 * place));
  }

  /// Empty where operands are not such bytes, or more than one condition tells which rows of taps
  /// lie in the padding.
  static std::optional<WindowWords> of(const Product& p);

  /// True if some rows of taps may lie in the padding.
  bool is_padded() const { return row_.has_value(); }
  /// How many of these rows of taps do not.
  ir::Expr inside(std::span<const At> rows) const;
  /// The bytes of so many rows of taps, at most four. Those in the padding, of which there are some
  /// if `masked`, are what is read there: their nearest row's own are read and left out.
  kernel::Value word(std::span<const At> rows, bool masked) const;

 private:
  /// Where `expr` is not within [low, high), a row is padding.
  struct Row {
    ir::Condition inside;
    std::int64_t step;  ///< in memory, from one value of the expression to the next
  };
  ir::Expr is_inside(const At& at) const;

  kernel::Load load_{};
  std::vector<ir::Condition> own_;  ///< of columns
  std::optional<Row> row_;
  std::int64_t fill_ = 0;  ///< what the padding is read as
};

}  // namespace heddle::lower::contract

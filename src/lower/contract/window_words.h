#pragma once
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "lower/contract/product.h"

namespace heddle::lower::contract {

/// The image under a filter of bytes or bf16, read as words: each has what four rows of taps (two
/// of bf16) meet in one column, so that their products are one instruction (kernel::packed, dot4,
/// product_of_halves). Of bytes, the image is unsigned and the filter signed.
class WindowWords {
 public:
  /// What an expression over the problem's axes is at one position.
  using At = std::function<ir::Expr(const ir::Expr&)>;

  /// Empty where the machine has no such instruction, operands are something else, or more than one
  /// condition tells which rows of taps lie in the padding.
  static std::optional<WindowWords> of(const Product& p);

  std::int64_t rows() const { return rows_; }  ///< of a word
  /// An element of the filter at its place in a word.
  std::int32_t weight(const Tensor& filter, std::int64_t element, std::int64_t place) const;
  kernel::Value product(kernel::Value word, kernel::Value weights) const;

  /// True if some rows of taps may lie in the padding.
  bool is_padded() const { return row_.has_value(); }
  /// Holds where none of these rows of taps does, and where some do.
  std::vector<ir::Condition> all_inside(std::span<const At> rows) const;
  ir::Condition some_outside(std::span<const At> rows) const;
  /// What so many rows of taps meet, at most a word of them. Those in the padding, of which there
  /// are some if `masked`, are what is read there: their nearest row's own are read and left out.
  kernel::Value word(std::span<const At> rows, bool masked) const;

 private:
  /// Where `expr` is not within [low, high), a row is padding.
  struct Row {
    ir::Condition inside;
    std::int64_t step;  ///< in memory, from one value of the expression to the next
  };
  ir::Expr is_inside(const At& at) const;
  /// Bits at a place of a word.
  std::int32_t part(std::int64_t bits, std::int64_t place) const;
  kernel::Value element(const ir::Expr& offset) const;

  std::int64_t rows_ = 4;
  kernel::Load load_{};
  std::vector<ir::Condition> own_;  ///< of columns
  std::optional<Row> row_;
  std::int64_t fill_ = 0;  ///< what the padding is read as
};

}  // namespace heddle::lower::contract

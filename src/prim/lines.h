#pragma once
#include <optional>
#include <vector>

#include "prim/access.h"

namespace heddle::prim {

/// An index expression over variables of these extents, made to be evaluated often: an affine part,
/// tables of what is not affine and of few variables, and the rest.
class IndexForm {
 public:
  /// `inner` is 0 wherever this is evaluated.
  IndexForm(const ir::Expr& e, const Shape& variables, int inner = -1);
  std::int64_t at(const std::vector<std::int64_t>& point) const {
    std::int64_t value = constant_;
    for (const auto& [v, c] : affine_) value += point[v] * c;
    for (const Table& t : tables_) {
      std::int64_t place = 0;
      for (const auto& [v, stride] : t.strides) place += point[v] * stride;
      value += t.values[static_cast<std::size_t>(place)];
    }
    for (const auto& [e, c] : others_) value += ir::evaluate(e, point) * c;
    return value;
  }

 private:
  struct Table {
    std::vector<std::pair<std::size_t, std::int64_t>> strides;  ///< by variable
    std::vector<std::int64_t> values;
  };
  static std::optional<Table> table_of(const ir::Expr& atom, std::int64_t coefficient,
                                       const Shape& variables, int inner);

  std::int64_t constant_ = 0;
  std::vector<std::pair<std::size_t, std::int64_t>> affine_;
  std::vector<Table> tables_;
  std::vector<std::pair<ir::Expr, std::int64_t>> others_;
};

/// Walks an iteration space in lines along one variable in which every address and condition is
/// affine, so that index expressions are evaluated once per line, not once per element.
class LineWalker {
 public:
  struct Operand {
    const Access* access;
    const Shape* shape;  ///< of the row-major value that is accessed
  };
  /// One of the first `blockable` variables may be walked in blocks, within which a line of an
  /// operand that does not depend on it stays in the caches; the others are in row-major order.
  LineWalker(Shape variables, const std::vector<Operand>& operands, std::size_t blockable = 0);

  /// Calls f(first addresses, address steps, length) for each line part that is inside all
  /// accesses.
  template <class F>
  void walk(F&& f) {
    if (empty_) return;
    point_.assign(variables_.size(), 0);
    block_ = 0;
    do {
      std::int64_t low = 0, high = 0;
      if (!inside(low, high)) continue;
      for (std::size_t i = 0; i < addresses_.size(); ++i)
        base_[i] = addresses_[i].at(point_) + low * steps_[i];
      f(base_, steps_, high - low);
    } while (advance());
  }

 private:
  struct Bound {
    IndexForm form;
    std::int64_t low, high, step;
  };
  bool inside(std::int64_t& low, std::int64_t& high) const;
  bool advance();
  int choose_blocked(const std::vector<ir::Expr>& addresses, std::size_t blockable) const;
  int choose_inner(const std::vector<ir::Expr>& addresses,
                   const std::vector<ir::Condition>& conditions) const;

  Shape variables_;
  bool empty_ = false;
  int inner_ = -1;
  int blocked_ = -1;        ///< the variable walked in blocks
  std::int64_t block_ = 0;  ///< where its block begins
  std::vector<IndexForm> addresses_;
  std::vector<Bound> bounds_;
  std::vector<std::int64_t> steps_, base_, point_;
};

}  // namespace heddle::prim

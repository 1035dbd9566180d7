#pragma once
#include <vector>

#include "prim/access.h"

namespace heddle::prim {

/// Walks an iteration space in lines along one variable in which every address and condition is
/// affine, so that index expressions are evaluated once per line, not once per element.
class LineWalker {
 public:
  struct Operand {
    const Access* access;
    const Shape* shape;  ///< of the row-major value that is accessed
  };
  LineWalker(Shape variables, const std::vector<Operand>& operands);

  /// Calls f(first addresses, address steps, length) for each line part that is inside all
  /// accesses.
  template <class F>
  void walk(F&& f) {
    if (empty_) return;
    point_.assign(variables_.size(), 0);
    do {
      std::int64_t low = 0, high = 0;
      if (!inside(low, high)) continue;
      for (std::size_t i = 0; i < addresses_.size(); ++i)
        base_[i] = addresses_[i].at(point_) + low * steps_[i];
      f(base_, steps_, high - low);
    } while (advance());
  }

 private:
  /// An expression split into its affine part and the rest.
  struct Form {
    std::int64_t constant = 0;
    std::vector<std::pair<std::size_t, std::int64_t>> affine;
    std::vector<std::pair<ir::Expr, std::int64_t>> others;
    std::int64_t at(const std::vector<std::int64_t>& point) const {
      std::int64_t value = constant;
      for (const auto& [v, c] : affine) value += point[v] * c;
      for (const auto& [e, c] : others) value += ir::evaluate(e, point) * c;
      return value;
    }
  };
  struct Bound {
    Form form;
    std::int64_t low, high, step;
  };
  static Form form_of(const ir::Expr& e);
  bool inside(std::int64_t& low, std::int64_t& high) const;
  bool advance();
  int choose_inner(const std::vector<ir::Expr>& addresses,
                   const std::vector<ir::Condition>& conditions) const;

  Shape variables_;
  bool empty_ = false;
  int inner_ = -1;
  std::vector<Form> addresses_;
  std::vector<Bound> bounds_;
  std::vector<std::int64_t> steps_, base_, point_;
};

}  // namespace heddle::prim

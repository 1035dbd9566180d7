#pragma once
#include <utility>
#include <variant>

namespace heddle {

template <class... F>
struct Overloaded : F... {
  using F::operator()...;
};
template <class... F>
Overloaded(F...) -> Overloaded<F...>;

/// Visits a variant with one lambda per alternative; a missing one does not compile.
template <class V, class... F>
decltype(auto) match(V&& variant, F&&... functions) {
  return std::visit(Overloaded{std::forward<F>(functions)...}, std::forward<V>(variant));
}

}  // namespace heddle

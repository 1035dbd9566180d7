#include "prim/types.h"

namespace heddle::prim {
namespace {

using ir::ScalarFn;

bool accepts(ScalarFn fn, DType t) {
  switch (fn) {
    case ScalarFn::exp:
    case ScalarFn::log:
    case ScalarFn::sqrt:
    case ScalarFn::rsqrt:
    case ScalarFn::sin:
    case ScalarFn::cos:
    case ScalarFn::tan:
    case ScalarFn::asin:
    case ScalarFn::acos:
    case ScalarFn::atan:
    case ScalarFn::sinh:
    case ScalarFn::cosh:
    case ScalarFn::tanh:
    case ScalarFn::asinh:
    case ScalarFn::acosh:
    case ScalarFn::atanh:
    case ScalarFn::erf:
    case ScalarFn::atan2:
    case ScalarFn::isnan:
    case ScalarFn::isinf:
      return is_float(t);
    case ScalarFn::logical_not:
    case ScalarFn::logical_and:
    case ScalarFn::logical_or:
    case ScalarFn::logical_xor:
      return t == DType::b1;
    case ScalarFn::bit_not:
    case ScalarFn::bit_and:
    case ScalarFn::bit_or:
    case ScalarFn::bit_xor:
      return !is_float(t);
    case ScalarFn::shift_left:
    case ScalarFn::shift_right:
      return is_int(t);
    case ScalarFn::neg:
    case ScalarFn::abs:
    case ScalarFn::recip:
    case ScalarFn::floor:
    case ScalarFn::ceil:
    case ScalarFn::round:
    case ScalarFn::trunc:
    case ScalarFn::sign:
    case ScalarFn::add:
    case ScalarFn::sub:
    case ScalarFn::mul:
    case ScalarFn::div:
    case ScalarFn::fmod:
    case ScalarFn::floor_mod:
    case ScalarFn::pow:
      return t != DType::b1;
    case ScalarFn::min:
    case ScalarFn::max:
    case ScalarFn::equal:
    case ScalarFn::not_equal:
    case ScalarFn::less:
    case ScalarFn::less_equal:
    case ScalarFn::greater:
    case ScalarFn::greater_equal:
    case ScalarFn::select:
      return true;
    case ScalarFn::cast:
      return false;
  }
  return false;
}

}  // namespace

std::optional<DType> result_type(ScalarFn fn, std::span<const DType> args) {
  if (static_cast<int>(args.size()) != ir::info(fn).arity) return std::nullopt;
  const std::size_t first = fn == ScalarFn::select ? 1 : 0;
  if (first == 1 && args[0] != DType::b1) return std::nullopt;
  for (std::size_t i = first; i < args.size(); ++i)
    if (args[i] != args[first] || !accepts(fn, args[i])) return std::nullopt;
  return ir::info(fn).gives_bool ? DType::b1 : args[first];
}

}  // namespace heddle::prim

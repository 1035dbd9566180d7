#include "prim/types.h"

namespace heddle::prim {
namespace {

using ir::ScalarFn;

bool accepts(ScalarFn fn, DType t) {
  if (ir::float_only(fn)) return is_float(t);
  switch (fn) {
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
    case ScalarFn::dot2:
    case ScalarFn::dot4:
      return t == DType::i32;
    case ScalarFn::random_bits:
      return t == DType::i64;
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
    case ScalarFn::bitcast:
      return false;
    default:  // arithmetic
      return t != DType::b1;
  }
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

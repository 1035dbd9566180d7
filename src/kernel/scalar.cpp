#include "kernel/scalar.h"

#include <bit>
#include <cmath>

#include "support/tensor.h"

namespace heddle::kernel {

double round_to(DType type, double value) {
  if (type == DType::f16) return f16_to_f32(f32_to_f16(static_cast<float>(value)));
  if (type == DType::bf16) return bf16_to_f32(f32_to_bf16(static_cast<float>(value)));
  return value;
}

double round_to_tf32(double value) {
  const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(value));
  if (!std::isfinite(value)) return value;
  return static_cast<double>(std::bit_cast<float>((bits + 0x1000u) & 0xffffe000u));
}

Scalar combined(ir::Monoid fn, Scalar a, Scalar b, DType dtype) {
  if (is_float(dtype)) {
    const double pair[] = {a.real, b.real};
    return {ir::apply(ir::combiner(fn), pair), 0};
  }
  const std::int64_t pair[] = {a.integer, b.integer};
  return {0, ir::apply_int(ir::combiner(fn), pair, dtype)};
}

Scalar bitcast(Scalar x, DType from, DType to) {
  // These are many; a tensor's memory takes longer than all else.
  if (from == DType::f32 && (to == DType::i32 || to == DType::u32)) {
    const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(x.real));
    return {0, ir::wrap(bits, to)};
  }
  if ((from == DType::i32 || from == DType::u32) && to == DType::f32)
    return {std::bit_cast<float>(static_cast<std::uint32_t>(x.integer)), 0};
  Tensor one({from, {1}});
  if (is_float(from))
    one.set(0, x.real);
  else
    one.set_int(0, x.integer);
  const Tensor same({to, {1}}, nullptr, one.data());
  return is_float(to) ? Scalar{same.at(0), 0} : Scalar{0, same.int_at(0)};
}

/// Floats to integers truncate and saturate, NaN gives 0: Tensor::set has the rule.
Scalar cast(Scalar x, DType from, DType to) {
  if (is_float(from) && is_float(to)) {
    const bool narrow = to == DType::f32 && from == DType::f64;
    return {narrow ? static_cast<double>(static_cast<float>(x.real)) : x.real, 0};
  }
  if (is_float(from)) {
    if (to == DType::b1) return {0, x.real != 0};
    Tensor one({to, {1}});
    one.set(0, x.real);
    return {0, one.int_at(0)};
  }
  if (!is_float(to)) return {0, ir::wrap(x.integer, to)};
  if (from == DType::u64) return {static_cast<double>(static_cast<std::uint64_t>(x.integer)), 0};
  return {static_cast<double>(x.integer), 0};
}

}  // namespace heddle::kernel

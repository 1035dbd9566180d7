// The functions that generated code calls.
#include <cmath>
#include <cstring>

#include "codegen/cpu/cpu.h"
#include "codegen/cpu/routines.h"
#include "codegen/cpu/target.h"
#include "ir/philox.h"

namespace heddle::codegen::cpu {
namespace {

std::int64_t signed_power(std::int64_t base, std::int64_t exponent) {
  const std::int64_t args[] = {base, exponent};
  return ir::apply_int(ir::ScalarFn::pow, args, DType::i64);
}
std::int64_t unsigned_power(std::int64_t base, std::int64_t exponent) {
  const std::int64_t args[] = {base, exponent};
  return ir::apply_int(ir::ScalarFn::pow, args, DType::u64);
}
float random_uniform(std::uint64_t counter, std::uint64_t seed) {
  return static_cast<float>(ir::philox_uniform(seed, counter));
}
float random_normal(std::uint64_t counter, std::uint64_t seed) {
  return static_cast<float>(ir::philox_normal(seed, counter));
}

template <class F>
void* erase(F* f) {
  return reinterpret_cast<void*>(f);
}
using F1 = float(float);
using F2 = float(float, float);
using D1 = double(double);
using D2 = double(double, double);

}  // namespace

std::span<const Symbol> runtime_symbols() {
  static const Symbol kSymbols[] = {
      {"expf", erase<F1>(expf)},
      {"exp", erase<D1>(exp)},
      {"logf", erase<F1>(logf)},
      {"log", erase<D1>(log)},
      {"sinf", erase<F1>(sinf)},
      {"sin", erase<D1>(sin)},
      {"cosf", erase<F1>(cosf)},
      {"cos", erase<D1>(cos)},
      {"tanf", erase<F1>(tanf)},
      {"tan", erase<D1>(tan)},
      {"asinf", erase<F1>(asinf)},
      {"asin", erase<D1>(asin)},
      {"acosf", erase<F1>(acosf)},
      {"acos", erase<D1>(acos)},
      {"atanf", erase<F1>(atanf)},
      {"atan", erase<D1>(atan)},
      {"sinhf", erase<F1>(sinhf)},
      {"sinh", erase<D1>(sinh)},
      {"coshf", erase<F1>(coshf)},
      {"cosh", erase<D1>(cosh)},
      {"tanhf", erase<F1>(tanhf)},
      {"tanh", erase<D1>(tanh)},
      {"asinhf", erase<F1>(asinhf)},
      {"asinh", erase<D1>(asinh)},
      {"acoshf", erase<F1>(acoshf)},
      {"acosh", erase<D1>(acosh)},
      {"atanhf", erase<F1>(atanhf)},
      {"atanh", erase<D1>(atanh)},
      {"erff", erase<F1>(erff)},
      {"erf", erase<D1>(erf)},
      {"fmodf", erase<F2>(fmodf)},
      {"fmod", erase<D2>(fmod)},
      {"powf", erase<F2>(powf)},
      {"pow", erase<D2>(pow)},
      {"atan2f", erase<F2>(atan2f)},
      {"atan2", erase<D2>(atan2)},
      // Machines without SSE4.1 round by call.
      {"floorf", erase<F1>(floorf)},
      {"floor", erase<D1>(floor)},
      {"ceilf", erase<F1>(ceilf)},
      {"ceil", erase<D1>(ceil)},
      {"truncf", erase<F1>(truncf)},
      {"trunc", erase<D1>(trunc)},
      {"roundevenf", erase<F1>(nearbyintf)},
      {"roundeven", erase<D1>(nearbyint)},
      {"heddle_f16_to_f32", erase(f16_to_f32)},
      {"heddle_f32_to_f16", erase(f32_to_f16)},
      {"memcpy", erase<void*(void*, const void*, std::size_t)>(memcpy)},
      {"memmove", erase<void*(void*, const void*, std::size_t)>(memmove)},
      {"memset", erase<void*(void*, int, std::size_t)>(memset)},
      {kPermitTiles, erase(+[] {})},
      {"heddle_sort", erase(sort)},
      {"heddle_ipow", erase(signed_power)},
      {"heddle_upow", erase(unsigned_power)},
      {"heddle_random_uniform", erase(random_uniform)},
      {"heddle_random_normal", erase(random_normal)},
  };
  return kSymbols;
}

}  // namespace heddle::codegen::cpu

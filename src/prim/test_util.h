#pragma once
#include <initializer_list>
#include <random>

#include "prim/builder.h"
#include "prim/interpret.h"

namespace heddle::prim {

inline Tensor floats(Shape shape, const std::vector<float>& values) {
  return Tensor::from<float>(DType::f32, std::move(shape), std::span<const float>(values));
}
inline Tensor ints(Shape shape, const std::vector<std::int64_t>& values) {
  return Tensor::from<std::int64_t>(DType::i64, std::move(shape),
                                    std::span<const std::int64_t>(values));
}
/// Values that every rewrite of floating arithmetic should leave comparable: small, away from 0.
inline Tensor random_tensor(const TensorType& type, std::mt19937& rng) {
  Tensor t(type);
  for (std::int64_t i = 0; i < t.count(); ++i) {
    if (is_float(type.dtype))
      t.set(i, (rng() % 2 ? 1 : -1) * (0.25 + static_cast<double>(rng() % 1024) / 512));
    else
      t.set_int(i, type.dtype == DType::b1 ? rng() % 2 : rng() % 7);
  }
  return t;
}
inline std::vector<Tensor> random_inputs(const Graph& g, std::mt19937& rng) {
  std::vector<Tensor> all;
  for (const GraphInput& in : g.inputs) all.push_back(random_tensor(in.type, rng));
  return all;
}

}  // namespace heddle::prim

#pragma once
#include "prim/builder.h"

// Operands of the graphs on which rewrite rows show that they fire.
namespace heddle::prim {

inline NodeId x_of(Builder& b, Shape shape = {3, 4}, DType type = DType::f32) {
  return b.graph().add_input("x", {type, std::move(shape)});
}
/// A constant of a few small values.
inline NodeId weight(Builder& b, Shape shape) {
  Tensor t({DType::f32, std::move(shape)});
  for (std::int64_t i = 0; i < t.count(); ++i) t.set(i, static_cast<double>(i * 7 % 5) - 1.75);
  return b.constant(t);
}

}  // namespace heddle::prim

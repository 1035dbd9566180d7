#pragma once
#include <random>

#include "prim/builder.h"

namespace heddle::prim {

/// A random graph of about `steps` operations over small float inputs, made of what real networks
/// are made of: arithmetic, constants, views of all kinds, reductions, contractions. Values stay
/// moderate, and no step function is applied to a computed value, so that rounding cannot jump.
Graph random_graph(std::mt19937& rng, int steps);
/// A short random chain over f32, f64, i32 and b1 inputs, made of what rewrite rows look for:
/// special constants, functions applied twice, every monoid, casts there and back, selections.
Graph random_algebra(std::mt19937& rng, int steps);

}  // namespace heddle::prim

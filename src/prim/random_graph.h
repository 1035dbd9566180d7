#pragma once
#include <random>

#include "prim/builder.h"

namespace heddle::prim {

/// A random graph of about `steps` operations over small float inputs, made of what real networks
/// are made of: arithmetic, constants, views of all kinds, reductions, contractions. Values stay
/// moderate, and no step function is applied to a computed value, so that rounding cannot jump.
Graph random_graph(std::mt19937& rng, int steps);

}  // namespace heddle::prim

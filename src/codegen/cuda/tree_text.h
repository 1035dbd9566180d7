#pragma once
#include <string>

#include "codegen/cuda/units.h"
#include "kernel/tree_product.h"
#include "support/unit_product.h"

namespace heddle::codegen::cuda {

/// The product as it is written in a unit (unit/unit.cuh: in which language); equal products have
/// one name, whatever their sizes.
UnitEntry tree_text(const kernel::TreeProduct& product);
/// What the product is called with; `object` is left to the caller.
UnitProduct unit_product(const kernel::TreeProduct& product, std::string name);

}  // namespace heddle::codegen::cuda

#pragma once
#include "lower/contract/product.h"

namespace heddle::lower::contract::gpu {

/// The kernel of a product on a GPU, under the request's tuning ("bm", "bn", "bk", "stages",
/// "splits", "resident", "tf32", "library", "cutlass") or the model's choice.
Result<Lowered> lower(Product& product);
/// Tiles worth measuring, best guess first.
std::vector<Tuning> tuning_space(Product& product);

}  // namespace heddle::lower::contract::gpu

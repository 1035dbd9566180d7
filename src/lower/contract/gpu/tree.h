#pragma once
#include "kernel/tree_product.h"
#include "lower/contract/gpu/gemm.h"

namespace heddle::lower::contract::gpu {

/// The product as a collective of templates with an epilogue tree computes it: f16 or bf16 operands
/// as they lie in memory, one or two outputs in rows, every number on 16 bytes that the copy engine
/// brings. Arguments are buffer ids of the product's kernel. nullopt where it is something else, or
/// too small to be worth a tile. `gemm` without packed operands.
std::optional<kernel::TreeProduct> tree_product(const Gemm& gemm);

}  // namespace heddle::lower::contract::gpu

#pragma once
#include "lower/evaluate.h"

namespace heddle::lower::attention {

/// softmax(scores(q·kᵀ))·v as one loop over the keys: scores are any pointwise function of the
/// first product (scale, masks, bias), the softmax runs over the sum of the second. Everything is
/// at a position of the second product's result: variable i is its dimension i (0 where the extent
/// is 1), then come the key and the depth that the first product adds up over.
struct Attention {
  struct Operand {
    NodeId node;
    Evaluator::Index index;
    Evaluator::Conditions inside;  ///< zero elsewhere
    ir::Var across, along;         ///< row or key; depth or column
  };
  Operand q, k, v;
  NodeId result;    ///< the second product
  NodeId products;  ///< the first one
  NodeId scores, exp;
  Evaluator::Index scores_at;
  std::vector<ir::Var> batch;
  ir::Var row, key, depth, column;
  Shape extents;  ///< by variable
  Cluster cluster;

  std::int64_t batches() const {
    std::int64_t count = 1;
    for (const ir::Var v : batch) count *= extent(v);
    return count;
  }
  std::int64_t extent(ir::Var v) const { return extents[static_cast<std::size_t>(v.index)]; }
};

/// The attention that ends in this contraction; nullopt if it is none.
std::optional<Attention> attention_at(const prim::Graph& g, NodeId contract);

/// As prescribed, else in the order in which queries lie in memory, which is that of what is
/// computed from the result.
Layout output_layout(const Request& request, const Attention& a);

/// What an argument of the kernel holds, if that is a constant as it lies in memory; else null.
using ConstantOf = std::function<const Tensor*(kernel::BufferId)>;
/// The scores, given as a value, weigh nothing beyond key = row + this: a mask makes them, or adds,
/// -inf or a number that no sum of products makes up for (less than -1e30).
/// `product`: what stands for the first product, if anything is read for it. A finite mask must be
/// the only one: rows of which two hide all keys weigh these by what the masks have.
std::optional<std::int64_t> hidden_beyond(const Attention& a, const kernel::Value& scores,
                                          kernel::BufferId product, const ConstantOf& constant_of);
/// Of the arguments that a lowering has so far.
ConstantOf constants_of(const prim::Graph& g, const Request& request, const kernel::Kernel& k,
                        const Lowered& out);

}  // namespace heddle::lower::attention

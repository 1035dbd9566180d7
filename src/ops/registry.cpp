#include <unordered_map>

#include "ops/families.h"

namespace heddle::ops {

std::span<const std::span<const OpDef>> families() {
  static const std::span<const OpDef> kFamilies[] = {
      elementwise_ops(),
      activation_ops(),
      conv_ops(),
      pool_ops(),
      norm_ops(),
      linear_ops(),
      einsum_ops(),
      quantize_ops(),
      shape_ops(),
      index_ops(),
      reduce_ops(),
      gather_ops(),
      vision_ops(),
      region_ops(),
      resize_ops(),
      recurrent_ops(),
      misc_ops(),
      signal_ops(),
      fourier_ops(),
      contrib_ops(),
      attention_ops(),
      microsoft_attention_ops(),
      linear_attention_ops(),
      classical_ops(),
      svm_ops(),
      tree_ops(),
      known_ops(),
      text_ops(),
      image_ops(),
      contrib_quantized_ops(),
      contrib_block_ops(),
      contrib_layer_ops(),
      moe_ops(),
  };
  return kFamilies;
}

const OpDef* find_op(std::string_view name, int opset) {
  static const auto* kByName = [] {
    auto* rows = new std::unordered_multimap<std::string_view, const OpDef*>;
    for (const auto family : families())
      for (const OpDef& row : family) rows->emplace(row.name, &row);
    return rows;
  }();
  const OpDef* best = nullptr;
  const auto [begin, end] = kByName->equal_range(name);
  for (auto it = begin; it != end; ++it)
    if (it->second->since <= opset && (best == nullptr || best->since < it->second->since))
      best = it->second;
  return best;
}

}  // namespace heddle::ops

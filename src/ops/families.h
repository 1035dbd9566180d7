#pragma once
#include <span>

#include "ops/ops.h"

/// One function per family file; registry.cpp lists them.
namespace heddle::ops {

std::span<const OpDef> elementwise_ops();          // elementwise.cpp
std::span<const OpDef> activation_ops();           // activations.cpp
std::span<const OpDef> conv_ops();                 // conv.cpp
std::span<const OpDef> pool_ops();                 // pool.cpp
std::span<const OpDef> norm_ops();                 // norm.cpp
std::span<const OpDef> linear_ops();               // linear.cpp: matrix products, einsum
std::span<const OpDef> einsum_ops();               // einsum.cpp
std::span<const OpDef> quantize_ops();             // quantize.cpp: QuantizeLinear and its like
std::span<const OpDef> shape_ops();                // shape.cpp
std::span<const OpDef> index_ops();                // index.cpp: slice, pad, split and their like
std::span<const OpDef> reduce_ops();               // reduce.cpp
std::span<const OpDef> gather_ops();               // gather.cpp
std::span<const OpDef> vision_ops();               // vision.cpp: sampling, unpooling
std::span<const OpDef> region_ops();               // region.cpp: pooling over regions of interest
std::span<const OpDef> resize_ops();               // resize.cpp
std::span<const OpDef> recurrent_ops();            // recurrent.cpp
std::span<const OpDef> misc_ops();                 // misc.cpp
std::span<const OpDef> signal_ops();               // signal.cpp
std::span<const OpDef> fourier_ops();              // fourier.cpp
std::span<const OpDef> contrib_ops();              // contrib.cpp
std::span<const OpDef> attention_ops();            // attention.cpp
std::span<const OpDef> microsoft_attention_ops();  // attention_microsoft.cpp
std::span<const OpDef> linear_attention_ops();     // linear_attention.cpp
std::span<const OpDef> classical_ops();            // classical.cpp: ai.onnx.ml
std::span<const OpDef> svm_ops();                  // svm.cpp: ai.onnx.ml
std::span<const OpDef> tree_ops();                 // trees.cpp: ai.onnx.ml
std::span<const OpDef> contrib_quantized_ops();    // contrib_quantized.cpp: com.microsoft
std::span<const OpDef> contrib_block_ops();        // contrib_blocks.cpp: weights of few bits
std::span<const OpDef> contrib_layer_ops();  // contrib_layers.cpp: of diffusion models, gated norms
std::span<const OpDef> moe_ops();            // moe.cpp: mixtures of experts
std::span<const OpDef> text_ops();           // text.cpp: strings, on the host
std::span<const OpDef> image_ops();          // images.cpp: encoded pictures, on the host
std::span<const OpDef> known_ops();          // known.cpp: shapes that depend on values

}  // namespace heddle::ops

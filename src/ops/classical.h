#pragma once
#include <optional>
#include <string>
#include <vector>

#include "ops/util.h"

/// What the families of ai.onnx.ml share.
namespace heddle::ops {

/// A list of numbers, from attribute `key` (floats, integers, strings by their numbers, or a
/// tensor) or `key`_as_tensor; empty if neither is there.
Result<std::vector<double>> number_list(const Call& call, const std::string& key);
enum class Post : std::uint8_t { none, softmax, logistic, softmax_zero, probit };
Result<Post> post_of(const Call& call);
/// Scores [N, classes] transformed.
NodeId transformed(Builder& b, NodeId scores, Post post);
/// The input as floats of rank 2: [N, features]; a vector is one row.
Result<NodeId> feature_rows(const Call& call, Builder& b);
/// x·coefficientsᵀ + intercepts, coefficients [rows, features]; `rows` 0: as many as there are.
Result<NodeId> linear_scores(const Call& call, Builder& b, NodeId x, std::int64_t rows);
/// The label at each position of `chosen`; only integer labels are supported.
Result<NodeId> labelled(const Call& call, Builder& b, NodeId chosen, const std::string& key,
                        std::size_t classes);

}  // namespace heddle::ops

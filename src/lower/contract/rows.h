#pragma once
#include "lower/lower.h"

namespace heddle::lower::contract {

/// The contraction of an image (N×C×H×W) with a constant, as it is written: a phase of tasks of so
/// many rows of the result, all its columns and channels, in order of images and rows. An error if
/// the cluster is anything else.
Result<Lowered> lower_rows(const Request& request, std::int64_t rows);

}  // namespace heddle::lower::contract

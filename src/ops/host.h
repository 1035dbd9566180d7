#pragma once
#include <span>
#include <vector>

#include "ops/ops.h"

/// Operators on the characters of strings run on the host, between tensor programs: kernels see a
/// string as a number (support/text_id.h), which they can move and compare, no more. So do decoders
/// of pictures: the shape of what they make is in the data.
namespace heddle::ops {

/// Whether the call is computed by its row's host function: it has no fission, or a string takes
/// part that the fission does not know.
bool runs_on_host(const Call& call);
/// Whether the host can compute a call on numbers that its fission refuses.
bool may_run_on_host(const Call& call);
/// That there are as many arguments as it wants, of types that it takes; `types` of those that are
/// absent do not count. So `heddle check` finds it before anything runs.
Status check_host_call(const Call& call, std::span<const TensorType> types);
/// The results for these arguments (of absent optional inputs: empty tensors).
Result<std::vector<HostValue>> run_on_host(const Call& call, std::span<const Tensor> args);

// text.cpp
Result<std::vector<HostValue>> cast_text(const Call& call, std::span<const Tensor> args);

}  // namespace heddle::ops

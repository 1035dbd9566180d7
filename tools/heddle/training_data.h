#pragma once
#include <string>
#include <vector>

#include "driver/train.h"

namespace heddle::tool {

/// The whole of a data set, a tensor for each port of a batch, first dimension: samples.
struct Data {
  std::vector<Tensor> tensors;
  std::int64_t samples = 0, batch = 0;
};

/// Reads what the ports of a batch take: `inputs` are NAME=FILE, `target` the file of "target".
/// Errors: a port without a file, a type or shape of another, files that differ in their samples,
/// fewer samples than a batch has.
Result<Data> read_data(const std::vector<runtime::Port>& ports,
                       const std::vector<std::string>& inputs, const std::string& target);

/// Rows `order[first..]` of a data set as one batch.
driver::Batch batch_of(const Data& data, const std::vector<runtime::Port>& ports,
                       const std::vector<std::int64_t>& order, std::int64_t first);

/// The samples in the order of an epoch: a function of seed and epoch, so that resuming repeats it.
std::vector<std::int64_t> order_of(std::int64_t samples, std::uint64_t seed, std::int64_t epoch);

}  // namespace heddle::tool

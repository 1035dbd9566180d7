#include "training_data.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>

#include "onnx/tensor_file.h"

namespace heddle::tool {
namespace {

Result<Tensor> read_samples(const std::string& path, const runtime::Port& port) {
  Tensor t = HEDDLE_TRY(onnx::read_tensor(path));
  Shape want = port.type.shape;
  if (want.empty()) return fail("input '{}' has no dimension to hold samples", port.name);
  if (t.shape().empty() ||
      !std::equal(want.begin() + 1, want.end(), t.shape().begin() + 1, t.shape().end()))
    return fail("{}: shape {}, want [samples, …] of batches {} for '{}'", path,
                to_string(t.shape()), to_string(want), port.name);
  if (t.dtype() != port.type.dtype)
    return fail("{}: type {}, want {} for '{}'", path, name_of(t.dtype()), name_of(port.type.dtype),
                port.name);
  return t;
}

}  // namespace

Result<Data> read_data(const std::vector<runtime::Port>& ports,
                       const std::vector<std::string>& inputs, const std::string& target) {
  Data data;
  for (const runtime::Port& port : ports) {
    std::string path = port.name == "target" ? target : "";
    for (const std::string& text : inputs)
      if (text.starts_with(port.name + "=")) path = text.substr(port.name.size() + 1);
    if (path.empty())
      return fail(ErrorCode::usage, "no data for '{}', want {}", port.name,
                  port.name == "target" ? "--target FILE" : "--data " + port.name + "=FILE");
    data.tensors.push_back(HEDDLE_TRY(read_samples(path, port)));
    const std::int64_t samples = data.tensors.back().shape()[0], batch = port.type.shape[0];
    if (data.tensors.size() > 1 && (samples != data.samples || batch != data.batch))
      return fail("'{}' has {} samples in batches of {}, others {} in batches of {}", port.name,
                  samples, batch, data.samples, data.batch);
    data.samples = samples;
    data.batch = batch;
  }
  if (data.batch < 1 || data.samples < data.batch)
    return fail("{} samples, want at least a batch of {}", data.samples, data.batch);
  return data;
}

driver::Batch batch_of(const Data& data, const std::vector<runtime::Port>& ports,
                       const std::vector<std::int64_t>& order, std::int64_t first) {
  driver::Batch batch;
  for (std::size_t i = 0; i < ports.size(); ++i) {
    batch.emplace_back(ports[i].type);
    const auto row = static_cast<std::size_t>(batch[i].bytes() / data.batch);
    for (std::int64_t r = 0; r < data.batch; ++r)
      std::memcpy(batch[i].mutable_data() + static_cast<std::size_t>(r) * row,
                  data.tensors[i].data() +
                      static_cast<std::size_t>(order[static_cast<std::size_t>(first + r)]) * row,
                  row);
  }
  return batch;
}

std::vector<std::int64_t> order_of(std::int64_t samples, std::uint64_t seed, std::int64_t epoch) {
  std::vector<std::int64_t> order(static_cast<std::size_t>(samples));
  std::iota(order.begin(), order.end(), 0);
  std::mt19937_64 random(seed * 1000003 + static_cast<std::uint64_t>(epoch));
  for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random() % i]);
  return order;
}

}  // namespace heddle::tool

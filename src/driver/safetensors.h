#pragma once
#include <map>
#include <string>
#include <string_view>

#include "support/result.h"
#include "support/tensor.h"

namespace heddle::driver {

/// The one name that no tensor of a file has.
inline constexpr std::string_view kSafetensorsMetadata = "__metadata__";

/// Hugging Face's safetensors: a length, a JSON table of names, types, shapes and offsets, bytes.
struct Safetensors {
  std::map<std::string, Tensor> tensors;
  std::map<std::string, std::string> metadata;
};
/// Written beside the target, synced, then renamed: a crash leaves the old file.
Status write_safetensors(const std::string& path, const std::map<std::string, Tensor>& tensors,
                         const std::map<std::string, std::string>& metadata);
/// Every offset and size is checked before it is used.
Result<Safetensors> read_safetensors(const std::string& path);

}  // namespace heddle::driver

// The ONNX reader on arbitrary bytes: it must end in a graph that verifies, or in an error that an
// operator or the reader found: an InternalError is not caught here. What is no single program is
// read as a first stage, too.
#include <cstddef>
#include <cstdint>
#include <cstdio>

#include "onnx/model.h"
#include "onnx/stages.h"
#include "prim/builder.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  heddle::onnx::ImportOptions options;
  options.fold_elements = 1 << 8;
  const auto graph =
      heddle::onnx::import_bytes(reinterpret_cast<const std::byte*>(data), size, "", options);
  if (graph) {
    if (const auto sound = heddle::prim::verify(*graph); !sound) {
      std::fprintf(stderr, "%s\n", sound.error().message.c_str());
      __builtin_trap();
    }
  }
  const auto model = heddle::onnx::parse_model(reinterpret_cast<const std::byte*>(data), size);
  if (!graph && model) (void)heddle::onnx::import_stage({*model, ""}, options, {}, {});
  return 0;
}

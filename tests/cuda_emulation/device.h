#pragma once
// Where tests run CUDA text: the emulation, or anything else that launches kernels.
#include <cstring>
#include <variant>

#include "emulation/emulation.h"
#include "emulation/tensor_map.h"

/// Runs where the address sanitizer is (heddle_cuda_sanitized_test): kernels are compiled with it,
/// too.
#if defined(HEDDLE_SANITIZED) || defined(__SANITIZE_ADDRESS__)
#define SANITIZED_TEST(suite) TEST(suite, HasDefinedBehaviour)
#else
#define SANITIZED_TEST(suite) [[maybe_unused]] static void sanitized_##suite()
#endif

namespace heddle {

/// Memory of a test: given to a kernel, and what the kernel left in it.
struct Buffer {
  std::vector<std::byte> bytes;
  Buffer() = default;
  template <class T>
  explicit Buffer(const std::vector<T>& values) : bytes(values.size() * sizeof(T)) {
    std::memcpy(bytes.data(), values.data(), bytes.size());
  }
  template <class T>
  static Buffer zeros(std::size_t count) {
    return Buffer(std::vector<T>(count));
  }
  template <class T>
  std::vector<T> as() const {
    std::vector<T> out(bytes.size() / sizeof(T));
    std::memcpy(out.data(), bytes.data(), bytes.size());
    return out;
  }
};
/// A tensor map over a buffer; `base` is filled in.
struct Tiles {
  Buffer* buffer;
  emulation::TensorMapRequest map;
};
using Argument = std::variant<Buffer*, Tiles, int, float>;

class TextDevice {
 public:
  virtual ~TextDevice() = default;
  virtual Status run(const std::string& text, const std::string& symbol,
                     const emulation::Launch& how, const std::vector<Argument>& arguments) = 0;
};

class EmulatedDevice : public TextDevice {
 public:
  explicit EmulatedDevice(emulation::CompileOptions options = {}) : options_(std::move(options)) {}
  Status run(const std::string& text, const std::string& symbol, const emulation::Launch& how,
             const std::vector<Argument>& arguments) override {
    const emulation::Module module = HEDDLE_TRY(emulation::compile(text, options_));
    kept_.push_back(module);
    const emulation::Kernel* kernel = module.find(symbol);
    if (!kernel) return fail("no kernel '{}'", symbol);
    std::vector<std::pair<Buffer*, std::byte*>> memory;
    std::vector<emulation::TensorMap> maps(arguments.size());
    std::vector<std::byte*> pointers(arguments.size());
    std::vector<void*> values(arguments.size());
    const auto place = [&](Buffer* b) {
      for (const auto& [known, at] : memory)
        if (known == b) return at;
      std::byte* at = emulation::allocate(static_cast<std::int64_t>(b->bytes.size()));
      std::memcpy(at, b->bytes.data(), b->bytes.size());
      memory.emplace_back(b, at);
      return at;
    };
    Status status = Ok{};
    for (std::size_t i = 0; i < arguments.size() && status; ++i) {
      if (Buffer* const* b = std::get_if<Buffer*>(&arguments[i])) {
        pointers[i] = place(*b);
        values[i] = &pointers[i];
      } else if (const Tiles* tiles = std::get_if<Tiles>(&arguments[i])) {
        emulation::TensorMapRequest request = tiles->map;
        request.base = place(tiles->buffer);
        auto map = emulation::encode(request);
        if (map)
          maps[i] = *map;
        else
          status = map.error();
        values[i] = &maps[i];
      } else {
        values[i] = const_cast<void*>(
            std::visit([](const auto& v) -> const void* { return &v; }, arguments[i]));
      }
    }
    if (status) status = emulation::launch(module, *kernel, how, values.data());
    for (const auto& [b, at] : memory) {
      std::memcpy(b->bytes.data(), at, b->bytes.size());
      emulation::release(at);
    }
    return status;
  }

 private:
  emulation::CompileOptions options_;
  std::vector<emulation::Module> kept_;  ///< so that a text is loaded once
};

}  // namespace heddle

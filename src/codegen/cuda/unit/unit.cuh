// What units of products are written in: a product is a group (operands, tile, schedule) and an
// epilogue, a tree of the nodes below over numbered matrices (HeddleProduct). With CUTLASS a tree
// becomes its visitors; where HEDDLE_EMULATE is defined, loops on the CPU.
#pragma once
#include <memory>
#include <string>

#include "product_unit.h"
#ifdef HEDDLE_EMULATE
#include "cuda.h"  // the emulator's CUDA language
#endif
#include "types.cuh"
#include "math.cuh"

namespace hdu {

// Matrices of every product.
constexpr int kLhs = 0, kRhs = 1, kOut = 2;

/// A product that is ready to be launched.
struct Call {
  virtual ~Call() = default;
  virtual int launch(unsigned long long workspace, void* stream) = 0;
};
struct Entry {
  const char* name;
  int (*create)(const HeddleProduct& product, std::unique_ptr<Call>& made, std::size_t& workspace);
};

inline std::string& message() {
  static thread_local std::string text;
  return text;
}
inline int failed(std::string text) {
  message() = std::move(text);
  return HEDDLE_UNIT_FAILED;
}

}  // namespace hdu

/// A function of f32 values as one of vectors of them.
#define HDU_FUNCTION(Name, function)                                                  \
  template <class T>                                                                  \
  struct Name {                                                                       \
    template <class... More>                                                          \
    HD_FN T operator()(T const& first, More const&... more) const {                   \
      T out;                                                                          \
      HD_UNROLL                                                                       \
      for (int i = 0; i < T::kElements; ++i) out[i] = function(first[i], more[i]...); \
      return out;                                                                     \
    }                                                                                 \
  };

#ifdef HEDDLE_EMULATE
#include "unit_emulated.h"
#else
#include "unit_cutlass.cuh"
#endif

namespace hdu {

/// The unit's table of functions over `entries`, which end with a null name.
template <const Entry* entries>
const HeddleUnit* unit() {
  static const HeddleUnit table = {
      HEDDLE_UNIT_INTERFACE,
      [](const char* name, const HeddleProduct* product, void** made, std::size_t* workspace) {
        for (const Entry* e = entries; e->name != nullptr; ++e) {
          if (std::string(e->name) != name) continue;
          std::unique_ptr<Call> call;
          const int code = e->create(*product, call, *workspace);
          *made = call.release();
          return code;
        }
        return failed(std::string("no product ") + name);
      },
      [](void* made, unsigned long long workspace, void* stream) {
        return static_cast<Call*>(made)->launch(workspace, stream);
      },
      [](void* made) { delete static_cast<Call*>(made); },
      []() -> const char* { return message().c_str(); }};
  return &table;
}

}  // namespace hdu

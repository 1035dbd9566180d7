#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "support/result.h"
#include "support/tensor.h"

namespace heddle::runtime {

/// Where the bytes of a kernel argument are.
struct Slot {
  enum class Kind : std::uint8_t { arena, input, output, constant } kind = Kind::arena;
  std::int64_t index = 0;  ///< arena: byte offset; input, output, constant: number
  bool operator==(const Slot&) const = default;
};

struct Phase {
  std::string symbol;
  std::int64_t tasks = 0;
};
/// One kernel execution: its phases run one after another, the tasks of a phase on all threads.
struct Launch {
  std::string name;
  std::vector<Slot> args;
  std::vector<Phase> phases;
};
/// A graph input or output; strides are row-major.
struct Port {
  std::string name;
  TensorType type;
  bool operator==(const Port&) const = default;
};

/// Everything needed to run, free of any IR: plain records over one planned arena.
struct Program {
  std::vector<Port> inputs, outputs;
  std::vector<Launch> launches;
  std::vector<Tensor> constants;
  std::int64_t arena_bytes = 0;
  std::int64_t scratch_bytes = 0;  ///< per thread
  int threads = 1;
  std::vector<std::string> objects;  ///< relocatable object files that hold the symbols
  std::string manifest;              ///< JSON: what was compiled, from what, for which machine
};

}  // namespace heddle::runtime

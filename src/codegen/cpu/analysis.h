#pragma once
#include <optional>
#include <unordered_map>
#include <vector>

#include "codegen/cpu/narrow.h"
#include "kernel/kernel.h"

namespace heddle::codegen::cpu {

/// What a value depends on: variables (sorted indices) and buffers it reads (sorted ids).
struct Dependence {
  std::vector<std::int32_t> variables;
  std::vector<std::int32_t> buffers;
};

/// Facts about one kernel that the emitter asks for again and again, computed once per node.
/// The kernel must outlive this: nodes are known by address.
class Analysis {
 public:
  const Dependence& of(const kernel::Value& v);
  /// Buffers that a loop body (with all it contains) may write, sorted.
  const std::vector<std::int32_t>& writes(const kernel::Body& body);
  /// narrow_values() of the kernel.
  const NarrowValues& narrow(const kernel::Kernel& k);
  /// Buffers that a body touches in any way, sorted.
  static std::vector<std::int32_t> touched(const kernel::Body& body);
  /// Buffers that a body reads or passes to routines, sorted.
  static std::vector<std::int32_t> reads(const kernel::Body& body);

 private:
  std::unordered_map<const kernel::ValueNode*, Dependence> values_;
  std::unordered_map<const kernel::Body*, std::vector<std::int32_t>> writes_;
  std::optional<NarrowValues> narrow_;
};

}  // namespace heddle::codegen::cpu

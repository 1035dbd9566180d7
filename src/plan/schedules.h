#pragma once
#include <map>
#include <string>
#include <string_view>

#include "plan/tuning_db.h"

namespace heddle::plan {

/// Schedules that `heddle tune` found on one kind of processor, by structure_of() the kernels: what
/// the lowering takes in place of its own choice. As text: a line for what they are of, then one
/// for each kernel, "STRUCTURE MICROSECONDS SCHEDULE # label", sorted.
struct Schedules {
  struct Row {
    lower::Tuning tuning;
    double us = 0;
    std::string label;
    bool operator==(const Row&) const = default;
  };
  std::string cpu;   ///< as the code generator names it: "znver4"
  int lowering = 0;  ///< lower::kLoweringVersion of the build that measured
  std::map<Hash, Row> rows;
  bool operator==(const Schedules&) const = default;
};
std::string print(const Schedules& schedules);
/// Errors name `file` and the line.
Result<Schedules> parse_schedules(std::string_view text, std::string_view file);
/// Why they are of no use for this processor and build; empty: they are.
std::string staleness(const Schedules& schedules, std::string_view cpu);
/// The text that comes with this build for a processor (src/plan/schedules/CPU.txt), or empty.
std::string_view shipped_schedules(std::string_view cpu);

}  // namespace heddle::plan

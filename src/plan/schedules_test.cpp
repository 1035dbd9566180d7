#include "plan/schedules.h"

#include <gtest/gtest.h>

namespace heddle::plan {
namespace {

Schedules example() {
  Schedules s{"znver4", lower::kLoweringVersion, {}};
  s.rows[{1, 2}] = {{{"mr", 6}, {"nv", 2}}, 12.5, "1 Contract -> f32[3,4]"};
  s.rows[{7, 0}] = {{{"winograd", 2}}, 0.5, "2 Map # twice"};
  return s;
}

TEST(Schedules, RoundTrip) {
  const auto parsed = parse_schedules(print(example()), "f");
  ASSERT_TRUE(parsed) << parsed.error().message;
  EXPECT_EQ(*parsed, example());
  // As another system's editor leaves it.
  const auto edited = parse_schedules(
      fmt::format("heddle schedules cpu=znver4 lowering={}\r\n", lower::kLoweringVersion), "f");
  ASSERT_TRUE(edited) << edited.error().message;
  EXPECT_EQ(edited->cpu, "znver4");
}

TEST(Schedules, MalformedTextIsRefusedWithItsLine) {
  const std::string first = "heddle schedules cpu=znver4 lowering=1\n";
  const std::string hash = "00000000000000020000000000000001";
  struct {
    std::string text, want;
  } const rows[] = {
      {"", "f: it is empty"},
      {"heddle schedules cpu=znver4\n", "f:1: found"},
      {"heddle schedules cpu= lowering=1\n", "f:1: found"},
      {std::string("\0\xff\xfe", 3), "f:1: found"},
      {first + "nonsense\n", "f:2: found 'nonsense'"},
      {first + hash + " 1.5 mr=6\n", "f:2: found"},        // no label
      {first + hash + " -1.5 mr=6 # x\n", "f:2: found"},   // no time
      {first + hash + " 1.5 mr=six # x\n", "f:2: found"},  // no number
      {first + hash + " 1.5  # x\n", "f:2: found"},        // no schedule
      {first + hash.substr(1) + " 1.5 mr=6 # x\n", "f:2: found"},
      {first + hash + " 1.5 mr=6 # x\n" + hash + " 2.5 mr=4 # x\n", "f:3: found"},  // twice
  };
  for (const auto& row : rows) {
    const auto parsed = parse_schedules(row.text, "f");
    ASSERT_FALSE(parsed) << row.text;
    EXPECT_EQ(parsed.error().message.substr(0, row.want.size()), row.want);
  }
}

TEST(Schedules, AreOfOneProcessorAndLowering) {
  Schedules s = example();
  EXPECT_EQ(staleness(s, "znver4"), "");
  EXPECT_NE(staleness(s, "znver3").find("made for znver4"), std::string::npos);
  ++s.lowering;
  EXPECT_NE(staleness(s, "znver4").find("version"), std::string::npos);
}

TEST(Schedules, WhatIsShippedCanBeRead) {
  for (const std::string_view cpu : {"znver4"}) {
    const auto parsed = parse_schedules(shipped_schedules(cpu), cpu);
    ASSERT_TRUE(parsed) << parsed.error().message;
    EXPECT_EQ(parsed->cpu, cpu);
  }
  EXPECT_EQ(shipped_schedules("no such processor"), "");
}

}  // namespace
}  // namespace heddle::plan

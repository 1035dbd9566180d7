#include "driver/cache.h"

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>

namespace heddle::driver {
namespace {

namespace fs = std::filesystem;

TEST(Cache, KeepsTheProgramsUsedLast) {
  const fs::path folder = fs::path(testing::TempDir()) / "heddle-cache-bound";
  fs::remove_all(folder);
  fs::create_directories(folder / "programs");
  const auto now = fs::file_time_type::clock::now();
  for (int age = 0; age < 4; ++age) {
    const fs::path file = folder / "programs" / fmt::format("{}.heddle", age);
    std::ofstream(file) << std::string(100, 'x');
    fs::last_write_time(file, now - std::chrono::hours(age));
  }
  EXPECT_EQ(bound_programs(folder.string(), 1000), 0);
  EXPECT_EQ(bound_programs(folder.string(), 250), 2);
  EXPECT_TRUE(fs::exists(folder / "programs" / "0.heddle"));
  EXPECT_TRUE(fs::exists(folder / "programs" / "1.heddle"));
  EXPECT_EQ(bound_programs(folder.string(), 0), 1) << "the one used last stays";
  EXPECT_TRUE(fs::exists(folder / "programs" / "0.heddle"));
  EXPECT_EQ(bound_programs((folder / "none").string(), 0), 0);
  fs::remove_all(folder);
}

}  // namespace
}  // namespace heddle::driver

// Text before and after named passes. A golden file is
//   # passes: canonicalize
//   <graph>
//   # result
//   <what the passes print, or the error>
// With --autoupdate the results are rewritten; files named fail_* must end in an error.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "prim/passes.h"
#include "prim/text.h"

namespace heddle::prim {
namespace {

bool autoupdate = false;
constexpr std::string_view kHead = "# passes: ", kSeparator = "\n# result\n";

std::string outcome(std::string_view passes, std::string_view text) {
  auto g = parse_graph(text);
  if (!g) return "error: " + g.error().message + "\n";
  const auto list = parse_passes(passes);
  if (!list) return "error: " + list.error().message + "\n";
  PassOptions options;
  options.verify_each = true;
  const auto result = run_passes(*list, *std::move(g), options);
  return result ? print(*result) : "error: " + result.error().message + "\n";
}

class Golden : public ::testing::TestWithParam<std::string> {};

TEST_P(Golden, Matches) {
  const std::string path = std::string(HEDDLE_GOLDEN_DIR) + "/" + GetParam();
  std::ifstream in(path);
  std::stringstream buffer;
  buffer << in.rdbuf();
  const std::string whole = buffer.str();
  ASSERT_EQ(whole.compare(0, kHead.size(), kHead), 0) << path;
  const std::size_t line = whole.find('\n'), cut = whole.find(kSeparator);
  ASSERT_NE(cut, std::string::npos) << path;
  const std::string passes = whole.substr(kHead.size(), line - kHead.size());
  const std::string found = outcome(passes, whole.substr(0, cut + 1));
  if (autoupdate) {
    in.close();
    std::ofstream(path) << whole.substr(0, cut) << kSeparator << found;
    return;
  }
  EXPECT_EQ(found, whole.substr(cut + kSeparator.size())) << path;
  EXPECT_EQ(GetParam().rfind("fail_", 0) == 0, found.rfind("error: ", 0) == 0) << path;
}

std::vector<std::string> golden_files() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(HEDDLE_GOLDEN_DIR))
    names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}
INSTANTIATE_TEST_SUITE_P(Text, Golden, ::testing::ValuesIn(golden_files()), [](const auto& info) {
  std::string name = info.param;
  for (char& c : name)
    if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
  return name;
});

}  // namespace
}  // namespace heddle::prim

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i < argc; ++i)
    if (std::string_view(argv[i]) == "--autoupdate") heddle::prim::autoupdate = true;
  return RUN_ALL_TESTS();
}

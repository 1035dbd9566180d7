#include "plan/tuning_db.h"

#include <gtest/gtest.h>

#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <latch>
#include <thread>

#include "plan/plan.h"
#include "plan/test_graphs.h"

namespace heddle::plan {
namespace {

struct TuningDbTest : testing::Test {
  std::filesystem::path folder =
      std::filesystem::path(testing::TempDir()) / ("heddle_tuning_" + std::to_string(::getpid()));
  void SetUp() override { std::filesystem::create_directories(folder); }
  void TearDown() override { std::filesystem::remove_all(folder); }
  std::string path(const char* name) const { return (folder / name).string(); }
};

TuningEntry entry(std::uint64_t key, double us, std::string machine = "zen", int mr = 6) {
  return {{{key, key * 31}, std::move(machine), "b1"}, "matmul", {{"mr", mr}, {"nv", 2}}, us, 3};
}

TEST_F(TuningDbTest, KeepsTheFastestAndSaysWhyItHasNothing) {
  auto db = TuningDb::open(path("a.db"));
  ASSERT_TRUE(db) << db.error().message;
  ASSERT_TRUE((*db)->store(entry(1, 10)));
  ASSERT_TRUE((*db)->store(entry(1, 12)));            // slower, same tuning
  ASSERT_TRUE((*db)->store(entry(1, 8, "zen", 14)));  // another tuning, faster
  auto hit = (*db)->lookup(entry(1, 0).key);
  ASSERT_TRUE(hit) << hit.error().message;
  ASSERT_TRUE(std::holds_alternative<TuningEntry>(*hit));
  EXPECT_EQ(std::get<TuningEntry>(*hit), entry(1, 8, "zen", 14));
  auto reason = [&](TuningKey key) {
    auto miss = (*db)->lookup(key);
    return miss && std::holds_alternative<TuningMiss>(*miss) ? std::get<TuningMiss>(*miss).reason
                                                             : std::string("hit");
  };
  EXPECT_EQ(reason(entry(2, 0).key), "never measured");
  EXPECT_EQ(reason(entry(1, 0, "intel").key), "measured on another machine: zen");
  EXPECT_EQ(reason({entry(1, 0).key.structure, "zen", "b2"}), "measured by another build: b1");
  EXPECT_FALSE((*db)->store(entry(3, 0)));
}

TEST_F(TuningDbTest, SurvivesReopeningAndTwoWriters) {
  {
    auto a = TuningDb::open(path("a.db")), b = TuningDb::open(path("a.db"));
    ASSERT_TRUE(a && b);
    ASSERT_TRUE((*a)->store(entry(1, 10)));
    ASSERT_TRUE((*b)->store(entry(2, 20)));
  }
  auto db = TuningDb::open(path("a.db"));
  ASSERT_TRUE(db);
  auto all = (*db)->list();
  ASSERT_TRUE(all);
  EXPECT_EQ(all->size(), 2u);
  EXPECT_TRUE((*db)->verify());
}

TEST_F(TuningDbTest, ManyMayMakeTheFileAtOnce) {
  for (int round = 0; round < 20; ++round) {
    const std::string file = path(fmt::format("{}.db", round).c_str());
    std::vector<std::jthread> makers;
    std::array<std::string, 6> errors;
    std::latch start(errors.size());
    for (std::string& error : errors)
      makers.emplace_back([&] {
        start.arrive_and_wait();
        const auto db = TuningDb::open(file);
        if (!db) error = db.error().message;
      });
    makers.clear();
    for (const std::string& error : errors) EXPECT_EQ(error, "");
  }
}

TEST_F(TuningDbTest, MergesExportsAndPrunes) {
  auto a = TuningDb::open(path("a.db")), b = TuningDb::open(path("b.db"));
  ASSERT_TRUE(a && b);
  ASSERT_TRUE((*a)->store(entry(1, 10)));
  ASSERT_TRUE((*b)->store(entry(1, 7)));
  ASSERT_TRUE((*b)->store(entry(2, 5, "intel")));
  auto taken = (*a)->merge(path("b.db"));
  ASSERT_TRUE(taken) << taken.error().message;
  EXPECT_EQ(*taken, 2);
  auto all = (*a)->list();
  ASSERT_TRUE(all);
  ASSERT_EQ(all->size(), 2u);
  EXPECT_EQ((*all)[1].us, 7);
  ASSERT_TRUE((*a)->export_to(path("c.db")));
  auto c = TuningDb::open(path("c.db"));
  ASSERT_TRUE(c);
  EXPECT_EQ(*(*c)->list(), *all);
  auto gone = (*a)->prune("zen", "b1");
  ASSERT_TRUE(gone);
  EXPECT_EQ(*gone, 1);
}

TEST_F(TuningDbTest, FirstModeStays) {
  auto db = TuningDb::open(path("a.db"));
  ASSERT_TRUE(db);
  const TuningKey key = entry(1, 10).key, other = entry(2, 10).key;
  EXPECT_FALSE((*db)->mode(key)->has_value());
  ASSERT_TRUE((*db)->store_mode(key, "kernels"));
  ASSERT_TRUE((*db)->store_mode(key, "monolith"));
  EXPECT_EQ(**(*db)->mode(key), "kernels");
  EXPECT_FALSE((*db)->mode(other)->has_value());
  auto taken = TuningDb::open(path("b.db"));
  ASSERT_TRUE(taken && (*taken)->merge(path("a.db")));
  EXPECT_EQ(**(*taken)->mode(key), "kernels");
}

TEST_F(TuningDbTest, MachineModelIsKept) {
  auto db = TuningDb::open(":memory:");
  ASSERT_TRUE(db);
  auto none = (*db)->machine("zen");
  ASSERT_TRUE(none);
  EXPECT_FALSE(none->has_value());
  MachineModel m;
  m.dram_gbs = 44.5;
  m.threads = 7;
  ASSERT_TRUE((*db)->store_machine("zen", m));
  EXPECT_EQ(**(*db)->machine("zen"), m);
}

TEST_F(TuningDbTest, DamagedFilesAreErrors) {
  std::ofstream(path("bad.db")) << std::string(5000, 'x');
  auto db = TuningDb::open(path("bad.db"));
  ASSERT_FALSE(db);
  EXPECT_NE(db.error().message.find("bad.db"), std::string::npos);
  EXPECT_NE(db.error().message.find("delete it"), std::string::npos);
  EXPECT_TRUE(TuningDb::is_damaged(path("bad.db")));
  EXPECT_FALSE(TuningDb::is_damaged(path("none.db")));
  EXPECT_FALSE(std::filesystem::exists(path("none.db")));
  EXPECT_FALSE(TuningDb::open(path("no/such/folder/a.db")));
}

TEST_F(TuningDbTest, DamagedPagesAreSeen) {
  {
    auto db = TuningDb::open(path("a.db"));
    ASSERT_TRUE(db);
    for (std::uint64_t i = 1; i < 500; ++i) ASSERT_TRUE((*db)->store(entry(i, 1)));
  }
  EXPECT_FALSE(TuningDb::is_damaged(path("a.db")));
  std::fstream file(path("a.db"), std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(4096 * 3);
  file << std::string(4096 * 4, 'x');
  file.close();
  EXPECT_TRUE(TuningDb::is_damaged(path("a.db")));
}

TEST(Tuning, TextRoundTrips) {
  const lower::Tuning t = {{"mr", 6}, {"nv", -2}};
  EXPECT_EQ(to_string(t), "mr=6 nv=-2");
  EXPECT_EQ(parse_tuning("mr=6 nv=-2"), t);
  EXPECT_EQ(parse_tuning(""), lower::Tuning());
  for (const char* bad : {"mr", "=3", "mr=x", "mr=6=7", "mr=6  nv=2"}) {
    EXPECT_FALSE(parse_tuning(bad)) << bad;
  }
}

TEST(Tuning, StructureIsTheSameAcrossGraphsOnly) {
  test::Mini a, b;
  b.input({3});  // shifts the ids
  NodeId x = a.relu(a.input({4, 8})), y = b.relu(b.input({4, 8})), z = b.relu(b.input({4, 9}));
  auto cone = [](NodeId id) { return Cluster{{NodeId{id.value - 1}, id}, {id}}; };
  EXPECT_EQ(structure_of(a.g, cone(x), 2), structure_of(b.g, cone(y), 2));
  EXPECT_NE(structure_of(a.g, cone(x), 2), structure_of(b.g, cone(z), 2));
  EXPECT_NE(structure_of(a.g, cone(x), 2), structure_of(a.g, cone(x), 4));
}

}  // namespace
}  // namespace heddle::plan

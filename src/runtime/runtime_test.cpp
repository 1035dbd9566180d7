#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <random>
#include <set>
#include <thread>

#include "runtime/artefact.h"
#include "runtime/memory_plan.h"
#include "runtime/session.h"
#include "runtime/shares.h"
#include "support/denormals.h"

namespace heddle::runtime {
namespace {

TEST(MemoryPlan, NeverOverlapsWhatLivesTogether) {
  std::mt19937 random(7);
  for (int trial = 0; trial < 200; ++trial) {
    std::vector<Lifetime> blocks;
    for (int i = 0; i < 40; ++i) {
      const int first = static_cast<int>(random() % 30);
      blocks.push_back({static_cast<std::int64_t>(random() % 5000), first,
                        first + static_cast<int>(random() % 8)});
    }
    const MemoryPlan plan = plan_memory(blocks);
    EXPECT_GE(plan.bytes, plan.lower_bound);
    for (std::size_t a = 0; a < blocks.size(); ++a) {
      EXPECT_EQ(plan.offsets[a] % 64, 0);
      EXPECT_LE(plan.offsets[a] + blocks[a].bytes, plan.bytes);
      for (std::size_t b = 0; b < a; ++b) {
        if (blocks[a].last < blocks[b].first || blocks[b].last < blocks[a].first) continue;
        EXPECT_TRUE(plan.offsets[a] + blocks[a].bytes <= plan.offsets[b] ||
                    plan.offsets[b] + blocks[b].bytes <= plan.offsets[a]);
      }
    }
  }
}

TEST(MemoryPlan, ChainReusesMemory) {
  std::vector<Lifetime> blocks;
  for (int i = 0; i < 10; ++i) blocks.push_back({1024, i, i + 1});
  EXPECT_EQ(plan_memory(blocks).bytes, 2048);
}

// What is at one place of several large blocks of whole pages meets in no set of a cache.
TEST(MemoryPlan, StaggersLargeBlocks) {
  const MemoryPlan plan = plan_memory(std::vector<Lifetime>(8, {1 << 20, 0, 1}));
  std::set<std::int64_t> places;
  for (const std::int64_t offset : plan.offsets) places.insert(offset % 4096);
  EXPECT_EQ(places.size(), plan.offsets.size());
  EXPECT_LE(plan.bytes, 8 * ((1 << 20) + 512));
}

// A block whose users may run beside those of another one never has its memory.
TEST(MemoryPlan, KeepsApartWhatMayNotFollow) {
  std::vector<Lifetime> blocks;
  for (int i = 0; i < 10; ++i) blocks.push_back({1024, i, i + 1});
  const auto one_chain = [](std::size_t a, std::size_t b) { return a % 2 == b % 2; };
  const MemoryPlan plan = plan_memory(blocks, one_chain);
  EXPECT_EQ(plan.bytes, 2048);
  for (std::size_t a = 0; a < blocks.size(); ++a)
    EXPECT_EQ(plan.offsets[a], plan.offsets[a % 2]) << a;
  EXPECT_EQ(plan_memory(blocks, [](std::size_t, std::size_t) { return false; }).bytes, 10240);
}

/// Two phases over 8 tasks of one element: y = x + c, then y = 2*y (of the mirrored task, so that
/// the barrier between phases matters).
void add_phase(void* const* args, std::int64_t begin, std::int64_t end, void*) {
  for (std::int64_t i = begin; i < end; ++i)
    static_cast<float*>(args[2])[i] =
        static_cast<float*>(args[0])[i] + static_cast<float*>(args[1])[i];
}
void mirror_phase(void* const* args, std::int64_t begin, std::int64_t end, void*) {
  for (std::int64_t i = begin; i < end; ++i)
    static_cast<float*>(args[3])[i] = 2 * static_cast<float*>(args[2])[7 - i];
}
Task link(const std::string& symbol) {
  return symbol == "add" ? add_phase : symbol == "mirror" ? mirror_phase : nullptr;
}

Program small_program() {
  Program p;
  const TensorType type{DType::f32, {8}};
  p.inputs = {{"x", type}};
  p.outputs = {{"y", type}};
  const std::vector<float> c = {0, 1, 2, 3, 4, 5, 6, 7};
  p.constants = {Tensor::from<float>(DType::f32, {8}, c)};
  p.arena_bytes = 64;
  p.threads = 2;
  p.launches = {{"k",
                 {{Slot::Kind::input, 0},
                  {Slot::Kind::constant, 0},
                  {Slot::Kind::arena, 0},
                  {Slot::Kind::output, 0}},
                 {{"add", 8}, {"mirror", 8}}}};
  p.objects = {"not really code"};
  p.manifest = R"({"model":"test"})";
  return p;
}

/// As a monolith its phases, which do not say what they touch, wait for all before them.
std::shared_ptr<Session> small_session(int threads, bool monolith = false) {
  Program p = small_program();
  if (monolith) p.monolith = StageLayout{};
  return *Session::create(std::make_shared<Program>(std::move(p)), link, nullptr,
                          std::make_shared<ThreadPool>(threads));
}

/// Each task once, however quick the threads are: equal ones, one that does nothing until the
/// others are done, fewer tasks than threads, more than fit half a word.
TEST(Shares, GiveEveryTaskOnce) {
  constexpr std::int64_t kMany = 7'000'000'001;
  for (const int threads : {1, 2, 3, 8})
    for (const std::int64_t tasks : {0L, 1L, 2L, 25L, 1000L, 100000L, kMany})
      for (const bool late : {false, true}) {
        Shares shares(threads);
        shares.reset(3);  // what an earlier phase left
        shares.reset(tasks);
        std::vector<std::vector<std::pair<std::int64_t, std::int64_t>>> taken(
            static_cast<std::size_t>(threads));
        std::atomic<int> done = 0;
        ThreadPool pool(threads);
        pool.run([&](int thread) {
          if (late && thread == threads - 1) spin_until([&] { return done == threads - 1; });
          for (auto some = shares.take(thread); some.first < some.second;
               some = shares.take(thread))
            taken[static_cast<std::size_t>(thread)].push_back(some);
          ++done;
        });
        std::vector<std::pair<std::int64_t, std::int64_t>> all;
        for (const auto& some : taken) all.insert(all.end(), some.begin(), some.end());
        std::ranges::sort(all);
        std::int64_t next = 0;
        for (const auto& [first, last] : all) {
          ASSERT_EQ(first, next) << threads << " threads, " << tasks << " tasks";
          next = last;
        }
        EXPECT_EQ(next, tasks);
        EXPECT_TRUE(!late || threads == 1 || taken.back().empty());
      }
}

/// A thread begins at its own range, so that it meets again what it has in its cache.
TEST(Shares, BeginWithTheirOwn) {
  Shares shares(4);
  shares.reset(100);
  for (int thread = 0; thread < 4; ++thread) EXPECT_EQ(shares.take(thread).first, 25 * thread);
  EXPECT_LT(shares.take(0).first, 25);
}

TEST(Session, RunsPhasesInOrderOnAnyNumberOfThreads) {
  const std::vector<float> x(8, 1.0f);
  const Tensor input = Tensor::from<float>(DType::f32, {8}, x);
  for (const int n : {1, 2, 3, 11, 12, 13}) {
    const int threads = n % 10;
    auto session = small_session(threads, n > 10);
    for (int run = 0; run < 100; ++run) {
      auto outputs = session->run(std::span(&input, 1));
      ASSERT_TRUE(outputs);
      for (int i = 0; i < 8; ++i) EXPECT_EQ((*outputs)[0].as<float>()[i], 2 * (1 + 7 - i));
    }
  }
}

#if defined(__x86_64__)
/// In kernels only: on every thread, one after another and as a monolith; the caller keeps its own
/// state, here another way of rounding.
TEST(Session, DenormalsAreZerosInKernels) {
  const unsigned before = _mm_getcsr(), own = before | _MM_ROUND_UP;
  for (const int n : {1, 2, 8, 11, 12, 18}) {
    auto session = small_session(n % 10, n > 10);
    const Tensor input = Tensor::from<float>(DType::f32, {8}, std::vector<float>(8, 1e-39f));
    _mm_setcsr(own);
    auto outputs = session->run(std::span(&input, 1));
    const unsigned after = _mm_getcsr();
    _mm_setcsr(before);
    EXPECT_EQ(after & 0xffc0, own & 0xffc0) << n;
    ASSERT_TRUE(outputs);
    // Not rounded up from c + 1e-39 either.
    for (int i = 0; i < 8; ++i)
      EXPECT_EQ((*outputs)[0].as<float>()[i], static_cast<float>(2 * (7 - i))) << n;
    Program kept = small_program();
    kept.denormals = true;
    if (n > 10) kept.monolith = StageLayout{};
    auto strict = *Session::create(std::make_shared<Program>(std::move(kept)), link, nullptr,
                                   std::make_shared<ThreadPool>(n % 10));
    EXPECT_EQ((*strict->run(std::span(&input, 1)))[0].as<float>()[7], 2e-39f) << n;
  }
}
#endif

TEST(Session, ConcurrentRunsDoNotMix) {
  auto session = small_session(2);
  std::vector<std::thread> callers;
  std::atomic<int> wrong{0};
  for (int c = 0; c < 4; ++c)
    callers.emplace_back([&, c] {
      const std::vector<float> x(8, static_cast<float>(c));
      const Tensor input = Tensor::from<float>(DType::f32, {8}, x);
      for (int run = 0; run < 200; ++run) {
        auto outputs = session->run(std::span(&input, 1));
        for (int i = 0; i < 8; ++i) wrong += (*outputs)[0].as<float>()[i] != 2 * (c + 7 - i);
      }
    });
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(wrong, 0);
}

TEST(Session, WrongInputsAreNamed) {
  auto session = small_session(1);
  const Tensor wrong({DType::f32, {4}});
  auto result = session->run(std::span(&wrong, 1));
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().message, "input 'x': found f32[4], want f32[8]");
}

class ArtefactTest : public testing::Test {
 protected:
  std::string path = testing::TempDir() + "heddle_artefact_test.heddle";
  std::string bytes;
  void SetUp() override {
    ASSERT_TRUE(write_artefact(small_program(), path));
    std::ifstream file(path, std::ios::binary);
    bytes.assign(std::istreambuf_iterator<char>(file), {});
  }
  void TearDown() override { std::filesystem::remove(path); }
  static Result<Program> parse(const std::string& b) {
    return parse_artefact(reinterpret_cast<const std::byte*>(b.data()), b.size(), nullptr);
  }
};

TEST_F(ArtefactTest, RoundTrips) {
  auto program = read_artefact(path);
  ASSERT_TRUE(program) << program.error().message;
  EXPECT_EQ(program->inputs, small_program().inputs);
  EXPECT_EQ(program->objects, small_program().objects);
  EXPECT_EQ(program->manifest, small_program().manifest);
  EXPECT_EQ(program->constants[0].as<float>()[5], 5);
  EXPECT_EQ(program->launches[0].phases[1].symbol, "mirror");
  EXPECT_TRUE(is_artefact(path));
}

TEST_F(ArtefactTest, NumbersThatAreNotWholeAreRefused) {
  const std::string key = "\"threads\":2";
  const std::size_t at = bytes.find(key);
  ASSERT_NE(at, std::string::npos);
  bytes.replace(at, key.size(), "\"t\":1111e43");  // the length stays
  auto program = parse_artefact(reinterpret_cast<const std::byte*>(bytes.data()), bytes.size(),
                                nullptr, Checksums::ignored);
  ASSERT_FALSE(program);
  EXPECT_EQ(program.error().message, "artefact: the manifest is not valid JSON of this format");
}

TEST_F(ArtefactTest, CarriesTheLaunchShapesOfCuda) {
  Program program = small_program();
  program.device = "cuda sm_90a";
  program.launches[0].phases[1].grid = {
      160, 65536, 2, true, true, {{1, DType::bf16, {64, 128}, {256}, {64, 64}, 128}}};
  ASSERT_TRUE(write_artefact(program, path));
  auto read = read_artefact(path);
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(read->device, "cuda sm_90a");
  EXPECT_EQ(read->launches[0].phases[0].grid, Grid{});
  EXPECT_EQ(read->launches[0].phases[1].grid, program.launches[0].phases[1].grid);
  EXPECT_FALSE(Session::create(std::make_shared<Program>(*read), link, nullptr,
                               std::make_shared<ThreadPool>(1)));
}

TEST_F(ArtefactTest, MalformedLaunchShapesAreRefused) {
  const auto refused = [&](const Grid& grid) {
    Program program = small_program();
    program.launches[0].phases[0].grid = grid;
    EXPECT_TRUE(write_artefact(program, path));
    return !read_artefact(path).ok();
  };
  const TensorMap map{1, DType::bf16, {64, 128}, {256}, {64, 64}, 128};
  EXPECT_FALSE(refused({128, 0, 1, false, false, {map}}));
  EXPECT_TRUE(refused({2048, 0, 1, false, false, {}}));
  EXPECT_TRUE(refused({128, -1, 1, false, false, {}}));
  EXPECT_TRUE(refused({128, 0, 0, false, false, {}}));
  TensorMap wrong = map;
  wrong.arg = 4;  // four arguments
  EXPECT_TRUE(refused({128, 0, 1, false, false, {wrong}}));
  wrong = map;
  wrong.box = {64};
  EXPECT_TRUE(refused({128, 0, 1, false, false, {wrong}}));
}

TEST_F(ArtefactTest, EveryTruncationIsRefused) {
  for (std::size_t size = 0; size < bytes.size(); size += 7)
    EXPECT_FALSE(parse(bytes.substr(0, size)).ok()) << size;
}

/// Files, not bytes: what they say, and that little is read of what is no artefact.
TEST_F(ArtefactTest, FilesThatAreNoneAreRefused) {
  const auto error_of = [&] { return read_artefact(path).error().message; };
  for (const std::size_t size : {std::size_t{0}, std::size_t{1}, std::size_t{39}, std::size_t{60},
                                 bytes.size() / 2, bytes.size() - 1}) {
    std::filesystem::resize_file(path, size);
    ASSERT_FALSE(read_artefact(path)) << size;
    EXPECT_TRUE(error_of().starts_with(path + ": ")) << error_of();
    std::ofstream(path, std::ios::binary) << bytes;
  }
  std::filesystem::resize_file(path, std::uintmax_t{1} << 40);  // a hole behind the last section
  EXPECT_TRUE(read_artefact(path));
  std::ofstream(path, std::ios::binary) << "something else";
  std::filesystem::resize_file(path, std::uintmax_t{1} << 40);
  EXPECT_EQ(error_of(), path + ": artefact: the file does not start like one");
  EXPECT_EQ(read_manifest(path).error().message, error_of());
  const std::string folder = testing::TempDir();
  EXPECT_EQ(read_artefact(folder).error().message, folder + ": not a regular file");
}

/// Neighbours begin at different places of their pages.
TEST_F(ArtefactTest, LargeConstantsAreStaggered) {
  Program program = small_program();
  for (int i = 0; i < 4; ++i)
    program.constants.emplace_back(TensorType{DType::f32, {std::int64_t{1024} * (i + 1)}});
  ASSERT_TRUE(write_artefact(program, path));
  const auto read = read_artefact(path);
  ASSERT_TRUE(read) << read.error().message;
  std::set<std::uintptr_t> places;
  for (const Tensor& c : read->constants)
    if (c.bytes() >= 4096) places.insert(reinterpret_cast<std::uintptr_t>(c.data()) % 4096);
  EXPECT_EQ(places.size(), 4U);
}

TEST_F(ArtefactTest, DamageIsRefused) {
  std::mt19937 random(3);
  // Padding between sections is the only place where a flipped bit does no harm.
  for (std::size_t position : {0u, 9u, 20u, 60u, 200u}) {
    std::string damaged = bytes;
    damaged[position] ^= 4;
    EXPECT_FALSE(parse(damaged).ok()) << position;
  }
  std::string damaged = bytes;
  damaged[bytes.size() - 2] ^= 1;
  EXPECT_FALSE(parse(damaged).ok());
}

}  // namespace
}  // namespace heddle::runtime

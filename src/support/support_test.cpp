#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <random>
#include <set>

#include "support/dtype.h"
#include "support/json.h"
#include "support/options.h"
#include "support/tensor.h"
#include "support/tensor_store.h"
#include "support/thread_pool.h"

namespace heddle {
namespace {

TEST(DType, HalfRoundTripsEveryBitPattern) {
  for (int bits = 0; bits < 65536; ++bits) {
    const float value = f16_to_f32(static_cast<std::uint16_t>(bits));
    if (std::isnan(value)) continue;
    EXPECT_EQ(f32_to_f16(value), bits);
  }
}

TEST(DType, HalfRoundsToNearestEven) {
  EXPECT_EQ(f16_to_f32(f32_to_f16(1.0f + 0x1p-11f)), 1.0f);                // tie to even
  EXPECT_EQ(f16_to_f32(f32_to_f16(1.0f + 3 * 0x1p-11f)), 1.0f + 0x1p-9f);  // tie to even, up
  EXPECT_EQ(f16_to_f32(f32_to_f16(65519.0f)), 65504.0f);
  EXPECT_TRUE(std::isinf(f16_to_f32(f32_to_f16(65520.0f))));
  EXPECT_EQ(f16_to_f32(f32_to_f16(0x1p-24f)), 0x1p-24f);
  EXPECT_EQ(f16_to_f32(f32_to_f16(0x1p-26f)), 0.0f);
}

TEST(DType, BrainFloatRoundsToNearestEven) {
  EXPECT_EQ(bf16_to_f32(f32_to_bf16(1.0f + 0x1p-8f)), 1.0f);
  EXPECT_EQ(bf16_to_f32(f32_to_bf16(1.0f + 3 * 0x1p-8f)), 1.0f + 0x1p-6f);
  EXPECT_TRUE(std::isnan(bf16_to_f32(f32_to_bf16(NAN))));
}

TEST(DType, AbsurdSizesAreRefused) {
  EXPECT_EQ(checked_element_count({2, 3}, DType::f32), 6);
  EXPECT_EQ(checked_element_count({1 << 20, 0}, DType::f32), 0);
  EXPECT_FALSE(checked_element_count({std::int64_t{1} << 40, 1 << 30}, DType::f32));
  EXPECT_FALSE(checked_element_count({-1}, DType::f32));
}

/// Neighbours do not begin at one place of a page, be they of whole huge pages.
TEST(Tensor, LargeOnesAreStaggered) {
  constexpr std::int64_t kCount = std::int64_t{1} << 20;
  std::set<std::uintptr_t> places;
  std::vector<Tensor> all;
  for (int i = 0; i < 6; ++i) {
    all.emplace_back(TensorType{DType::f32, {kCount}});
    const auto at = reinterpret_cast<std::uintptr_t>(all.back().data());
    EXPECT_EQ(at % 64, 0U);
    places.insert(at % 4096);
    all.back().set(kCount - 1, i);
  }
  EXPECT_EQ(places.size(), all.size());
  for (int i = 0; i < 6; ++i) EXPECT_EQ(all[static_cast<std::size_t>(i)].at(kCount - 1), i);
}

/// Neighbours in the store are neighbours in memory; small tensors are not moved.
TEST(TensorStore, KeepsOneBehindAnother) {
  TensorStore store;
  std::vector<Tensor> given, kept;
  for (const std::int64_t count : {69'632, 100, 90'000}) {
    given.emplace_back(TensorType{DType::u8, {count}});
    for (std::int64_t i = 0; i < count; ++i) given.back().set_int(i, i % 251);
    kept.push_back(store.keep(given.back()));
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(kept.back().data()) % 64, 0U);
  }
  EXPECT_EQ(kept[1].data(), given[1].data());
  EXPECT_NE(kept[0].data(), given[0].data());
  EXPECT_LT(kept[2].data() - kept[0].data(), 71'000);
  EXPECT_NE((kept[2].data() - kept[0].data()) % 4096, 0);
  store = {};  // what is kept outlives it
  for (std::size_t i = 0; i < kept.size(); ++i)
    EXPECT_TRUE(std::ranges::equal(kept[i].as<std::uint8_t>(), given[i].as<std::uint8_t>()));
}

TEST(Tensor, SaturatesAndTruncates) {
  Tensor t({DType::i8, {3}});
  t.set(0, 300.7);
  t.set(1, -1.9);
  t.set(2, NAN);
  EXPECT_EQ(t.int_at(0), 127);
  EXPECT_EQ(t.int_at(1), -1);
  EXPECT_EQ(t.int_at(2), 0);
}

TEST(Options, TextIsParsedOrRefused) {
  Options options;
  for (const OptionRow& row : option_rows())
    if (row.name == "bisect") {
      EXPECT_TRUE(row.set(options, "12"));
      EXPECT_EQ(options.bisect, 12);
      EXPECT_FALSE(row.set(options, "12x"));
      EXPECT_FALSE(row.set(options, "-2"));
      EXPECT_EQ(options.bisect, 12);
    }
  for (const OptionRow& row : option_rows())
    if (row.name == "cache-limit") {
      EXPECT_TRUE(row.set(options, "0"));
      EXPECT_TRUE(row.set(options, "100"));
      for (const char* bad : {"-1", "9999999999999", "99999999999999999999", "", "10G"}) {
        const Status status = row.set(options, bad);
        ASSERT_FALSE(status) << bad;
        EXPECT_NE(status.error().message.find("want an integer from 0 to"), std::string::npos);
      }
      EXPECT_EQ(options.cache_limit, 100);
    }
  for (const OptionRow& row : option_rows())
    if (row.name == "ring") {
      EXPECT_TRUE(row.set(options, "4096"));
      for (const char* bad : {"", "0", "AUTO", "1k", "99999999999"}) {
        const Status status = row.set(options, bad);
        ASSERT_FALSE(status) << bad;
        EXPECT_NE(status.error().message.find("want auto, off, or bytes"), std::string::npos);
      }
      EXPECT_EQ(options.ring, "4096");
    }
  for (const OptionRow& row : option_rows())
    if (row.name == "accuracy") {
      EXPECT_TRUE(row.set(options, "strict"));
      EXPECT_EQ(options.accuracy, "strict");
      EXPECT_FALSE(row.set(options, "loose"));
    }
  EXPECT_TRUE(lists("prim,plan", "plan"));
  EXPECT_FALSE(lists("prim,plan", "pl"));
}

TEST(ThreadPool, EveryThreadRunsEveryRegion) {
  ThreadPool pool(3);
  std::atomic<int> sum{0};
  for (int region = 0; region < 2000; ++region) pool.run([&](int thread) { sum += thread + 1; });
  EXPECT_EQ(sum, 2000 * 6);
}

TEST(ThreadPool, WakesParkedWorkers) {
  ThreadPool pool(2);
  for (int region = 0; region < 5; ++region) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    std::atomic<int> ran{0};
    pool.run([&](int) { ++ran; });
    EXPECT_EQ(ran, 2);
  }
}

TEST(ThreadPool, RegionsOfSeveralCallersDoNotMix) {
  ThreadPool pool(2);
  std::vector<std::thread> callers;
  std::atomic<int> inside{0}, worst{0};
  for (int c = 0; c < 4; ++c)
    callers.emplace_back([&] {
      for (int i = 0; i < 200; ++i)
        pool.run([&](int) {
          int now = ++inside;
          if (now > worst) worst = now;
          --inside;
        });
    });
  for (std::thread& caller : callers) caller.join();
  EXPECT_LE(worst, 2);
}

TEST(SpinUntil, SeparatesPhases) {
  ThreadPool pool(2);
  std::atomic<int> phase[500] = {};
  bool late = false;
  pool.run([&](int) {
    for (int i = 0; i < 500; ++i) {
      if (i > 0 && phase[i - 1] != 2) late = true;
      ++phase[i];
      spin_until([&] { return phase[i] == 2; });
    }
  });
  EXPECT_FALSE(late);
}

TEST(WholeJson, RefusesWhatNoIntegerHolds) {
  EXPECT_TRUE(parse_whole_json(R"({"a":[1,-2,true,"1.5"]})"));
  EXPECT_FALSE(parse_whole_json(R"({"a":[1e43]})"));
  EXPECT_FALSE(parse_whole_json("[1.5]"));
  EXPECT_FALSE(parse_whole_json("18446744073709551616"));
  EXPECT_FALSE(parse_whole_json("{"));
}

}  // namespace
}  // namespace heddle

#include "runtime/cuda/device.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

namespace heddle::runtime::cuda {
namespace {

/// Tells the stand-in how many devices it has.
void set_devices(int count) {
  void* handle = ::dlopen(STAND_IN_DRIVER, RTLD_NOW);
  ASSERT_NE(handle, nullptr);
  reinterpret_cast<void (*)(int)>(::dlsym(handle, "set_devices"))(count);
}

TEST(CudaDevice, IsDescribedByTheDriver) {
  set_devices(1);
  auto found = devices(STAND_IN_DRIVER);
  ASSERT_TRUE(found) << found.error().message;
  ASSERT_EQ(found->size(), 1u);
  const Device& d = (*found)[0];
  EXPECT_EQ(d.name, "stand-in");
  EXPECT_EQ(d.arch(), "sm_90a");
  EXPECT_EQ(d.multiprocessors, 1016);
  EXPECT_EQ(d.l2_bytes, 1038);
  EXPECT_EQ(d.shared_per_block, 1097);
  EXPECT_EQ(d.memory_bytes, std::int64_t{1} << 33);
  EXPECT_TRUE(d.cooperative);
}

TEST(CudaDevice, ArchitecturesBelowHopperHaveNoSuffix) {
  EXPECT_EQ((Device{.name = "", .major = 8, .minor = 9}).arch(), "sm_89");
}

TEST(CudaDevice, OccupancyFollowsTheScarcestResource) {
  // Figures of NVIDIA's occupancy calculator for compute capability 9.0.
  const Device h200 = *assumed_device("sm_90a");
  const auto check = [&](int threads, int registers, int shared, int blocks, const char* limit) {
    const Occupancy o = occupancy(h200, threads, registers, shared);
    EXPECT_EQ(o.blocks, blocks) << threads << ' ' << registers << ' ' << shared;
    EXPECT_EQ(o.limit, limit) << threads << ' ' << registers << ' ' << shared;
  };
  check(256, 32, 0, 8, "registers");
  check(256, 24, 0, 8, "threads");
  check(256, 128, 0, 2, "registers");
  check(128, 32, 100 << 10, 2, "shared memory");
  check(32, 16, 0, 32, "blocks");
  EXPECT_DOUBLE_EQ(occupancy(h200, 384, 168, 200 << 10).share, 384.0 / 2048);
}

TEST(CudaDevice, DriverErrorsAreNamed) {
  set_devices(2);
  auto found = devices(STAND_IN_DRIVER);
  ASSERT_FALSE(found);
  EXPECT_EQ(found.error().message, "CUDA driver: cuDeviceGet: invalid device ordinal (101)");
  set_devices(0);
  found = devices(STAND_IN_DRIVER);
  ASSERT_FALSE(found);
  EXPECT_EQ(found.error().message, "CUDA driver: found no GPU");
  EXPECT_EQ(found.error().code, ErrorCode::missing);
}

TEST(CudaDevice, AnAbsentDriverIsNamed) {
  auto found = devices("/nonexistent/libcuda.so.1");
  ASSERT_FALSE(found);
  EXPECT_EQ(found.error().code, ErrorCode::missing);
  EXPECT_NE(found.error().message.find("/nonexistent/libcuda.so.1"), std::string::npos);
}

TEST(CudaDevice, ALibraryThatIsNoDriverIsNamed) {
  auto found = devices("libm.so.6");
  ASSERT_FALSE(found);
  EXPECT_NE(found.error().message.find("is not there"), std::string::npos);
}

}  // namespace
}  // namespace heddle::runtime::cuda

#include "plan/calibrate.h"

#include <gtest/gtest.h>

namespace heddle::plan {
namespace {

TEST(Calibrate, FindsAPlausibleMachine) {
  ThreadPool pool(2);
  const MachineModel m = calibrate(pool, 32);
  SCOPED_TRACE(to_string(m));
  EXPECT_GT(m.l2_gbs, 1);
  EXPECT_GT(m.l3_gbs, 0.5);
  EXPECT_GT(m.dram_gbs, 0.5);
  EXPECT_LT(m.dram_gbs, 5000);
  EXPECT_GT(m.peak_gflops, 1);
  EXPECT_LT(m.peak_gflops, 2000);
  EXPECT_GT(m.launch_us, 0);
  EXPECT_EQ(m.threads, 2);
}

/// Instructions for narrow products are there to do more of them; but pairs of bf16 start a quarter
/// as often as multiply-adds on processors that have tile registers for them.
TEST(Calibrate, NarrowProductsHaveRates) {
  ThreadPool pool(1);
  const double wide = calibrate(pool, 64).peak_gflops;
  const NarrowPeaks peaks = narrow_peaks(64, false);
  if (peaks.bf16 > 0) {
    EXPECT_GT(peaks.bf16, 0.35 * wide);
  }
  if (peaks.bytes > 0) {
    EXPECT_GT(peaks.bytes, 1.5 * wide);
  }
  EXPECT_EQ(narrow_peaks(32, false).bytes, 0);
}

/// What is read again and again comes no slower from nearer. Others use the machine: some attempts,
/// of one thread, as two that meet after each little reading wait for a processor.
TEST(Calibrate, ReadsFromWhereItFits) {
  ThreadPool pool(1);
  double near = 0, far = 0;
  for (int attempt = 0; attempt < 10 && near <= far / 2; ++attempt) {
    near = reading_gbs(pool, 256 << 10);
    far = reading_gbs(pool, 256 << 20);
  }
  EXPECT_GT(far, 0.5);
  EXPECT_GT(near, far / 2);
  EXPECT_LT(near, 5000);
}

TEST(Calibrate, NamesTheMachine) {
  EXPECT_NE(machine_name(2, 32), machine_name(4, 32));
  EXPECT_NE(machine_name(2, 32), machine_name(2, 64));
  EXPECT_EQ(machine_name(2, 32), machine_name(2, 32));
}

}  // namespace
}  // namespace heddle::plan

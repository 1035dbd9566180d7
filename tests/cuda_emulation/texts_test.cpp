// Hand-written kernels under the emulation: results in several orders, and no races.
#include "cuda_emulation/gpu_device.h"
#include "cuda_emulation/text_cases.h"

namespace heddle {
namespace {

using emulation::Order;

TEST(TextEmulation, AgreesInAllOrders) {
  const std::unique_ptr<TextDevice> device = text_device({});
  for (const TextCase& c : text_cases())
    for (Order order : {Order::forward, Order::reverse, Order::random})
      EXPECT_EQ(c.run(*device, c.text, c.symbol, order), "") << c.symbol;
}

TEST(TextEmulation, HasNoRaces) {
  EmulatedDevice device({.races = true});
  for (const TextCase& c : text_cases())
    for (Order order : {Order::forward, Order::random})
      EXPECT_EQ(c.run(device, c.text, c.symbol, order), "") << c.symbol;
}

SANITIZED_TEST(TextEmulation) {
  EmulatedDevice device({.undefined = true});
  for (const TextCase& c : text_cases())
    EXPECT_EQ(c.run(device, c.text, c.symbol, Order::forward), "") << c.symbol;
}

/// The checks are there: of addresses, and of what has no defined meaning.
SANITIZED_TEST(Sanitizers) {
  constexpr const char* kText = R"(
extern "C" __global__ void beyond(float* y, int at) { y[at] = 1; }
extern "C" __global__ void far(float* y, int by) { y[0] = 1 << by; }
)";
  const std::string text = "#include \"heddle.cuh\"\n" + std::string(kText);
  EmulatedDevice device({.undefined = true});
  Buffer y = Buffer::zeros<float>(5);
  EXPECT_TRUE(device.run(text, "beyond", {}, {&y, 4}).ok());
  EXPECT_DEATH((void)device.run(text, "beyond", {}, {&y, 5}), "heap-buffer-overflow");
  EXPECT_TRUE(device.run(text, "far", {}, {&y, 3}).ok());
  EXPECT_FALSE(device.run(text, "far", {}, {&y, 40}).ok());
}

}  // namespace
}  // namespace heddle

// Hand-written kernels under the emulation: results in several orders, and no races.
#include "cuda_emulation/text_cases.h"

namespace heddle {
namespace {

using emulation::Order;

TEST(TextEmulation, AgreesInAllOrders) {
  EmulatedDevice device;
  for (const TextCase& c : text_cases())
    for (Order order : {Order::forward, Order::reverse, Order::random})
      EXPECT_EQ(c.run(device, c.text, c.symbol, order), "") << c.symbol;
}

TEST(TextEmulation, HasNoRaces) {
  EmulatedDevice device({.races = true});
  for (const TextCase& c : text_cases())
    for (Order order : {Order::forward, Order::random})
      EXPECT_EQ(c.run(device, c.text, c.symbol, order), "") << c.symbol;
}

}  // namespace
}  // namespace heddle

// Text of primitive graphs and of kernels: an error, or something that prints and reads back.
#include "kernel/kernel.h"
#include "prim/builder.h"
#include "prim/passes.h"
#include "prim/text.h"

using namespace heddle;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (auto g = prim::parse_graph(text)) {
    // Constants of any size are read back from the text alone.
    const prim::PrintOptions embed{.embed = true};
    const prim::Graph live = prim::drop_dead(*g);
    auto again = prim::parse_graph(prim::print(live, embed));
    HEDDLE_CHECK(again && *again == live, "{}", prim::print(live, embed));
    for (const prim::Pass& pass : prim::passes()) {
      const Status status = prim::verify(pass.run(live));
      HEDDLE_CHECK(status, "{}: {}", pass.name, status.error().message);
    }
  }
  if (auto k = kernel::parse_kernel(text); k && kernel::verify(*k)) {
    const std::string once = kernel::to_string(*k);
    auto again = kernel::parse_kernel(once);
    HEDDLE_CHECK(again && kernel::to_string(*again) == once, "{}", once);
    for (const kernel::Kernel& after : {kernel::simplify(*k), kernel::partition_loops(*k)}) {
      const Status status = kernel::verify(after);
      HEDDLE_CHECK(status, "{}", status.error().message);
    }
  }
  return 0;
}

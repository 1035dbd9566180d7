// Attention as one kernel agrees with the primitives, in the kernel interpreter.
#include "lower/gpu/attention_cases.h"
#include "prim/passes.h"

namespace heddle::lower {
namespace {

/// The case's own cluster, which must be all of it.
Request attention_request(const Case& c) {
  Request r = request_of(c);
  if (const auto found = attention::cluster_at(c.g, c.g.outputs[0].node, c.target))
    r.cluster = *found;
  return r;
}

TEST(Attention, AgreesWithThePrimitives) {
  for (const AttentionCase& one : kAttentions)
    for (const int keys : {64, 32}) {
      Case c;
      c.target = gpu_target(132);
      c.tuning = {{"keys", keys}};
      one.build(c);
      ASSERT_TRUE(attention::cluster_at(c.g, c.g.outputs[0].node, c.target)) << one.name;
      const auto lowered = attention::lower(attention_request(c));
      ASSERT_TRUE(lowered.ok()) << one.name << ": " << lowered.error().message;
      EXPECT_EQ(run(c, *lowered), "") << one.name << " " << lowered->schedule;
    }
}

}  // namespace
}  // namespace heddle::lower

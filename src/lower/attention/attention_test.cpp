// Attention as one kernel agrees with the primitives, in the kernel interpreter.
#include "lower/attention/test_cases.h"
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

/// On CPUs, with vectors of all widths, several tasks and blocks of keys, bf16 in pairs; a task for
/// all rows packs its own keys and values, and asks for the next one's.
TEST(Attention, AgreesOnACpu) {
  for (const AttentionCase& one : kAttentions)
    for (const int bytes : {16, 32, 64})
      for (const Tuning& tuning :
           {Tuning{}, Tuning{{"rows", 7}, {"block", 32}, {"mr", 3}}, Tuning{{"rows", 1000}}}) {
        Case c;
        c.target.l2_bytes = 4096;  // scores are many
        c.target.vector_bytes = bytes;
        c.target.vector_registers = bytes == 64 ? 32 : 16;
        c.target.bf16_pairs = bytes == 64;
        c.tuning = tuning;
        one.build(c);
        const auto cluster = attention::cluster_at(c.g, c.g.outputs[0].node, c.target);
        const bool f32 = std::string_view(one.name).ends_with(" f32");
        const bool few = std::string_view(one.name).starts_with("odd ");
        const bool pairs = c.target.bf16_pairs && std::string_view(one.name).ends_with(" bf16");
        ASSERT_EQ(cluster.has_value(), (f32 || pairs) && !few) << one.name;
        if (!cluster) continue;
        const auto lowered = attention::lower(attention_request(c));
        ASSERT_TRUE(lowered.ok()) << one.name << ": " << lowered.error().message;
        const Status sound = kernel::verify(lowered->kernel);
        ASSERT_TRUE(sound.ok()) << sound.error().message;
        EXPECT_EQ(run(c, *lowered), "") << one.name << " " << lowered->schedule;
        const bool causal = std::string_view(one.name).starts_with("causal") ||
                            std::string_view(one.name).starts_with("offset");
        EXPECT_EQ(lowered->schedule.ends_with("causal"), causal) << lowered->schedule;
        EXPECT_EQ(lowered->schedule.find(" bf16") != std::string::npos, !f32);
        const bool alone = tuning.size() == 1;
        EXPECT_EQ(lowered->schedule.find(" task-packed") != std::string::npos, alone)
            << lowered->schedule;
        const bool asks = kernel::to_string(lowered->kernel).find("prefetch") != std::string::npos;
        // Heads lie in lines of all of them, and there is no mask that would be asked for.
        if (std::string_view(one.name) == "packed f32") {
          EXPECT_EQ(asks, alone) << kernel::to_string(lowered->kernel);
        }
      }
}

template <DType type, bool causal>
void near_attention(Case& c) {
  attend(c, type, {1, 4, 150, 150, 16, 32},
         [&](NodeId scores) { return causal ? lower::causal(c, scores, 0) : scores; });
}

/// Where a task's scores of all rows are near, it has all of a batch, unless a mask hides most.
TEST(Attention, ATaskHasAllRowsThatAreNear) {
  const std::tuple<void (*)(Case&), bool> rows[] = {
      {near_attention<DType::f32, false>, true},
      {near_attention<DType::bf16, false>, true},
      {near_attention<DType::f32, true>, false},
  };
  for (const auto& [build, alone] : rows) {
    Case c;
    c.target.l2_bytes = 300 << 10;  // not those of all batches
    c.target.bf16_pairs = true;
    build(c);
    ASSERT_TRUE(attention::cluster_at(c.g, c.g.outputs[0].node, c.target));
    const auto lowered = attention::lower(attention_request(c));
    ASSERT_TRUE(lowered.ok()) << lowered.error().message;
    EXPECT_EQ(lowered->schedule.find(" task-packed") != std::string::npos, alone)
        << lowered->schedule;
    EXPECT_EQ(run(c, *lowered), "") << lowered->schedule;
  }
}

/// Of bf16 in tile registers; columns that are no multiple of 32 have kernels of their own.
TEST(Attention, AgreesInTileRegisters) {
  int checked = 0;
  for (const AttentionCase& one : kAttentions)
    for (const Tuning& tuning : {Tuning{}, Tuning{{"rows", 64}, {"block", 64}}}) {
      Case c;
      c.target.l2_bytes = 256;
      c.target.vector_bytes = 64;
      c.target.vector_registers = 32;
      c.target.tiles = true;
      c.tuning = tuning;
      one.build(c);
      const auto cluster = attention::cluster_at(c.g, c.g.outputs[0].node, c.target);
      if (!std::string_view(one.name).ends_with("bf16") || !cluster) continue;
      const auto lowered = attention::lower(attention_request(c));
      ASSERT_TRUE(lowered.ok()) << one.name << ": " << lowered.error().message;
      const Status sound = kernel::verify(lowered->kernel);
      ASSERT_TRUE(sound.ok()) << one.name << sound.error().message;
      EXPECT_EQ(run(c, *lowered), "") << one.name << " " << lowered->schedule;
      EXPECT_NE(lowered->schedule.find(" bf16"), std::string::npos) << lowered->schedule;
      ++checked;
    }
  EXPECT_GE(checked, 6);
}

}  // namespace
}  // namespace heddle::lower
